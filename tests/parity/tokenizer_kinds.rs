//! Tokens of each kind of tokenizer that the families have against transformers: letters of many scripts, white space of all
//! sorts, and texts longer than what is read at first; alone and as pairs, cut to 16 tokens, padded on either side.

use kiln_embed::checkpoint::{LoadOptions, load_tokenizer};
use kiln_embed::tokenizer::{TokenBatch, Tokenizer, TokenizerConfig, Tokens};
use kiln_tests::fixture;
use kiln_tests::hostile::model;
use serde::Deserialize;
use serde_json::Value;

const KINDS: [&str; 8] =
    ["bert", "xlm-roberta", "roberta", "modernbert", "qwen3", "llama3", "mistral", "gemma"];
const LENGTH: usize = 16;

/// `tests/fixtures/tokenizers/texts.json`.
#[derive(Deserialize)]
struct Texts {
    texts: Vec<Text>,
    pairs: Vec<(usize, usize)>,
}

/// A text, or parts that are repeated.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Plain(String),
    Parts(Vec<(String, usize)>),
}

impl Text {
    fn whole(&self) -> String {
        match self {
            Self::Plain(text) => text.clone(),
            Self::Parts(parts) => parts.iter().map(|(part, times)| part.repeat(*times)).collect(),
        }
    }
}

/// A tokenizer's files, and what transformers makes of the texts.
#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "tokenizer.json")]
    tokenizer: Value,
    #[serde(rename = "tokenizer_config.json")]
    settings: Value,
    right: Side,
    left: Side,
}

#[derive(Deserialize)]
struct Side {
    alone: Batch,
    pairs: Batch,
}

#[derive(Deserialize)]
struct Batch {
    ids: Vec<Vec<u32>>,
    mask: Vec<String>,
    /// Of pairs.
    #[serde(default)]
    types: Vec<String>,
}

/// The rows that are otherwise, with their ids.
fn differences(found: &TokenBatch, expected: &Batch) -> Vec<String> {
    assert_eq!((found.rows(), found.seq()), (expected.ids.len(), LENGTH));
    let mask: Vec<u32> = found.attention().iter().map(|&token| u32::from(token)).collect();
    let types = match found.types() {
        [] => vec![0; found.ids().len()],
        types => types.to_vec(),
    };
    let line = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<String>();
    let mut wrong = Vec::new();
    for (row, ids) in expected.ids.iter().enumerate() {
        let of_row = row * LENGTH..(row + 1) * LENGTH;
        let own = &found.ids()[of_row.clone()];
        let same_types = expected
            .types
            .get(row)
            .is_none_or(|expected| line(&types[of_row.clone()]) == *expected);
        if own != ids || line(&mask[of_row]) != expected.mask[row] || !same_types {
            wrong.push(format!("{row}: {own:?}, and not {ids:?}"));
        }
    }
    wrong
}

/// Mistral's tokenizer puts a space before all that it gets, and so before a suffix.
#[test]
fn a_suffix_has_the_tokens_that_it_has_behind_a_text() {
    let read = std::fs::read(fixture("tokenizers/mistral.json")).unwrap();
    let kind: Kind = serde_json::from_slice(&read).unwrap();
    let json = kind.tokenizer.to_string();
    let ids = |text_suffix: &str, text: &str| {
        let config =
            TokenizerConfig { text_suffix: text_suffix.into(), ..TokenizerConfig::new(64) };
        let tokenizer = Tokenizer::new(json.as_bytes(), &kind.settings, config).unwrap();
        tokenizer.encode("", text).unwrap().ids
    };
    let joint = ids("", "a passage [/INST]");
    assert_eq!(ids("[/INST]", "a passage"), joint);
    assert_ne!(ids(" [/INST]", "a passage"), joint);
}

#[test]
fn each_kind_of_tokenizer_gives_the_tokens_of_transformers() {
    let read = |name: &str| std::fs::read(fixture(&format!("tokenizers/{name}.json"))).unwrap();
    let Texts { texts, pairs } = serde_json::from_slice(&read("texts")).unwrap();
    let texts: Vec<String> = texts.iter().map(Text::whole).collect();
    let mut wrong = Vec::new();
    for name in KINDS {
        let kind: Kind = serde_json::from_slice(&read(name)).unwrap();
        for (side, expected) in [("right", &kind.right), ("left", &kind.left)] {
            let (mut files, mut settings) = (model().clone(), kind.settings.clone());
            settings["padding_side"] = side.into();
            files.0.insert("tokenizer.json".into(), kind.tokenizer.to_string().into());
            files.0.insert("tokenizer_config.json".into(), settings.to_string().into());
            let options = LoadOptions { max_length: Some(LENGTH), ..LoadOptions::default() };
            let (tokenizer, _) = load_tokenizer(&files, &options).unwrap();
            let alone = tokenizer.encode_all("", &texts).unwrap();
            let pair = |&(a, b): &(usize, usize)| tokenizer.encode_pair(&texts[a], &texts[b]);
            let paired: Vec<Tokens> = pairs.iter().map(pair).collect::<Result<_, _>>().unwrap();
            for (what, rows, expected) in
                [("text", &alone, &expected.alone), ("pair", &paired, &expected.pairs)]
            {
                let batch = tokenizer.pad(&rows.iter().collect::<Vec<_>>());
                let rows = differences(&batch, expected).into_iter();
                wrong.extend(rows.map(|row| format!("{name}, padded on the {side}, {what} {row}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}
