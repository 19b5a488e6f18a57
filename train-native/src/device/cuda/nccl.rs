//! Sums among GPUs by NCCL, NVIDIA's library for it, which is loaded where the machine has it.
//!
//! Why not the sums that Burn offers for CUDA (cubecl-cuda 0.10): they panic where the library is missing, and know the
//! devices of one process alone, as the identifier by which communicators meet never leaves it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::sync::LazyLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use burn::tensor::{DType, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::cuda::CudaRuntime;
use cudarc::driver::{result, sys as driver};
use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};
use kiln_hosts::Ended;
use libloading::Library;

use super::Backend;
use crate::device::{Collective, Joining, Offer};

/// What [`Backend`] fuses.
type Inner = CubeBackend<CudaRuntime, f32, i32, u8>;

/// 2.24, of CUDA 12.8. Before 2.23 a GPU writes into the memory of another of its process, which cubecl's pools do not
/// allow it.
const OLDEST: c_int = 22400;

/// How long NCCL may take to start.
const START: Duration = Duration::from_secs(600);

/// How long the end of a communicator is waited for: other ranks of this host may have to end theirs first.
const END: Duration = Duration::from_secs(3);

/// The functions of the library. cudarc's panic where one is missing, and do not look for `libnccl.so.2`, which is all
/// that packages without a compiler's files have.
struct Functions {
    version: c_int,
    unique_id: unsafe extern "C" fn(*mut ncclUniqueId) -> ncclResult_t,
    init_rank: unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int) -> ncclResult_t,
    all_reduce: AllReduce,
    async_error: unsafe extern "C" fn(ncclComm_t, *mut ncclResult_t) -> ncclResult_t,
    last_error: unsafe extern "C" fn(ncclComm_t) -> *const c_char,
    abort: unsafe extern "C" fn(ncclComm_t) -> ncclResult_t,
    destroy: unsafe extern "C" fn(ncclComm_t) -> ncclResult_t,
    /// Where they are; it is never closed.
    _library: Library,
}

type AllReduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    ncclDataType_t,
    ncclRedOp_t,
    ncclComm_t,
    driver::CUstream,
) -> ncclResult_t;

impl Functions {
    #[expect(unsafe_code, reason = "functions of a C library; with the proof")]
    fn load() -> Result<Self, String> {
        let names = ["libnccl.so.2", "libnccl.so"];
        // SAFETY: NVIDIA's library has initialisers without preconditions.
        let found = names.into_iter().find_map(|name| unsafe { Library::new(name) }.ok());
        let library = found.ok_or(
            "NCCL is not installed: Debian's package libnccl2 has it, and PyPI's nvidia-nccl-cu13, whose folder has to be \
             in LD_LIBRARY_PATH",
        )?;
        /// A function by its name.
        ///
        /// # Safety
        /// `F` has to be its type.
        unsafe fn function<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
            // SAFETY: the caller's.
            let symbol = unsafe { library.get::<F>(name.as_bytes()) };
            symbol
                .map(|symbol| *symbol)
                .map_err(|_| format!("NCCL has no {name}; install a newer one"))
        }
        // SAFETY: the types are those of nccl.h, whose functions have kept theirs since its version 2.
        unsafe {
            let get_version: unsafe extern "C" fn(*mut c_int) -> ncclResult_t =
                function(&library, "ncclGetVersion")?;
            let mut version = 0;
            if get_version(&mut version) != ncclResult_t::ncclSuccess || version < OLDEST {
                return Err(format!(
                    "NCCL is of version {version}, and {OLDEST} is the oldest that serves"
                ));
            }
            Ok(Self {
                version,
                unique_id: function(&library, "ncclGetUniqueId")?,
                init_rank: function(&library, "ncclCommInitRank")?,
                all_reduce: function(&library, "ncclAllReduce")?,
                async_error: function(&library, "ncclCommGetAsyncError")?,
                last_error: function(&library, "ncclGetLastError")?,
                abort: function(&library, "ncclCommAbort")?,
                destroy: function(&library, "ncclCommDestroy")?,
                _library: library,
            })
        }
    }

    /// `ncclCommInitRank`, also where a setting of NCCL's has it return before it is done.
    ///
    /// # Safety
    /// `comm` is written, and the thread has a context.
    #[expect(unsafe_code, reason = "C functions; with the proofs")]
    unsafe fn started(
        &self,
        comm: &mut ncclComm_t,
        world: c_int,
        id: ncclUniqueId,
        rank: c_int,
    ) -> ncclResult_t {
        // SAFETY: the caller's.
        let mut done = unsafe { (self.init_rank)(comm, world, id, rank) };
        while done == ncclResult_t::ncclInProgress {
            std::thread::sleep(Duration::from_millis(1));
            // SAFETY: a communicator that starts may be asked for its state.
            let asked = unsafe { (self.async_error)(*comm, &mut done) };
            if asked != ncclResult_t::ncclSuccess {
                return asked;
            }
        }
        done
    }

    /// How something ended that NCCL was asked for.
    fn ended(&self, what: &str, error: ncclResult_t, comm: ncclComm_t) -> Ended {
        let line = self.words(what, error, comm);
        match error {
            ncclResult_t::ncclRemoteError => Ended::Elsewhere(line),
            _ => Ended::Here(line),
        }
    }

    /// What NCCL says of the last thing that went wrong.
    #[expect(unsafe_code, reason = "a string of a C library; with the proof")]
    fn words(&self, what: &str, error: ncclResult_t, comm: ncclComm_t) -> String {
        // SAFETY: the communicator is a live one or null, and the string, where there is one, ends with a zero and is
        // copied before the next call.
        let words = unsafe {
            let words = (self.last_error)(comm);
            if words.is_null() { "".into() } else { CStr::from_ptr(words).to_string_lossy() }
        };
        let words = words.trim().lines().next_back().unwrap_or_default();
        format!("NCCL cannot {what}: {error:?} {words}").trim_end().into()
    }
}

/// The library, which is loaded once.
fn functions() -> Result<&'static Functions, String> {
    static FUNCTIONS: LazyLock<Result<Functions, String>> = LazyLock::new(Functions::load);
    FUNCTIONS.as_ref().map_err(Clone::clone)
}

/// What a GPU brings to a sum among several.
#[expect(unsafe_code, reason = "a C function; with the proof")]
pub(super) fn offer(device: usize) -> Result<Offer, String> {
    let functions = functions()?;
    let mut bus = [0; 32];
    let found = result::device::get(device as c_int).and_then(|device| {
        // SAFETY: it writes as many letters at most, and a zero.
        unsafe { driver::cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as c_int, device) }
            .result()
    });
    found.map_err(|error| format!("the NVIDIA driver answers {error:?}"))?;
    let bus: String =
        bus.iter().map(|byte| *byte as u8 as char).take_while(|c| *c != '\0').collect();
    // Containers of a host share its boot. Slices of a card share its place on the bus, and NCCL refuses two of them.
    let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let host = host.or_else(sysinfo::System::host_name).unwrap_or_default();
    Ok(Offer { version: functions.version, gpu: format!("{} {bus}", host.trim()) })
}

/// An identifier for communicators to meet by, which rank 0 makes.
#[expect(unsafe_code, reason = "a C function; with the proof")]
pub(super) fn unique_id() -> Result<Vec<u8>, String> {
    let functions = functions()?;
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: it writes the identifier.
    match unsafe { (functions.unique_id)(&mut id) } {
        ncclResult_t::ncclSuccess => Ok(id.internal.iter().map(|byte| *byte as u8).collect()),
        error => Err(functions.words("open a port", error, std::ptr::null_mut())),
    }
}

/// A GPU among others.
pub(super) struct Nccl {
    functions: &'static Functions,
    comm: ncclComm_t,
    stream: driver::CUstream,
    context: driver::CUcontext,
    /// Whether a sum has failed, after which there is no other.
    failed: Cell<bool>,
    /// What a failed sum may still read and write.
    held: RefCell<Option<Box<dyn Any>>>,
}

// SAFETY: NCCL and the driver let any thread use a communicator, a stream or a context, one at a time; `Nccl` is not
// `Sync`, so that this is so.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Send for Nccl {}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nccl").field("comm", &self.comm).finish_non_exhaustive()
    }
}

/// While it lives this thread computes in a context; then again in the one before.
struct Current(Option<driver::CUcontext>);

impl Current {
    #[expect(unsafe_code, reason = "C functions; with the proof")]
    fn set(context: driver::CUcontext) -> Result<Self, Ended> {
        let before =
            result::ctx::get_current().map_err(|error| short("the NVIDIA driver", &error))?;
        // SAFETY: the context is a primary one, which is retained and not given back.
        let set = unsafe { result::ctx::set_current(context) };
        set.map_err(|error| short("the NVIDIA driver", &error))?;
        Ok(Self(before))
    }
}

impl Drop for Current {
    #[expect(unsafe_code, reason = "a C function; with the proof")]
    fn drop(&mut self) {
        // SAFETY: it was the current one, or there was none.
        let _ = unsafe { result::ctx::set_current(self.0.unwrap_or(std::ptr::null_mut())) };
    }
}

/// Pointers that go from one thread to another.
struct Sent<T>(T);

// SAFETY: as for `Nccl`: a communicator is used by one thread alone, and a context may be several threads' own.
#[expect(unsafe_code, reason = "see above")]
unsafe impl<T> Send for Sent<T> {}

impl Nccl {
    /// Meets the other GPUs, which all have to come.
    ///
    /// # Errors
    /// What NCCL says, or that [`Joining::gives_up`] has.
    #[expect(unsafe_code, reason = "C functions; with the proofs")]
    pub(super) fn join(device: usize, joining: &Joining<'_>) -> Result<Self, Ended> {
        let functions = functions().map_err(Ended::Here)?;
        let mut id = ncclUniqueId { internal: [0; 128] };
        if joining.id.len() != id.internal.len() {
            return Err(Ended::Here("the identifier for NCCL is of another length".into()));
        }
        id.internal.iter_mut().zip(joining.id).for_each(|(to, from)| *to = *from as c_char);
        let (rank, world) = (joining.rank as c_int, joining.world as c_int);
        let failed = |error| Ended::Here(format!("the NVIDIA driver answers {error:?}"));
        let found = result::device::get(device as c_int).map_err(failed)?;
        // SAFETY: the device is the driver's own.
        let context = unsafe { result::primary_ctx::retain(found) }.map_err(failed)?;
        let _current = Current::set(context)?;
        let stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed)?;

        // It returns when all have come, and cannot be asked to stop: where one never does, its thread is left behind.
        let (sender, receiver) = channel();
        let sent = Sent(context);
        std::thread::spawn(move || {
            let sent = sent;
            let mut comm: ncclComm_t = std::ptr::null_mut();
            // SAFETY: the context is a live one, and `comm` is written where there is success.
            let done = unsafe {
                match result::ctx::set_current(sent.0) {
                    Ok(()) => functions.started(&mut comm, world, id, rank),
                    Err(_) => ncclResult_t::ncclUnhandledCudaError,
                }
            };
            let done = match done {
                ncclResult_t::ncclSuccess => Ok(Sent(comm)),
                error => Err(functions.ended("start", error, std::ptr::null_mut())),
            };
            // Nobody may wait for it any more.
            let _ = sender.send(done);
        });
        let begun = Instant::now();
        let comm = loop {
            match receiver.recv_timeout(Duration::from_millis(20)) {
                Ok(done) => break done?.0,
                Err(_) if begun.elapsed() > START => {
                    let minutes = START.as_secs() / 60;
                    return Err(Ended::Here(format!("NCCL has not started for {minutes} minutes")));
                }
                Err(RecvTimeoutError::Timeout) if !(joining.gives_up)() => {}
                Err(_) => return Err(Ended::Elsewhere("NCCL does not start".into())),
            }
        };
        let (failed, held) = (Cell::new(false), RefCell::new(None));
        Ok(Self { functions, comm, stream, context, failed, held })
    }

    /// Waits until the stream has done all that it was given.
    #[expect(unsafe_code, reason = "C functions; with the proofs")]
    fn wait(&self, gives_up: &dyn Fn() -> bool) -> Result<(), Ended> {
        let begun = Instant::now();
        loop {
            // SAFETY: the stream and the communicator are live ones.
            let (done, state, error) = unsafe {
                let mut state = ncclResult_t::ncclSuccess;
                let done = driver::cuStreamQuery(self.stream);
                (done, (self.functions.async_error)(self.comm, &mut state), state)
            };
            let fine = [ncclResult_t::ncclSuccess, ncclResult_t::ncclInProgress];
            if let Some(error) = [state, error].into_iter().find(|one| !fine.contains(one)) {
                // Old versions have the same words for a rank that is gone.
                return Err(Ended::Elsewhere(self.functions.words("go on", error, self.comm)));
            }
            match done {
                driver::CUresult::CUDA_SUCCESS if state == ncclResult_t::ncclSuccess => {
                    return Ok(());
                }
                driver::CUresult::CUDA_SUCCESS | driver::CUresult::CUDA_ERROR_NOT_READY => {}
                error => {
                    return Err(Ended::Here(format!(
                        "the NVIDIA driver answers {error:?} to a sum"
                    )));
                }
            }
            if gives_up() {
                return Err(Ended::Elsewhere("another device is lost".into()));
            }
            // A sum takes tens of microseconds to tens of milliseconds.
            if begun.elapsed() < Duration::from_micros(500) {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

impl Collective<Backend> for Nccl {
    #[expect(unsafe_code, reason = "C functions; with the proofs")]
    fn all_reduce(
        &self,
        values: Tensor<Backend, 1>,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<Tensor<Backend, 1>, Ended> {
        if self.failed.get() {
            return Err(Ended::Here("NCCL has been stopped".into()));
        }
        let (device, [count], dtype) = (values.device(), values.dims(), values.dtype());
        let kind = match dtype {
            DType::F32 => ncclDataType_t::ncclFloat32,
            DType::BF16 => ncclDataType_t::ncclBfloat16,
            other => return Err(Ended::Here(format!("NCCL sums no {other:?}"))),
        };
        let sums = Tensor::<Backend, 1>::zeros([count], (&device, dtype));
        let from = into_contiguous(resolved(values));
        let to = resolved(sums.clone());
        let pointer = |tensor: &CubeTensor<CudaRuntime>| {
            let resource = tensor.client.get_resource(tensor.handle.clone());
            let resource = resource.map_err(|error| short("the GPU's memory", &error))?;
            let bytes = (count * dtype.size()) as u64;
            match tensor.dtype == dtype && resource.resource().size >= bytes {
                true => Ok(resource),
                false => {
                    Err(Ended::Here("the GPU's memory holds other values than it should".into()))
                }
            }
        };
        let (source, target) = (pointer(&from)?, pointer(&to)?);
        // What computes the values, and the zeros that the sums replace, has to be done.
        let synced = cubecl::future::block_on(from.client.sync());
        synced.map_err(|error| short("the GPU", &error))?;
        let _current = Current::set(self.context)?;
        // SAFETY: both pointers are to `count` values of this kind in memory of this context's device, which `source`
        // and `target` keep: until the stream is done with them (`wait`), or, where it may never be, until `drop` has
        // seen that it is.
        let begun = unsafe {
            (self.functions.all_reduce)(
                source.resource().ptr as *const c_void,
                target.resource().ptr as *mut c_void,
                count,
                kind,
                ncclRedOp_t::ncclSum,
                self.comm,
                self.stream,
            )
        };
        let done = match begun {
            ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => self.wait(gives_up),
            error => Err(self.functions.ended("sum", error, self.comm)),
        };
        if let Err(ended) = done {
            // The others hear of it first: what aborts a communicator may wait for them.
            self.failed.set(true);
            *self.held.borrow_mut() = Some(Box::new((source, target, from, to, sums)));
            return Err(ended);
        }
        Ok(sums)
    }
}

/// The beginning of an error, which may hold a kernel's source.
fn short(what: &str, error: &impl fmt::Debug) -> Ended {
    let error: String = format!("{error:?}").chars().take(200).collect();
    Ended::Here(format!("{what}: {error}"))
}

/// The tensor behind one that is fused, once all is computed that it waits for.
fn resolved(values: Tensor<Backend, 1>) -> CubeTensor<CudaRuntime> {
    let values = values.into_primitive().tensor();
    values.client.clone().resolve_tensor_float::<Inner>(values)
}

impl Drop for Nccl {
    #[expect(unsafe_code, reason = "C functions; with the proofs")]
    fn drop(&mut self) {
        // Both may wait for the other ranks of this host, which may wait for what this one has to say.
        let aborts = self.failed.get() || std::thread::panicking();
        let (functions, sent) = (self.functions, Sent((self.comm, self.context)));
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let sent = sent;
            let (comm, context) = sent.0;
            // SAFETY: the context is a live one, and the communicator too, which nobody uses any more.
            unsafe {
                let _ = result::ctx::set_current(context);
                if aborts {
                    (functions.abort)(comm)
                } else {
                    (functions.destroy)(comm)
                };
            }
            // Nobody may wait for it any more.
            let _ = sender.send(());
        });
        let patience = if std::thread::panicking() { Duration::ZERO } else { END };
        let ended = receiver.recv_timeout(patience).is_ok();
        // SAFETY: the stream is a live one, which is destroyed where nothing runs on it.
        let ended = ended
            && unsafe {
                let done = driver::cuStreamQuery(self.stream) == driver::CUresult::CUDA_SUCCESS;
                done && result::stream::destroy(self.stream).is_ok()
            };
        if !ended {
            // It may still be written, and is not given to anybody else.
            std::mem::forget(self.held.take());
        }
    }
}
