//! How much of a long text is tokenized. Tokenizing takes hundreds of bytes of memory per byte of
//! text, and the length limit may keep a thousandth of it; so it starts with a part of the text and
//! takes more only if more tokens are needed.
//!
//! The first tokens of a part are those of the whole text if words are split by local context: then
//! what follows can change only the part's last two words, the one that is cut and the white space
//! before it, whose last character may belong to the next word. This holds for the pre-tokenizers
//! and expressions listed here and, where a tokenizer has no words, for pieces that begin with
//! SentencePiece's "▁", as long as no token of the vocabulary crosses such a beginning. Other
//! tokenizers get whole texts, up to a limit.

use serde_json::Value;

use super::limits::Outline;

/// Bytes tokenized first, per token that may be kept.
const BYTES_A_TOKEN: usize = 16;
/// Fewest bytes tokenized first.
const FEWEST_BYTES: usize = 4096;
/// Most bytes tokenized, unless [`BYTES_A_TOKEN`] allows more.
const MOST_BYTES: usize = 1 << 18;

/// SentencePiece's sign for a space.
const SPACE: char = '▁';

/// The split expressions of published tokenizers: GPT-2, Llama 3, Qwen 2, GPT-4o, DeepSeek. Each
/// alternative is a run of letters, digits, signs or white space, with at most one character of
/// another kind before it and line breaks after it: a longer text extends the last match, or moves
/// its last white space to the next one, and leaves the others unchanged.
pub(super) const SPLITS: [&str; 7] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\p{N}{1,3}",
];

/// Expressions that collapse runs of white space, as SentencePiece does.
const COLLAPSED: [&str; 3] = [" {2,}", r"\s+", r"[ ]{2,}"];

/// How a text is split into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Words {
    /// By the pre-tokenizer.
    Split,
    /// By "▁" at the beginning of a token.
    Marked,
    /// In a way that is not known to be local.
    Unknown,
}

/// How much of a text is tokenized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    words: Words,
}

impl Window {
    /// The window of a tokenizer, from its outline.
    pub(super) fn of(outline: &Outline, inner: &tokenizers::Tokenizer) -> Self {
        let words = if !is_local(&outline.normalizer) {
            Words::Unknown
        } else if splits(&outline.pre_tokenizer) {
            Words::Split
        } else if keeps_whole(&outline.pre_tokenizer)
            && matches!(outline.model.kind.as_deref(), Some("BPE" | "Unigram"))
            && marks_words(inner)
        {
            Words::Marked
        } else {
            Words::Unknown
        };
        Self { words }
    }

    /// Most bytes tokenized of a text of which `room` tokens may be kept.
    pub(super) fn most(room: usize) -> usize {
        room.saturating_mul(BYTES_A_TOKEN).max(MOST_BYTES)
    }

    /// Bytes tokenized first of a text of which `room` tokens may be kept.
    pub(super) fn first(self, room: usize) -> usize {
        match self.words {
            Words::Unknown => Self::most(room),
            _ => room.saturating_mul(BYTES_A_TOKEN).max(FEWEST_BYTES),
        }
    }

    /// How many tokens of a part are certain to be those of the whole text.
    pub(super) fn settled(self, part: &tokenizers::Encoding) -> usize {
        let words = part.get_word_ids();
        let tokens = part.get_tokens();
        let is_start = |i: usize| {
            i == 0
                || words[i] != words[i - 1]
                || self.words == Words::Marked
                    && tokens[i].starts_with(SPACE)
                    && !tokens[i - 1].chars().all(|letter| letter == SPACE)
        };
        if self.words == Words::Unknown {
            return 0;
        }
        let starts = (0..part.len()).rev().filter(|&i| is_start(i));
        // Start of the last word but one.
        starts.take(2).nth(1).unwrap_or(0)
    }
}

/// The longest prefix of a text with at most `bytes` bytes.
pub(super) fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// The steps of a step: itself, or those of a sequence.
fn steps(step: &Value) -> Vec<&Value> {
    let inner = step.get("normalizers").or_else(|| step.get("pretokenizers"));
    match (kind(step), inner.and_then(Value::as_array)) {
        ("Sequence", Some(inner)) => inner.iter().flat_map(steps).collect(),
        _ => vec![step],
    }
}

/// Whether a normalizer changes characters by local context only.
fn is_local(normalizer: &Value) -> bool {
    let local = |step: &&Value| match kind(step) {
        "BertNormalizer" | "Lowercase" | "StripAccents" | "NFC" | "NFD" | "NFKC" | "NFKD"
        | "Nmt" | "Precompiled" | "Prepend" | "ByteLevel" | "Strip" => true,
        "Replace" => step.get("pattern").is_some_and(|pattern| {
            let expression = pattern.get("Regex").and_then(Value::as_str);
            expression.is_none_or(|expression| COLLAPSED.contains(&expression))
        }),
        _ => false,
    };
    normalizer.is_null() || steps(normalizer).iter().all(local)
}

/// Whether a pre-tokenizer splits texts into words by local context.
fn splits(pre_tokenizer: &Value) -> bool {
    let known = |step: &&Value| match kind(step) {
        "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit" | "Punctuation" | "Digits"
        | "CharDelimiterSplit" | "Metaspace" | "ByteLevel" => true,
        "Split" => step.get("pattern").is_some_and(|pattern| {
            match pattern.get("Regex").and_then(Value::as_str) {
                Some(expression) => SPLITS.contains(&expression),
                None => pattern.get("String").is_some(),
            }
        }),
        _ => false,
    };
    // The step that makes words: the others only divide them further, or not at all.
    let makes_words = |step: &&Value| match kind(step) {
        "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit" => true,
        "Metaspace" => step.get("split").and_then(Value::as_bool).unwrap_or(true),
        "ByteLevel" => step.get("use_regex").and_then(Value::as_bool).unwrap_or(true),
        "Split" => step.get("pattern").is_some_and(|pattern| pattern.get("Regex").is_some()),
        _ => false,
    };
    let steps = steps(pre_tokenizer);
    steps.iter().all(known) && steps.iter().any(makes_words)
}

/// Whether a pre-tokenizer leaves a text whole, or splits it at spaces that its normalizer has
/// removed.
fn keeps_whole(pre_tokenizer: &Value) -> bool {
    let whole = |step: &&Value| match kind(step) {
        "Metaspace" => step.get("split").and_then(Value::as_bool) == Some(false),
        "Split" => step.pointer("/pattern/String").and_then(Value::as_str) == Some(" "),
        _ => false,
    };
    pre_tokenizer.is_null() || steps(pre_tokenizer).iter().all(whole)
}

/// Whether "▁" is a token, and no token has it after another character.
fn marks_words(inner: &tokenizers::Tokenizer) -> bool {
    let reaches_over = |token: &String| token.trim_start_matches(SPACE).contains(SPACE);
    inner.token_to_id("▁").is_some() && !inner.get_vocab(true).keys().any(reaches_over)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// Needs no training: a vocabulary of letters and some pairs gives words of several tokens.
    fn byte_pairs(normalizer: Value, pre_tokenizer: Value, marked: bool) -> Value {
        let space = if marked { "▁" } else { "Ġ" };
        let mut vocab = serde_json::Map::new();
        let letters: Vec<String> = "abcdefgh0123456789.,!?\u{e9}中文\n\t\u{10a}"
            .chars()
            .map(String::from)
            .chain([space.to_string(), "<unk>".into()])
            .collect();
        let mut merges = Vec::new();
        for letter in &letters {
            vocab.insert(letter.clone(), vocab.len().into());
        }
        for pair in [[space, "a"], [space, space], ["b", "c"], ["a", "b"], [".", "."], ["1", "2"]] {
            vocab.insert(pair.concat(), vocab.len().into());
            merges.push(pair.join(" "));
        }
        json!({
            "version": "1.0", "added_tokens": [], "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "model": {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>", "fuse_unk": true}
        })
    }

    fn tokenizers() -> Vec<(Words, Value)> {
        let words = ["a", "b", "abc", "##a", "##b", "##c", "##bc", ".", "[UNK]", "1", "##1"];
        let vocab: serde_json::Map<_, _> =
            words.iter().enumerate().map(|(id, word)| (word.to_string(), id.into())).collect();
        let bert = json!({
            "version": "1.0", "added_tokens": [],
            "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "model": {"type": "WordPiece", "vocab": vocab, "unk_token": "[UNK]",
                "continuing_subword_prefix": "##", "max_input_chars_per_word": 20}
        });
        let levels = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false});
        let split = |expression: &str| {
            json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
            ]})
        };
        let spaced = json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        ]});
        let collapsed = json!({"type": "Sequence", "normalizers": [
            {"type": "NFKC"},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
        ]});
        let metaspace = json!({"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}
        ]});
        let mut all = vec![
            (Words::Split, bert),
            (Words::Split, byte_pairs(json!({"type": "NFC"}), levels, false)),
            (Words::Marked, byte_pairs(spaced, Value::Null, true)),
            (Words::Split, byte_pairs(collapsed, metaspace, true)),
        ];
        // The last expression splits digits, and others follow it in practice.
        all.extend(
            SPLITS[..6].iter().map(|expression| {
                (Words::Split, byte_pairs(Value::Null, split(expression), false))
            }),
        );
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn settled_tokens_are_those_of_the_whole_text(
            text in "([abcé]{1,5}|[ \n\t]{1,4}|[.,!?']{1,4}|[0-9]{1,5}|[中文]{1,3}|\u{301}|'s|A|ﬁ){1,30}",
            i in 0.0f64..1.0,
        ) {
            for (words, file) in tokenizers() {
                let bytes = file.to_string().into_bytes();
                let inner = tokenizers::Tokenizer::from_bytes(&bytes).unwrap();
                let window = Window::of(&super::super::limits::check(&bytes).unwrap(), &inner);
                prop_assert_eq!(window.words, words);
                let part = cut(&text, (text.len() as f64 * i) as usize);
                let whole = inner.encode(text.as_str(), false).unwrap();
                let encoded = inner.encode(part, false).unwrap();
                let settled = window.settled(&encoded);
                prop_assert_eq!(
                    &encoded.get_ids()[..settled], &whole.get_ids()[..settled], "{:?} of {:?}", part, text
                );
                prop_assert_eq!(&encoded.get_offsets()[..settled], &whole.get_offsets()[..settled]);
            }
        }
    }

    #[test]
    fn what_is_not_known_is_not_cut() {
        let outline = |normalizer: Value, pre_tokenizer: Value| {
            let file = byte_pairs(normalizer, pre_tokenizer, true).to_string().into_bytes();
            let inner = tokenizers::Tokenizer::from_bytes(&file).unwrap();
            Window::of(&super::super::limits::check(&file).unwrap(), &inner).words
        };
        let looks_far = json!({"type": "Split", "pattern": {"Regex": "a*b|a"}, "behavior": "Isolated", "invert": false});
        assert_eq!(outline(Value::Null, looks_far), Words::Unknown);
        let far = json!({"type": "Replace", "pattern": {"Regex": "a*b"}, "content": "c"});
        assert_eq!(outline(far, json!({"type": "WhitespaceSplit"})), Words::Unknown);
        let mut file = byte_pairs(Value::Null, Value::Null, true);
        file["model"]["vocab"]["a▁"] = 99.into();
        let file = file.to_string().into_bytes();
        let inner = tokenizers::Tokenizer::from_bytes(&file).unwrap();
        let window = Window::of(&super::super::limits::check(&file).unwrap(), &inner);
        assert_eq!(window.words, Words::Unknown);
    }
}
