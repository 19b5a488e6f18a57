//! What the papers say, against the shipped recipes of paper size.
//!
//! The tables below were written from the papers' texts, not from the recipes. Each value bears the
//! place that says it; "code" is the authors' public code, where the paper is silent.

use std::path::Path;

use toml::Value;

use super::{DataSource, Labels, LeakRule, Recipe, SWEEPS, Sweep, shipped};
use crate::text::read_small;

/// Where a value stands in a resolved recipe, the value as TOML, and who says so. A field that a
/// resolved recipe leaves out because it has its default is `"default"` here.
type Said = (&'static str, &'static str, &'static str);

/// A query behind its instruction, as E5-Mistral has it (arXiv:2401.00368, section 3.2).
const TEMPLATE: &str = r#""Instruct: {instruction}\nQuery: ""#;

/// NV-Embed, arXiv:2405.17428.
const NV_EMBED: &[Said] = &[
    ("model.base", "'mistralai/Mistral-7B-v0.1'", "appendix C: Mistral 7B"),
    ("model.attention", "'bidirectional'", "section 3.1, appendix C"),
    ("model.max_length", "512", "appendix C"),
    ("model.add_bos", "true", "appendix C: BOS at the start of query and documents"),
    ("model.add_eos", "true", "appendix C: EOS at the end"),
    ("model.padding_side", "'right'", "table 11"),
    ("model.instruction", "'masked'", "section 4: masked out in the output embeddings"),
    ("model.instruction_format", TEMPLATE, "equation 2; the newline: code"),
    ("model.prompts.document", "''", "section 4: none before documents"),
    ("model.pooling.mode", "'latent_attention'", "section 3.2"),
    ("model.pooling.latents", "512", "section 3.2, table 11"),
    ("model.pooling.latent_size", "default", "table 11: a latent's width is 4096, the base's own"),
    ("model.pooling.heads", "8", "section 3.2, table 11"),
    ("model.pooling.head_dim", "4096", "code: the release's inner width is 8 x 4096"),
    ("model.pooling.feed_forward", "'geglu'", "code: the released weights; the text has GELU"),
    ("model.lora.rank", "16", "table 11"),
    ("model.lora.alpha", "32", "table 11"),
    ("model.lora.dropout", "0.1", "table 11"),
    ("compute.precision", "'bf16'", "appendix C"),
    ("stage.retrieval.objective", "'contrastive'", "appendix C: a contrastive loss"),
    ("stage.blended.objective", "'contrastive'", "appendix C: a contrastive loss"),
    ("stage.retrieval.steps", "20000", "table 11"),
    ("stage.blended.steps", "18000", "table 11"),
    ("stage.retrieval.lr", "2e-5", "table 11"),
    ("stage.blended.lr", "1.5e-5", "table 11"),
    ("stage.retrieval.warmup", "50", "table 11"),
    ("stage.blended.warmup", "50", "appendix C: the same 50"),
    ("stage.retrieval.schedule", "'linear'", "appendix C"),
    ("stage.blended.schedule", "'linear'", "appendix C"),
    ("stage.retrieval.optimizer", "'adam'", "table 11"),
    ("stage.blended.optimizer", "'adam'", "table 11"),
    ("stage.blended.keep_optimizer", "false", "appendix C: restarted"),
    ("stage.retrieval.weight_decay", "0.03", "table 11"),
    ("stage.blended.weight_decay", "0.03", "table 11"),
    ("stage.retrieval.batch_size", "128", "table 11"),
    ("stage.blended.batch_size", "128", "table 11"),
    ("stage.retrieval.accumulation", "1", "table 11: the batch is 128"),
    ("stage.blended.accumulation", "1", "table 11: the batch is 128"),
    ("stage.retrieval.hard_negatives", "7", "table 11"),
    ("stage.blended.hard_negatives", "7", "table 11"),
    ("stage.retrieval.loss.in_batch", "true", "section 3.3"),
    ("stage.blended.loss.in_batch", "false", "section 3.3"),
    ("stage.retrieval.sampler", "'blended'", "section 2.2: well-blended batches"),
    ("stage.blended.sampler", "'blended'", "section 2.2"),
    ("stage.retrieval.mixing", "'proportional'", "appendix C: uniformly sampled, as we read it"),
    ("stage.blended.mixing", "'proportional'", "appendix C: uniformly sampled, as we read it"),
];

/// Table 12 of NV-Embed (16 retrieval sets): name, thousands of samples, instructions.
const NV_RETRIEVAL: &[(&str, f64, &[&str])] = &[
    ("arguana", 16.0, &["Given a claim, retrieve documents that support or refute the claim"]),
    (
        "nli",
        270.0,
        &[
            "Retrieve semantically similar text",
            "Given a premise, retrieve a hypothesis that is entailed by the premise",
        ],
    ),
    ("paq", 500.0, WEB_QUESTIONS),
    ("msmarco", 500.0, WEB_QUESTIONS),
    ("squad", 87.0, &["Given a question, retrieve passages that answer the question"]),
    (
        "stackexchange",
        80.0,
        &["Given a web search query, retrieve relevant passages that answer the query"],
    ),
    ("nq", 100.0, &["Given a question, retrieve passages that answer the question"]),
    (
        "hotpotqa",
        170.0,
        &["Given a multi-hop question, retrieve documents that can help answer the question"],
    ),
    ("fever", 140.0, &["Given a claim, retrieve documents that support or refute the claim"]),
    (
        "fiqa",
        5.0,
        &["Given a financial question, retrieve relevant passages that answer the query"],
    ),
    ("bioasq", 2.4, &["Given a query, retrieve documents that can help answer the question"]),
    ("hover", 17.0, &["Given a claim, retrieve documents that support or refute the claim"]),
    ("nfcorpus", 3.6, &["Given a question, retrieve relevant documents that answer the question"]),
    ("miracl", 2.0, &["Given a question, retrieve passages that answer the question"]),
    ("mrtydi", 2.0, &["Given a question, retrieve passages that answer the question"]),
    (
        "scifact",
        0.9,
        &["Given a scientific claim, retrieve documents that support or refute the claim"],
    ),
];

const WEB_QUESTIONS: &[&str] = &[
    "Given a web search query, retrieve relevant passages that answer the query",
    "Given a question, retrieve passages that answer the question",
    "Given a question, retrieve documents that can help answer the question",
];

/// The STS rows of table 12; both sides carry the instruction (section 4.2).
const NV_STS: &[(&str, f64)] = &[("sts12", 1.8), ("sts22", 0.3), ("stsb", 2.7)];

/// How a labelled set becomes triplets: by example (table 5), or by label.
const BY_EXAMPLE: Labels = Labels::Examples;
const BY_LABEL: Labels = Labels::Names;

/// The classification rows of table 12. Table 5 and section 5.2.4: five by example; section 4.2:
/// binary ones by label; the remaining three are in neither list, and so by label, as v1 had them.
const NV_CLASSIFICATION: &[(&str, f64, Labels, &str)] = &[
    (
        "amazon-counterfactual",
        6.0,
        BY_LABEL,
        "Classify a given Amazon customer review text as either counterfactual or not-counterfactual",
    ),
    (
        "amazon-polarity",
        20.0,
        BY_LABEL,
        "Classify Amazon reviews into positive or negative sentiment",
    ),
    (
        "amazon-reviews",
        40.0,
        BY_LABEL,
        "Classify the given Amazon review into its appropriate rating category",
    ),
    ("banking77", 10.0, BY_LABEL, "Given a online banking query, find the corresponding intents"),
    (
        "emotion",
        16.0,
        BY_EXAMPLE,
        "Classify the emotion expressed in the given Twitter message into one of the six \
         emotions:anger, fear, joy, love, sadness, and surprise",
    ),
    (
        "imdb",
        24.0,
        BY_LABEL,
        "Classify the sentiment expressed in the given movie review text from the IMDB dataset",
    ),
    (
        "mtop-intent",
        15.0,
        BY_EXAMPLE,
        "Classify the intent of the given utterance in task-oriented conversation",
    ),
    (
        "mtop-domain",
        15.0,
        BY_EXAMPLE,
        "Classify the intent domain of the given utterance in task-oriented conversation",
    ),
    ("massive-intent", 11.0, BY_EXAMPLE, "Given a user utterance as query, find the user intents"),
    (
        "massive-scenario",
        11.0,
        BY_EXAMPLE,
        "Given a user utterance as query, find the user scenarios",
    ),
    (
        "toxic-conversations",
        50.0,
        BY_LABEL,
        "Classify the given comments as either toxic or not toxic",
    ),
    (
        "tweet-sentiment",
        27.0,
        BY_LABEL,
        "Classify the sentiment of a given tweet as either positive, negative, or neutral",
    ),
];

/// The clustering rows of table 12, all by example. Of Reddit and StackExchange the table prints
/// the instruction of Medrxiv, a slip; these are table 13's.
const NV_CLUSTERING: &[(&str, f64, &str)] = &[
    (
        "arxiv-p2p",
        50.0,
        "Identify the main and secondary category of Arxiv papers based on the titles and abstracts",
    ),
    (
        "arxiv-s2s",
        50.0,
        "Identify the main and secondary category of Arxiv papers based on the titles",
    ),
    (
        "biorxiv-p2p",
        15.0,
        "Identify the main category of Biorxiv papers based on the titles and abstracts",
    ),
    ("biorxiv-s2s", 15.0, "Identify the main category of Biorxiv papers based on the titles"),
    (
        "medrxiv-p2p",
        2.3,
        "Identify the main category of Medrxiv papers based on the titles and abstracts",
    ),
    ("medrxiv-s2s", 2.3, "Identify the main category of Medrxiv papers based on the titles"),
    (
        "reddit-p2p",
        50.0,
        "Identify the topic or theme of Reddit posts based on the titles and posts",
    ),
    ("reddit-s2s", 40.0, "Identify the topic or theme of Reddit posts based on the titles"),
    (
        "stackexchange-p2p",
        50.0,
        "Identify the topic or theme of StackExchange posts based on the given paragraphs",
    ),
    (
        "stackexchange-s2s",
        40.0,
        "Identify the topic or theme of StackExchange posts based on the titles",
    ),
    ("twentynewsgroups", 1.7, "Identify the topic or theme of the given news articles"),
];

/// Section 4.2 and table 12: columns that make a text of a clustering set, where its rows have
/// several ('titles and abstracts', 'titles'; Reddit's and StackExchange's pairs of title and body).
const NV_COLUMNS: &[(&str, &[&str])] = &[
    ("arxiv-p2p", &["title", "abstract"]),
    ("arxiv-s2s", &["title"]),
    ("biorxiv-p2p", &["title", "abstract"]),
    ("biorxiv-s2s", &["title"]),
    ("medrxiv-p2p", &["title", "abstract"]),
    ("medrxiv-s2s", &["title"]),
    ("reddit-p2p", &["title", "body"]),
    ("stackexchange-p2p", &["title", "body"]),
];

/// Section 4.3 of NV-Embed: 40,000 of each.
const NV_SYNTHETIC: &[&str] =
    &["synthetic-short-long", "synthetic-long-short", "synthetic-short-short"];

/// The same in a user's turn of Mistral's, which LLM2Vec's code opens before it.
const IN_A_TURN: &str = r#""[INST] Instruct: {instruction}\nQuery: ""#;

/// Negative Matters, arXiv:2509.00842: what its three data settings share.
const MGH: &[Said] = &[
    ("model.base", "'mistralai/Mistral-7B-Instruct-v0.2'", "section 3.2"),
    ("model.attention", "'bidirectional'", "section 3.2"),
    ("model.text_suffix", "'[/INST]'", "section 5.2, figure 4: at the end of the sentence"),
    ("model.instruction_format", IN_A_TURN, "section 3.2: E5-Mistral's; the turn: code of LLM2Vec"),
    ("model.prompts.document", "'[INST] '", "code of LLM2Vec: documents are turns too"),
    ("model.instruction", "'masked'", "code of LLM2Vec: skip_instruction"),
    ("model.add_bos", "true", "code of LLM2Vec: as the tokenizer does"),
    ("model.add_eos", "false", "code of LLM2Vec: the template ends the text"),
    ("model.padding_side", "'left'", "code of LLM2Vec"),
    ("model.max_length", "512", "table 5"),
    ("model.pooling.mode", "'anchor'", "section 2.2"),
    ("model.pooling.score", "'log1p'", "equation 3, whose text is lost: our reading"),
    ("model.lora.rank", "16", "table 5"),
    ("model.lora.alpha", "32", "table 5"),
    ("model.lora.dropout", "0.05", "code of LLM2Vec"),
    ("model.lora.targets", "['all-linear']", "code of LLM2Vec: a block's seven projections"),
    ("compute.precision", "'bf16'", "code of LLM2Vec"),
    ("compute.checkpoint_blocks", "true", "code of LLM2Vec: gradient checkpointing"),
    ("stage.mntp.objective", "'mntp'", "section 3.2: LLM2Vec's, before"),
    ("stage.mntp.steps", "1000", "code of LLM2Vec: mntp/Mistral.json"),
    ("stage.mntp.batch_size", "32", "code of LLM2Vec: mntp/Mistral.json"),
    ("stage.mntp.accumulation", "1", "code of LLM2Vec: mntp/Mistral.json"),
    ("stage.mntp.lr", "5e-5", "code of LLM2Vec: the trainer's default"),
    ("stage.mntp.schedule", "'constant'", "code of LLM2Vec: the first 5 % of its decay"),
    ("stage.mntp.mntp.mask", "0.8", "code of LLM2Vec: mntp/Mistral.json; 0.2 for Llamas"),
    ("stage.supervised.merge_lora", "true", "section 3.2: merged before the supervised stage"),
    ("stage.mntp.mntp.mask_token", "'_'", "code of LLM2Vec: blank"),
    ("stage.supervised.objective", "'contrastive'", "equation 1"),
    ("stage.supervised.loss.temperature", "1.0", "section 2.1: set to 1"),
    ("stage.supervised.loss.in_batch", "true", "section 3.2"),
    ("stage.supervised.hard_negatives", "1", "section 2.1: one level at a time"),
    ("stage.supervised.batch_size", "64", "table 5"),
    ("stage.supervised.accumulation", "8", "table 5"),
    ("stage.supervised.lr", "2e-5", "table 5"),
    ("stage.supervised.optimizer", "'adam'", "table 5"),
    ("stage.supervised.schedule", "'linear'", "code of LLM2Vec"),
    ("stage.supervised.sampler", "'homogeneous'", "code of LLM2Vec: a batch is of one set"),
    ("stage.supervised.mixing", "'proportional'", "code of LLM2Vec"),
];

const MGH_BOTH: &[Said] = &[
    ("stage.supervised.curriculum", "'coarse_to_fine'", "section 2.1: n4 to n1, 25 % each"),
    ("stage.supervised.steps", "1600", "table 5: synthetic and public"),
    ("stage.supervised.warmup", "300", "table 5"),
];

const MGH_PUBLIC: &[Said] = &[
    ("stage.supervised.curriculum", "'given'", "section 5.1: never saw synthesized negatives"),
    ("stage.supervised.steps", "1000", "table 5: public only"),
    ("stage.supervised.warmup", "300", "table 5"),
];

const MGH_SYNTHETIC: &[Said] = &[
    ("stage.supervised.curriculum", "'coarse_to_fine'", "section 2.1"),
    ("stage.supervised.steps", "600", "table 5: synthetic only"),
    ("stage.supervised.warmup", "200", "table 5"),
];

/// The public E5 collection: sampling ratio and instructions, by Negative Matters' appendix B.3 and
/// table 7, and by Anchor's appendix A.1 and table 6, which are the same.
const E5_PUBLIC: &[(&str, Option<f64>, &[&str])] = &[
    (
        "nli",
        None,
        &[
            "Given a premise, retrieve a hypothesis that is entailed by the premise",
            "Retrieve semantically similar text",
        ],
    ),
    (
        "dureader",
        None,
        &["Given a Chinese search query, retrieve web passages that answer the question"],
    ),
    (
        "eli5",
        Some(0.1),
        &["Provided a user question, retrieve the highest voted answers on Reddit ELI5 forum"],
    ),
    ("fever", None, &["Given a claim, retrieve documents that support or refute the claim"]),
    (
        "hotpotqa",
        None,
        &["Given a multi-hop question, retrieve documents that can help answer the question"],
    ),
    ("miracl", None, WIKIPEDIA),
    ("mrtydi", None, WIKIPEDIA),
    (
        "msmarco-passage",
        Some(0.5),
        &["Given a web search query, retrieve relevant passages that answer the query"],
    ),
    (
        "msmarco-document",
        Some(0.2),
        &["Given a web search query, retrieve relevant documents that answer the query"],
    ),
    ("nq", None, WIKIPEDIA),
    (
        "quora",
        Some(0.1),
        &[
            "Given a question, retrieve questions that are semantically equivalent to the given question",
            "Find questions that have the same meaning as the input question",
        ],
    ),
    ("squad", None, &["Retrieve Wikipedia passages that answer the question"]),
    (
        "t2ranking",
        Some(0.5),
        &["Given a Chinese search query, retrieve web passages that answer the question"],
    ),
    ("triviaqa", None, &["Retrieve Wikipedia passages that answer the question"]),
];

const WEB_SEARCH: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

const WIKIPEDIA: &[&str] =
    &["Given a question, retrieve Wikipedia passages that answer the question"];

/// Negative Matters, section 2.1: four asymmetric types and STS.
const MGH_SYNTHETIC_TYPES: &[&str] =
    &["short-long", "long-short", "long-long", "short-short", "sts"];

/// Training LLMs to be Better Text Embedders through Bidirectional Reconstruction, arXiv:2509.03020.
const ANCHOR: &[Said] = &[
    ("model.base", "'meta-llama/Llama-3.2-1B-Instruct'", "section 4.1"),
    ("model.attention", "'causal'", "sections 1 and 3.1"),
    ("model.pooling.mode", "'last_token'", "section 3.1: the state at EOS"),
    ("model.add_eos", "true", "section 3.1: EOS is appended"),
    ("model.add_bos", "true", "code: as the tokenizer does"),
    ("model.instruction_format", TEMPLATE, "appendix A.1: the setup of E5-Mistral"),
    ("model.prompts.document", "''", "appendix A.1: the setup of E5-Mistral"),
    ("model.max_length", "512", "appendix A.2"),
    ("model.lora.rank", "16", "appendix A.2, stage II"),
    ("model.lora.alpha", "32", "code: twice the rank"),
    ("model.lora.dropout", "0.05", "code"),
    ("model.lora.targets", "['all-linear']", "code: a block's seven projections"),
    ("seed", "42", "code"),
    ("compute.precision", "'bf16'", "code"),
    ("compute.checkpoint_blocks", "true", "appendix A.2: gradient checkpointing in both stages"),
    ("stage.reconstruction.objective", "'reconstruction'", "section 3.2"),
    ("stage.reconstruction.full", "true", "section 4.1: full-parameter"),
    ("stage.reconstruction.steps", "2000", "section 4.1"),
    ("stage.reconstruction.lr", "4e-5", "appendix A.2"),
    ("stage.reconstruction.warmup", "300", "appendix A.2"),
    ("stage.reconstruction.reconstruction.alpha", "0.2", "section 3.2"),
    ("stage.reconstruction.reconstruction.reduction", "'token_mean'", "code; a sum in equation 3"),
    ("stage.reconstruction.reconstruction.tied", "default", "section 3.1: the base's own lm_head"),
    ("stage.reconstruction.reconstruction.predict_eos", "false", "code: padding there, no target"),
    ("stage.reconstruction.reconstruction.instructions", "false", "appendix A.2: in stage II"),
    ("stage.reconstruction.schedule", "'linear'", "code"),
    ("stage.reconstruction.sampler", "'homogeneous'", "code: a batch is of one set"),
    ("stage.reconstruction.mixing", "'proportional'", "code"),
    ("stage.contrastive.objective", "'contrastive'", "equation 6"),
    ("stage.contrastive.full", "false", "section 4.1: LoRA"),
    ("stage.contrastive.steps", "1000", "section 4.1"),
    ("stage.contrastive.lr", "2e-4", "appendix A.2"),
    ("stage.contrastive.warmup", "300", "code"),
    ("stage.contrastive.loss.temperature", "0.05", "section 3.3"),
    ("stage.contrastive.loss.in_batch", "true", "section 3.3"),
    ("stage.contrastive.hard_negatives", "1", "code: the collection has one a row"),
    ("stage.contrastive.schedule", "'linear'", "code"),
    ("stage.contrastive.sampler", "'homogeneous'", "code: a batch is of one set"),
    ("stage.contrastive.mixing", "'proportional'", "code"),
];

/// Pooling and Attention, arXiv:2409.02727: what the five designs share.
const POOLING_ATTENTION: &[Said] = &[
    ("model.base", "'mistralai/Mistral-7B-v0.1'", "section 4.2"),
    ("model.add_eos", "true", "section 4.2"),
    ("model.add_bos", "true", "code: as the tokenizer does"),
    ("model.instruction", "'pooled'", "code: nothing is left out"),
    ("model.instruction_format", TEMPLATE, "section 4.2: as E5-Mistral; code"),
    ("model.prompts.document", "''", "section 4.2: instructions in the query"),
    ("model.padding_side", "'left'", "code"),
    ("model.max_length", "1024", "code"),
    ("model.lora.rank", "16", "section 4.2"),
    ("model.lora.alpha", "32", "code: lora.json"),
    ("model.lora.dropout", "0.1", "code: lora.json"),
    ("model.lora.targets", "['all-linear']", "code: lora.json, a block's seven projections"),
    ("compute.precision", "'bf16'", "code"),
    ("stage.contrastive.objective", "'contrastive'", "section 4.2"),
    ("stage.contrastive.steps", "1000", "section 4.2"),
    ("stage.contrastive.batch_size", "2048", "section 4.2"),
    ("stage.contrastive.accumulation", "1", "section 4.2: the batch is 2,048"),
    ("stage.contrastive.lr", "1e-5", "section 4.2"),
    ("stage.contrastive.hard_negatives", "1", "section 4.2"),
    ("stage.contrastive.loss.in_batch", "true", "section 4.2"),
    ("stage.contrastive.loss.temperature", "0.05", "code: scale 20"),
    ("stage.contrastive.warmup", "100", "code"),
    ("stage.contrastive.schedule", "'linear'", "code"),
    ("stage.contrastive.weight_decay", "0.01", "code"),
    ("stage.contrastive.optimizer", "default", "code: AdamW"),
    ("stage.contrastive.sampler", "'blended'", "code: one shuffled set"),
    ("stage.contrastive.mixing", "'proportional'", "code: one shuffled set"),
];

/// Section 4.1: mask and head of each design.
const DESIGNS: [(&str, &str); 5] = [
    ("causal", "last_token"),
    ("causal", "last_layer_trainable"),
    ("causal", "multi_layer_trainable"),
    ("bidirectional", "last_layer_trainable"),
    ("bidirectional", "multi_layer_trainable"),
];

/// Section 4.2, of the trainable heads.
const TRAINABLE_HEADS: &[Said] = &[
    ("model.pooling.heads", "32", "section 4.2"),
    ("model.pooling.head_dim", "2048", "section 4.2: 32 heads, each containing 2,048 channels"),
    ("model.pooling.latents", "4096", "section 3.2: as the hidden dimension; 768 in the code"),
    ("model.pooling.latent_size", "default", "section 4.2: 4,096, the base's own width"),
    ("model.pooling.feed_forward", "'geglu'", "code"),
];

/// Of the heads over all layers.
const LAYERS: &[Said] = &[("model.pooling.layer_std", "1.0", "code: W_layer from torch.randn")];

/// Table 6: the training sets and their instructions.
const POOLING_ATTENTION_SETS: &[(&str, &str)] = &[
    ("stsb", "Retrieve semantically similar text."),
    (
        "msmarco-document",
        "Given a web search query, retrieve relevant documents that answer the query.",
    ),
    (
        "quora",
        "Given a question, retrieve questions that are semantically equivalent to the given question.",
    ),
    (
        "msmarco-passage",
        "Given a web search query, retrieve relevant passages that answer the query.",
    ),
    ("nq", "Given a question, retrieve Wikipedia passages that answer the question."),
    ("squad", "Retrieve Wikipedia passages that answer the question."),
    ("triviaqa", "Retrieve Wikipedia passages that answer the question."),
    ("allnli", "Given a premise, retrieve a hypothesis that is entailed by the premise."),
    ("finance-alpaca", "Given a finance question, retrieve passages that answer the question."),
    ("fiqa", "Given a finance question, retrieve passages that answer the question."),
    ("miracl", "Given a question, retrieve passages that answer the question."),
    ("xsum", "Given a document, retrieve semantically similar summaries."),
    ("mrtydi", "Given a question, retrieve Wikipedia passages that answer the question."),
    ("altlex", "Retrieve semantically similar text."),
    (
        "hotpotqa",
        "Given a multi-hop question, retrieve documents that can help answer the question.",
    ),
    ("eli5", "Provided a user question, retrieve the highest voted answers on Reddit ELI5 forum."),
    ("fever", "Given a claim, retrieve documents that support or refute the claim."),
    ("pubmedqa", "Given a biomedical question, retrieve information that answers the question."),
];

/// Linq-Embed-Mistral, arXiv:2412.03223.
const LINQ: &[Said] = &[
    ("model.base", "'intfloat/e5-mistral-7b-instruct'", "section 5"),
    ("model.attention", "'causal'", "section 5: E5-Mistral's"),
    ("model.pooling.mode", "'last_token'", "section 5: E5-Mistral's"),
    ("model.add_bos", "true", "E5-Mistral's"),
    ("model.add_eos", "true", "E5-Mistral's: the state at EOS is the embedding"),
    ("model.instruction_format", TEMPLATE, "section 5: as E5-Mistral, on queries alone"),
    ("model.prompts.document", "''", "section 5: one-sided"),
    ("model.max_length", "4096", "section 5: 4K"),
    ("model.lora.rank", "16", "section 5"),
    ("model.lora.alpha", "32", "section 5"),
    ("model.lora.dropout", "0.1", "E5-Mistral's"),
    ("model.lora.targets", "['all-linear']", "section 5: all linear layers"),
    ("compute.precision", "'f16'", "section 5: mixed precision (fp16)"),
    ("compute.checkpoint_blocks", "true", "section 5: gradient checkpointing"),
    ("stage.ordered.objective", "'contrastive'", "section 5: InfoNCE"),
    ("stage.mixed.objective", "'contrastive'", "section 5: InfoNCE"),
    ("stage.ordered.batch_size", "2080", "section 5"),
    ("stage.ordered.accumulation", "1", "section 5: the batch is 2,080"),
    ("stage.mixed.accumulation", "4", "section 5: four devices, a task each"),
    ("stage.ordered.lr", "1e-4", "section 5"),
    ("stage.ordered.warmup", "100", "section 5: a warm-up phase, E5-Mistral's 100 steps"),
    ("stage.ordered.schedule", "'linear'", "section 5"),
    ("stage.mixed.schedule", "'linear'", "section 5"),
    ("stage.ordered.weight_decay", "0.1", "E5-Mistral's"),
    ("stage.mixed.weight_decay", "0.1", "E5-Mistral's"),
    ("stage.ordered.loss.temperature", "0.02", "section 5"),
    ("stage.ordered.loss.in_batch", "true", "section 5"),
    ("stage.mixed.loss.in_batch", "true", "section 5"),
    ("stage.ordered.hard_negatives", "1", "section 5"),
    ("stage.mixed.hard_negatives", "1", "section 5"),
    ("stage.mixed.loss.temperature", "0.02", "section 5"),
    ("stage.mixed.sampler", "'mixed'", "section 6.2"),
    ("stage.mixed.steps", "20", "section 6.2: within 20 steps"),
    ("stage.mixed.keep_optimizer", "true", "section 6.2: goes on from there"),
];

/// Table 8, the column of Linq and GritLM; MS MARCO is passages and documents in E5's collection.
const E5S: &[&str] = &[
    "dureader",
    "eli5",
    "fever",
    "hotpotqa",
    "nli",
    "miracl",
    "msmarco-passage",
    "msmarco-document",
    "mrtydi",
    "nq",
    "s2orc",
    "squad",
    "t2ranking",
    "triviaqa",
    "quora",
];

/// Section 2.3 and table 9: the six synthetic types.
const LINQ_SYNTHETIC_TYPES: &[&str] =
    &["short-long", "long-short", "short-short", "long-long", "sts", "bitext"];

fn recipe(name: &str) -> Recipe {
    Recipe::parse(shipped(name).unwrap().text).unwrap_or_else(|error| panic!("{name}: {error:#}"))
}

/// A field of a resolved recipe; a stage goes by its name.
fn field<'a>(resolved: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(resolved, |value, key| match value {
        Value::Array(stages) => {
            stages.iter().find(|stage| stage.get("name").and_then(Value::as_str) == Some(key))
        }
        _ => value.get(key),
    })
}

/// Equal, numbers as numbers; the recipe holds some in 32 bits.
fn same(a: &Value, b: &Value) -> bool {
    let number = |value: &Value| value.as_float().or(value.as_integer().map(|whole| whole as f64));
    match (number(a), number(b)) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-6 * a.abs(),
        _ => a == b,
    }
}

fn check(name: &str, said: &[&[Said]]) {
    let resolved = Value::try_from(recipe(name)).unwrap();
    let mut wrong = Vec::new();
    for (path, expected, place) in said.iter().copied().flatten() {
        let actual = field(&resolved, path);
        let fits = if *expected == "default" {
            actual.is_none()
        } else {
            let expected: toml::Table = toml::from_str(&format!("value = {expected}")).unwrap();
            actual.is_some_and(|actual| same(actual, &expected["value"]))
        };
        if !fits {
            wrong.push(format!("{path} is {actual:?}; {expected} by {place}"));
        }
    }
    assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
}

/// A named source, which some stage uses.
fn source<'a>(recipe: &'a Recipe, name: &str) -> &'a DataSource {
    let used = recipe.stages.iter().any(|stage| names(recipe, &stage.name).contains(&name));
    assert!(used, "{}: no stage uses {name}", recipe.name);
    &recipe.sources[name]
}

/// Names of a stage's sources.
fn names<'a>(recipe: &'a Recipe, stage: &str) -> Vec<&'a str> {
    let stage = recipe.stages.iter().find(|one| one.name == stage).unwrap();
    stage
        .data
        .iter()
        .map(|entry| match entry {
            super::DataRef::Named(name) => name.as_str(),
            super::DataRef::Inline(source) => panic!("{} has no name", source.path),
        })
        .collect()
}

/// Names of the stages, in order.
fn stages(recipe: &Recipe) -> Vec<&str> {
    recipe.stages.iter().map(|stage| stage.name.as_str()).collect()
}

/// The saved model's own prompt of queries is the template with this instruction.
fn prompts_with(recipe: &Recipe, instruction: &str) {
    let format = recipe.model.instruction_format.as_deref().unwrap();
    let expected = format.replace("{instruction}", instruction);
    assert_eq!(recipe.model.prompts["query"], expected, "{}", recipe.name);
}

/// Rows of these synthetic sources bear their own instructions.
fn instructed_by_row(recipe: &Recipe, names: &[&str]) {
    for name in names {
        assert!(source(recipe, name).instructions.is_empty(), "{}: {name}", recipe.name);
    }
}

fn thousands(source: &DataSource) -> Option<f64> {
    source.limit.map(|limit| limit as f64 / 1000.0)
}

/// Queries a step.
fn step(recipe: &Recipe, stage: &str) -> usize {
    let stage = recipe.stages.iter().find(|one| one.name == stage).unwrap();
    stage.batch_size * stage.accumulation
}

/// The sources that a stage has are these, in any order.
fn only(recipe: &Recipe, stage: &str, expected: &[&str]) {
    let (mut actual, mut expected) = (names(recipe, stage), expected.to_vec());
    actual.sort_unstable();
    expected.sort_unstable();
    assert_eq!(actual, expected, "{}, stage {stage}", recipe.name);
}

#[test]
fn nv_embed() {
    check("nv-embed", &[NV_EMBED]);
    let recipe = recipe("nv-embed");
    assert_eq!(stages(&recipe), ["retrieval", "blended"], "section 3.3");
    prompts_with(&recipe, NV_RETRIEVAL.iter().find(|set| set.0 == "nq").unwrap().2[0]);
    assert!(!recipe.filter.evaluation_texts.is_empty(), "section 4.2: matches are filtered out");
    for (name, source) in &recipe.sources {
        // Section 4.2: of all sets, those of STS alone have the instruction on documents too.
        let is_sts = NV_STS.iter().any(|set| set.0 == name);
        assert_eq!(source.symmetric, is_sts, "{name}");
        // Section 3.3: in-batch negatives by stage; appendix C: uniformly sampled.
        assert_eq!((source.in_batch, source.weight), (None, None), "{name}");
    }

    for (name, samples, instructions) in NV_RETRIEVAL {
        let source = source(&recipe, name);
        assert_eq!(thousands(source), Some(*samples), "{name}");
        assert_eq!(source.instructions, *instructions, "{name}");
    }
    for name in NV_SYNTHETIC {
        assert_eq!(thousands(source(&recipe, name)), Some(40.0), "{name}");
    }
    instructed_by_row(&recipe, NV_SYNTHETIC);
    for (name, samples) in NV_STS {
        let source = source(&recipe, name);
        assert_eq!(thousands(source), Some(*samples), "{name}");
        assert_eq!(source.instructions, ["Retrieve semantically similar text."], "{name}");
        assert!(source.both_directions, "{name}, section 4.2");
        assert_eq!(source.threshold, 4.0, "{name}, section 4.2");
    }
    for (name, samples, labels, instruction) in NV_CLASSIFICATION {
        let source = source(&recipe, name);
        assert_eq!(thousands(source), Some(*samples), "{name}");
        assert_eq!(
            (source.labels, &source.instructions[..]),
            (Some(*labels), &[instruction.to_string()][..])
        );
        // Section 4.2 names BM25 for these two alone.
        let near = matches!(source.leak, Some(LeakRule::Bm25(_)));
        assert_eq!(near, ["emotion", "amazon-counterfactual"].contains(name), "{name}");
    }
    for (name, samples, instruction) in NV_CLUSTERING {
        let source = source(&recipe, name);
        assert_eq!(thousands(source), Some(*samples), "{name}");
        assert_eq!(source.labels, Some(BY_EXAMPLE), "{name}");
        assert_eq!(source.instructions, [*instruction], "{name}");
        assert_eq!(source.leak, Some(LeakRule::Exact), "{name}, section 4.2");
        let columns = NV_COLUMNS.iter().find(|set| set.0 == *name);
        assert_eq!(source.fields, columns.map(|set| set.1).unwrap_or_default(), "{name}");
    }

    // Sections 3.3, 4.1 and 4.3: retrieval sets and synthetic data first, then those and the rest.
    let first: Vec<&str> =
        NV_RETRIEVAL.iter().map(|set| set.0).chain(NV_SYNTHETIC.iter().copied()).collect();
    only(&recipe, "retrieval", &first);
    let rest = NV_STS.iter().map(|set| set.0);
    let rest = rest.chain(NV_CLASSIFICATION.iter().map(|set| set.0));
    let rest = rest.chain(NV_CLUSTERING.iter().map(|set| set.0));
    only(&recipe, "blended", &first.into_iter().chain(rest).collect::<Vec<_>>());
}

#[test]
fn negative_matters() {
    for (name, setting) in [
        ("mgh-ata", MGH_BOTH),
        ("mgh-ata-public", MGH_PUBLIC),
        ("mgh-ata-synthetic", MGH_SYNTHETIC),
    ] {
        check(name, &[MGH, setting]);
        let recipe = recipe(name);
        assert_eq!(stages(&recipe), ["mntp", "supervised"], "{name}, section 3.2");
        only(&recipe, "mntp", &["wikitext"]);
        prompts_with(&recipe, WEB_SEARCH);
        let mut sets = Vec::new();
        if name != "mgh-ata-synthetic" {
            check_e5(&recipe);
            sets.extend(E5_PUBLIC.iter().map(|set| set.0));
        }
        if name != "mgh-ata-public" {
            instructed_by_row(&recipe, MGH_SYNTHETIC_TYPES);
            sets.extend(MGH_SYNTHETIC_TYPES);
        }
        only(&recipe, "supervised", &sets);
    }
    // Sections 3.1 and 3.2: 820,000, 310,000 and about a third of 1.5 M samples, each once.
    for (name, most, least) in [
        ("mgh-ata", 830_000, 810_000),
        ("mgh-ata-synthetic", 315_000, 305_000),
        ("mgh-ata-public", 520_000, 500_000),
    ] {
        let samples = recipe(name).stages[1].samples();
        assert!((least..=most).contains(&samples), "{name}: {samples}");
    }

    let (both, public) = (recipe("mgh-ata"), recipe("mgh-ata-public"));
    // Section 2.1: with synthetic data, public rows have negatives that were written anew.
    for (name, ..) in E5_PUBLIC {
        assert_ne!(both.sources[*name].path, public.sources[*name].path, "{name}");
    }
    // Table 1: 310,000 of 820,000 samples are synthetic, where public rows weigh their 1.5 M.
    let weight = |name: &&str| both.sources[*name].weight.unwrap();
    let synthetic: f64 = MGH_SYNTHETIC_TYPES.iter().map(weight).sum();
    let share = synthetic / (synthetic + 1.5e6);
    assert!((share - 310.0 / 820.0).abs() < 0.01, "{share}");
    // Appendix A.3: most of them are of three types.
    let few = weight(&"long-long").max(weight(&"short-short"));
    assert!(["short-long", "long-short", "sts"].iter().all(|name| weight(name) > few), "{few}");
}

/// The public E5 collection with its ratios and instructions, on queries alone.
fn check_e5(recipe: &Recipe) {
    for (name, ratio, instructions) in E5_PUBLIC {
        let source = source(recipe, name);
        assert_eq!(source.ratio, *ratio, "{}: {name}", recipe.name);
        assert_eq!((source.limit, source.weight), (None, None), "{}: {name}", recipe.name);
        assert_eq!(source.instructions, *instructions, "{}: {name}", recipe.name);
        assert!(!source.symmetric, "{}: {name}", recipe.name);
    }
}

#[test]
fn anchor() {
    check("anchor", &[ANCHOR]);
    let recipe = recipe("anchor");
    assert_eq!(stages(&recipe), ["reconstruction", "contrastive"], "section 3");
    assert!(recipe.stages[0].accumulation > 1, "appendix A.2: 512 by accumulation");
    prompts_with(&recipe, WEB_SEARCH);
    check_e5(&recipe);
    let sets: Vec<&str> = E5_PUBLIC.iter().map(|set| set.0).collect();
    for stage in stages(&recipe) {
        // Section 4.1: the same collection in both; appendix A.2: 512 in both.
        only(&recipe, stage, &sets);
        assert_eq!(step(&recipe, stage), 512, "{stage}");
    }
}

#[test]
fn pooling_and_attention() {
    for (design, (attention, pooling)) in (1..).zip(DESIGNS) {
        let name = format!("pooling-attn-{design}");
        let heads = if pooling == "last_token" { &[][..] } else { TRAINABLE_HEADS };
        let layers = if pooling == "multi_layer_trainable" { LAYERS } else { &[] };
        check(&name, &[POOLING_ATTENTION, heads, layers]);
        let recipe = recipe(&name);
        let resolved = Value::try_from(&recipe).unwrap();
        let text = |path| field(&resolved, path).and_then(Value::as_str);
        assert_eq!(text("model.attention"), Some(attention), "{name}");
        assert_eq!(text("model.pooling.mode"), Some(pooling), "{name}");
        assert_eq!(stages(&recipe), ["contrastive"], "{name}, section 4.2");
        prompts_with(&recipe, &format!("{WEB_SEARCH}."));
        for (set, instruction) in POOLING_ATTENTION_SETS {
            let source = source(&recipe, set);
            assert_eq!(source.instructions, [*instruction], "{name}: {set}");
            // Section 4.2: instructions in the query.
            assert!(!source.symmetric, "{name}: {set}");
        }
        let sets: Vec<&str> = POOLING_ATTENTION_SETS.iter().map(|set| set.0).collect();
        only(&recipe, "contrastive", &sets);
    }
}

#[test]
fn linq() {
    check("linq", &[LINQ]);
    let recipe = recipe("linq");
    assert_eq!(stages(&recipe), ["ordered", "mixed"], "section 6.2");
    prompts_with(&recipe, WEB_SEARCH);
    let sampler = recipe.stages[0].sampler;
    assert!(matches!(sampler, super::SamplerKind::Blocks(_)), "section 6.1: {sampler:?}");
    assert_eq!(step(&recipe, "mixed"), step(&recipe, "ordered"), "section 6.2");
    let sets: Vec<&str> = E5S.iter().chain(LINQ_SYNTHETIC_TYPES).copied().collect();
    for stage in ["ordered", "mixed"] {
        only(&recipe, stage, &sets);
    }
    // Section 5 follows E5-Mistral, whose ratios and instructions these are.
    check_e5(&recipe);
    instructed_by_row(&recipe, LINQ_SYNTHETIC_TYPES);
    // Section 5: one-sided in training, symmetric tasks too.
    assert!(recipe.sources.values().all(|source| !source.symmetric));
}

/// Where a value stands in a resolved recipe, and the value as TOML; a table may have more fields. `stages` are the names
/// of those that run.
type At = (&'static str, &'static str);

/// A variant of a sweep, and what it has.
type Held = (&'static str, &'static [At]);

const EOS: At = ("model.pooling.mode", "'last_token'");
const MEAN: At = ("model.pooling.mode", "'mean'");
const LATENT: At = ("model.pooling.mode", "'latent_attention'");
const SELF: At = ("model.pooling.mode", "'self_attention'");
const ANCHOR_POOL: At = ("model.pooling.mode", "'anchor'");
const LAST_LAYER: At = ("model.pooling.mode", "'last_layer_trainable'");
const ALL_LAYERS: At = ("model.pooling.mode", "'multi_layer_trainable'");
const LOG1P: At = ("model.pooling.score", "'log1p'");
const LINEAR: At = ("model.pooling.score", "'linear'");
const SQUARE: At = ("model.pooling.score", "'square'");
const COLUMN_PRODUCT: At = ("model.pooling.score", "'column_product'");
const BOTH_WAYS: At = ("model.attention", "'bidirectional'");
const CAUSAL: At = ("model.attention", "'causal'");
const BLENDED_ALONE: At = ("stages", "['blended']");
const BLENDED_IN_BATCH: At = ("stage.blended.loss.in_batch", "true");
const BLENDED_WITHOUT: At = ("stage.blended.loss.in_batch", "false");
const REBUILT: At = ("stages", "['reconstruction', 'contrastive']");
const REBUILT_ALONE: At = ("stages", "['reconstruction']");
const CONTRASTIVE_ALONE: At = ("stages", "['contrastive']");
const ALPHA: &str = "stage.reconstruction.reconstruction.alpha";
const UNMOVED: At = ("stage.contrastive.lr", "1e-30");

/// Whether a value is the expected one, or a table that has all of its fields.
fn holds(actual: &Value, expected: &Value) -> bool {
    match (actual, expected) {
        (Value::Table(actual), Value::Table(expected)) => expected
            .iter()
            .all(|(key, value)| actual.get(key).is_some_and(|actual| holds(actual, value))),
        (Value::Array(actual), Value::Array(expected)) => {
            actual.len() == expected.len()
                && actual.iter().zip(expected).all(|(actual, expected)| holds(actual, expected))
        }
        _ => same(actual, expected),
    }
}

/// The recipes of a sweep's variants, each of which has what is said of it; `folder` has its recipe.
fn check_sweep(name: &str, text: &str, folder: &str, said: &[Held]) -> Vec<Recipe> {
    let sweep = Sweep::parse(text).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    let has: Vec<&str> = sweep.variants.iter().map(|variant| variant.name.as_str()).collect();
    assert_eq!(has, said.iter().map(|one| one.0).collect::<Vec<_>>(), "{name}");
    let mut wrong = Vec::new();
    let mut recipes = Vec::new();
    for (variant, (_, values)) in sweep.variants.iter().zip(said) {
        let recipe = sweep
            .recipe(variant, 1, Path::new(folder), &[])
            .unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let resolved = Value::try_from(&recipe).unwrap();
        let running = Value::try_from(stages(&recipe)).unwrap();
        for (path, expected) in *values {
            let actual = if *path == "stages" { Some(&running) } else { field(&resolved, path) };
            let table: toml::Table = toml::from_str(&format!("value = {expected}")).unwrap();
            if !actual.is_some_and(|actual| holds(actual, &table["value"])) {
                wrong.push(format!("{}: {path} is {actual:?}, not {expected}", variant.name));
            }
        }
        recipes.push(recipe);
    }
    assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
    recipes
}

/// Steps of all stages.
fn steps(recipe: &Recipe) -> usize {
    recipe.stages.iter().map(|stage| stage.steps).sum()
}

/// The papers' ablations, each as a variant of a shipped sweep.
#[test]
fn ablations() {
    const RETRIEVAL: &str = "stage.retrieval.data";
    const HARD: &str = "stage.retrieval.hard_negatives";
    const HALF: &str = "[{ path = 'made-up:retrieval', ratio = 0.5 }]";
    const ALL: &str = "['made-up:retrieval', 'made-up:pairs']";
    const BY_CLASS: &str =
        "['made-up:retrieval', { path = 'made-up:classes', labels = 'names' }, 'made-up:pairs']";
    const IN_BATCH: At = ("stage.retrieval.loss.in_batch", "true");
    const LEVEL: &str = "stage.coarse to fine.curriculum";
    const GIVEN: At = (LEVEL, "'given'");
    let check = |name: &str, said: &[Held]| {
        let text = SWEEPS.iter().find(|one| one.name == name).unwrap().text;
        check_sweep(name, text, "", said)
    };
    // NV-Embed, tables 2 and 3: pooling x mask.
    check(
        "nv-pooling",
        &[
            ("EOS, bidirectional", &[EOS, BOTH_WAYS]),
            ("EOS, causal", &[EOS, CAUSAL]),
            ("mean, bidirectional", &[MEAN, BOTH_WAYS]),
            ("mean, causal", &[MEAN, CAUSAL]),
            ("latent attention, bidirectional", &[LATENT, BOTH_WAYS]),
            ("latent attention, causal", &[LATENT, CAUSAL]),
            ("self-attention, bidirectional", &[SELF, BOTH_WAYS]),
            ("self-attention, causal", &[SELF, CAUSAL]),
        ],
    );
    // NV-Embed, table 4: stages, with as many steps in each order; then data and labels.
    let orders = check(
        "stages",
        &[
            ("two stages", &[("stages", "['retrieval', 'blended']"), IN_BATCH, BLENDED_WITHOUT]),
            ("reversed", &[("stages", "['blended', 'retrieval']"), IN_BATCH, BLENDED_WITHOUT]),
            ("single, in-batch on", &[BLENDED_ALONE, BLENDED_IN_BATCH]),
            ("single, in-batch off", &[BLENDED_ALONE, BLENDED_WITHOUT]),
        ],
    );
    assert!(orders.iter().all(|recipe| steps(recipe) == steps(&orders[0])));
    check(
        "nv-data",
        &[
            ("S0, no hard negatives", &[(RETRIEVAL, HALF), (HARD, "0")]),
            ("S1, hard negatives", &[(RETRIEVAL, HALF), (HARD, "1")]),
            ("S2, more retrieval data", &[(RETRIEVAL, "['made-up:retrieval']"), (HARD, "1")]),
            ("S3, synthetic data", &[(RETRIEVAL, ALL), (HARD, "1")]),
            ("S3, label-based", &[(RETRIEVAL, ALL), ("stage.blended.data", BY_CLASS)]),
        ],
    );
    // Negative Matters, table 3 and figure 3; level 1 is the hardest (section 2.1).
    check(
        "mgh-pooling",
        &[
            ("mean", &[MEAN, GIVEN]),
            ("last token", &[EOS, GIVEN]),
            ("latent attention", &[LATENT, GIVEN]),
            ("anchor, log1p", &[ANCHOR_POOL, LOG1P, GIVEN]),
            ("anchor, linear", &[ANCHOR_POOL, LINEAR, GIVEN]),
            ("anchor, square", &[ANCHOR_POOL, SQUARE, GIVEN]),
            ("anchor, column product", &[ANCHOR_POOL, COLUMN_PRODUCT, GIVEN]),
        ],
    );
    check(
        "curriculum",
        &[
            ("coarse to fine", &[ANCHOR_POOL, (LEVEL, "'coarse_to_fine'")]),
            ("fine to coarse", &[ANCHOR_POOL, (LEVEL, "'fine_to_coarse'")]),
            ("random", &[ANCHOR_POOL, (LEVEL, "'random'")]),
            ("level 1 alone, the hardest", &[ANCHOR_POOL, (LEVEL, "{ fixed = 1 }")]),
            ("level 2 alone", &[ANCHOR_POOL, (LEVEL, "{ fixed = 2 }")]),
            ("level 3 alone", &[ANCHOR_POOL, (LEVEL, "{ fixed = 3 }")]),
            ("level 4 alone, the easiest", &[ANCHOR_POOL, (LEVEL, "{ fixed = 4 }")]),
        ],
    );
    // Anchor, tables 3, 4, 5 and 10.
    let rebuilt = check(
        "alpha",
        &[
            ("alpha 0", &[REBUILT, (ALPHA, "0.0")]),
            ("alpha 0.2", &[REBUILT, (ALPHA, "0.2")]),
            ("alpha 0.5", &[REBUILT, (ALPHA, "0.5")]),
            ("alpha 0.8", &[REBUILT, (ALPHA, "0.8")]),
            ("alpha 1", &[REBUILT, (ALPHA, "1.0")]),
            ("no reconstruction", &[CONTRASTIVE_ALONE]),
            ("no reconstruction, as many steps as both", &[CONTRASTIVE_ALONE]),
            ("reconstruction alone", &[REBUILT_ALONE, (ALPHA, "0.2")]),
            ("untrained", &[CONTRASTIVE_ALONE, UNMOVED]),
        ],
    );
    let [both, without, as_many] = [1, 5, 6].map(|variant: usize| &rebuilt[variant]);
    assert_eq!(steps(as_many), steps(both), "table 5");
    assert_eq!(without.stages[0].steps, both.stages[1].steps, "table 10");
    // Pooling and Attention, section 4.1.
    check(
        "pooling",
        &[
            ("1: EOS, causal", &[EOS, CAUSAL]),
            ("2: last layer, causal", &[LAST_LAYER, CAUSAL]),
            ("3: all layers, causal", &[ALL_LAYERS, CAUSAL]),
            ("4: last layer, bidirectional", &[LAST_LAYER, BOTH_WAYS]),
            ("5: all layers, bidirectional", &[ALL_LAYERS, BOTH_WAYS]),
            ("mean, causal", &[MEAN, CAUSAL]),
            ("mean, bidirectional", &[MEAN, BOTH_WAYS]),
            ("anchor, bidirectional", &[ANCHOR_POOL, BOTH_WAYS]),
        ],
    );
}

/// Cells on a real language model: sweeps that `tests/reference/papers.py` reads, and claims that it holds them against.
const EXPERIMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../recipes/experiments");

/// Each sweep of the experiments, its variants in order.
const CELLS: &[(&str, &[Held])] = &[
    (
        "frame",
        &[
            ("untrained-mean-causal", &[MEAN, CAUSAL, UNMOVED]),
            ("untrained-mean-bidirectional", &[MEAN, BOTH_WAYS, UNMOVED]),
            ("untrained-eos-causal", &[EOS, CAUSAL, UNMOVED]),
        ],
    ),
    (
        "nv-embed",
        &[
            (
                "mean-bidirectional",
                &[
                    MEAN,
                    BOTH_WAYS,
                    CONTRASTIVE_ALONE,
                    ("model.instruction", "'masked'"),
                    (NEGATIVES, "1"),
                    (SQUAD, "'data/train/squad.jsonl'"),
                ],
            ),
            ("mean-causal", &[MEAN, CAUSAL, CONTRASTIVE_ALONE]),
            ("eos-bidirectional", &[EOS, BOTH_WAYS, CONTRASTIVE_ALONE]),
            ("eos-causal", &[EOS, CAUSAL, CONTRASTIVE_ALONE]),
            ("latent-bidirectional", &[LATENT, BOTH_WAYS, CONTRASTIVE_ALONE]),
            ("latent-causal", &[LATENT, CAUSAL, CONTRASTIVE_ALONE]),
            ("self-attention-bidirectional", &[SELF, BOTH_WAYS, CONTRASTIVE_ALONE]),
            ("instruction-pooled", &[MEAN, BOTH_WAYS, ("model.instruction", "'pooled'")]),
            ("no-negatives", &[MEAN, BOTH_WAYS, (NEGATIVES, "0")]),
            ("naive-negatives", &[MEAN, BOTH_WAYS, (SQUAD, "'data/naive/squad.jsonl'")]),
            ("window-negatives", &[MEAN, BOTH_WAYS, (SQUAD, "'data/window/squad.jsonl'")]),
            (
                "two-stage",
                &[
                    LATENT,
                    ("stages", "['contrastive', 'blended']"),
                    ("stage.contrastive.loss.in_batch", "true"),
                    BLENDED_WITHOUT,
                    (EMOTION, "'examples'"),
                ],
            ),
            ("reversed", &[LATENT, ("stages", "['blended', 'contrastive']"), BLENDED_WITHOUT]),
            ("single-in-batch", &[LATENT, BLENDED_ALONE, BLENDED_IN_BATCH]),
            ("single-no-in-batch", &[LATENT, BLENDED_ALONE, BLENDED_WITHOUT]),
            (
                "two-stage-labels",
                &[LATENT, ("stages", "['contrastive', 'blended']"), (EMOTION, "'names'")],
            ),
        ],
    ),
    (
        "mgh-ata",
        &[
            ("ata", &[ANCHOR_POOL, LOG1P, BOTH_WAYS, CONTRASTIVE_ALONE]),
            ("ata-linear", &[ANCHOR_POOL, LINEAR, BOTH_WAYS, CONTRASTIVE_ALONE]),
            ("ata-square", &[ANCHOR_POOL, SQUARE, BOTH_WAYS, CONTRASTIVE_ALONE]),
            ("ata-column-product", &[ANCHOR_POOL, COLUMN_PRODUCT, BOTH_WAYS, CONTRASTIVE_ALONE]),
            ("coarse-to-fine", &[ANCHOR_POOL, GRADED, (LEVELS, "'coarse_to_fine'"), ALONG]),
            ("fine-to-coarse", &[ANCHOR_POOL, GRADED, (LEVELS, "'fine_to_coarse'"), ALONG]),
            ("random-level", &[ANCHOR_POOL, GRADED, (LEVELS, "'random'"), ALONG]),
            ("level-1", &[ANCHOR_POOL, GRADED, (LEVELS, "{ fixed = 1 }"), ALONG]),
            ("level-2", &[ANCHOR_POOL, GRADED, (LEVELS, "{ fixed = 2 }"), ALONG]),
            ("level-3", &[ANCHOR_POOL, GRADED, (LEVELS, "{ fixed = 3 }"), ALONG]),
            ("level-4", &[ANCHOR_POOL, GRADED, (LEVELS, "{ fixed = 4 }"), ALONG]),
            ("mntp", &[MEAN, BOTH_WAYS, ("stages", "['mntp', 'contrastive']")]),
            (
                "public-alone",
                &[
                    ANCHOR_POOL,
                    BOTH_WAYS,
                    CONTRASTIVE_ALONE,
                    ("stage.contrastive.data", PUBLIC),
                    ("stage.contrastive.curriculum", "'given'"),
                ],
            ),
            (
                "graded-alone",
                &[
                    ANCHOR_POOL,
                    BOTH_WAYS,
                    GRADED,
                    ("stage.graded.data", BY_LEVELS),
                    (LEVELS, "'coarse_to_fine'"),
                ],
            ),
            (
                "public-and-graded",
                &[
                    ANCHOR_POOL,
                    BOTH_WAYS,
                    GRADED,
                    ("stage.graded.mixing", "'uniform'"),
                    (LEVELS, "'coarse_to_fine'"),
                ],
            ),
        ],
    ),
    (
        "anchor",
        &[
            ("reconstruction", &[EOS, CAUSAL, REBUILT, (ALPHA, "0.2"), ALONG]),
            ("no-reconstruction", &[EOS, CAUSAL, CONTRASTIVE_ALONE, ALONG]),
            ("reconstruction-alone", &[EOS, CAUSAL, REBUILT_ALONE]),
            ("only-q2d", &[EOS, CAUSAL, REBUILT, (ALPHA, "1.0")]),
            ("only-d2q", &[EOS, CAUSAL, REBUILT, (ALPHA, "0.0")]),
            ("alpha-0.5", &[EOS, CAUSAL, REBUILT, (ALPHA, "0.5")]),
            ("alpha-0.8", &[EOS, CAUSAL, REBUILT, (ALPHA, "0.8")]),
        ],
    ),
    (
        "pooling-attn",
        &[
            ("design-2", &[LAST_LAYER, CAUSAL, CONTRASTIVE_ALONE]),
            ("design-3", &[ALL_LAYERS, CAUSAL, CONTRASTIVE_ALONE]),
            ("design-4", &[LAST_LAYER, BOTH_WAYS, CONTRASTIVE_ALONE]),
            ("design-5", &[ALL_LAYERS, BOTH_WAYS, CONTRASTIVE_ALONE]),
        ],
    ),
    (
        "linq",
        &[
            ("blended-tasks", &[EOS, CAUSAL, TASKS, (SAMPLER, "'blended'")]),
            ("homogeneous", &[EOS, CAUSAL, TASKS, (SAMPLER, "'homogeneous'")]),
            ("ordered", &[EOS, CAUSAL, TASKS, (SAMPLER, "{ blocks = 5 }")]),
            (
                "ordered-then-mixed",
                &[
                    EOS,
                    CAUSAL,
                    ("stages", "['tasks', 'mixed']"),
                    (SAMPLER, "{ blocks = 5 }"),
                    ("stage.mixed.sampler", "'mixed'"),
                ],
            ),
        ],
    ),
    (
        "compression",
        &[
            ("magnitude-retrained", &[BLENDED_ALONE, SPARSE, (BASE, "'models/magnitude'")]),
            ("wanda-retrained", &[BLENDED_ALONE, SPARSE, (BASE, "'models/wanda'")]),
            ("sparsegpt-retrained", &[BLENDED_ALONE, SPARSE, (BASE, "'models/sparsegpt'")]),
            (
                "sparsegpt-distilled",
                &[
                    BLENDED_ALONE,
                    SPARSE,
                    (BASE, "'models/sparsegpt'"),
                    ("stage.blended.distillation.teacher", "'models/two-stage'"),
                    ("stage.blended.distillation.layers", "'appendix_a'"),
                ],
            ),
        ],
    ),
];

const SQUAD: &str = "sources.squad.path";
const EMOTION: &str = "sources.emotion.labels";
const NEGATIVES: &str = "stage.contrastive.hard_negatives";
const LEVELS: &str = "stage.graded.curriculum";
const GRADED: At = ("stages", "['graded']");
const PUBLIC: &str = "['squad', 'medquad', 'tldr', 'nfcorpus', 'scifact', 'snli']";
const BY_LEVELS: &str =
    "['graded_squad', 'graded_medquad', 'graded_tldr', 'graded_nfcorpus', 'graded_scifact']";
const SAMPLER: &str = "stage.tasks.sampler";
const TASKS: At = ("stages", "['tasks']");
const ALONG: At = ("eval.suite", "'suite.toml'");
const BASE: &str = "model.base";
const SPARSE: At = ("model.keep_zeros", "true");

#[test]
fn cells_of_the_experiments() {
    let mut cells: Vec<(&str, Recipe)> = Vec::new();
    for (name, said) in CELLS {
        let text = read_small(&Path::new(EXPERIMENTS).join(format!("{name}.toml"))).unwrap();
        let names = said.iter().map(|cell| cell.0);
        cells.extend(names.zip(check_sweep(name, &text, EXPERIMENTS, said)));
    }
    for (i, (name, recipe)) in cells.iter().enumerate() {
        let twin = cells[..i].iter().find(|other| other.1 == *recipe);
        assert!(twin.is_none(), "{name} is {:?} again", twin.map(|other| other.0));
        // All spend as much, but for these.
        let budget = match *name {
            "no-reconstruction" | "reconstruction-alone" => 75,
            "public-alone" => 100,
            "graded-alone" => 60,
            "public-and-graded" => 160,
            _ if name.starts_with("untrained-") => 1,
            _ if recipe.model.keep_zeros => 75,
            _ => 150,
        };
        assert_eq!(steps(recipe), budget, "{name}");
    }

    // Negative Matters' settings of data, for a tenth of the paper's steps and warm-up.
    let cell = |name: &str| &cells.iter().find(|cell| cell.0 == name).unwrap().1;
    for (name, setting) in [
        ("public-alone", MGH_PUBLIC),
        ("graded-alone", MGH_SYNTHETIC),
        ("public-and-graded", MGH_BOTH),
    ] {
        let stage = &cell(name).stages[0];
        for (field, actual) in [("steps", stage.steps), ("warmup", stage.warmup)] {
            let said = setting.iter().find(|said| said.0.ends_with(field)).unwrap();
            assert_eq!((10 * actual).to_string(), said.1, "{name}: {field}, {}", said.2);
        }
    }
    // Both see what each sees alone; table 1 has 310,000 synthetic samples of 820,000.
    let both = cell("public-and-graded");
    let alone =
        ["public-alone", "graded-alone"].map(|name| names(cell(name), &cell(name).stages[0].name));
    assert_eq!(names(both, "graded"), alone.concat());
    let graded: f64 = alone[1].iter().map(|name| both.sources[*name].weight.unwrap()).sum();
    assert!(alone[0].iter().all(|name| both.sources[*name].weight.is_none()));
    let share = graded / (graded + alone[0].len() as f64);
    assert!((share - 60.0 / 160.0).abs() < 1e-9, "{share}");
    assert!((share - 310.0 / 820.0).abs() < 0.01, "{share}");

    // No sweep is there that nothing reads, and claims are of cells.
    let mut files: Vec<String> = std::fs::read_dir(EXPERIMENTS)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".toml").map(String::from))
        .collect();
    files.sort_unstable();
    let mut known: Vec<&str> = CELLS.iter().map(|sweep| sweep.0).collect();
    known.extend(["claims", "smollm2", "suite"]);
    known.sort_unstable();
    assert_eq!(files, known);
    let claims = read_small(&Path::new(EXPERIMENTS).join("claims.toml")).unwrap();
    let claims: toml::Table = toml::from_str(&claims).unwrap();
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_string()).collect()
    };
    // What trains nothing is named in papers.py; `tests/python/test_papers.py` asks it.
    let order = texts(&claims["order"]);
    for (i, name) in order.iter().enumerate() {
        assert!(!order[..i].contains(name), "{name} is in the order twice");
    }
    assert!(cells.iter().all(|(name, _)| order.iter().any(|one| one == name)));
    for claim in claims["claim"].as_array().unwrap() {
        let name = claim["name"].as_str().unwrap();
        for side in ["a", "b"] {
            let cell = claim[side].as_str().unwrap();
            assert!(order.iter().any(|one| one == cell), "{name}: there is no cell {cell}");
        }
        assert_ne!(claim["a"], claim["b"], "{name}");
        let sign = claim.get("sign").map_or(1, |sign| sign.as_integer().unwrap());
        assert!([-1, 1].contains(&sign), "{name}");
    }
}
