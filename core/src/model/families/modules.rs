//! What LoRA targets call an encoder's projections: the ends of their names in checkpoints.

use crate::config::Family;

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
}

/// Names of an encoder's projections.
pub(crate) fn encoder_modules(family: Family) -> Modules {
    let bert = Modules {
        attention: ["query", "key", "value", "attention.output.dense"],
        gate: "",
        up: "intermediate.dense",
        down: "output.dense",
    };
    match family {
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
        Family::NomicBert | Family::Gte => Modules {
            attention: ["q_proj", "k_proj", "v_proj", "o_proj"],
            gate: "gate_proj",
            up: "up_proj",
            down: "down_proj",
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
