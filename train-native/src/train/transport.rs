//! How devices that train together reach one another: within one process ([`super::in_process`]) or from process to
//! process, on one host or many ([`super::hosts`]).

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use kiln_hosts::Ended;

/// See [`Transport::outside`]; it is given what to ask whether to give up.
pub(super) type Outside<'a> = dyn FnMut(&dyn Fn() -> bool) -> Result<(), Ended> + 'a;

/// One device's way to all others. All devices call the same functions in the same order; each error is that
/// another device is gone.
pub(super) trait Transport<B: Backend>: Debug + Send {
    /// The device's number, from 0.
    fn rank(&self) -> usize;

    /// How many devices there are.
    fn world(&self) -> usize;

    /// The sums of values `[n]` over all devices, the same bits on each.
    fn all_reduce(&self, values: Tensor<B, 1>) -> Result<Tensor<B, 1>>;

    /// The rows `[rows, width]` of all devices, one device's after the other's; all know how many each has.
    fn all_gather(
        &self,
        own: Option<Tensor<B, 2>>,
        rows: &[usize],
        width: usize,
        device: &B::Device,
    ) -> Result<Tensor<B, 2>>;

    /// The bytes of each device.
    fn all_gather_bytes(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>>;

    /// The bytes of device 0.
    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>>;

    /// Returns once all devices have called it.
    fn barrier(&self) -> Result<()> {
        self.all_gather_bytes(Vec::new()).map(drop)
    }

    /// While what is returned lives the others wait for this device: within one process however long, and for another as
    /// long as `KILN_BUSY_TIMEOUT` says.
    fn busy(&self) -> Box<dyn Any> {
        Box::new(())
    }

    /// True once a device is lost, which the next operation says.
    fn ends(&self) -> Option<Arc<AtomicBool>> {
        None
    }

    /// Runs what all devices do together by another way than this one, which `run` gives up where it is told that a
    /// device is lost; see [`kiln_hosts::Ring::outside`].
    ///
    /// # Errors
    /// A device that is lost, else what `run` says.
    fn outside(&self, at_leisure: bool, run: &mut Outside<'_>) -> Result<()>;

    /// What a device is called.
    fn name(&self, rank: usize) -> String {
        format!("device {rank}")
    }
}
