//! Connections: how many there are, how long each may keep the server waiting, and which one goes when
//! another comes.

use std::collections::{HashMap, HashSet};
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Sleep, sleep, timeout};

use super::limits::{HALF_CLOSED, HEAD_BYTES, Limits};
use super::memory::{Memory, Pace};

/// How often a client is looked after while its request is in work.
const LOOK: Duration = Duration::from_millis(250);
/// How long, and for how many bytes, a connection is still listened to after its last answer, so that a
/// client that is sending reads the answer before it is cut off.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 1 << 24;
/// How long nothing is accepted after the system had no room for a connection.
const PAUSE: Duration = Duration::from_millis(10);

/// What a connection is about. Where room is needed, the first of these go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The client has not sent a request yet, or not all of its head.
    Head,
    /// .. not all of a body.
    Body,
    /// .. not read all of the answer.
    Answer,
    /// The server has something to do; such a connection is never closed for another one.
    Work,
}

/// A client, as long as its connection lasts.
pub(super) struct Client {
    stream: TcpStream,
    /// What the connection is about, and since when.
    phase: Mutex<(Phase, Instant)>,
    /// Whether its answer holds memory.
    holds: AtomicBool,
}

impl Client {
    fn new(stream: TcpStream) -> Self {
        let phase = Mutex::new((Phase::Head, Instant::now()));
        Self { stream, phase, holds: AtomicBool::new(false) }
    }

    /// Says whether the answer that comes next holds memory until it is read.
    pub(super) fn holds_memory(&self, holds: bool) {
        self.holds.store(holds, Ordering::Relaxed);
    }

    fn phase(&self) -> (Phase, Instant) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = (phase, Instant::now());
    }

    /// Comes back once nobody waits for the answer any more. A connection that is broken says so at once.
    /// From one that the client has closed on its own side nobody can tell whether it is still read, so it
    /// counts as gone after [`HALF_CLOSED`].
    pub(super) async fn gone(&self) {
        let mut closed = None;
        loop {
            sleep(LOOK).await;
            let ready = self.stream.ready(Interest::READABLE | Interest::WRITABLE);
            // What is known already: an answer that is due may be waiting for room.
            match timeout(Duration::ZERO, ready).await {
                Ok(Err(_)) => return,
                Ok(Ok(ready)) if ready.is_write_closed() || ready.is_error() => return,
                Ok(Ok(ready)) if ready.is_read_closed() => {
                    if closed.get_or_insert_with(Instant::now).elapsed() >= HALF_CLOSED {
                        return;
                    }
                }
                Ok(Ok(_)) | Err(_) => {}
            }
        }
    }

    /// Tells the client that no more comes, and reads on for a while.
    async fn linger(&self) {
        let _ = SockRef::from(&self.stream).shutdown(Shutdown::Write);
        let mut left = LINGER_BYTES;
        let mut block = [0; 8192];
        let drain = async {
            while left > 0 && self.stream.readable().await.is_ok() {
                match self.stream.try_read(&mut block) {
                    Ok(0) => return,
                    Ok(read) => left = left.saturating_sub(read),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        };
        let _ = timeout(LINGER, drain).await;
    }
}

/// The stream as HTTP reads and writes it. A client that does not read what it is answered ends the
/// connection: hyper has a limit for heads only.
struct Stream {
    client: Arc<Client>,
    stall: Duration,
    whole: Duration,
    /// What answers hold.
    memory: Memory,
    /// While the client does not take what there is for it.
    blocked: Option<Blocked>,
}

/// A client that does not take all of what there is for it.
struct Blocked {
    since: Instant,
    last: Instant,
    /// Bytes that it took.
    taken: usize,
    pace: Pace,
    look: Pin<Box<Sleep>>,
}

impl Stream {
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let stream = &self.client.stream;
        while stream.poll_write_ready(cx)?.is_ready() {
            match write(stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    if let (Some(blocked), Ok(bytes)) = (&mut self.blocked, &written) {
                        blocked.taken += bytes;
                        blocked.last = Instant::now();
                    }
                    return Poll::Ready(written);
                }
            }
        }
        let tick = Pace::TICK.min(self.stall);
        let blocked = self.blocked.get_or_insert_with(|| Blocked {
            since: Instant::now(),
            last: Instant::now(),
            taken: 0,
            pace: Pace::new(0),
            look: Box::pin(sleep(tick)),
        });
        while blocked.look.as_mut().poll(cx).is_ready() {
            let lags = self.client.holds.load(Ordering::Relaxed)
                && blocked.pace.lags(blocked.taken, &self.memory);
            if lags || blocked.last.elapsed() >= self.stall || blocked.since.elapsed() >= self.whole
            {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            blocked.look.as_mut().reset(tokio::time::Instant::now() + tick);
        }
        Poll::Pending
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.client.stream.poll_read_ready(cx))?;
            match self.client.stream.try_read(to.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(read) => {
                    to.advance(read);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |stream| stream.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// HTTP flushes when it has written all that it had.
    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.blocked = None;
        if self.client.phase().0 == Phase::Answer {
            self.client.enter(Phase::Head);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&self.client.stream).shutdown(Shutdown::Write))
    }
}

/// Serves the routes, whichever they are at the time (`memory` is what answers hold), until `end`; then lets the requests
/// in work finish, while who connects gets `ending`: whoever looks after the server sees that it ends, and is not
/// refused as if it had crashed. False where some connections had to be closed before they were done.
pub(super) async fn serve(
    listener: TcpListener,
    routes: watch::Receiver<Router>,
    ending: Router,
    limits: Limits,
    memory: Memory,
    end: impl Future<Output = ()>,
) -> bool {
    let (ask_to_end, asked_to_end) = watch::channel(());
    let whole = limits.timeout;
    let mut connections = Connections {
        tasks: JoinSet::new(),
        open: HashMap::new(),
        routes,
        limits,
        memory,
        asked_to_end,
    };
    let mut end = pin!(end);
    loop {
        tokio::select! {
            () = &mut end => break,
            Some(ended) = connections.tasks.join_next_with_id() => {
                connections.forget(ended);
            }
            accepted = listener.accept() => connections.begin(accepted).await,
        }
    }
    // Nobody may be there to hear it.
    let _ = ask_to_end.send(());
    let mut awaited: HashSet<Id> = connections.open.keys().copied().collect();
    connections.routes = watch::channel(ending).1;
    // Those that come now are not asked: they end with the server.
    connections.asked_to_end = ask_to_end.subscribe();
    let mut over = pin!(sleep(whole));
    while !awaited.is_empty() {
        tokio::select! {
            () = &mut over => return false,
            Some(ended) = connections.tasks.join_next_with_id() => {
                awaited.remove(&connections.forget(ended));
            }
            accepted = listener.accept() => connections.begin(accepted).await,
        }
    }
    true
}

/// Whether accepting failed because the client is gone already.
fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// All connections, and what the next one is served with.
struct Connections {
    tasks: JoinSet<()>,
    open: HashMap<Id, (AbortHandle, Arc<Client>)>,
    routes: watch::Receiver<Router>,
    limits: Limits,
    memory: Memory,
    asked_to_end: watch::Receiver<()>,
}

impl Connections {
    /// Begins to listen to who has connected.
    async fn begin(&mut self, accepted: io::Result<(TcpStream, SocketAddr)>) {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) if is_the_clients(&error) => return,
            // The process or the system has no room for another one.
            Err(_) => {
                self.close_one();
                sleep(PAUSE).await;
                return;
            }
        };
        if self.open.len() >= self.limits.max_connections {
            self.close_one();
        }
        let _ = stream.set_nodelay(true);
        let client = Arc::new(Client::new(stream));
        let stream = Stream {
            client: client.clone(),
            stall: self.limits.stall_timeout,
            whole: self.limits.timeout,
            memory: self.memory.clone(),
            blocked: None,
        };
        let (routes, asked_to_end) = (self.routes.clone(), self.asked_to_end.clone());
        let task = converse(stream, routes, self.limits.head_timeout, asked_to_end);
        let task = self.tasks.spawn(task);
        self.open.insert(task.id(), (task, client));
    }

    /// Which connection has ended.
    fn forget(&mut self, ended: Result<(Id, ()), JoinError>) -> Id {
        let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
        self.open.remove(&id);
        id
    }

    /// Closes the connection that has waited longest for its client.
    fn close_one(&mut self) {
        let waiting = |(&id, (_, client)): (&Id, &(AbortHandle, Arc<Client>))| {
            let (phase, since) = client.phase();
            (phase != Phase::Work).then_some((phase, since, id))
        };
        let first =
            self.open.iter().filter_map(waiting).min_by_key(|&(phase, since, _)| (phase, since));
        if let Some((task, _)) = first.and_then(|(.., id)| self.open.remove(&id)) {
            task.abort();
        }
    }
}

/// One connection from its beginning to its end. Each request finds the routes that there are by then.
async fn converse(
    stream: Stream,
    routes: watch::Receiver<Router>,
    head_timeout: Duration,
    mut asked_to_end: watch::Receiver<()>,
) {
    let client = stream.client.clone();
    let answer = service_fn(|mut request: hyper::Request<hyper::body::Incoming>| {
        client.enter(Phase::Work);
        request.extensions_mut().insert(client.clone());
        let routes = routes.borrow().clone();
        let answer = TowerToHyperService::new(routes).call(request);
        let client = client.clone();
        async move {
            let answer = answer.await;
            client.enter(Phase::Answer);
            answer
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head_timeout)
            .max_buf_size(HEAD_BYTES)
            .half_close(true)
            .serve_connection(TokioIo::new(stream), answer)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = asked_to_end.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    // Where the end is an error, there is no answer to read.
    if ended.is_ok() {
        client.enter(Phase::Head);
        client.linger().await;
    }
}
