//! One stage of a recipe.

use anyhow::{Result, bail};
use kiln_embed::loss::{Gist, InfoNce, MarginStrategy, Matryoshka, Reduction};
use kiln_embed::train::{OptimizerKind, Schedule};
use serde::{Deserialize, Serialize};

use super::DataRef;
use super::source::Uses;

/// One stage of training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Name for reports.
    pub name: String,
    /// The data sets.
    pub data: Vec<DataRef>,
    /// Optimizer steps.
    pub steps: usize,
    /// Queries in a batch.
    pub batch_size: usize,
    /// Batches whose gradients make one step.
    #[serde(default = "one")]
    pub accumulation: usize,
    /// How batches are put together.
    #[serde(default)]
    pub sampler: SamplerKind,
    /// How often each data set is drawn from.
    #[serde(default)]
    pub mixing: Mixing,
    /// Hard negatives of each query.
    #[serde(default = "one")]
    pub hard_negatives: usize,
    /// Which of a query's negatives are taken.
    #[serde(default)]
    pub curriculum: Curriculum,
    /// Highest learning rate.
    pub lr: f64,
    /// Steps of linear warm-up.
    #[serde(default)]
    pub warmup: usize,
    /// What the learning rate does after the warm-up.
    #[serde(default)]
    pub schedule: Schedule,
    /// How gradients become steps.
    #[serde(default, skip_serializing_if = "OptimizerKind::is_default")]
    pub optimizer: OptimizerKind,
    /// The optimizer's weight decay; norms, biases and latents are never decayed.
    #[serde(default)]
    pub weight_decay: f64,
    /// Largest norm of the whole gradient; 0 does not clip.
    #[serde(default = "default_clip")]
    pub clip_norm: f64,
    /// Go on with the optimizer of the stage before, its state and its weight decay, rather than
    /// start a new one.
    #[serde(default)]
    pub keep_optimizer: bool,
    /// Train all parameters in this stage, though the recipe has adapters (Anchor, stage I).
    #[serde(default)]
    pub full: bool,
    /// Merge the adapters of the stages before into the model's weights, and train new ones, as Negative
    /// Matters does after MNTP (arXiv:2509.00842, section 3.2).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merge_lora: bool,
    /// What the stage learns.
    #[serde(default)]
    pub objective: Objective,
    /// The contrastive loss.
    #[serde(default)]
    pub loss: InfoNce,
    /// Widths at which the contrastive loss is taken; the full one alone where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matryoshka: Option<Matryoshka>,
    /// Settings of the reconstruction objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconstruction: Option<Reconstruction>,
    /// Settings of masked next-token prediction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mntp: Option<Mntp>,
    /// What is learned from a teacher, beside the contrastive loss or alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distillation: Option<Distillation>,
    /// What is learned from the scores in rows, beside the contrastive loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_mse: Option<MarginMse>,
    /// How pairs are set in the order of their scores, where that is the objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub similarity: Option<Similarity>,
    /// What a cross-encoder learns of its scores, where that is the objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerank: Option<Rerank>,
}

/// Learning how much better a positive is than a negative (arXiv:2010.02666), from rows with scores, as `kiln mine
/// --reranker` writes them: the mean of `(scale (cos(q,p) - cos(q,n)) - (s_p - s_n))^2`. So a cross-encoder is
/// distilled into an embedder.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MarginMse {
    /// Weight of this loss.
    #[serde(default = "unit")]
    pub weight: f64,
    /// Weight of the contrastive loss beside it; 0: this alone.
    #[serde(default = "unit")]
    pub contrastive: f64,
    /// What cosines are multiplied with: 1 for scores between 0 and 1.
    #[serde(default = "unit")]
    pub scale: f64,
}

/// How pairs are set in the order of their scores.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Similarity {
    /// Which loss.
    #[serde(default)]
    pub loss: SimilarityLoss,
    /// What similarities are multiplied with; sentence-transformers' 20.
    #[serde(default = "default_similarity_scale")]
    pub scale: f64,
}

/// The losses of [`Objective::Similarity`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SimilarityLoss {
    /// CoSENT (Su, 2022): each pair above all that score less, by cosines.
    #[default]
    Cosent,
    /// AnglE (arXiv:2309.12871, section 3.3): the same by differences of angles in the complex plane.
    Angle,
}

impl Default for Similarity {
    fn default() -> Self {
        Self { loss: SimilarityLoss::default(), scale: default_similarity_scale() }
    }
}

fn default_similarity_scale() -> f64 {
    20.0
}

/// What a cross-encoder learns of its scores of pairs ([`Objective::Rerank`]). Names and defaults are
/// sentence-transformers'.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rerank {
    /// Which loss.
    #[serde(default)]
    pub loss: RerankLoss,
    /// What the labels of texts are, where the loss learns from labels.
    #[serde(default)]
    pub labels: RerankLabels,
    /// `binary_cross_entropy`: the weight of positives, 1 where absent; sentence-transformers' guide takes the number
    /// of negatives beside each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pos_weight: Option<f64>,
    /// `multiple_negatives_ranking`: other queries' texts that are drawn beside each query's own, 4 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_negatives: Option<usize>,
    /// `multiple_negatives_ranking`: what scores between 0 and 1 are multiplied with, 10 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
}

/// The losses of [`Objective::Rerank`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RerankLoss {
    /// `BinaryCrossEntropyLoss`: each pair by itself, relevant or not.
    #[default]
    BinaryCrossEntropy,
    /// `MSELoss`: each pair's score as a teacher's.
    Mse,
    /// `MarginMSELoss` (arXiv:2010.02666): a positive as much above a negative as with a teacher.
    MarginMse,
    /// `MultipleNegativesRankingLoss`: the positive among its negatives and some of other queries' texts.
    #[serde(alias = "multiple_negatives")]
    MultipleNegativesRanking,
    /// `RankNetLoss` (Burges et al., ICML 2005): each text above all of the query's with a lower label.
    RankNet,
    /// `LambdaLoss` with NDCG-Loss2++ (Wang et al., CIKM 2018): the same, weighted by what a swap costs in nDCG.
    Lambda,
}

/// What the labels of texts are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RerankLabels {
    /// 1 for positives and 0 for negatives, whatever scores a row has; of a pair its own label.
    #[default]
    Binary,
    /// The scores in rows (`pos_scores`, `neg_scores`, a pair's own).
    Scores,
}

impl RerankLoss {
    /// Its name in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            Self::BinaryCrossEntropy => "binary_cross_entropy",
            Self::Mse => "mse",
            Self::MarginMse => "margin_mse",
            Self::MultipleNegativesRanking => "multiple_negatives_ranking",
            Self::RankNet => "rank_net",
            Self::Lambda => "lambda",
        }
    }

    /// Whether it learns a teacher's scores, which have no other meaning than the teacher's.
    pub fn learns_scores(self) -> bool {
        matches!(self, Self::Mse | Self::MarginMse)
    }

    /// Whether it learns from labels: how relevant a text is.
    pub fn learns_labels(self) -> bool {
        matches!(self, Self::BinaryCrossEntropy | Self::RankNet | Self::Lambda)
    }

    /// Whether it compares the texts of a query, so that each needs a negative beside its positive.
    pub fn compares(self) -> bool {
        matches!(self, Self::MarginMse | Self::RankNet | Self::Lambda)
    }
}

impl Rerank {
    /// The weight of positives.
    pub fn pos_weight(&self) -> f64 {
        self.pos_weight.unwrap_or(1.0)
    }

    /// Other queries' texts beside each query's own; none with losses that take none.
    pub fn num_negatives(&self) -> usize {
        match self.loss {
            RerankLoss::MultipleNegativesRanking => self.num_negatives.unwrap_or(4),
            _ => 0,
        }
    }

    /// What scores between 0 and 1 are multiplied with.
    pub fn scale(&self) -> f64 {
        self.scale.unwrap_or(10.0)
    }

    /// Whether positives are labelled 1 and negatives 0, whatever their rows say.
    pub fn is_binary(&self) -> bool {
        self.loss.learns_labels() && self.labels == RerankLabels::Binary
    }

    /// Refuses what the loss does not use and what has no meaning.
    fn check(&self, hard_negatives: usize) -> Result<()> {
        use RerankLoss as L;
        let name = self.loss.name();
        let ranks = self.loss == L::MultipleNegativesRanking;
        for (key, unused) in [
            ("pos_weight", self.pos_weight.is_some() && self.loss != L::BinaryCrossEntropy),
            ("num_negatives", self.num_negatives.is_some() && !ranks),
            ("scale", self.scale.is_some() && !ranks),
            ("labels", self.labels != RerankLabels::Binary && !self.loss.learns_labels()),
        ] {
            if unused {
                bail!("rerank.loss = {name:?} does not use rerank.{key}; leave it out");
            }
        }
        for (key, value) in [("pos_weight", self.pos_weight()), ("scale", self.scale())] {
            if !(value > 0.0 && value <= 1e6) {
                bail!("rerank.{key} is {value}, and has to be above 0 and at most 1e6");
            }
        }
        if self.num_negatives() > 1 << 16 {
            bail!("rerank.num_negatives is {}, more than {}", self.num_negatives(), 1 << 16);
        }
        if self.loss.compares() && hard_negatives == 0 {
            bail!(
                "rerank.loss = {name:?} compares positives with hard negatives; set hard_negatives"
            );
        }
        if ranks && hard_negatives == 0 && self.num_negatives() == 0 {
            bail!("without hard negatives and num_negatives there is nothing to learn from");
        }
        Ok(())
    }
}

fn one() -> usize {
    1
}
fn default_clip() -> f64 {
    1.0
}

/// What a stage learns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// Queries near their positives, far from negatives.
    #[default]
    Contrastive,
    /// The document from the query's vector, and the query from the document's (bidirectional
    /// reconstruction, arXiv:2509.03020, section 3.2).
    Reconstruction,
    /// A teacher's vectors alone; the texts need no positives.
    Distillation,
    /// Masked next-token prediction (LLM2Vec, arXiv:2404.05961, section 2.1), by which a decoder learns to
    /// attend in both directions; the texts need no positives.
    Mntp,
    /// Pairs of texts as alike as their scores say, by order: those of STS data, and of rows with `pos_scores` and
    /// `neg_scores`.
    Similarity,
    /// A cross-encoder's scores of a query and a text; the model is then a reranker.
    Rerank,
}

impl Objective {
    /// Its name in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            Self::Contrastive => "contrastive",
            Self::Reconstruction => "reconstruction",
            Self::Distillation => "distillation",
            Self::Mntp => "mntp",
            Self::Similarity => "similarity",
            Self::Rerank => "rerank",
        }
    }

    /// Whether it learns from texts that have no positives.
    pub fn takes_texts_alone(self) -> bool {
        matches!(self, Self::Distillation | Self::Mntp)
    }

    /// Whether it looks at a query's negatives.
    pub fn takes_negatives(self) -> bool {
        matches!(self, Self::Contrastive | Self::Distillation | Self::Similarity | Self::Rerank)
    }

    /// Whether it writes tokens, for which it needs a language-model head.
    pub fn writes_tokens(self) -> bool {
        matches!(self, Self::Reconstruction | Self::Mntp)
    }
}

/// Learning from a teacher (NV-Embed, arXiv:2405.17428, appendix A.2):
/// `L = [L_contrastive] + alpha (vectors L_vectors + scores L_scores + sum of L_states)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distillation {
    /// Folder or Hub id of the teacher.
    pub teacher: String,
    /// What the teacher has before queries; its own prompt `query` where absent, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_prompt: Option<String>,
    /// Name of the teacher's own prompt for queries, in place of `query_prompt` (E5-Mistral's `web_search_query`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_prompt_name: Option<String>,
    /// What the teacher has before documents; its own prompt `document` where absent, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document_prompt: Option<String>,
    /// Name of the teacher's own prompt for documents, in place of `document_prompt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document_prompt_name: Option<String>,
    /// Weight of everything that comes from the teacher.
    #[serde(default = "unit")]
    pub alpha: f64,
    /// Weight of the mean over texts of `1 - cos` between the student's and the teacher's vector,
    /// which for normalised vectors is half their squared distance.
    #[serde(default = "unit")]
    pub vectors: f64,
    /// Weight of the mean over texts of the divergence between the teacher's and the student's
    /// softmax over the cosines to the batch's other texts.
    #[serde(default)]
    pub scores: f64,
    /// In-batch documents and hard negatives that the teacher finds nearer to a query than its positive, less
    /// this (sentence-transformers' `margin`), are no negatives of it (GISTEmbed, arXiv:2402.16829); none is left
    /// out where absent. With `vectors = 0` the teacher guides, and nothing else is learned from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guide: Option<f64>,
    /// Whether [`Self::guide`] is a distance from the positive's cosine, or a share of it (sentence-transformers'
    /// `margin_strategy`).
    #[serde(default, skip_serializing_if = "MarginStrategy::is_default")]
    pub margin_strategy: MarginStrategy,
    /// With a guide: the batch's other queries are negatives of a query, too, but for those that the teacher finds
    /// nearer to it than its positive, as with documents. Off where absent; sentence-transformers' is on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contrast_anchors: bool,
    /// With a guide: other queries' positives are negatives of a query's positive, too, under the same rule. Off
    /// where absent; sentence-transformers' is on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contrast_positives: bool,
    /// Temperature of the scores' softmax.
    #[serde(default = "default_temperature")]
    pub temperature: f64,
    /// Which hidden states shall be alike: mean squared error over the tokens.
    #[serde(default)]
    pub layers: LayerMap,
}

impl Distillation {
    /// How the teacher chooses negatives, if it guides.
    pub fn gist(&self) -> Option<Gist> {
        let &Self { margin_strategy, contrast_anchors, contrast_positives, .. } = self;
        let of = |margin| Gist { margin, margin_strategy, contrast_anchors, contrast_positives };
        self.guide.map(of)
    }

    /// The fields of a guide that are given, but for the guide itself.
    fn beside_guide(&self) -> Vec<&'static str> {
        let fields = [
            ("distillation.margin_strategy", !self.margin_strategy.is_default()),
            ("distillation.contrast_anchors", self.contrast_anchors),
            ("distillation.contrast_positives", self.contrast_positives),
        ];
        fields.iter().filter(|(_, given)| *given).map(|(field, _)| *field).collect()
    }
}

/// Pairs of a student's and a teacher's layers, counted from 1; 0 is the embedding output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerMap {
    /// None.
    #[default]
    None,
    /// Every layer of the student but the last with the teacher's at the same share of the depth. As in NV-Embed's
    /// appendix A.2 the sum ends before the last decoder layer, which `last` adds to by itself and `pairs` to the others.
    Uniform,
    /// The last ones.
    Last,
    /// NV-Embed's appendix A.2: each decoder layer but the last with the teacher's same one, and the last
    /// with the teacher's output state, which its latent-attention block gives for each token. The paper's loss has
    /// nothing else: [`Distillation::vectors`] is 0 there.
    AppendixA,
    /// These. One more than the teacher's layers is the output of its latent-attention block.
    Pairs(Vec<[usize; 2]>),
}

impl LayerMap {
    /// The pairs for a student and a teacher of so many layers.
    ///
    /// # Errors
    /// A layer that one of them does not have.
    pub fn pairs(&self, student: usize, teacher: usize) -> Result<Vec<[usize; 2]>> {
        Ok(match self {
            Self::None => Vec::new(),
            Self::Last => vec![[student, teacher]],
            Self::Uniform => {
                if student < 2 {
                    bail!(
                        "distillation.layers = \"uniform\" pairs the layers before the last, and the student has \
                         {student}; use \"last\", or name pairs"
                    );
                }
                let same = |layer: usize| (layer * teacher + student / 2) / student;
                (1..student).map(|layer| [layer, same(layer)]).collect()
            }
            Self::AppendixA => {
                if student != teacher {
                    bail!(
                        "distillation.layers = \"appendix_a\" pairs each layer with the same one of the teacher, which has \
                         {teacher}; the student has {student}; use \"uniform\", or name pairs"
                    );
                }
                let same = (1..student).map(|layer| [layer, layer]);
                same.chain([[student, teacher + 1]]).collect()
            }
            Self::Pairs(pairs) => {
                if let Some([s, t]) = pairs.iter().find(|[s, t]| *s > student || *t > teacher + 1) {
                    bail!(
                        "distillation.layers pairs layer {s} with {t}; the student has {student} layers and the teacher \
                         {teacher}, and one more with a latent-attention head"
                    );
                }
                pairs.clone()
            }
        })
    }
}

fn unit() -> f64 {
    1.0
}
fn default_temperature() -> f64 {
    0.05
}

/// Bidirectional reconstruction (Anchor's stage I, arXiv:2509.03020, section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reconstruction {
    /// `L = alpha L_Q2D + (1 - alpha) L_D2Q` (equation 5); the paper's 0.2.
    #[serde(default = "default_alpha")]
    pub alpha: f64,
    /// Whether the token embeddings are also the language-model head. `false`: a head of its own, which is
    /// not saved with the model: the base model's or, where that has none, a copy of the embeddings.
    /// Where absent, as the base model has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tied: Option<bool>,
    /// Mean over tokens (the paper's code), or sum over a text's tokens (its formula).
    #[serde(default)]
    pub reduction: Reduction,
    /// The closing EOS is a target too. In the public code it is none, as it is also padding there.
    #[serde(default)]
    pub predict_eos: bool,
    /// Whether texts are read behind their prompts; what is written never has them.
    #[serde(default)]
    pub instructions: bool,
}

fn default_alpha() -> f64 {
    0.2
}

impl Default for Reconstruction {
    fn default() -> Self {
        Self {
            alpha: default_alpha(),
            tied: None,
            reduction: Reduction::default(),
            predict_eos: false,
            instructions: false,
        }
    }
}

/// Masked next-token prediction (LLM2Vec, arXiv:2404.05961, section 2.1): tokens are masked, and each is
/// predicted from the state of the token before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mntp {
    /// Share of a text's tokens that is masked; 1 masks all that have one before them.
    #[serde(default = "default_mask")]
    pub mask: f64,
    /// The token that stands for them, which the vocabulary has to have: a rare one, as decoders have no
    /// mask token.
    #[serde(default = "default_mask_token")]
    pub mask_token: String,
    /// Which language-model head; as [`Reconstruction::tied`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tied: Option<bool>,
}

fn default_mask() -> f64 {
    0.2
}
fn default_mask_token() -> String {
    "_".into()
}

impl Default for Mntp {
    fn default() -> Self {
        Self { mask: default_mask(), mask_token: default_mask_token(), tied: None }
    }
}

/// How batches are put together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplerKind {
    /// Each query from a data set drawn by the mixture (NV-Embed's well-blended batches).
    #[default]
    Blended,
    /// Each batch from one data set, drawn by the mixture (Linq: task-homogeneous).
    Homogeneous,
    /// Homogeneous batches in as many blocks, each with the same order of data sets (Linq:
    /// homogeneous task ordering).
    Blocks(usize),
    /// Homogeneous batches, the data sets mixed over the accumulated batches of each step (Linq:
    /// mixed-task fine-tuning).
    Mixed,
}

/// How often each data set is drawn from, where sets have no weight of their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixing {
    /// By size.
    #[default]
    Proportional,
    /// By size to the power `1 / temperature`.
    Temperature(f64),
    /// All alike.
    Uniform,
}

impl Mixing {
    /// Share of a data set of the given size, up to a common factor.
    pub fn share(self, size: usize) -> f64 {
        match self {
            Mixing::Proportional => size as f64,
            Mixing::Temperature(temperature) => (size as f64).powf(1.0 / temperature),
            Mixing::Uniform => 1.0,
        }
    }
}

/// Which negatives of an example are taken; with graded ones, the order of their levels over a stage
/// (multi-granularity hard negatives, arXiv:2509.00842, section 2.1). A level keeps its number: an
/// example that lacks it has no negative of its own in that step. Negatives that come without
/// levels are taken for graded as they stand, hardest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Curriculum {
    /// The first ones, as given.
    #[default]
    Given,
    /// Drawn anew each time, as FlagEmbedding does.
    Sampled,
    /// From the easiest level to the hardest, each for an equal share of the steps: quarters where
    /// the data set's highest level is four, whichever of them an example has.
    CoarseToFine,
    /// From the hardest to the easiest.
    FineToCoarse,
    /// A level drawn for each example (the paper's random order).
    Random,
    /// A level drawn for each batch.
    RandomByBatch,
    /// Always the same level, 1 being the hardest.
    Fixed(usize),
}

impl Curriculum {
    /// Whether it goes by levels.
    pub fn is_graded(self) -> bool {
        !matches!(self, Self::Given | Self::Sampled)
    }

    /// Refuses what has no meaning: a level 0, no negatives at all, and several of the one level of a step.
    pub(super) fn check(self, hard_negatives: usize) -> Result<()> {
        if self != Self::Given && hard_negatives == 0 {
            bail!(
                "curriculum chooses among a query's negatives, and hard_negatives = 0 takes none; set hard_negatives = 1, \
                 or leave curriculum out"
            );
        }
        if self == Self::Fixed(0) {
            bail!("curriculum.fixed counts from 1, the hardest");
        }
        if self.is_graded() && hard_negatives > 1 {
            bail!(
                "hard_negatives = {hard_negatives} with a curriculum of levels, of which each step \
                 takes one; set hard_negatives = 1, or curriculum = \"given\" or \"sampled\""
            );
        }
        Ok(())
    }
}

impl Stage {
    /// Learning rate of a step, from 0.
    pub fn learning_rate(&self, step: usize) -> f64 {
        self.schedule.learning_rate(self.lr, step, self.steps, self.warmup)
    }

    /// Whether the language-model head is the token embeddings, where the stage says so.
    pub fn tied(&self) -> Option<bool> {
        match self.objective {
            Objective::Mntp => self.mntp.as_ref().and_then(|settings| settings.tied),
            _ => self.reconstruction.and_then(|settings| settings.tied),
        }
    }

    /// Whether pairs of texts are learned by their scores, and not those alone that are alike enough.
    pub fn takes_scored_pairs(&self) -> bool {
        match self.objective {
            Objective::Similarity => true,
            Objective::Rerank => {
                self.rerank.unwrap_or_default().loss != RerankLoss::MultipleNegativesRanking
            }
            _ => false,
        }
    }

    /// What the objective makes of its sources.
    pub(super) fn uses(&self) -> Uses {
        Uses {
            prompts: match self.objective {
                Objective::Mntp => false,
                Objective::Reconstruction => self.reconstruction.unwrap_or_default().instructions,
                _ => true,
            },
            in_batch: match self.objective {
                Objective::Contrastive => true,
                Objective::Rerank => self.rerank.unwrap_or_default().num_negatives() > 0,
                _ => false,
            },
            alike: !self.takes_scored_pairs(),
        }
    }

    /// Fields of the loss that need in-batch negatives, where no source takes them.
    pub(super) fn unused_without_in_batch(&self) -> Vec<&'static str> {
        let InfoNce { cross_negatives, both_directions, false_negative_margin, .. } = self.loss;
        let contrasts = |of: fn(&Distillation) -> bool| self.distillation.as_ref().is_some_and(of);
        let fields = [
            ("loss.cross_negatives", !cross_negatives),
            ("loss.both_directions", both_directions),
            ("loss.false_negative_margin", false_negative_margin.is_some()),
            ("distillation.contrast_anchors", contrasts(|from| from.contrast_anchors)),
            ("distillation.contrast_positives", contrasts(|from| from.contrast_positives)),
        ];
        fields.iter().filter(|(_, given)| *given).map(|(field, _)| *field).collect()
    }

    /// Whether the margins of scores are learned alone.
    fn leaves_contrastive_out(&self) -> bool {
        self.objective == Objective::Contrastive
            && self.margin_mse.is_some_and(|settings| settings.contrastive == 0.0)
    }

    /// Fields that say something to other objectives alone.
    fn unused(&self) -> Vec<&'static str> {
        let objective = self.objective;
        let contrasts = objective == Objective::Contrastive;
        let takes_loss = contrasts && !self.leaves_contrastive_out();
        let scores = objective == Objective::Similarity;
        let reranks = objective == Objective::Rerank;
        let guides = self.distillation.as_ref().is_some_and(|from| from.guide.is_some());
        let beside_guide = match &self.distillation {
            Some(from) if !takes_loss => from.beside_guide(),
            _ => Vec::new(),
        };
        let has_idle_temperature = self
            .distillation
            .as_ref()
            .is_some_and(|from| from.scores == 0.0 && from.temperature != default_temperature());
        let fields = [
            ("loss", self.loss != InfoNce::default() && !takes_loss),
            ("matryoshka", self.matryoshka.is_some() && !takes_loss && !scores),
            ("similarity", self.similarity.is_some() && !scores),
            ("rerank", self.rerank.is_some() && !reranks),
            (
                "reconstruction",
                self.reconstruction.is_some() && objective != Objective::Reconstruction,
            ),
            ("mntp", self.mntp.is_some() && objective != Objective::Mntp),
            ("margin_mse", self.margin_mse.is_some() && !contrasts),
            ("distillation.guide", guides && !takes_loss),
            ("distillation.temperature", has_idle_temperature),
            ("distillation", self.distillation.is_some() && (objective.writes_tokens() || reranks)),
            ("curriculum", self.curriculum != Curriculum::Given && !objective.takes_negatives()),
            ("hard_negatives", self.hard_negatives > 1 && !objective.takes_negatives()),
        ];
        let fields = fields.iter().filter(|(_, unused)| *unused).map(|(field, _)| *field);
        fields.chain(beside_guide).collect()
    }

    /// Queries that the stage sees.
    pub fn samples(&self) -> usize {
        self.steps.saturating_mul(self.batch_size).saturating_mul(self.accumulation)
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.steps == 0 || self.batch_size == 0 || self.accumulation == 0 {
            bail!("steps, batch_size and accumulation must be at least 1");
        }
        // More than any run takes, and little enough that they can be multiplied.
        for (key, number, most) in [
            ("steps", self.steps, u32::MAX as usize),
            ("batch_size", self.batch_size, 1 << 24),
            ("accumulation", self.accumulation, 1 << 16),
            ("hard_negatives", self.hard_negatives, 1 << 16),
            ("warmup", self.warmup, u32::MAX as usize),
        ] {
            if number > most {
                bail!("{key} is {number}, more than {most}");
            }
        }
        if self.data.is_empty() {
            bail!("data names no file");
        }
        if let unused @ [_, ..] = self.unused().as_slice() {
            let what = match self.leaves_contrastive_out() {
                true => "margin_mse.contrastive = 0".into(),
                false => format!("objective = {:?}", self.objective.name()),
            };
            bail!("{what} does not use {}; leave it out", unused.join(" nor "));
        }
        if !(self.lr > 0.0 && self.lr <= 1e38) {
            bail!("lr is {:e}, and has to be above 0 and at most 1e38", self.lr);
        }
        if !(self.loss.temperature.is_finite() && self.loss.temperature > 0.0) {
            bail!("loss.temperature is {}", self.loss.temperature);
        }
        if self.objective == Objective::Contrastive {
            if self.hard_negatives == 0 && !self.loss.in_batch {
                bail!(
                    "without hard negatives and in-batch negatives there is nothing to learn from"
                );
            }
            if self.batch_size == 1 && self.hard_negatives == 0 {
                bail!("a batch of one has no in-batch negatives");
            }
        }
        if self.objective == Objective::Rerank {
            self.rerank.unwrap_or_default().check(self.hard_negatives)?;
        }
        self.curriculum.check(self.hard_negatives)?;
        if self.sampler == SamplerKind::Blocks(0) {
            bail!("sampler.blocks must be at least 1");
        }
        if let Mixing::Temperature(temperature) = self.mixing
            && !(temperature.is_finite() && temperature > 0.0)
        {
            bail!("mixing.temperature is {temperature}");
        }
        if let Some(matryoshka) = &self.matryoshka {
            if matryoshka.dimensions.is_empty() || matryoshka.dimensions.contains(&0) {
                bail!("matryoshka.dimensions must be widths above 0");
            }
            let weights = matryoshka.weights.len();
            if weights != 0 && weights != matryoshka.dimensions.len() {
                bail!("matryoshka.weights must be as many as dimensions");
            }
        }
        match (&self.distillation, self.objective) {
            (None, Objective::Distillation) => bail!("distillation names no teacher"),
            (Some(from), _) if from.teacher.trim().is_empty() => {
                bail!("distillation.teacher is empty")
            }
            (Some(from), _) => {
                let weights = [from.alpha, from.vectors, from.scores];
                if weights.iter().any(|weight| !(weight.is_finite() && *weight >= 0.0)) {
                    bail!("distillation: alpha, vectors and scores must be at least 0");
                }
                if !(from.temperature.is_finite() && from.temperature > 0.0) {
                    bail!("distillation.temperature is {}", from.temperature);
                }
                if from.guide.is_none()
                    && let given @ [_, ..] = from.beside_guide().as_slice()
                {
                    bail!(
                        "without distillation.guide nothing uses {}; leave it out, or set distillation.guide",
                        given.join(" nor ")
                    );
                }
                if from.alpha == 0.0 && from.guide.is_none() {
                    bail!(
                        "distillation.alpha is 0, so nothing is learned from the teacher; leave distillation out"
                    );
                }
                for (key, text, name) in [
                    ("query_prompt", &from.query_prompt, &from.query_prompt_name),
                    ("document_prompt", &from.document_prompt, &from.document_prompt_name),
                ] {
                    if text.is_some() && name.is_some() {
                        bail!(
                            "distillation.{key} and distillation.{key}_name both say the teacher's prompt; keep one"
                        );
                    }
                }
                let nothing = from.vectors == 0.0 && from.scores == 0.0;
                if nothing && from.layers == LayerMap::None && from.guide.is_none() {
                    bail!("distillation: neither vectors nor scores nor layers are to be learned");
                }
                let (what, most) = match from.margin_strategy {
                    MarginStrategy::Absolute => ("a distance of cosines", 2.0),
                    MarginStrategy::Relative => ("a share of the positive's cosine", 1.0),
                };
                if from.guide.is_some_and(|margin| !(-most..=most).contains(&margin)) {
                    bail!("distillation.guide is {what}, and has to be between -{most} and {most}");
                }
                if from.guide.is_some() && self.loss.both_directions {
                    bail!(
                        "distillation.guide chooses the negatives of queries alone; leave loss.both_directions out"
                    );
                }
            }
            (None, _) => {}
        }
        if self.merge_lora && self.keep_optimizer {
            bail!("merge_lora trains new adapters, of which keep_optimizer has no state");
        }
        if let Some(Mntp { mask, mask_token, .. }) = &self.mntp {
            if !(*mask > 0.0 && *mask <= 1.0) {
                bail!("mntp.mask is {mask}, and has to be above 0 and at most 1");
            }
            if mask_token.is_empty() {
                bail!("mntp.mask_token is empty");
            }
        }
        if let Some(Similarity { scale, .. }) = self.similarity
            && !(scale > 0.0 && scale <= 1e6)
        {
            bail!("similarity.scale is {scale}, and has to be above 0 and at most 1e6");
        }
        if let Some(MarginMse { weight, contrastive, scale }) = self.margin_mse {
            let weights = [weight, contrastive];
            if weights.iter().any(|weight| !(weight.is_finite() && *weight >= 0.0)) {
                bail!("margin_mse: weight and contrastive must be at least 0");
            }
            if weight == 0.0 {
                bail!(
                    "margin_mse.weight is 0, so nothing is learned from the scores; leave margin_mse out"
                );
            }
            if !(scale > 0.0 && scale <= 1e6) {
                bail!("margin_mse.scale is {scale}, and has to be above 0 and at most 1e6");
            }
            if self.hard_negatives == 0 {
                bail!("margin_mse compares positives with hard negatives; set hard_negatives");
            }
        }
        let alpha = self.reconstruction.unwrap_or_default().alpha;
        if !(0.0..=1.0).contains(&alpha) {
            bail!("reconstruction.alpha is {alpha}, outside 0..=1");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_then_linear_cosine_or_constant() {
        let text = "name = 's'\ndata = ['x']\nsteps = 10\nbatch_size = 2\nlr = 1e-3\nwarmup = 2";
        let mut stage: Stage = toml::from_str(text).unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        near(stage.learning_rate(0), 5e-4);
        near(stage.learning_rate(1), 1e-3);
        near(stage.learning_rate(2), 1e-3);
        near(stage.learning_rate(9), 1.25e-4);
        stage.schedule = Schedule::Cosine;
        near(stage.learning_rate(2), 1e-3);
        near(stage.learning_rate(6), 5e-4);
        stage.schedule = Schedule::Constant;
        near(stage.learning_rate(9), 1e-3);
    }

    #[test]
    fn an_optimizer_is_named_and_the_default_is_left_out() {
        let text = "name = 's'\ndata = ['x']\nsteps = 10\nbatch_size = 2\nlr = 1e-3";
        let stage: Stage = toml::from_str(text).unwrap();
        assert_eq!(stage.optimizer, OptimizerKind::AdamW);
        assert!(!toml::to_string(&stage).unwrap().contains("\noptimizer ="));
        for kind in OptimizerKind::ALL {
            let text = format!("{text}\noptimizer = '{}'", kind.name());
            let stage: Stage = toml::from_str(&text).unwrap();
            assert_eq!(stage.optimizer, kind);
            let again: Stage = toml::from_str(&toml::to_string(&stage).unwrap()).unwrap();
            assert_eq!(again, stage);
        }
        let error = toml::from_str::<Stage>(&format!("{text}\noptimizer = 'adamax'")).unwrap_err();
        for kind in OptimizerKind::ALL {
            assert!(error.to_string().contains(&format!("`{}`", kind.name())), "{error}");
        }
    }

    #[test]
    fn what_stands_beside_a_guide_is_left_out_where_it_is_the_default() {
        let text = "teacher = 't'\nguide = 0.1";
        let from: Distillation = toml::from_str(text).unwrap();
        let gist = Gist { margin: 0.1, ..Gist::default() };
        assert_eq!(from.gist(), Some(gist));
        let written = toml::to_string(&from).unwrap();
        assert!(!written.contains("margin_strategy") && !written.contains("contrast"), "{written}");
        let text = format!("{text}\nmargin_strategy = 'relative'\ncontrast_anchors = true");
        let from: Distillation = toml::from_str(&text).unwrap();
        let margin_strategy = MarginStrategy::Relative;
        let gist = Gist { margin_strategy, contrast_anchors: true, ..gist };
        assert_eq!(from.gist(), Some(gist));
        let again: Distillation = toml::from_str(&toml::to_string(&from).unwrap()).unwrap();
        assert_eq!(again, from);
    }

    #[test]
    fn what_an_objective_does_not_use_is_refused() {
        let text = "name = 's'\ndata = ['x']\nsteps = 10\nbatch_size = 2\nlr = 1e-3\n";
        let error = |rest: &str| {
            let stage: Stage = toml::from_str(&format!("{text}{rest}")).unwrap();
            stage.check().err().map(|error| error.to_string()).unwrap_or_default()
        };
        for (rest, field) in [
            ("objective = 'reconstruction'\nloss = { temperature = 1.0 }", "loss"),
            ("objective = 'reconstruction'\nhard_negatives = 2", "hard_negatives"),
            ("reconstruction = { alpha = 0.5 }", "reconstruction"),
            ("mntp = { mask = 0.1 }", "mntp"),
            ("objective = 'mntp'\ncurriculum = 'random'", "curriculum"),
            ("objective = 'mntp'\ndistillation = { teacher = 't' }", "distillation"),
            ("margin_mse = { contrastive = 0.0 }\nloss = { temperature = 1.0 }", "loss"),
            ("objective = 'similarity'\nloss = { temperature = 1.0 }", "loss"),
            ("similarity = { loss = 'angle' }", "similarity"),
            (
                "distillation = { teacher = 't', scores = 0.0, temperature = 0.3 }",
                "distillation.temperature",
            ),
            ("rerank = { loss = 'mse' }", "rerank"),
            ("objective = 'rerank'\nmargin_mse = { scale = 2.0 }", "margin_mse"),
            ("objective = 'rerank'\nmatryoshka = { dimensions = [8] }", "matryoshka"),
            ("objective = 'rerank'\nloss = { temperature = 1.0 }", "loss"),
            ("objective = 'rerank'\ndistillation = { teacher = 't' }", "distillation"),
            ("margin_mse = { contrastive = 0.0 }\nmatryoshka = { dimensions = [8] }", "matryoshka"),
            (
                "margin_mse = { contrastive = 0.0 }\ndistillation = { teacher = 't', guide = 0.1 }",
                "distillation.guide",
            ),
        ] {
            let error = error(rest);
            assert!(error.contains(&format!("does not use {field};")), "{rest}: {error}");
        }
        assert_eq!(error("objective = 'mntp'\nmntp = { mask = 1.0 }"), "");
        let rerank = |rest: &str| error(&format!("objective = 'rerank'\n{rest}"));
        assert_eq!(rerank("rerank = { loss = 'multiple_negatives', num_negatives = 2 }"), "");
        for (rest, part) in [
            ("rerank = { loss = 'mse', pos_weight = 2.0 }", "does not use rerank.pos_weight"),
            ("rerank = { scale = 2.0 }", "does not use rerank.scale"),
            ("rerank = { loss = 'rank_net', num_negatives = 1 }", "rerank.num_negatives"),
            ("rerank = { loss = 'margin_mse', labels = 'scores' }", "rerank.labels"),
            ("rerank = { pos_weight = 0.0 }", "rerank.pos_weight is 0"),
            ("hard_negatives = 0\nrerank = { loss = 'lambda' }", "set hard_negatives"),
            (
                "hard_negatives = 0\nrerank = { loss = 'multiple_negatives_ranking', num_negatives = 0 }",
                "nothing to learn",
            ),
        ] {
            assert!(rerank(rest).contains(part), "{rest}: {}", rerank(rest));
        }
        let guided =
            "loss = { both_directions = true }\ndistillation = { teacher = 't', guide = 0.1 }";
        assert!(error(guided).contains("both_directions"));
        let teacher = |rest: &str| error(&format!("distillation = {{ teacher = 't', {rest} }}"));
        for field in
            ["margin_strategy = 'relative'", "contrast_anchors = true", "contrast_positives = true"]
        {
            let name = field.split(' ').next().unwrap();
            assert_eq!(teacher(&format!("guide = 0.1, {field}")), "");
            let said = teacher(field);
            assert!(said.contains(&format!("nothing uses distillation.{name};")), "{said}");
            let said = error(&format!(
                "objective = 'distillation'\ndistillation = {{ teacher = 't', guide = 0.1, {field} }}"
            ));
            let part = format!("does not use distillation.guide nor distillation.{name};");
            assert!(said.contains(&part), "{said}");
        }
        assert!(teacher("guide = 1.5, margin_strategy = 'relative'").contains("between -1 and 1"));
        assert_eq!(teacher("guide = 1.5, margin_strategy = 'absolute'"), "");
        assert!(teacher("guide = 2.5").contains("between -2 and 2"));
        assert!(error("objective = 'mntp'\nmntp = { mask = 0.0 }").contains("mntp.mask"));
    }

    #[test]
    fn layers_of_appendix_a_end_at_the_latent_block() {
        assert_eq!(LayerMap::AppendixA.pairs(3, 3).unwrap(), [[1, 1], [2, 2], [3, 4]]);
        assert_eq!(LayerMap::Uniform.pairs(3, 6).unwrap(), [[1, 2], [2, 4]]);
        assert!(LayerMap::Uniform.pairs(1, 6).unwrap_err().to_string().contains("last"));
        assert!(LayerMap::AppendixA.pairs(2, 3).unwrap_err().to_string().contains("uniform"));
        assert_eq!(LayerMap::Pairs(vec![[1, 4]]).pairs(1, 3).unwrap(), [[1, 4]]);
        assert!(LayerMap::Pairs(vec![[1, 5]]).pairs(1, 3).is_err());
    }

    #[test]
    fn mixtures() {
        assert_eq!(Mixing::Proportional.share(100), 100.0);
        assert_eq!(Mixing::Temperature(2.0).share(100), 10.0);
        assert_eq!(Mixing::Uniform.share(100), 1.0);
    }
}
