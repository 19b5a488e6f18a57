//! A block as one operation of a backend against the same block made of Burn's operations: its output and every
//! gradient, in f32 and bf16; on the CPU for every family.

mod kernels;
mod low_precision;
mod norms;

use burn::backend::{Autodiff, Flex};
use burn::module::{Module as _, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Tensor, TensorData};
use kiln_embed::checkpoint::{Directory, Weights, load_backbone};
use kiln_embed::config::{AttentionMode, ModelConfig};
use kiln_embed::kernels::{Kernels, MatmulPrecision, TrainingBackend};
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

kiln_tests::on_every_device!(one_operation_has_the_gradients_of_many_on);
