//! A block as one operation of a backend against the same block made of Burn's operations: its output and every
//! gradient, in f32 and bf16; on the CPU for every family.

use burn::backend::{Autodiff, Flex};
use burn::module::{AutodiffModule as _, Module as _, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::backend::{AutodiffBackend, Backend as _};
use burn::tensor::{FloatDType, Tensor, TensorData, activation};
use kiln_embed::checkpoint::{Directory, Weights, load_backbone};
use kiln_embed::config::{Activation, AttentionMode, ModelConfig};
use kiln_embed::kernels::{
    Block, Branch, DropoutMask, Heads, Kernels, MatmulPrecision, Norm, Place, Projection, Seen,
    TrainingBackend,
};
use kiln_embed::model::{Backbone, LoraConfig, ModelInput, seed_dropout};
use kiln_embed::tokenizer::TokenBatch;
use kiln_tests::fixture;

type B = Autodiff<Flex>;

const FAMILIES: [&str; 27] = [
    "bert",
    "camembert",
    "distilbert",
    "embedding-gemma2",
    "eurobert",
    "gemma",
    "gemma3",
    "gemma3-both",
    "gte",
    "jina-bert",
    "jina-v3",
    "llama",
    "llama-geglu",
    "llama-linear",
    "llama-llama3",
    "llama-yarn",
    "mistral",
    "modernbert",
    "mpnet",
    "nomic-bert",
    "nomic-bert-moe",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
];

/// What trains.
#[derive(Debug, Clone, Copy)]
enum Trains {
    All,
    Lora { dropout: f64, targets: &'static [&'static str] },
}

/// Adds a fixed pattern to what trains; a fresh adapter's `B` is zero, and its `A` without a gradient.
struct Shake;
impl<T: TrainingBackend> ModuleMapper<T> for Shake {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<T, D>>) -> Param<Tensor<T, D>> {
        let trains = param.is_require_grad();
        param.map(|tensor| {
            if !trains {
                return tensor;
            }
            let shape = tensor.shape();
            let values: Vec<f32> =
                (0..shape.num_elements()).map(|i| 0.03 * (i as f32 * 0.7).sin()).collect();
            let pattern = Tensor::from_data(TensorData::new(values, shape), &tensor.device());
            (tensor + pattern).detach().set_require_grad(true)
        })
    }
}

fn load<T: TrainingBackend>(
    name: &str,
    trains: Trains,
    device: &T::Device,
) -> (ModelConfig, Backbone<T>) {
    T::seed(device, 5);
    let (config, backbone) = read("f32", name, device);
    let backbone = with_what_trains(backbone, &config, trains, device);
    (config, backbone)
}

/// A model as it lies in its files, with matrices in a number format.
fn read<T: Kernels>(precision: &str, name: &str, device: &T::Device) -> (ModelConfig, Backbone<T>) {
    let folder = format!("families/{name}");
    let directory = Directory::new(fixture(&folder)).unwrap();
    let config = std::fs::read(fixture(&folder).join("config.json")).unwrap();
    let config = ModelConfig::from_json(&config).unwrap();
    let mut weights = Weights::open(&directory, "model").unwrap();
    weights.give_in(precision.parse().unwrap());
    let backbone = load_backbone::<T>(&config, &mut weights, device).unwrap();
    (config, backbone)
}

fn with_what_trains<T: TrainingBackend>(
    mut backbone: Backbone<T>,
    config: &ModelConfig,
    trains: Trains,
    device: &T::Device,
) -> Backbone<T> {
    if let Trains::Lora { dropout, targets } = trains {
        let targets = targets.iter().map(ToString::to_string).collect();
        let lora = LoraConfig { rank: 3, alpha: 5.0, dropout, targets };
        let frozen = backbone.no_grad();
        let (with_adapters, count) = frozen.with_lora(&lora, config, device).unwrap();
        assert!(count > 0);
        backbone = with_adapters;
    }
    backbone.map(&mut Shake)
}

/// Rows of texts, padded on a side to the longest.
fn input<T: TrainingBackend>(
    config: &ModelConfig,
    left: bool,
    lengths: &[usize],
    device: &T::Device,
) -> (ModelInput<T>, Vec<bool>) {
    let seq = lengths.iter().copied().max().unwrap();
    let attention: Vec<bool> = lengths
        .iter()
        .flat_map(|&length| {
            (0..seq).map(move |i| if left { i >= seq - length } else { i < length })
        })
        .collect();
    let ids = (0..attention.len()).map(|i| (i * 37 % (config.vocab_size - 5)) as u32 + 4).collect();
    let tokens = TokenBatch::new(ids, attention.clone(), attention.clone(), seq).unwrap();
    (ModelInput::new(&tokens, device), attention)
}

/// States at the tokens, and the gradients of the embeddings and of all that trains, by name.
type Result = Vec<(String, Vec<f32>)>;

fn run<T: TrainingBackend>(
    backbone: &Backbone<T>,
    mode: AttentionMode,
    batch: &(ModelInput<T>, Vec<bool>),
    plain: bool,
    device: &T::Device,
) -> Result {
    let (input, attention) = batch;
    seed_dropout::<T>(device, 11);
    let leaf = backbone.embed_tokens(input).detach().require_grad();
    let shared = backbone.prepare(input, mode, &leaf);
    let mut x = leaf.clone();
    for block in 0..backbone.layers() {
        // The version that gives the weights of attention is the plain one.
        x = backbone.layer(block, x, &shared, plain).0;
    }
    let x = backbone.finish(x);
    let shape @ [_, _, hidden] = x.dims();
    let weights: Vec<f32> = attention
        .iter()
        .enumerate()
        .flat_map(|(row, token)| {
            (0..hidden).map(move |i| {
                let factor = ((row * hidden + i) as f32 * 0.37).cos();
                if *token { factor } else { 0.0 }
            })
        })
        .collect();
    let weights = Tensor::<T, 3>::from_data(TensorData::new(weights, shape), device);
    let weighted = x * weights;
    let grads = weighted.clone().sum().backward();
    let mut result = vec![("states".to_string(), weighted.into_data().to_vec::<f32>().unwrap())];
    result.push(("input".into(), leaf.grad(&grads).unwrap().into_data().to_vec().unwrap()));

    struct Collect<'a, T: AutodiffBackend>(&'a T::Gradients, Vec<String>, Result);
    impl<T: TrainingBackend> ModuleVisitor<T> for Collect<'_, T> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.1.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.1.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<T, D>>) {
            let path = self.1.join(".");
            if let Some(grad) = param.val().grad(self.0) {
                self.2.push((path, grad.into_data().to_vec().unwrap()));
            } else {
                let used = path.contains("blocks") && param.is_require_grad();
                assert!(!used, "{path} has no gradient");
            }
        }
    }
    let mut collect = Collect::<T>(&grads, Vec::new(), result);
    backbone.visit(&mut collect);
    collect.2
}

/// The distance of two results of each name, relative to the size of the first and, as some gradients are
/// differences of far larger numbers (those of keys), to a tenth of all gradients' size.
fn assert_close(expected: &Result, actual: &Result, allowed: f64, what: &str) {
    assert_eq!(expected.len(), actual.len(), "{what}");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let size = |values: &[f32]| norm(&mut values.iter().map(|x| f64::from(*x)));
    let whole = norm(&mut expected[1..].iter().map(|(_, values)| size(values)));
    for ((name, expected), (other, actual)) in expected.iter().zip(actual) {
        assert_eq!((name, expected.len()), (other, actual.len()), "{what}");
        let size = size(expected);
        let pairs = expected.iter().zip(actual);
        let far = norm(&mut pairs.map(|(x, y)| f64::from(*x) - f64::from(*y)));
        // No token took this expert.
        let untaken = name.contains(".experts.") && actual.iter().all(|value| *value == 0.0);
        assert!(size > 0.0 || untaken, "{what}: {name} is zero");
        let more = if name == "states" { 0.0 } else { 0.1 * whole };
        let error = format!("{what}: {name} is off by {:e}, {:e} of all", far / size, far / whole);
        assert!(far <= allowed * (size + more), "{error}");
    }
}

const CASES: [Trains; 4] = [
    Trains::All,
    Trains::Lora { dropout: 0.0, targets: &["all-linear"] },
    Trains::Lora { dropout: 0.3, targets: &["all-linear"] },
    Trains::Lora { dropout: 0.0, targets: &["*q*", "*v*"] },
];

fn each_case(mut check: impl FnMut(Backbone<B>, AttentionMode, (ModelInput<B>, Vec<bool>), &str)) {
    for family in FAMILIES {
        for trains in CASES {
            let device = Default::default();
            let (config, backbone) = load(family, trains, &device);
            for mode in [AttentionMode::Causal, AttentionMode::Bidirectional] {
                for (left, lengths) in [(false, [9, 4, 7]), (true, [3, 9, 1]), (false, [9, 9, 9])] {
                    let what = format!("{family} {trains:?} {mode:?} left {left} {lengths:?}");
                    check(backbone.clone(), mode, input(&config, left, &lengths, &device), &what);
                }
            }
        }
    }
}

#[test]
fn one_operation_has_the_gradients_of_many() {
    let device = Default::default();
    each_case(|backbone, mode, batch, what| {
        let plain = run(&backbone, mode, &batch, true, &device);
        assert_close(&plain, &run(&backbone, mode, &batch, false, &device), 2e-5, what);
    });
}

/// Texts of several tiles of queries, and batches of several parts of rows and of values, each a core's.
#[test]
fn texts_of_several_tiles_have_the_gradients_of_many_operations() {
    let device = Default::default();
    let (causal, both) = (AttentionMode::Causal, AttentionMode::Bidirectional);
    let dropping = Trains::Lora { dropout: 0.3, targets: &["all-linear"] };
    for (family, trains, mode, left, lengths) in [
        // Grouped queries, rotary positions, a window, a gate apart, RMS norms.
        ("qwen2-window", dropping, causal, true, [150, 131, 150]),
        // A window, a gate beside the rest, layer norms.
        ("modernbert", Trains::All, both, false, [150, 150, 131]),
        // Scores with a bias.
        ("jina-bert", Trains::All, both, false, [150, 150, 150]),
    ] {
        let (config, mut backbone) = load::<B>(family, trains, &device);
        let batch = input(&config, left, &lengths, &device);
        let plain = run(&backbone, mode, &batch, true, &device);
        let whole = run(&backbone, mode, &batch, false, &device);
        assert_close(&plain, &whole, 2e-5, &format!("{family} {lengths:?}"));
        backbone.set_matmul_precision(MatmulPrecision::Bf16);
        let rounded = run(&backbone, mode, &batch, false, &device);
        assert_close(&plain, &rounded, 0.1, &format!("{family} {lengths:?} in bf16"));
    }
}

/// The same on other devices, for families that have between them all that a block can have. There nothing drops out of
/// the plain block as it does out of the whole one.
fn one_operation_has_the_gradients_of_many_on<D: Kernels>(device: D::Device) {
    let all = Trains::All;
    let lora = Trains::Lora { dropout: 0.0, targets: &["all-linear"] };
    let some = Trains::Lora { dropout: 0.0, targets: &["*q*", "*v*"] };
    let allowed = f64::from(kiln_tests::allowed::<D>(&device, 2e-5));
    for (family, trains, mode) in [
        ("mpnet", all, AttentionMode::Bidirectional),
        ("modernbert", lora, AttentionMode::Bidirectional),
        ("qwen3", some, AttentionMode::Causal),
        ("mistral", lora, AttentionMode::Causal),
        ("gemma3", all, AttentionMode::Causal),
    ] {
        let (config, mut backbone) = load::<Autodiff<D>>(family, trains, &device);
        let batch = input(&config, true, &[3, 9, 1], &device);
        let plain = run(&backbone, mode, &batch, true, &device);
        let whole = run(&backbone, mode, &batch, false, &device);
        assert_close(&plain, &whole, allowed, family);
        if D::HOST || !D::supports_dtype(&device, burn::tensor::DType::BF16) {
            continue;
        }
        backbone.set_matmul_precision(MatmulPrecision::Bf16);
        let rounded = run(&backbone, mode, &batch, false, &device);
        assert_close(&plain, &rounded, 0.1, &format!("{family} in bf16"));
    }
}

/// What drops out is the same on every device, by one mask and by several of one input.
fn dropout_is_that_of_the_cpu<D: Kernels>(device: D::Device) {
    fn back<T: Kernels>(shape: [usize; 2], masks: &[DropoutMask], device: &T::Device) -> Vec<f32> {
        let sum = numbers::<T, 2>(shape, 1.0, device);
        let x = numbers::<T, 2>([shape[0], masks.len() * shape[1]], 2.0, device);
        values(T::add_dropped(sum, x, masks))
    }
    for (shape, seed) in [([1, 1], 1), ([3, 5], u64::MAX), ([40, 300], 0x0123_4567_89ab_cdef)] {
        let mask = DropoutMask { seed, kept: 0.7 };
        let count = shape[0] * shape[1];
        let each: Vec<f32> = (0..count).map(|i| i as f32 - 7.0).collect();
        let data = TensorData::new(each, shape);
        let masks = [mask, DropoutMask { seed: seed / 3, kept: 0.4 }, mask];
        for masks in [&masks[..1], &masks[..]] {
            let dropped = D::drop_out(Tensor::from_data(data.clone(), &device), masks);
            let cpu = Default::default();
            let expected = Flex::drop_out(Tensor::from_data(data.clone(), &cpu), masks);
            assert_eq!(dropped.dims(), [shape[0], masks.len() * shape[1]]);
            let (dropped, expected) = (values(dropped), values(expected));
            let zeros = expected.iter().filter(|value| **value == 0.0).count();
            let share = if masks.len() == 1 { 0.3 } else { 0.4 };
            let share = share - zeros as f64 / expected.len() as f64;
            assert!(count < 100 || share.abs() < 0.02, "{zeros}");
            assert_eq!(dropped, expected, "{shape:?}");
            for (x, y) in
                back::<D>(shape, masks, &device).into_iter().zip(back::<Flex>(shape, masks, &cpu))
            {
                assert!((x - y).abs() < 1e-5, "{x} {y}, {shape:?}, {} masks", masks.len());
            }
        }
    }
}

/// Of the size, with numbers that look drawn.
fn numbers<T: Kernels, const D: usize>(
    shape: [usize; D],
    seed: f32,
    device: &T::Device,
) -> Tensor<T, D> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| (i as f32 * 0.731 + seed).sin()).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn values<T: Kernels, const D: usize>(x: Tensor<T, D>) -> Vec<f32> {
    x.into_data().to_vec().unwrap()
}

/// Queries, keys and values are taken apart and put together as on the CPU, rotated or not.
fn sides_are_those_of_the_cpu<D: Kernels>(device: D::Device) {
    fn of<T: Kernels>(rotates: bool, device: &T::Device) -> Vec<Vec<f32>> {
        let (batch, seq, heads) = (2, 5, Heads { queries: 4, keys: 2, width: 6 });
        let x = numbers::<T, 2>([batch * seq, heads.row()], 1.0, device);
        let table = |seed| numbers::<T, 4>([1, 1, seq, heads.width], seed, device);
        let angles = rotates.then(|| (table(2.0), table(3.0)));
        let (angles, dtype) = (angles.as_ref(), FloatDType::F32);
        let sides = T::split_sides(x, [batch, seq], heads, angles, dtype);
        let [query, key, value] = sides.clone();
        assert_eq!(query.dims(), [batch, 4, seq, 6]);
        assert_eq!([key.dims(), value.dims()], [[batch, 2, seq, 6]; 2]);
        let joined = T::join_sides(sides, angles, dtype);
        assert_eq!(joined.dims(), [batch * seq, heads.row()]);
        vec![values(query), values(key), values(value), values(joined)]
    }
    for rotates in [false, true] {
        let expected = of::<Flex>(rotates, &Default::default()).concat();
        for (x, y) in expected.into_iter().zip(of::<D>(rotates, &device).concat()) {
            assert!((x - y).abs() < 1e-5, "{x} {y}, rotated: {rotates}");
        }
    }
}

/// Matrices are put into a larger one and taken out of it as on the CPU: as many as a kernel takes, fewer and more.
fn matrices_are_placed_as_on_the_cpu<D: Kernels>(device: D::Device) {
    fn of<T: Kernels>(count: usize, device: &T::Device) -> [Vec<f32>; 2] {
        let all = [
            Place { first: [0, 0], extent: [3, 4], factor: 1.0 },
            Place { first: [3, 5], extent: [2, 7], factor: 0.5 },
            Place { first: [5, 12], extent: [4, 4], factor: 2.0 },
            Place { first: [0, 4], extent: [3, 1], factor: 0.25 },
        ];
        let places = &all[..count];
        let parts = places.iter().map(|place| numbers::<T, 2>(place.extent, 1.0, device));
        let y = T::placed(parts.collect(), places, [10, 16], FloatDType::F32);
        assert_eq!(y.dims(), [10, 16]);
        let taken = T::taken(y.clone(), places);
        assert!(taken.iter().map(Tensor::dims).eq(places.iter().map(|place| place.extent)));
        [values(y), taken.into_iter().flat_map(values).collect()]
    }
    for count in 1..=4 {
        let [placed, taken] = of::<D>(count, &device);
        let size = [12, 14, 16, 3][..count].iter().sum::<usize>();
        assert_eq!((placed.iter().filter(|x| **x != 0.0).count(), taken.len()), (size, size));
        assert_eq!([placed, taken], of::<Flex>(count, &Default::default()), "{count}");
    }
}

kiln_tests::on_every_device!(
    one_operation_has_the_gradients_of_many_on,
    dropout_is_that_of_the_cpu,
    sides_are_those_of_the_cpu,
    matrices_are_placed_as_on_the_cpu
);

/// By a tenth of their size, and a hundredth of all gradients' ([`assert_close`]).
#[test]
fn in_bf16_they_are_those_of_f32_but_for_rounding() {
    let device = Default::default();
    each_case(|mut backbone, mode, batch, what| {
        let plain = run(&backbone, mode, &batch, true, &device);
        backbone.set_matmul_precision(MatmulPrecision::Bf16);
        let rounded = run(&backbone, mode, &batch, false, &device);
        // bf16 keeps 8 bits of each number, and these models are as thin as their weights are large. Where a token comes
        // to another expert by it, its state is another.
        let allowed = if what.starts_with("nomic-bert-moe") { 0.5 } else { 0.1 };
        assert_close(&plain, &rounded, allowed, what);
        let again = run(&backbone, mode, &batch, false, &device);
        assert_eq!(rounded, again, "{what}: another result the second time");
    });
}

/// Adapters beside weights in few bits: the whole block multiplies by those, and rounds what they take to int8 as inference
/// does, where the plain one makes f32 of them.
#[test]
fn beside_packed_weights_they_are_those_of_f32_but_for_rounding() {
    let (device, mode) = (Default::default(), AttentionMode::Bidirectional);
    for precision in ["int8:channel", "int4:8"] {
        for family in FAMILIES {
            for trains in CASES.into_iter().filter(|case| matches!(case, Trains::Lora { .. })) {
                B::seed(&device, 5);
                let (config, packed) = read::<Flex>(precision, family, &device);
                let backbone = Backbone::<B>::from_inner(packed);
                let mut backbone = with_what_trains(backbone, &config, trains, &device);
                let batch = input(&config, true, &[3, 9, 1], &device);
                let plain = run(&backbone, mode, &batch, true, &device);
                // These models are as thin as their weights are large, so that rounding is much; another weight, or its
                // transpose, is off by all. A token may come to another expert by it.
                let allowed = if family == "nomic-bert-moe" { 0.6 } else { 0.3 };
                for numbers in [MatmulPrecision::F32, MatmulPrecision::Bf16] {
                    backbone.set_matmul_precision(numbers);
                    let whole = run(&backbone, mode, &batch, false, &device);
                    let what = format!("{family} {trains:?} in {precision}, {numbers:?}");
                    let pairs = plain[0].1.iter().zip(&whole[0].1);
                    let furthest = pairs.map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
                    assert!(furthest > 1e-4, "{what}: nothing was rounded");
                    assert_close(&plain, &whole, allowed, &what);
                }
            }
        }
    }
}

/// What was made of a weight is made anew when the weight is another.
#[test]
fn packed_weights_follow_their_weights() {
    let (device, mode) = (Default::default(), AttentionMode::Causal);
    let (config, mut backbone) = load::<B>("llama", Trains::All, &device);
    let batch = input(&config, false, &[9, 4, 7], &device);
    backbone.set_matmul_precision(MatmulPrecision::Bf16);
    run(&backbone, mode, &batch, false, &device);
    let changed = backbone.map(&mut Shake);
    let plain = run(&changed, mode, &batch, true, &device);
    assert_close(&plain, &run(&changed, mode, &batch, false, &device), 3e-2, "changed");
}

/// Norms in every place, in both kinds, of which no family has all, and a bias of scores that learns: against the same in
/// Burn's operations.
#[test]
fn norms_inside_and_around_a_branch_have_their_gradients() {
    norms_have_their_gradients(5);
}

/// Of more tokens than a tile of queries and a core's part of rows.
#[test]
fn norms_around_texts_of_several_tiles_have_their_gradients() {
    norms_have_their_gradients(150);
}

fn norms_have_their_gradients(seq: usize) {
    let device = Default::default();
    let (batch, hidden, inner) = (2, 8, 12);
    let heads = Heads { queries: 2, keys: 1, width: 4 };
    let drawn = |count: usize, seed: f32| -> Vec<f32> {
        (0..count).map(|i| 0.4 * (i as f32 * 0.731 + seed).sin()).collect()
    };
    let matrix = |rows: usize, columns: usize, seed: f32| {
        let data = TensorData::new(drawn(rows * columns, seed), [rows, columns]);
        Tensor::<B, 2>::from_data(data, &device).require_grad()
    };
    let vector = |seed: f32| {
        let data = TensorData::new(drawn(hidden, seed), [hidden]);
        (Tensor::<B, 1>::from_data(data, &device) + 1.0).detach().require_grad()
    };
    let weights = [
        matrix(hidden, heads.row(), 1.0),
        matrix(heads.queries * heads.width, hidden, 2.0),
        matrix(hidden, inner, 3.0),
        matrix(inner, hidden, 4.0),
    ];
    let gammas: Vec<_> = (0..6).map(|i| vector(5.0 + i as f32)).collect();
    let betas: Vec<_> = (0..6).map(|i| vector(15.0 + i as f32)).collect();
    let data = TensorData::new(drawn(batch * seq * hidden, 30.0), [batch, seq, hidden]);
    let x = Tensor::<B, 3>::from_data(data, &device).require_grad();
    // Layer norms in the even places, RMS norms in the odd ones.
    let normed = |x: Tensor<B, 3>, place: usize| {
        let centred = match place % 2 {
            0 => x.clone() - x.clone().mean_dim(2),
            _ => x,
        };
        let scale = (centred.clone().powf_scalar(2.0).mean_dim(2) + 1e-5).sqrt();
        let y = centred / scale * gammas[place].clone().reshape([1, 1, hidden]);
        if place.is_multiple_of(2) { y + betas[place].clone().reshape([1, 1, hidden]) } else { y }
    };
    let linear = |x: Tensor<B, 3>, weight: &Tensor<B, 2>| {
        let [inputs, outputs] = weight.dims();
        x.reshape([batch * seq, inputs]).matmul(weight.clone()).reshape([batch, seq, outputs])
    };
    let rows = vec![0..seq; batch];
    let bias = matrix(heads.queries, 2 * seq - 1, 50.0);
    let seen = Seen { rows: &rows, angles: None, mask: None, bias: Some(&bias), unread: false };
    let attended = |x| {
        let context = B::self_attention(linear(x, &weights[0]), heads, seen);
        linear(context, &weights[1])
    };
    let plain = normed(x.clone() + normed(attended(normed(x.clone(), 0)), 1), 2);
    let fed = |x| linear(activation::silu(linear(x, &weights[2])), &weights[3]);
    let plain = normed(plain.clone() + normed(fed(normed(plain, 3)), 4), 5);

    let norm = |place: usize| {
        Some(Norm {
            gamma: gammas[place].clone().into_primitive().tensor(),
            beta: place.is_multiple_of(2).then(|| betas[place].clone().into_primitive().tensor()),
            centred: place.is_multiple_of(2),
            epsilon: 1e-5,
        })
    };
    let projection = |weight: &Tensor<B, 2>| Projection {
        weight: weight.clone().into_primitive().tensor(),
        matrix: None,
        bias: None,
        adapters: Vec::new(),
        prepared: Default::default(),
    };
    let block = Block {
        heads,
        activation: Activation::Silu,
        precision: MatmulPrecision::F32,
        attention: Branch { before: norm(0), inside: norm(1), after: norm(2) },
        head_norms: Vec::new(),
        score_bias: Some(bias.clone().into_primitive().tensor()),
        qkv: projection(&weights[0]),
        output: projection(&weights[1]),
        feed_forward: Branch { before: norm(3), inside: norm(4), after: norm(5) },
        gate: None,
        joined: false,
        up: projection(&weights[2]),
        down: projection(&weights[3]),
    };
    let whole = B::block(&x, block, seen).unwrap();
    let results = [plain, whole].map(|y| {
        let factors = drawn(batch * seq * hidden, 40.0);
        let factors = Tensor::<B, 3>::from_data(TensorData::new(factors, y.dims()), &device);
        let grads = (y.clone() * factors).sum().backward();
        let read = |name: &str, values: TensorData| (name.to_string(), values.to_vec().unwrap());
        let mut result = vec![read("states", y.into_data())];
        result.push(read("input", x.grad(&grads).unwrap().into_data()));
        result.push(read("score bias", bias.grad(&grads).unwrap().into_data()));
        for (i, weight) in weights.iter().enumerate() {
            result.push(read(&format!("weight {i}"), weight.grad(&grads).unwrap().into_data()));
        }
        for (place, gamma) in gammas.iter().enumerate() {
            result.push(read(&format!("gamma {place}"), gamma.grad(&grads).unwrap().into_data()));
        }
        for place in [0, 2, 4] {
            let grad = betas[place].grad(&grads).unwrap();
            result.push(read(&format!("beta {place}"), grad.into_data()));
        }
        result
    });
    assert_close(&results[0], &results[1], 1e-5, &format!("norms in every place, {seq} tokens"));
}
