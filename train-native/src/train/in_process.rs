//! Devices of one process, each in a thread of its own: they meet in memory, through which what one of them computed
//! goes to another.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow, bail};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use kiln_hosts::Ended;

use super::device_group::moved;
use super::transport::{Outside, Transport};

/// Values that every device sums by itself rather than in two meetings.
const FEW: usize = 1 << 12;

/// What a device brings to a meeting.
#[derive(Debug, Clone)]
enum Brought<B: Backend> {
    Values(Option<Tensor<B, 1>>),
    Bytes(Vec<u8>),
}

/// A meeting of all devices, which is the same again and again.
#[derive(Debug)]
struct Meeting<B: Backend> {
    state: Mutex<State<B>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<B: Backend> {
    brought: Vec<Option<Brought<B>>>,
    /// How many have taken what all brought; `None` until all have come.
    taken: Option<usize>,
    /// A device that comes no more.
    gone: Option<usize>,
}

/// A device of a process.
#[derive(Debug)]
pub(super) struct InProcess<B: Backend> {
    rank: usize,
    world: usize,
    meeting: Arc<Meeting<B>>,
}

/// So many devices that know one another.
pub(super) fn devices<B: Backend>(world: usize) -> Vec<InProcess<B>> {
    let brought = (0..world).map(|_| None).collect();
    let state = Mutex::new(State { brought, taken: None, gone: None });
    let meeting = Arc::new(Meeting { state, changed: Condvar::new() });
    (0..world).map(|rank| InProcess { rank, world, meeting: meeting.clone() }).collect()
}

impl<B: Backend> InProcess<B> {
    fn state(&self) -> MutexGuard<'_, State<B>> {
        self.meeting.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<B>>) -> MutexGuard<'a, State<B>> {
        self.meeting.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// What all devices brought, by rank.
    fn meet(&self, own: Brought<B>) -> Result<Vec<Brought<B>>> {
        let mut state = self.state();
        while state.taken.is_some() {
            // Others still take what was brought to the last meeting.
            state = self.wait(state);
        }
        state.brought[self.rank] = Some(own);
        if state.brought.iter().all(Option::is_some) {
            state.taken = Some(0);
            self.meeting.changed.notify_all();
        }
        while state.taken.is_none() {
            if let Some(gone) = state.gone {
                return Err(Stopped(gone).into());
            }
            state = self.wait(state);
        }
        let all = state.brought.iter().flatten().cloned().collect();
        let taken = state.taken.map_or(1, |taken| taken + 1);
        state.taken = (taken < self.world).then_some(taken);
        if state.taken.is_none() {
            state.brought.iter_mut().for_each(|brought| *brought = None);
            self.meeting.changed.notify_all();
        }
        Ok(all)
    }

    /// The values of all devices, on one of them; those that have none are left out.
    fn values(&self, own: Option<Tensor<B, 1>>, device: &B::Device) -> Result<Vec<Tensor<B, 1>>> {
        let all = self.meet(Brought::Values(own))?;
        all.into_iter()
            .filter_map(|brought| match brought {
                Brought::Values(values) => values.map(|values| Ok(moved(values, device))),
                Brought::Bytes(_) => Some(Err(anyhow::anyhow!("the devices lost one another"))),
            })
            .collect()
    }
}

/// What the others say when a device has ended early, which knows why.
#[derive(Debug, thiserror::Error)]
#[error("device {0} stopped before the others")]
pub(super) struct Stopped(usize);

impl<B: Backend> Transport<B> for InProcess<B> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn all_reduce(&self, values: Tensor<B, 1>) -> Result<Tensor<B, 1>> {
        let (device, [count]) = (values.device(), values.dims());
        let in_order = |parts: Vec<Tensor<B, 1>>| {
            let sum = parts.into_iter().reduce(|sum, part| sum + part);
            sum.unwrap_or_else(|| Tensor::zeros([0], &device))
        };
        if count < self.world * FEW {
            return Ok(in_order(self.values(Some(values), &device)?));
        }
        // Each device sums a part, and all take it from there: the same bits, whatever the devices.
        let bound = |rank: usize| count * rank / self.world;
        let (from, to) = (bound(self.rank), bound(self.rank + 1));
        let all = self.meet(Brought::Values(Some(values)))?;
        let parts = all.into_iter().filter_map(|brought| match brought {
            Brought::Values(values) => values,
            Brought::Bytes(_) => None,
        });
        let parts = parts.map(|values| moved(values.narrow(0, from, to - from), &device));
        let sum = in_order(parts.collect());
        Ok(Tensor::cat(self.values(Some(sum), &device)?, 0))
    }

    fn all_gather(
        &self,
        own: Option<Tensor<B, 2>>,
        rows: &[usize],
        width: usize,
        device: &B::Device,
    ) -> Result<Tensor<B, 2>> {
        let flat = own.map(|own| own.reshape([-1]));
        let all = Tensor::cat(self.values(flat, device)?, 0);
        Ok(all.reshape([rows.iter().sum::<usize>(), width]))
    }

    fn all_gather_bytes(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let all = self.meet(Brought::Bytes(own))?;
        all.into_iter()
            .map(|brought| match brought {
                Brought::Bytes(bytes) => Ok(bytes),
                Brought::Values(_) => bail!("the devices lost one another"),
            })
            .collect()
    }

    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let all = self.all_gather_bytes(bytes)?;
        Ok(all.into_iter().next().unwrap_or_default())
    }

    fn outside(&self, _: bool, run: &mut Outside<'_>) -> Result<()> {
        let done = run(&|| self.state().gone.is_some());
        done.map_err(|ended| match (ended, self.state().gone) {
            (Ended::Elsewhere(_), Some(gone)) => Stopped(gone).into(),
            (Ended::Here(line) | Ended::Elsewhere(line), _) => {
                anyhow!("device {}: {line}", self.rank)
            }
        })
    }
}

impl<B: Backend> Drop for InProcess<B> {
    fn drop(&mut self) {
        let mut state = self.state();
        state.gone = state.gone.or(Some(self.rank));
        drop(state);
        self.meeting.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;

    use super::*;

    /// What each of three devices gets.
    fn each<T: Send>(run: impl Fn(InProcess<Flex>) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let devices = devices::<Flex>(3).into_iter();
            let threads: Vec<_> = devices.map(|one| scope.spawn(|| run(one))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn devices_sum_gather_and_exchange() {
        let done = each(|one| {
            let device = Default::default();
            let mut sums = Vec::new();
            for count in [1, 5, 3 * FEW + 7] {
                let own: Vec<f32> =
                    (0..count).map(|i| 0.1 * i as f32 + one.rank() as f32).collect();
                let own = Tensor::<Flex, 1>::from_data(&own[..], &device);
                let sum = one.all_reduce(own).unwrap().into_data().to_vec::<f32>().unwrap();
                for (i, sum) in sum.iter().enumerate() {
                    assert!((sum - (0.3 * i as f32 + 3.0)).abs() < 1e-5 * (i as f32 + 3.0));
                }
                sums.push(sum);
            }
            // Device 1 has no row.
            let rows = [2, 0, 1];
            let own = (rows[one.rank()] > 0)
                .then(|| Tensor::full([rows[one.rank()], 2], one.rank() as f32, &device));
            let all = one.all_gather(own, &rows, 2, &device).unwrap();
            assert_eq!(all.dims(), [3, 2]);
            let all = all.into_data().to_vec::<f32>().unwrap();
            assert_eq!(all, [0.0, 0.0, 0.0, 0.0, 2.0, 2.0]);
            let all = one.all_gather_bytes(vec![one.rank() as u8; one.rank()]).unwrap();
            assert_eq!(all, [vec![], vec![1], vec![2, 2]]);
            assert_eq!(one.broadcast(vec![7 + one.rank() as u8]).unwrap(), [7]);
            one.barrier().unwrap();
            sums
        });
        assert!(done.iter().all(|sums| *sums == done[0]), "all devices have the same bits");
    }

    #[test]
    fn a_device_that_stops_is_named() {
        for said in each(|one| {
            if one.rank() == 1 {
                return None;
            }
            Some(one.barrier().and_then(|()| one.barrier()).unwrap_err().to_string())
        })
        .into_iter()
        .flatten()
        {
            assert_eq!(said, "device 1 stopped before the others");
        }
    }
}
