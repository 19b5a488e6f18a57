//! How long the products of one wide layer take on a CUDA GPU, computed as `kiln` computes them: a line of JSON for each kind
//! of weights and number of rows. `tests/gpu/run.py` runs it.
//!
//! ```text
//! products [INPUTS OUTPUTS ROWS ..]      4096 14336 1 8 64 512 4096 unless said otherwise
//! ```
//!
//! `us` is a product's share of many that are waited for together, in microseconds, and `alone_us` that of one that is waited
//! for by itself; both are medians. `bytes` are those of weights, inputs and outputs, which have to be moved at least.

use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};
use burn::module::Param;
use burn::nn::Initializer;
use burn::tensor::backend::Backend as _;
use burn::tensor::{FloatDType, Tensor, TensorData};
use kiln_embed::model::{Linear, PackedWeight};
use kiln_embed::quant::{Quantized, Scheme};
use serde_json::json;
use train_native::device::{Device, DeviceChoice, cuda, open};

type B = cuda::Backend;

/// A product by the weights of a number.
type Product = Box<dyn Fn(usize, Tensor<B, 2>) -> Tensor<B, 2>>;

/// Rows that are usual.
const ROWS: &[usize] = &[1, 8, 64, 512, 4096];

/// Bytes of weights that are multiplied with in turn, or at most `COPIES`: a card's cache holds a layer's in int4, and a model
/// has more layers than one.
const IN_TURN: usize = 256 << 20;
const COPIES: usize = 8;

/// Runs of which the middle one counts, and how long one is about, in seconds.
const RUNS: usize = 7;
const RUN: f64 = 0.02;

/// Bytes of outputs that one run holds.
const HELD: usize = 2 << 30;

fn main() -> Result<()> {
    let number = |text: String| {
        let number = text.parse::<usize>().ok().filter(|number| *number > 0);
        number.with_context(|| format!("{text:?} is no number of inputs, outputs or rows"))
    };
    let numbers: Vec<usize> = std::env::args().skip(1).map(number).collect::<Result<_>>()?;
    let (inputs, outputs, all_rows) = match numbers.as_slice() {
        [] => (4096, 14336, ROWS),
        [inputs, outputs, rows @ ..] if !rows.is_empty() => (*inputs, *outputs, rows),
        _ => bail!("usage: products [INPUTS OUTPUTS ROWS ..]"),
    };
    let Device::Cuda(handle) = open(DeviceChoice::Cuda(0))? else {
        bail!("this is for CUDA devices");
    };
    let device = cuda::burn_device(handle);
    for weights in ["int8", "int4", "bf16", "f32"] {
        let (product, size) = layers(weights, inputs, outputs, &device)?;
        for &rows in all_rows {
            let data = TensorData::new(numbers_of(rows * inputs), [rows, inputs]);
            let x = Tensor::<B, 2>::from_data(data, &device);
            let most = HELD / (4 * rows * outputs);
            let (us, alone_us) = timed(|i| product(i, x.clone()), most, &device)?;
            let bytes = size + 4 * rows * (inputs + outputs);
            let operations = 2 * rows * inputs * outputs;
            let line = json!({
                "weights": weights, "rows": rows, "us": us, "alone_us": alone_us, "bytes": bytes,
                "gb_s": bytes as f64 / us / 1e3, "gflops": operations as f64 / us / 1e3,
            });
            println!("{line}");
        }
    }
    Ok(())
}

/// Products by layers of weights in a number format, and the bytes of one layer's.
fn layers(
    weights: &str,
    inputs: usize,
    outputs: usize,
    device: &burn::tensor::Device<B>,
) -> Result<(Product, usize)> {
    let values = numbers_of(inputs * outputs);
    let copies = |size: usize| IN_TURN.div_ceil(size).clamp(1, COPIES);
    let full = |dtype: FloatDType, size: usize| -> (Product, usize) {
        let layer = |_| {
            let data = TensorData::new(values.clone(), [inputs, outputs]);
            let weight = Tensor::<B, 2>::from_data(data, device).cast(dtype);
            let mut layer =
                Linear::<B>::new(inputs, &[("", outputs)], false, &Initializer::Zeros, device);
            layer.weight = Param::from_tensor(weight);
            layer
        };
        let layers: Vec<Linear<B>> = (0..copies(size)).map(layer).collect();
        let product: Product = Box::new(move |i, x| layers[i % layers.len()].forward_rows(x));
        (product, size)
    };
    Ok(match weights {
        "f32" => full(FloatDType::F32, 4 * values.len()),
        "bf16" => full(FloatDType::BF16, 2 * values.len()),
        scheme => {
            let quantized =
                [Quantized::round(&values, [outputs, inputs], scheme.parse::<Scheme>()?)?];
            let size = quantized[0].bytes();
            let layers = (0..copies(size)).map(|_| PackedWeight::<B>::new(&quantized, device));
            let layers = layers.collect::<kiln_embed::Result<Vec<_>>>()?;
            let product: Product = Box::new(move |i, x| layers[i % layers.len()].linear(x, None));
            (product, size)
        }
    })
}

/// Microseconds of one of many products in a row, at most so many, and of one alone.
fn timed(
    product: impl Fn(usize) -> Tensor<B, 2>,
    most: usize,
    device: &burn::tensor::Device<B>,
) -> Result<(f64, f64)> {
    let run = |calls: usize| -> Result<f64> {
        let start = Instant::now();
        // Burn's fusion may leave out what nobody can read any more.
        let results: Vec<Tensor<B, 2>> = (0..calls).map(&product).collect();
        B::sync(device).map_err(|error| anyhow!("the device: {error:?}"))?;
        let seconds = start.elapsed().as_secs_f64();
        drop(results);
        Ok(seconds / calls as f64)
    };
    let median = |calls: usize| -> Result<f64> {
        let mut seconds = (0..RUNS).map(|_| run(calls)).collect::<Result<Vec<f64>>>()?;
        seconds.sort_by(f64::total_cmp);
        Ok(seconds[RUNS / 2])
    };
    // Kernels are compiled and tried, and memory is taken.
    run(1)?;
    let alone = median(1)?;
    let calls = ((RUN / alone) as usize).clamp(1, most.clamp(1, 1000));
    run(calls)?;
    Ok((median(calls)? * 1e6, alone * 1e6))
}

/// So many numbers in -1..1, of which every 65,537 are the same: how long a product takes does not depend on them.
fn numbers_of(count: usize) -> Vec<f32> {
    const DISTINCT: usize = 65_537;
    let mut state = 1u32;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 * 2.0 - 1.0
    };
    let some: Vec<f32> = (0..DISTINCT).map(next).collect();
    let mut all = some.repeat(count.div_ceil(DISTINCT));
    all.truncate(count);
    all
}
