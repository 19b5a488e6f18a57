//! What devices compute in their own way, against the same in plain loops of double precision.

use burn::nn::{LayerNormConfig, RmsNormConfig};
use burn::tensor::{Bool, Int, Tensor, TensorData};
use kiln_embed::kernels::{Heads, Kernels, Packing, Seen};
use kiln_embed::model::{PackedTable, PackedWeight};
use kiln_embed::quant::{Number, Quantized, Scheme};

/// Numbers in -1..1 that look drawn, and are the same everywhere.
pub(super) fn drawn(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 * 2.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn floats<B: Kernels, const D: usize>(
    values: &[f32],
    shape: [usize; D],
    device: &B::Device,
) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

fn read<B: Kernels, const D: usize>(x: Tensor<B, D>) -> Vec<f32> {
    x.into_data().to_vec().unwrap()
}

/// Against a sum's own size: the sum of its terms' magnitudes.
fn close(actual: f32, exact: f64, size: f64, what: impl Fn() -> String) {
    let allowed = 4e-6 * size + 1e-37;
    assert!((f64::from(actual) - exact).abs() <= allowed, "{}: {actual:e}, not {exact:e}", what());
}

/// How much more is allowed where a device's own products take part.
fn looser<B: Kernels>(device: &B::Device) -> f64 {
    f64::from(kiln_tests::allowed::<B>(device, 4e-6)) / 4e-6
}

/// `[outputs, inputs]` in a scheme, of weights of a size.
fn quantized(shape: [usize; 2], number: Number, block: Option<usize>, size: f32) -> Quantized {
    let weights: Vec<f32> = drawn(shape[0] * shape[1], 7).iter().map(|w| w * size).collect();
    Quantized::round(&weights, shape, Scheme { number, block }).unwrap()
}

/// Rows, inputs, outputs of the parts, block: odd counts, one row, more rows than a tile, outputs
/// that fill no vector, inputs that fill no word, blocks that words straddle.
const SHAPES: [(usize, usize, &[usize], Option<usize>); 9] = [
    (1, 32, &[16], Some(32)),
    (1, 384, &[96, 96, 96], Some(32)),
    (7, 64, &[33], Some(16)),
    (13, 100, &[21, 4], None),
    (17, 36, &[40], Some(12)),
    (40, 44, &[6], Some(4)),
    (70, 128, &[130], Some(64)),
    (300, 96, &[68], Some(96)),
    (5, 260, &[3], Some(20)),
];

fn packed_products<B: Kernels>(device: B::Device) {
    for number in [Number::Int8, Number::Int4] {
        for (i, (rows, inputs, parts, block)) in SHAPES.into_iter().enumerate() {
            // Ordinary, tiny and huge; numbers below the normal ones may become zero.
            for (size_of_x, size_of_w) in [(1.0, 1.0), (1e-30, 1e-3), (1e30, 1e3), (1e-39, 1.0)] {
                let parts: Vec<Quantized> = parts
                    .iter()
                    .map(|&outputs| quantized([outputs, inputs], number, block, size_of_w))
                    .collect();
                let x: Vec<f32> =
                    drawn(rows * inputs, 3).iter().map(|value| value * size_of_x).collect();
                let outputs: usize = parts.iter().map(|part| part.shape()[0]).sum();
                let weights: Vec<f32> = parts.iter().flat_map(Quantized::values).collect();
                let bias: Vec<f32> =
                    drawn(outputs, 5).iter().map(|value| value * size_of_x * size_of_w).collect();
                let packed = PackedWeight::<B>::new(&parts, &device).unwrap();
                // With a bias and without, in turn: each is another shader, and takes its time.
                let bias = ((i + number.bits() / 4) % 2 == 0).then_some(&bias);
                let tensor = || bias.map(|bias| floats::<B, 1>(bias, [outputs], &device));
                let actual = read(packed.linear(floats(&x, [rows, inputs], &device), tensor()));
                assert_eq!(actual.len(), rows * outputs);
                for (i, &actual) in actual.iter().enumerate() {
                    let (row, output) = (i / outputs, i % outputs);
                    let of_bias = bias.map_or(0.0, |bias| f64::from(bias[output]));
                    let terms = x[row * inputs..][..inputs]
                        .iter()
                        .zip(&weights[output * inputs..][..inputs])
                        .map(|(x, w)| f64::from(*x) * f64::from(*w));
                    let (sum, size) = terms.fold((of_bias, of_bias.abs()), |(sum, size), term| {
                        (sum + term, size + term.abs())
                    });
                    // Many rows are multiplied by the device's own product.
                    let size = if rows < 64 { size } else { size * looser::<B>(&device) };
                    close(actual, sum, size.max(f64::from(size_of_x) * 1e-3), || {
                        format!(
                            "{number:?} {rows}x{inputs}x{outputs} blocks {block:?} sizes {size_of_x:e} {size_of_w:e}: [{row}, {output}]"
                        )
                    });
                }
                let full = packed.weights();
                let y = floats(&x, [rows, inputs], &device);
                let y = read(B::dense_linear(y, full.clone(), tensor()));
                for (y, packed) in y.into_iter().zip(actual) {
                    let size = f64::from(size_of_x * size_of_w) * inputs as f64;
                    let size = size * looser::<B>(&device);
                    close(y, f64::from(packed), size, || format!("full {rows}x{inputs}x{outputs}"));
                }
                let unpacked: Vec<f32> = read(full);
                for (i, &actual) in unpacked.iter().enumerate() {
                    assert_eq!(actual, weights[i % outputs * inputs + i / outputs]);
                }
            }
        }
    }
}

/// What is not a number makes its own row so, and no other.
fn nan_stays_in_its_row<B: Kernels>(device: B::Device) {
    let (rows, inputs, outputs) = (7, 64, 36);
    let weight = quantized([outputs, inputs], Number::Int8, Some(32), 1.0);
    let packed = PackedWeight::<B>::new(&[weight], &device).unwrap();
    let mut x = drawn(rows * inputs, 3);
    x[2 * inputs + 5] = f32::NAN;
    let actual = read(packed.linear(floats(&x, [rows, inputs], &device), None));
    for (row, actual) in actual.chunks(outputs).enumerate() {
        assert!(actual.iter().all(|value| value.is_nan() == (row == 2)), "row {row}: {actual:?}");
    }
}

/// A number that is read while the device goes on is the one that was there when the reading began.
fn numbers_come_later<B: Kernels>(device: B::Device) {
    let twice = |value: f32| floats::<B, 1>(&[value], [1], &device) * 2.0;
    let readings = [1.0, -3.5].map(|value| B::begin_reading(twice(value)));
    assert_eq!(read(twice(7.0)), [14.0]);
    let found = readings.map(|reading| burn::tensor::try_read_sync(reading).unwrap().unwrap());
    assert_eq!(found, [2.0, -7.0]);
}

fn packed_tables<B: Kernels>(device: B::Device) {
    for number in [Number::Int8, Number::Int4] {
        for (rows, width, block) in [(5, 8, None), (300, 64, Some(32)), (77, 384, Some(4))] {
            let table = quantized([rows, width], number, block, 0.3);
            let values = table.values();
            let packed = PackedTable::<B>::new(&table, &device).unwrap();
            let ids: Vec<i32> = (0..3 * 7).map(|i| (i * 31 % rows) as i32).collect();
            let tensor =
                Tensor::<B, 2, Int>::from_data(TensorData::new(ids.clone(), [3, 7]), &device);
            let actual = read(packed.rows(tensor));
            for (i, id) in ids.iter().enumerate() {
                let expected = &values[*id as usize * width..][..width];
                assert_eq!(
                    &actual[i * width..][..width],
                    expected,
                    "{number:?} {block:?} row {id}"
                );
            }
            assert_eq!(read(packed.table()), values);
        }
    }
    // Rows of no whole words stay as they are.
    assert!(!PackedTable::<B>::takes(&quantized([3, 12], Number::Int4, None, 1.0)));
    assert!(PackedTable::<B>::takes(&quantized([3, 12], Number::Int8, None, 1.0)));
}

fn attention<B: Kernels>(device: B::Device) {
    // The last are whether there is a bias without a mask, and with one.
    let cases = [
        (2, 1, 2, 2, 32, true, [false, true]),
        (1, 45, 3, 1, 16, true, [false, true]),
        (2, 70, 4, 2, 64, false, [true, true]),
        (1, 33, 2, 2, 128, true, [false, true]),
        (2, 9, 1, 1, 12, true, [true, true]),
        // Longer than what holds its scores, and a token more than whole tiles and workgroups.
        (1, 517, 2, 1, 16, true, [false, false]),
        (1, 517, 1, 1, 16, false, [false, false]),
        (1, 517, 4, 2, 32, false, [true, true]),
        (2, 530, 2, 1, 64, true, [true, true]),
        (1, 513, 2, 2, 128, false, [true, true]),
        // The halves of these heads are no whole vectors.
        (1, 517, 1, 1, 12, true, [true, true]),
    ];
    for (batch, seq, queries, keys, width, rotary, biased) in cases {
        let heads = Heads { queries, keys, width };
        let row = heads.row();
        let qkv: Vec<f32> = drawn(batch * seq * row, 11).iter().map(|value| value * 3.0).collect();
        // A query sees itself, and some of the others.
        let hidden: Vec<bool> = (0..batch * seq * seq)
            .map(|i| (i / seq % seq) != i % seq && i * 7919 % 5 < 2)
            .collect();
        let turns: Vec<f32> = drawn(seq * width, 13).iter().map(|value| value * 3.0).collect();
        for masked in [false, true] {
            let turned = masked == rotary;
            let mask = masked.then(|| {
                let data = TensorData::new(hidden.clone(), [batch, 1, seq, seq]);
                Tensor::<B, 4, Bool>::from_data(data, &device)
            });
            let tables = turned.then(|| {
                let table = |f: fn(f32) -> f32| {
                    let values: Vec<f32> = turns.iter().copied().map(f).collect();
                    floats::<B, 4>(&values, [1, 1, seq, width], &device)
                };
                (table(f32::cos), table(f32::sin))
            });
            let tensor = floats::<B, 3>(&qkv, [batch, seq, row], &device);
            let rows = vec![0..seq; batch];
            // By the distance of key and query.
            let biased = biased[usize::from(masked)];
            let biases: Vec<f32> = drawn(queries * (2 * seq - 1), 17);
            let bias = biased.then(|| floats::<B, 2>(&biases, [queries, 2 * seq - 1], &device));
            let (angles, mask) = (tables.as_ref(), mask.as_ref());
            let seen = Seen { rows: &rows, angles, mask, bias: bias.as_ref(), unread: false };
            let actual = read(B::self_attention(tensor, heads, seen));
            assert_eq!(actual.len(), batch * seq * queries * width);
            for text in 0..batch {
                for head in 0..queries {
                    let number = |token: usize, part: usize, i: usize| {
                        f64::from(qkv[(text * seq + token) * row + part * width + i])
                    };
                    let rotated = |token: usize, part: usize, i: usize| {
                        if !turned {
                            return number(token, part, i);
                        }
                        let half = width / 2;
                        let other = match i < half {
                            true => -number(token, part, i + half),
                            false => number(token, part, i - half),
                        };
                        let angle = turns[token * width + i];
                        number(token, part, i) * f64::from(angle.cos())
                            + other * f64::from(angle.sin())
                    };
                    let of_keys = queries + head / (queries / keys);
                    let side = |part: usize| -> Vec<f64> {
                        (0..seq * width).map(|at| rotated(at / width, part, at % width)).collect()
                    };
                    let (asked, met) = (side(head), side(of_keys));
                    // Of a long text some, among them the last; none of a workgroup's units is left out.
                    let step = if seq > 512 { 11 } else { 1 };
                    for query in (0..seq).rev().step_by(step) {
                        let weights: Vec<f64> = (0..seq)
                            .map(|key| {
                                if masked && hidden[(text * seq + query) * seq + key] {
                                    return 0.0;
                                }
                                let (query_at, key_at) = (query * width, key * width);
                                let pairs = asked[query_at..][..width].iter().zip(&met[key_at..]);
                                let product: f64 = pairs.map(|(x, y)| x * y).sum();
                                let place = head * (2 * seq - 1) + seq - 1 + key - query;
                                let bias = if biased { f64::from(biases[place]) } else { 0.0 };
                                (product / (width as f64).sqrt() + bias).exp()
                            })
                            .collect();
                        let total: f64 = weights.iter().sum();
                        for i in 0..width {
                            let exact: f64 = (0..seq)
                                .map(|key| weights[key] / total * number(key, of_keys + keys, i))
                                .sum();
                            let place = ((text * seq + query) * queries + head) * width + i;
                            close(actual[place], exact, 10.0 * looser::<B>(&device), || {
                                format!(
                                    "{heads:?} seq {seq} masked {masked} rotary {turned} biased {biased}: query {query} head {head}"
                                )
                            });
                        }
                    }
                }
            }
        }
    }
}

fn norms_and_activations<B: Kernels>(device: B::Device) {
    for (batch, seq, width) in [(1, 1, 8), (2, 5, 384), (3, 7, 10), (1, 3, 1024)] {
        let shape = [batch, seq, width];
        let count = batch * seq * width;
        let x: Vec<f32> = drawn(count, 2).iter().map(|value| value * 4.0 + 1.0).collect();
        let residual = drawn(count, 4);
        let (gamma, beta) = (drawn(width, 5), drawn(width, 6));
        let mut norm = LayerNormConfig::new(width).with_epsilon(1e-5).init::<B>(&device);
        norm.gamma = burn::module::Param::from_tensor(floats(&gamma, [width], &device));
        norm.beta = Some(burn::module::Param::from_tensor(floats(&beta, [width], &device)));
        let tensors = [&x, &residual].map(|values| floats::<B, 3>(values, shape, &device));
        let [left, right] = tensors;
        let result = read(B::add_and_norm(left.clone(), right.clone(), &norm, 1e-5));
        for row in 0..batch * seq {
            let sum =
                |i: usize| f64::from(x[row * width + i]) + f64::from(residual[row * width + i]);
            let mean = (0..width).map(sum).sum::<f64>() / width as f64;
            let variance = (0..width).map(|i| (sum(i) - mean).powi(2)).sum::<f64>() / width as f64;
            for i in 0..width {
                let normed = (sum(i) - mean) / (variance + 1e-5).sqrt();
                let exact = normed * f64::from(gamma[i]) + f64::from(beta[i]);
                close(result[row * width + i], exact, 3.0, || format!("{shape:?} [{row}, {i}]"));
            }
        }
        let mut norm = RmsNormConfig::new(width).with_epsilon(1e-5).init::<B>(&device);
        norm.gamma = burn::module::Param::from_tensor(floats(&gamma, [width], &device));
        let result = read(B::rms_norm(left.clone(), &norm));
        for (row, x) in x.chunks(width).enumerate() {
            let mean = x.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / width as f64;
            for (i, value) in x.iter().enumerate() {
                let exact = f64::from(*value) / (mean + 1e-5).sqrt() * f64::from(gamma[i]);
                close(result[row * width + i], exact, 1.0, || {
                    format!("rms {shape:?} [{row}, {i}]")
                });
            }
        }
        let result = read(B::silu_product(left.clone(), right));
        for ((gate, up), result) in x.iter().zip(&residual).zip(result) {
            let (gate, up) = (f64::from(*gate), f64::from(*up));
            close(result, gate / (1.0 + (-gate).exp()) * up, 5.0, || format!("silu({gate}) {up}"));
        }
        let far: Vec<f32> = (0..count).map(|i| (i as f32 - count as f32 / 2.0) * 7.0).collect();
        let ones = floats::<B, 3>(&vec![1.0; count], shape, &device);
        let result = read(B::silu_product(floats(&far, shape, &device), ones));
        for (gate, result) in far.iter().zip(result) {
            let exact = f64::from(*gate) / (1.0 + (-f64::from(*gate)).exp());
            close(result, exact, f64::from(gate.abs()).max(1e-20), || format!("silu({gate})"));
        }
        for (x, result) in x.iter().zip(read(B::exact_gelu(left))) {
            let exact = f64::from(*x) * normal_below(f64::from(*x));
            close(result, exact, 5.0, || format!("gelu({x})"));
        }
    }
}

/// The normal distribution's share below a number, by Simpson's rule.
fn normal_below(x: f64) -> f64 {
    let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (steps, width) = (2_000, x / 2_000.0);
    let inner: f64 =
        (1..steps).map(|i| density(i as f64 * width) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    0.5 + (density(0.0) + inner + density(x)) * width / 3.0
}

kiln_tests::on_every_device!(
    packed_products,
    packed_tables,
    nan_stays_in_its_row,
    numbers_come_later,
    attention,
    norms_and_activations
);

/// Gradients reach what goes into packed weights, by the plain version.
#[test]
fn gradients_flow_through_packed_weights() {
    type B = burn::backend::Autodiff<burn::backend::Flex>;
    let device = Default::default();
    let packed = PackedWeight::<B>::new(&[quantized([12, 16], Number::Int4, None, 1.0)], &device);
    let packed = packed.unwrap();
    let x = floats::<B, 2>(&drawn(5 * 16, 3), [5, 16], &device).require_grad();
    let gradients = packed.linear(x.clone(), None).powf_scalar(2.0).sum().backward();
    // d |x W|^2 / dx = 2 x W W^T
    let weights = packed.weights();
    let expected = x.clone().matmul(weights.clone()).matmul(weights.transpose()).mul_scalar(2.0);
    let found: Vec<f32> = x.grad(&gradients).unwrap().into_data().to_vec().unwrap();
    for (found, expected) in found.into_iter().zip(read(expected)) {
        assert!((found - expected).abs() < 1e-4, "{found} {expected}");
    }
}

/// GPUs keep few-bit weights as they are, with fusion around them or without.
#[test]
fn where_weights_stay_packed() {
    use train_native::device::{Cpu, cuda, vulkan};
    assert_eq!(<Cpu as Kernels>::PACKING, Packing::Host);
    assert_eq!(<vulkan::Backend as Kernels>::PACKING, Packing::Device);
    assert_eq!(<cuda::Backend as Kernels>::PACKING, Packing::Device);
    assert_eq!(<burn::backend::Autodiff<cuda::Backend> as Kernels>::PACKING, Packing::Never);
}

/// Without fusion, as in a browser: all shaders are our own there.
#[test]
fn without_fusion() {
    type B = burn::backend::wgpu::CubeBackend<burn::backend::wgpu::WgpuRuntime, f32, i32, u32>;
    use train_native::device::{Device, DeviceChoice};
    if let Some(Device::Vulkan(device)) = kiln_tests::device_or_skip(DeviceChoice::Vulkan(0)) {
        packed_products::<B>(device.clone());
        packed_tables::<B>(device.clone());
        nan_stays_in_its_row::<B>(device.clone());
        numbers_come_later::<B>(device.clone());
        attention::<B>(device.clone());
        norms_and_activations::<B>(device);
    }
}
