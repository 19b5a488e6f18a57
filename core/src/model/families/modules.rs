//! What LoRA targets call an encoder's projections: the ends of their names in checkpoints.

use super::{encoder, nomic_bert};
use crate::config::{Family, ModelConfig};

/// Names of a block's projections.
pub(crate) struct Modules {
    /// Queries, keys, values (or all three in the first), output.
    pub attention: [&'static str; 4],
    /// Of a gate with a projection of its own.
    pub gate: &'static str,
    /// Into the feed-forward.
    pub up: &'static str,
    /// Out of it.
    pub down: &'static str,
    /// From a token to its experts. The experts' own projections have no name: PEFT, too, leaves them alone, as they are
    /// no layers but one tensor of all experts.
    pub router: &'static str,
}

/// Names of an encoder's projections.
pub(crate) fn encoder_modules(config: &ModelConfig) -> Modules {
    let bert = Modules {
        attention: ["query", "key", "value", "attention.output.dense"],
        gate: "",
        up: "intermediate.dense",
        down: "output.dense",
        router: "",
    };
    match config.family {
        Family::Distilbert => Modules {
            attention: ["q_lin", "k_lin", "v_lin", "out_lin"],
            up: "lin1",
            down: "lin2",
            ..bert
        },
        Family::Mpnet => Modules { attention: ["attn.q", "attn.k", "attn.v", "attn.o"], ..bert },
        Family::JinaBert => Modules { up: "gated_layers", down: "wo", ..bert },
        Family::Modernbert => {
            Modules { attention: ["Wqkv", "", "", "attn.Wo"], up: "Wi", down: "mlp.Wo", ..bert }
        }
        Family::NomicBert if nomic_bert::is_plain(&encoder::part(config)) => Modules {
            attention: ["Wqkv", "", "", "out_proj"],
            up: "fc1",
            down: "fc2",
            router: "router.layer",
            ..bert
        },
        Family::NomicBert | Family::Gte => Modules {
            attention: ["q_proj", "k_proj", "v_proj", "o_proj"],
            gate: "gate_proj",
            up: "up_proj",
            down: "down_proj",
            ..bert
        },
        Family::JinaEmbeddingsV3 => Modules {
            attention: ["q_proj", "k_proj", "v_proj", "o_proj"],
            up: "fc1",
            down: "fc2",
            ..bert
        },
        _ => bert,
    }
}
