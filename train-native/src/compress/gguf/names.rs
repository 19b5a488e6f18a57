//! llama.cpp's names of architectures and tensors.

use kiln_embed::config::Family;

/// Whether llama.cpp's architecture is that of a family.
pub(super) fn fits(architecture: &str, family: Family) -> bool {
    match family {
        Family::Bert | Family::Roberta | Family::XlmRoberta | Family::Camembert => {
            architecture == "bert"
        }
        Family::Llama | Family::Mistral => architecture == "llama",
        Family::Qwen2 => architecture == "qwen2",
        Family::Qwen3 => architecture == "qwen3",
        // Their tensors have other names there, or other numbers.
        _ => false,
    }
}

/// Tensors of heads for other tasks, and of tables that we compute.
pub(super) const OF_OTHER_TASKS: [&str; 3] = ["output.weight", "rope_freqs", "cls"];

/// llama.cpp's names and ours.
type Names = [(&'static str, &'static str)];

const ENCODER: &Names = &[
    ("token_embd", "embeddings.word_embeddings"),
    ("position_embd", "embeddings.position_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("token_embd_norm", "embeddings.LayerNorm"),
];
const ENCODER_BLOCK: &Names = &[
    ("attn_q", "attention.self.query"),
    ("attn_k", "attention.self.key"),
    ("attn_v", "attention.self.value"),
    ("attn_output", "attention.output.dense"),
    ("attn_output_norm", "attention.output.LayerNorm"),
    ("ffn_up", "intermediate.dense"),
    ("ffn_down", "output.dense"),
    ("layer_output_norm", "output.LayerNorm"),
];
const DECODER: &Names = &[("token_embd", "embed_tokens"), ("output_norm", "norm")];
const DECODER_BLOCK: &Names = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// transformers' name of one of llama.cpp's tensors.
pub(super) fn our_name(theirs: &str, decoder: bool) -> Option<String> {
    let (stem, kind) = theirs.rsplit_once('.')?;
    let (outside, blocks, layers) = match decoder {
        false => (ENCODER, ENCODER_BLOCK, "encoder.layer"),
        true => (DECODER, DECODER_BLOCK, "layers"),
    };
    let find = |table: &Names, stem: &str| {
        table.iter().find(|(theirs, _)| *theirs == stem).map(|(_, ours)| *ours)
    };
    match stem.strip_prefix("blk.") {
        None => Some(format!("{}.{kind}", find(outside, stem)?)),
        Some(rest) => {
            let (layer, stem) = rest.split_once('.')?;
            // One spelling of a number only, so that no two tensors get the same name.
            let layer = layer.parse::<usize>().ok().filter(|number| number.to_string() == layer)?;
            Some(format!("{layers}.{layer}.{}.{kind}", find(blocks, stem)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_llama_cpp() {
        let encoder = |name| our_name(name, false);
        let decoder = |name| our_name(name, true);
        assert_eq!(encoder("token_embd.weight").unwrap(), "embeddings.word_embeddings.weight");
        assert_eq!(
            encoder("blk.3.ffn_up.bias").unwrap(),
            "encoder.layer.3.intermediate.dense.bias"
        );
        assert_eq!(decoder("blk.11.attn_q.weight").unwrap(), "layers.11.self_attn.q_proj.weight");
        assert_eq!(decoder("output_norm.weight").unwrap(), "norm.weight");
        for wrong in [
            "blk.x.attn_q.weight",
            "blk.01.attn_q.weight",
            "blk.1.ffn_gate_exps.weight",
            "attn_q",
            "blk.1.weight",
        ] {
            assert_eq!(decoder(wrong), None, "{wrong}");
        }
    }
}
