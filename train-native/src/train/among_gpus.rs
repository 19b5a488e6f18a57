//! GPUs that sum among themselves, where all of a run's can ([`Collective`]); the rest of what they tell one another goes
//! the way that they met by.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, anyhow, bail};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, Tensor};
use kiln_hosts::Ended;
use serde::{Deserialize, Serialize};

use super::transport::{Outside, Transport};
use crate::device::{Collective, Joining, Offer, cuda};
use crate::recipe::GradientFormat;
use crate::terminal::Terminal;

/// Values of a gather that a sum of the GPUs is quicker for.
const MANY: usize = 1 << 16;

/// The variable that keeps GPUs from it.
const SETTING: &str = "KILN_NCCL";

/// What a device says of itself: no GPU that could, or what it brings, or why it does not.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Said {
    NoGpu,
    Brings(Offer),
    Cannot(String),
}

/// The way that devices met by, or one over which their GPUs sum by themselves. All devices come here.
///
/// # Errors
/// A device that is lost, or GPUs that can and yet do not meet.
pub(super) fn among_gpus<B: Backend>(
    by: impl Transport<B> + 'static,
    device: &B::Device,
    format: GradientFormat,
    terminal: Terminal,
) -> Result<Box<dyn Transport<B>>> {
    if by.world() == 1 {
        return Ok(Box::new(by));
    }
    let said = match cuda::offer::<B>(device) {
        None => Said::NoGpu,
        Some(_) if std::env::var(SETTING).is_ok_and(|value| value == "off") => {
            Said::Cannot(format!("{SETTING} is off"))
        }
        Some(Ok(offer)) => Said::Brings(offer),
        Some(Err(why)) => Said::Cannot(why),
    };
    let all = by.all_gather_bytes(serde_json::to_vec(&said)?)?;
    let all = all.iter().map(|bytes| serde_json::from_slice(bytes));
    let all = all.collect::<Result<Vec<Said>, _>>().context("the devices lost one another")?;
    if let Some(obstacle) = obstacle(&all, |rank| by.name(rank)) {
        if !obstacle.is_empty() {
            terminal.note(format!("gradients pass through the hosts' memory: {obstacle}"));
        }
        return Ok(Box::new(by));
    }
    let own =
        if by.rank() == 0 { cuda::meeting().map_err(|error| anyhow!(error))? } else { Vec::new() };
    let id = by.broadcast(own)?;
    let mut joined = None;
    // It takes seconds, or minutes among many.
    by.outside(true, &mut |gives_up| {
        let joining = Joining { id: &id, rank: by.rank(), world: by.world(), gives_up };
        let collective = cuda::collective::<B>(device, &joining);
        joined = Some(collective.map_err(|ended| match ended {
            Ended::Here(line) => Ended::Here(format!(
                "{line}; {SETTING}=off has gradients pass through the hosts' memory"
            )),
            elsewhere => elsewhere,
        })?);
        Ok(())
    })?;
    let collective = joined.context("the GPUs have not met")?;
    terminal.note(format!("gradients are summed by NCCL among {} GPUs", by.world()));
    Ok(Box::new(AmongGpus { by, collective, format }))
}

/// Why the GPUs cannot sum by themselves, in words where somebody may have expected that they do.
fn obstacle(all: &[Said], name: impl Fn(usize) -> String) -> Option<String> {
    if all.iter().all(|said| *said == Said::NoGpu) {
        return Some(String::new());
    }
    let mut offers: Vec<&Offer> = Vec::new();
    for (rank, said) in all.iter().enumerate() {
        let offer = match said {
            Said::Brings(offer) => offer,
            Said::NoGpu => return Some(format!("{} has no CUDA device", name(rank))),
            Said::Cannot(why) => return Some(format!("{}: {why}", name(rank))),
        };
        if let Some(other) = offers.iter().position(|other| other.gpu == offer.gpu) {
            return Some(format!("{} and {} compute on the same GPU", name(other), name(rank)));
        }
        if let Some(first) = offers.first()
            && first.version != offer.version
        {
            let (ours, theirs) = (first.version, offer.version);
            let (first, other) = (name(0), name(rank));
            return Some(format!("{first} has version {ours} of NCCL, and {other} {theirs}"));
        }
        offers.push(offer);
    }
    None
}

/// Devices that met in one way, and whose GPUs sum in theirs.
#[derive(Debug)]
struct AmongGpus<B: Backend, T> {
    by: T,
    collective: Box<dyn Collective<B>>,
    format: GradientFormat,
}

impl<B: Backend, T: Transport<B>> AmongGpus<B, T> {
    fn sum(&self, values: Tensor<B, 1>) -> Result<Tensor<B, 1>> {
        // What is summed is computed first, however long that takes: while the GPUs sum, data have to flow.
        let computed = B::sync(&values.device());
        computed.map_err(|error| anyhow!("the device: {error:?}"))?;
        let mut sums = None;
        self.by.outside(false, &mut |gives_up| {
            sums = Some(self.collective.all_reduce(values.clone(), gives_up)?);
            Ok(())
        })?;
        sums.context("the GPUs have not summed")
    }
}

impl<B: Backend, T: Transport<B>> Transport<B> for AmongGpus<B, T> {
    fn rank(&self) -> usize {
        self.by.rank()
    }

    fn world(&self) -> usize {
        self.by.world()
    }

    fn all_reduce(&self, values: Tensor<B, 1>) -> Result<Tensor<B, 1>> {
        match (self.format, values.dtype()) {
            (GradientFormat::Bf16, DType::F32) => {
                Ok(self.sum(values.cast(FloatDType::BF16))?.cast(FloatDType::F32))
            }
            _ => self.sum(values),
        }
    }

    fn all_gather(
        &self,
        own: Option<Tensor<B, 2>>,
        rows: &[usize],
        width: usize,
        device: &B::Device,
    ) -> Result<Tensor<B, 2>> {
        let all: usize = rows.iter().sum();
        if all * width < MANY {
            return self.by.all_gather(own, rows, width, device);
        }
        let held = own.as_ref().map_or(0, |own| own.dims()[0]);
        if rows[self.rank()] != held {
            bail!("{held} rows where {} were to come", rows[self.rank()]);
        }
        // What changes no value where the others have theirs: 0 would make -0 a 0.
        let before: usize = rows[..self.rank()].iter().sum();
        let zeros = |rows: usize| Tensor::<B, 2>::full([rows, width], -0.0, (device, DType::F32));
        let parts = [Some(zeros(before)), own, Some(zeros(all - before - held))];
        let parts = parts.into_iter().flatten().filter(|part| part.dims()[0] > 0);
        let sums = self.sum(Tensor::cat(parts.collect(), 0).reshape([all * width]))?;
        Ok(sums.reshape([all, width]))
    }

    fn all_gather_bytes(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        self.by.all_gather_bytes(own)
    }

    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        self.by.broadcast(bytes)
    }

    fn outside(&self, at_leisure: bool, run: &mut Outside<'_>) -> Result<()> {
        self.by.outside(at_leisure, run)
    }

    fn barrier(&self) -> Result<()> {
        self.by.barrier()
    }

    fn busy(&self) -> Box<dyn Any> {
        self.by.busy()
    }

    fn ends(&self) -> Option<Arc<AtomicBool>> {
        self.by.ends()
    }

    fn name(&self, rank: usize) -> String {
        self.by.name(rank)
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;

    use super::super::in_process;
    use super::*;

    /// Sums over devices of one process, and counts.
    #[derive(Debug)]
    struct Summing(in_process::InProcess<Flex>);

    impl Collective<Flex> for Summing {
        fn all_reduce(
            &self,
            values: Tensor<Flex, 1>,
            gives_up: &dyn Fn() -> bool,
        ) -> Result<Tensor<Flex, 1>, Ended> {
            if gives_up() {
                return Err(Ended::Elsewhere("given up".into()));
            }
            self.0.all_reduce(values).map_err(|error| Ended::Elsewhere(error.to_string()))
        }
    }

    fn each<T: Send>(
        format: GradientFormat,
        run: impl Fn(AmongGpus<Flex, in_process::InProcess<Flex>>) -> T + Sync,
    ) -> Vec<T> {
        std::thread::scope(|scope| {
            let ways = in_process::devices(3).into_iter().zip(in_process::devices(3));
            let threads: Vec<_> = ways
                .map(|(by, sums)| {
                    let collective = Box::new(Summing(sums));
                    let run = &run;
                    scope.spawn(move || run(AmongGpus { by, collective, format }))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn gpus_sum_and_gather() {
        for format in [GradientFormat::F32, GradientFormat::Bf16] {
            let done = each(format, |one| {
                let device = Default::default();
                let own = Tensor::<Flex, 1>::from_data([0.1 + one.rank() as f32, 1.0], &device);
                let sums = one.all_reduce(own).unwrap();
                assert_eq!(sums.dtype(), DType::F32);
                // Device 1 has no row, and device 2 the most.
                let rows = [2, 0, MANY];
                let own = (rows[one.rank()] > 0)
                    .then(|| Tensor::full([rows[one.rank()], 2], one.rank() as f32 + 0.1, &device));
                let all = one.all_gather(own, &rows, 2, &device).unwrap();
                assert_eq!(all.dims(), [MANY + 2, 2]);
                let all = all.into_data().to_vec::<f32>().unwrap();
                assert!(all[..4].iter().all(|value| *value == 0.1));
                assert!(all[4..].iter().all(|value| *value == 2.1));
                let own = (one.rank() == 0).then(|| Tensor::full([MANY, 1], -0.0, &device));
                let all = one.all_gather(own, &[MANY, 0, 0], 1, &device).unwrap();
                let all = all.into_data().to_vec::<f32>().unwrap();
                assert!(all.iter().all(|value| value.to_bits() == (-0.0f32).to_bits()));
                sums.into_data().to_vec::<f32>().unwrap()
            });
            let far = if format == GradientFormat::F32 { 1e-6 } else { 0.02 };
            assert!(done.iter().all(|sums| *sums == done[0]));
            assert!((done[0][0] - 3.3).abs() < far && done[0][1] == 3.0, "{done:?}");
            assert_eq!(done[0][0] == 3.3, format == GradientFormat::F32);
        }
    }

    #[test]
    fn a_device_that_stops_is_named() {
        let said = each(GradientFormat::F32, |one| {
            let values = || Tensor::<Flex, 1>::ones([2], &Default::default());
            (one.rank() != 1).then(|| {
                loop {
                    if let Err(error) = one.all_reduce(values()) {
                        return error.to_string();
                    }
                }
            })
        });
        for said in said.into_iter().flatten() {
            assert_eq!(said, "device 1 stopped before the others");
        }
    }

    #[test]
    fn what_is_in_the_way_is_said() {
        let brings = |version, gpu: &str| Said::Brings(Offer { version, gpu: gpu.into() });
        let said = |all: &[Said]| obstacle(all, |rank| format!("rank {rank}"));
        assert_eq!(said(&[brings(22803, "a"), brings(22803, "b")]), None);
        assert_eq!(said(&[Said::NoGpu, Said::NoGpu]), Some(String::new()));
        for (other, expected) in [
            (brings(22803, "a"), "rank 0 and rank 1 compute on the same GPU"),
            (brings(22900, "b"), "rank 0 has version 22803 of NCCL, and rank 1 22900"),
            (Said::NoGpu, "rank 1 has no CUDA device"),
            (Said::Cannot("KILN_NCCL is off".into()), "rank 1: KILN_NCCL is off"),
        ] {
            assert_eq!(said(&[brings(22803, "a"), other]).as_deref(), Some(expected));
        }
    }
}
