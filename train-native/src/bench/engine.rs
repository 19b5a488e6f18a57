//! The engines that are compared: Kiln, its quantized models, and the peers.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use kiln_embed::quant::WeightPrecision;

/// An engine that is not ours. `peers.py` beside this file runs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// sentence-transformers, which computes with PyTorch.
    SentenceTransformers,
    /// The same with weights and activations in bfloat16.
    SentenceTransformersBf16,
    /// ONNX Runtime.
    Onnxruntime,
    /// The same with its dynamic quantization: weights and activations in int8.
    OnnxruntimeInt8,
    /// OpenVINO.
    Openvino,
    /// The same computing in bfloat16, where the processor can.
    OpenvinoBf16,
    /// llama.cpp with weights in Q8_0.
    LlamaCpp,
}

impl Peer {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 7] = [
        Self::SentenceTransformers,
        Self::SentenceTransformersBf16,
        Self::Onnxruntime,
        Self::OnnxruntimeInt8,
        Self::Openvino,
        Self::OpenvinoBf16,
        Self::LlamaCpp,
    ];

    /// Its name on the command line, in tables and in `peers.py`.
    pub fn name(self) -> &'static str {
        match self {
            Self::SentenceTransformers => "sentence-transformers",
            Self::SentenceTransformersBf16 => "sentence-transformers-bf16",
            Self::Onnxruntime => "onnxruntime",
            Self::OnnxruntimeInt8 => "onnxruntime-int8",
            Self::Openvino => "openvino",
            Self::OpenvinoBf16 => "openvino-bf16",
            Self::LlamaCpp => "llama-cpp",
        }
    }

    /// What it computes in.
    pub(super) fn numbers(self) -> Numbers {
        match self {
            Self::SentenceTransformers | Self::Onnxruntime | Self::Openvino => Numbers::Full,
            Self::SentenceTransformersBf16 | Self::OpenvinoBf16 => Numbers::Bf16,
            Self::OnnxruntimeInt8 | Self::LlamaCpp => Numbers::Packed,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|peer| peer.name() == name).ok_or_else(|| {
            format!("no such peer; there are {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// What an engine computes in; ratios compare like with like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// 32-bit floating point.
    Full,
    /// bfloat16.
    Bf16,
    /// Quantized weights.
    Packed,
}

/// One engine of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Engine {
    /// This program, with a model and its weights as they are or rounded while loading.
    Own { label: String, model: PathBuf, weights: WeightPrecision },
    /// A peer.
    Peer(Peer),
}

impl Engine {
    /// Its name in the table; the first of ours has no label.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Own { label, .. } if label.is_empty() => "kiln".into(),
            Self::Own { label, .. } => format!("kiln {label}"),
            Self::Peer(peer) => peer.name().into(),
        }
    }

    /// What it computes in.
    pub(super) fn numbers(&self) -> Numbers {
        match self {
            Self::Own { label, .. } if label.is_empty() || label.starts_with("f32") => {
                Numbers::Full
            }
            Self::Own { label, .. } if label.starts_with("bf16") => Numbers::Bf16,
            Self::Own { .. } => Numbers::Packed,
            Self::Peer(peer) => peer.numbers(),
        }
    }
}

/// A label that no engine of the list has yet.
pub(super) fn unused(label: &str, engines: &[Engine]) -> String {
    let taken = |label: &str| {
        engines
            .iter()
            .any(|engine| matches!(engine, Engine::Own { label: own, .. } if own == label))
    };
    let numbered = (2..).map(|number| format!("{label} ({number})"));
    std::iter::once(label.to_string())
        .chain(numbered)
        .find(|label| !taken(label))
        .unwrap_or_default()
}

/// Which of our engines each engine is compared with: the first that computes in the same numbers,
/// or the full model.
pub(super) fn opponents(engines: &[Engine]) -> Vec<usize> {
    let own = |numbers: Numbers| {
        engines
            .iter()
            .position(|own| matches!(own, Engine::Own { .. }) && own.numbers() == numbers)
            .unwrap_or(0)
    };
    engines.iter().map(|engine| own(engine.numbers())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(label: &str) -> Engine {
        Engine::Own {
            label: label.into(),
            model: PathBuf::from("dir"),
            weights: WeightPrecision::Kept,
        }
    }

    #[test]
    fn peers_are_read_by_their_names() {
        for peer in Peer::ALL {
            assert_eq!(peer.name().parse(), Ok(peer));
        }
        let error = "torch".parse::<Peer>().unwrap_err();
        assert!(error.contains("openvino-bf16"), "{error}");
    }

    #[test]
    fn ratios_compare_like_with_like() {
        let engines = [
            own(""),
            own("int8:128"),
            own("bf16"),
            own("int4"),
            Engine::Peer(Peer::Openvino),
            Engine::Peer(Peer::OpenvinoBf16),
            Engine::Peer(Peer::LlamaCpp),
        ];
        assert_eq!(opponents(&engines), [0, 1, 2, 1, 0, 2, 1]);
        // Where we have nothing of the kind, the full model stands in.
        let engines = [own(""), Engine::Peer(Peer::OpenvinoBf16)];
        assert_eq!(opponents(&engines), [0, 0]);
    }

    #[test]
    fn engines_of_one_precision_are_told_apart() {
        let engines = [own(""), own("int8"), own("int8 (2)")];
        assert_eq!(unused("int8", &engines), "int8 (3)");
        assert_eq!(unused("int4", &engines), "int4");
    }
}
