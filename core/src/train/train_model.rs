//! What is trained: the embedding model, a language-model head where a stage needs one, and a cross-encoder's head.

use crate::embedder::EmbeddingModel;
use crate::kernels::{Kernels, TrainingBackend};
use crate::model::Backbone;
use crate::pooling::l2_normalize;
use crate::reranker::{AnswerTokens, ScoreHead};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Tensor, module::linear};

/// The parameters of a run.
#[derive(Module, Debug)]
pub struct TrainModel<B: Backend> {
    /// The embedding model.
    pub model: EmbeddingModel<B>,
    /// Language-model head `[vocab, hidden]` of its own, for objectives of tokens and for answers, where it is not tied.
    pub lm_head: Option<Param<Tensor<B, 2>>>,
    /// `[student width, teacher width]` for each pair of layers that are compared and differ in
    /// width; trained, and left behind.
    pub projections: Vec<Param<Tensor<B, 2>>>,
    /// A cross-encoder's head, over the states that the embedding model pools.
    pub score_head: Option<ScoreHead<B>>,
    /// The tokens whose logits are the score of a decoder that ranks.
    #[module(skip)]
    pub answer: Option<AnswerTokens>,
}

impl<B: Kernels> TrainModel<B> {
    /// The embedding model's transformer.
    pub fn backbone(&self) -> &Backbone<B> {
        self.model.backbone()
    }

    /// What the loss is of `[rows, width]`, in f32: vectors of norm 1, or a cross-encoder's scores.
    pub fn finished(&self, vectors: Tensor<B, 2>) -> Tensor<B, 2> {
        match (&self.score_head, self.answer) {
            (Some(head), _) => head.forward_rows(vectors).cast(FloatDType::F32),
            (None, Some(answer)) => answer.scores(vectors, self.table()).cast(FloatDType::F32),
            (None, None) => l2_normalize(vectors.cast(FloatDType::F32)),
        }
    }

    /// Width of what the loss is of.
    pub fn width(&self) -> usize {
        match (&self.score_head, self.answer) {
            (Some(head), _) => head.labels(),
            (None, Some(_)) => 1,
            (None, None) => self.model.dimensions(),
        }
    }

    /// Logits `[rows, vocab]` of states `[rows, hidden]`.
    pub fn logits(&self, states: Tensor<B, 2>) -> Tensor<B, 2> {
        linear(states, self.table().transpose(), None)
    }

    /// The language-model head `[vocab, hidden]`.
    fn table(&self) -> Tensor<B, 2> {
        match &self.lm_head {
            Some(head) => head.val(),
            None => self.backbone().token_embedding(),
        }
    }

    /// The same parameters in another number format, for computing.
    pub fn cast(self, dtype: FloatDType) -> Self {
        struct Cast(FloatDType);
        impl<B: Kernels> ModuleMapper<B> for Cast {
            fn map_float<const D: usize>(
                &mut self,
                param: Param<Tensor<B, D>>,
            ) -> Param<Tensor<B, D>> {
                let trains = param.is_require_grad();
                let (id, tensor, mapper) = param.consume();
                let tensor = tensor.cast(self.0).detach().set_require_grad(trains);
                Param::from_mapped_value(id, tensor, mapper)
            }
        }
        self.map(&mut Cast(dtype))
    }
}

/// Which parameters train.
#[derive(Debug, Clone, Copy)]
pub enum Trains<'a> {
    /// All.
    Everything,
    /// Adapters, the pooling head, the projections, a cross-encoder's head, and what is named by a part of its path.
    Adapters(&'a [String]),
    /// Adapters alone.
    AdaptersAlone,
}

/// Marks the parameters that train; frozen ones get no gradient and no optimizer state.
pub fn set_trainable<B: TrainingBackend, M: Module<B>>(module: M, trains: Trains<'_>) -> M {
    module.map(&mut Freeze { path: ParameterPath::default(), trains })
}

/// Path of the parameter that is being visited.
#[derive(Debug, Default)]
pub struct ParameterPath(Vec<String>);

impl ParameterPath {
    /// Goes into a module, as a visitor is told of it.
    pub fn enter(&mut self, name: &str, container: &str) {
        if !container.starts_with("Enum:") {
            self.0.push(name.to_string());
        }
    }

    /// Comes out of a module.
    pub fn exit(&mut self, container: &str) {
        if !container.starts_with("Enum:") {
            self.0.pop();
        }
    }

    /// The path, as `model.backbone.blocks.0`.
    pub fn dotted(&self) -> String {
        self.0.join(".")
    }

    fn has(&self, part: &str) -> bool {
        self.0.iter().any(|segment| segment == part)
    }

    fn last(&self) -> &str {
        self.0.last().map_or("", String::as_str)
    }
}

struct Freeze<'a> {
    path: ParameterPath,
    trains: Trains<'a>,
}

impl<B: Kernels> ModuleMapper<B> for Freeze<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, container: &str) {
        self.path.exit(container);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let trains = match self.trains {
            Trains::Everything => true,
            Trains::AdaptersAlone => self.path.has("adapters"),
            Trains::Adapters(extras) => {
                ["adapters", "pooling", "dense", "projections", "score_head"]
                    .iter()
                    .any(|part| self.path.has(part))
                    || extras.iter().any(|extra| self.path.dotted().contains(extra.as_str()))
            }
        };
        // What a block of EmbeddingGemma 2 is multiplied with is no parameter in transformers.
        let trains = trains && self.path.last() != "scale";
        param.map(|tensor| {
            // What trains is in f32, whatever a device keeps frozen weights in.
            let tensor = if trains { tensor.cast(FloatDType::F32) } else { tensor };
            tensor.detach().set_require_grad(trains)
        })
    }
}

/// One parameter of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterInfo {
    /// Its id, by which gradients know it.
    pub id: ParamId,
    /// Path among the modules.
    pub path: String,
    /// Number of values.
    pub size: usize,
    /// Whether it trains.
    pub trains: bool,
    /// Whether weight decay applies: not to norms, biases and latents.
    pub decays: bool,
}

/// Path and number of values of each parameter. Nothing is drawn: whether a parameter trains would
/// have to be asked of its values, and of a model of 7 B they are 28 GB.
pub fn sizes<B: Kernels, M: Module<B>>(module: &M) -> Vec<(String, usize)> {
    #[derive(Default)]
    struct Sizes {
        path: ParameterPath,
        sizes: Vec<(String, usize)>,
    }
    impl<B: Kernels> ModuleVisitor<B> for Sizes {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.enter(name, container);
        }

        fn exit_module(&mut self, _: &str, container: &str) {
            self.path.exit(container);
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.sizes.push((self.path.dotted(), param.lazy_shape().num_elements()));
        }
    }
    let mut sizes = Sizes::default();
    module.visit(&mut sizes);
    sizes.sizes
}

/// All parameters, in their order.
pub fn parameters<B: Kernels, M: Module<B>>(module: &M) -> Vec<ParameterInfo> {
    struct List {
        path: ParameterPath,
        parameters: Vec<ParameterInfo>,
    }
    impl<B: Kernels> ModuleVisitor<B> for List {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.enter(name, container);
        }

        fn exit_module(&mut self, _: &str, container: &str) {
            self.path.exit(container);
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let undecayed = ["gamma", "beta", "bias", "latents", "layer_embedding"];
            self.parameters.push(ParameterInfo {
                id: param.id,
                path: self.path.dotted(),
                size: param.lazy_shape().num_elements(),
                trains: param.is_require_grad(),
                decays: !undecayed.contains(&self.path.last()),
            });
        }
    }
    let mut list = List { path: ParameterPath::default(), parameters: Vec::new() };
    module.visit(&mut list);
    list.parameters
}
