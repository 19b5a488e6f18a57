//! Texts to token batches: prompts, special tokens, length limit, padding side, offsets.
//!
//! The `tokenizers` crate tokenizes; this module decides which tokens surround the text and which
//! of them pooling may use:
//!
//! ```text
//! prefix (BOS, [CLS]) | instruction | text ... truncated here | suffix ([/INST], EOS, [SEP])
//! ```
//!
//! The prefix and the suffix are never truncated away.

mod limits;
mod pair;
mod template;
mod window;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence};

use crate::parallel::try_map;
use crate::{Error, Result};
use window::Window;

/// Side on which shorter rows of a batch are padded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PaddingSide {
    /// Padding after the text.
    #[default]
    Right,
    /// Padding before the text.
    Left,
}

/// Which tokens of the instruction are kept out of pooling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstructionSpan {
    /// None: instruction tokens are pooled like any other (sentence-transformers' default).
    #[default]
    Pooled,
    /// The prefix (BOS) and every token that lies wholly inside the instruction. A token that an
    /// instruction's trailing space shares with the text counts as text; sentence-transformers
    /// tokenises the prompt alone, counts that space as a token of its own, and masks one more.
    Masked,
    /// As many leading tokens as the instruction has when it is tokenized alone and without BOS, as
    /// NV-Embed's released code counts them. Where the text begins with BOS, the instruction's last
    /// token is pooled, unless a trailing space, alone a token, makes up for it.
    MaskedWithoutBos,
    /// Every token that lies wholly inside the instruction, and not the prefix before it: BOS is pooled, as it is where
    /// there is no instruction.
    MaskedAfterBos,
}

/// What stands around a text and what of it is pooled, where that shall not be as a model's files say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// Put BOS first, or do not.
    pub add_bos: Option<bool>,
    /// Put EOS last, or do not.
    pub add_eos: Option<bool>,
    /// Stands after the text and before EOS (a chat template's end, `[/INST]`); see
    /// [`TokenizerConfig::text_suffix`].
    pub text_suffix: Option<String>,
    /// Padding side.
    pub padding_side: Option<PaddingSide>,
    /// Which instruction tokens pooling leaves out.
    pub instruction: Option<InstructionSpan>,
}

impl TextOptions {
    /// Whether nothing differs from what the files say.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a tokenizer's files are no longer what they were.
    pub(crate) fn changes_files(&self) -> bool {
        !Self { instruction: None, ..self.clone() }.is_empty()
    }
}

/// Which tokens surround a text, and how long the whole may be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerConfig {
    /// Most tokens a text may have, special tokens included.
    pub max_length: usize,
    /// Padding side.
    #[serde(default)]
    pub padding_side: PaddingSide,
    /// Put BOS first, or do not; as the tokenizer's own template has it where absent.
    #[serde(default)]
    pub add_bos: Option<bool>,
    /// Put EOS last, or do not; as the tokenizer's own template has it where absent.
    #[serde(default)]
    pub add_eos: Option<bool>,
    /// Stands after the text and before EOS, and is tokenized by itself, so that no text changes its
    /// tokens; perhaps empty. A tokenizer that puts a space before every text (SentencePiece's, as
    /// Mistral's) puts one before this too: with it `"[/INST]"` has the tokens of `" [/INST]"` behind a text.
    #[serde(default)]
    pub text_suffix: String,
    /// Lower-case instruction and text first (`do_lower_case` of sentence-transformers).
    #[serde(default)]
    pub lower_case: bool,
    /// Leave out tokens that the vocabulary does not know (model2vec).
    #[serde(default)]
    pub drop_unknown: bool,
    /// Which instruction tokens pooling leaves out.
    #[serde(default)]
    pub instruction: InstructionSpan,
}

impl TokenizerConfig {
    /// A length limit in tokens; all else as the tokenizer's own template has it, with padding on the right.
    pub fn new(max_length: usize) -> Self {
        Self {
            max_length,
            padding_side: PaddingSide::default(),
            add_bos: None,
            add_eos: None,
            text_suffix: String::new(),
            lower_case: false,
            drop_unknown: false,
            instruction: InstructionSpan::default(),
        }
    }
}

/// One text as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    /// Token ids, prefix and suffix included; never empty.
    pub ids: Vec<u32>,
    /// True at tokens that pooling may use; at least one is.
    pub pooling: Vec<bool>,
    /// Byte range of each token in the text (without the prompt); empty for special and
    /// instruction tokens.
    pub offsets: Vec<(usize, usize)>,
    /// Range of the text's own tokens: after prefix and instruction, before the suffix.
    pub content: std::ops::Range<usize>,
    /// Whether the text was cut to fit the length limit.
    pub truncated: bool,
    /// Which of two texts each token belongs to (token types); empty where there is one text.
    pub types: Vec<u32>,
}

/// A padded batch of token ids, row-major `[batch, seq]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBatch {
    pub(crate) ids: Vec<u32>,
    /// True at tokens, false at padding.
    pub(crate) attention: Vec<bool>,
    /// True at tokens that pooling may use.
    pub(crate) pooling: Vec<bool>,
    /// Token types; empty where all are 0.
    pub(crate) types: Vec<u32>,
    /// Rows.
    pub(crate) batch: usize,
    /// Columns.
    pub(crate) seq: usize,
}

impl TokenBatch {
    /// A batch of rows of `seq` token ids; `attention` is true at tokens and false at padding, `pooling` is
    /// true at tokens that pooling may use.
    ///
    /// # Errors
    /// Lists of different lengths, or that make no whole rows, or a row without a token.
    pub fn new(
        ids: Vec<u32>,
        attention: Vec<bool>,
        pooling: Vec<bool>,
        seq: usize,
    ) -> Result<Self> {
        let batch = ids.len() / seq.max(1);
        if [attention.len(), pooling.len(), batch * seq] != [ids.len(); 3] {
            return Err(Error::invalid(format!(
                "{} ids, {} of attention and {} of pooling make no rows of {seq} tokens",
                ids.len(),
                attention.len(),
                pooling.len()
            )));
        }
        if attention.chunks(seq.max(1)).any(|row| !row.contains(&true)) {
            return Err(Error::invalid("a row of the batch has no token"));
        }
        Ok(Self { ids, attention, pooling, types: Vec::new(), batch, seq })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.batch
    }

    /// Number of columns: tokens of the longest row, or more.
    pub fn seq(&self) -> usize {
        self.seq
    }

    /// Token ids, row by row.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// True at tokens, false at padding.
    pub fn attention(&self) -> &[bool] {
        &self.attention
    }

    /// True at tokens that pooling may use.
    pub fn pooling(&self) -> &[bool] {
        &self.pooling
    }

    /// Token types, row by row; empty where all are 0.
    pub fn types(&self) -> &[u32] {
        &self.types
    }

    /// Number of tokens, padding not counted.
    pub fn count_tokens(&self) -> usize {
        self.attention.iter().filter(|&&token| token).count()
    }

    /// Index of each token among its row's tokens, 0 at padding.
    pub fn positions(&self) -> Vec<i32> {
        self.attention
            .chunks(self.seq.max(1))
            .flat_map(|row| {
                row.iter().scan(0, |next, &token| {
                    let position = if token { *next } else { 0 };
                    *next += i32::from(token);
                    Some(position)
                })
            })
            .collect()
    }
}

/// A tokenizer with the tokens that it puts around a text.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    window: Window,
    config: TokenizerConfig,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// The last of the suffix, but for a `text_suffix` that is not EOS.
    closing: Option<u32>,
    pad: u32,
    /// The unknown token, where it is left out.
    dropped: Option<u32>,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and the special tokens' names from `tokenizer_config.json`
    /// (`{}` where there is none).
    ///
    /// # Errors
    /// Not a tokenizer, one that exceeds the limits, or a special token that the vocabulary lacks.
    pub fn new(json: &[u8], names: &Value, config: TokenizerConfig) -> Result<Self> {
        let bad = |cause: String| {
            Error::bad_file(
                "tokenizer.json",
                cause,
                "use the tokenizer.json that was saved with the model",
            )
        };
        let outline = limits::check(json).map_err(bad)?;
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(|e| bad(e.to_string()))?;
        let window = Window::of(&outline, &inner);
        let pad = inner.get_padding().map(|padding| padding.pad_id);
        // This type handles truncation and padding, not the file.
        inner.with_truncation(None).map_err(|e| bad(e.to_string()))?;
        inner.with_padding(None);
        let (mut prefix, mut suffix) = template::of(&inner).map_err(|e| bad(e.to_string()))?;
        let id_of = |key: &str| -> Result<Option<u32>> {
            let Some(token) = token_name(names, key) else {
                return Ok(None);
            };
            match inner.token_to_id(token) {
                Some(id) => Ok(Some(id)),
                None => Err(bad(format!("{key} {token:?} is not in the vocabulary"))),
            }
        };
        let wanted = |key: &str, field: &str| -> Result<u32> {
            id_of(key)?.ok_or_else(|| {
                Error::bad_file(
                    "tokenizer_config.json",
                    format!("names no {key}, which {field} puts around each text"),
                    "name it there, or have it left out",
                )
            })
        };
        match config.add_bos {
            Some(true) => {
                let bos = wanted("bos_token", "add_bos")?;
                if prefix.first() != Some(&bos) {
                    prefix.insert(0, bos);
                }
            }
            Some(false) if prefix.first().copied() == id_of("bos_token")? => {
                prefix.drain(..prefix.len().min(1));
            }
            _ => {}
        }
        let added = match config.text_suffix.is_empty() {
            true => Vec::new(),
            false => {
                let encoding = inner.encode(config.text_suffix.as_str(), false);
                encoding.map_err(|e| bad(e.to_string()))?.get_ids().to_vec()
            }
        };
        let of_text = added.len();
        // A model that was saved with it has it already, be it EOS itself.
        let has_it = suffix.starts_with(&added);
        let named = id_of("eos_token")?;
        // Without EOS while the suffix is put before it.
        let closes = suffix.last().is_some_and(|last| named == Some(*last));
        let eos = match config.add_eos {
            Some(true) => Some(wanted("eos_token", "add_eos")?),
            Some(false) => None,
            None => suffix.last().copied().filter(|_| closes),
        };
        if closes {
            suffix.pop();
        }
        if !has_it {
            suffix.splice(0..0, added);
        }
        suffix.extend(eos);
        let closing =
            suffix.last().copied().filter(|last| suffix.len() > of_text || Some(*last) == named);
        let pad = id_of("pad_token")?.or(pad).or(named).unwrap_or(0);
        if config.max_length <= prefix.len() + suffix.len() {
            return Err(Error::invalid(format!(
                "max_length {} leaves no room for a text beside the {} tokens that stand around it; raise it{}",
                config.max_length,
                prefix.len() + suffix.len(),
                if config.text_suffix.is_empty() { "" } else { ", or shorten text_suffix" }
            )));
        }
        let unknown = unknown_token(json).and_then(|token| inner.token_to_id(&token));
        let dropped = unknown.filter(|_| config.drop_unknown);
        if config.lower_case {
            lower_case_first(&mut inner);
        }
        Ok(Self { inner, window, config, prefix, suffix, closing, pad, dropped })
    }

    /// The settings.
    pub fn config(&self) -> &TokenizerConfig {
        &self.config
    }

    /// The same tokenizer with another length limit, which must leave room for at least one token
    /// beside the special ones.
    pub fn with_max_length(mut self, max_length: usize) -> Result<Self> {
        if max_length <= self.prefix.len() + self.suffix.len() {
            return Err(Error::invalid(format!(
                "max_length {max_length} leaves no room for a text"
            )));
        }
        self.config.max_length = max_length;
        Ok(self)
    }

    /// One more than the largest token id that a text can get, special tokens included.
    pub fn id_bound(&self) -> usize {
        let vocabulary = self.inner.get_vocab(true).into_values();
        let around = self.prefix.iter().chain(&self.suffix).copied();
        let largest = vocabulary.chain(around).chain([self.pad]).max();
        largest.map_or(0, |id| id as usize + 1)
    }

    /// Tokens put after every text.
    pub fn suffix(&self) -> &[u32] {
        &self.suffix
    }

    /// The token that closes every text: EOS, or the last of the tokenizer's own template. `None`
    /// where nothing stands after a text, or [`TokenizerConfig::text_suffix`] alone.
    pub fn closing(&self) -> Option<u32> {
        self.closing
    }

    /// Pads rows of ids on the right to the longest, whatever the tokenizer's own side.
    pub fn pad_right(&self, rows: &[&[u32]]) -> TokenBatch {
        self.pad_right_to(0, rows)
    }

    /// As [`Tokenizer::pad_right`], to so many columns at least.
    pub fn pad_right_to(&self, least: usize, rows: &[&[u32]]) -> TokenBatch {
        let seq = rows.iter().map(|row| row.len()).max().unwrap_or(0).max(least);
        let mut ids = Vec::with_capacity(rows.len() * seq);
        let mut attention = Vec::with_capacity(rows.len() * seq);
        for row in rows {
            ids.extend(row.iter().copied().chain(std::iter::repeat_n(self.pad, seq - row.len())));
            attention.extend((0..seq).map(|i| i < row.len()));
        }
        TokenBatch {
            ids,
            pooling: attention.clone(),
            attention,
            types: Vec::new(),
            batch: rows.len(),
            seq,
        }
    }

    /// The id of a token, as the vocabulary spells it.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The text of a token, as the vocabulary spells it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The `tokenizer.json` of this tokenizer, without truncation and padding. What it puts around a
    /// text is in the file's template, so that every reader puts the same there.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        let json = self.inner.to_string(false).map_err(Error::invalid)?;
        let around = template::of(&self.inner).map_err(Error::invalid)?;
        if around == (self.prefix.clone(), self.suffix.clone()) {
            return Ok(json.into_bytes());
        }
        let name = |id: u32| self.inner.id_to_token(id).unwrap_or_else(|| id.to_string());
        let json = template::replace(&json, &self.prefix, &self.suffix, name)?;
        // Written by the library again, so that the order of its keys is the library's.
        let inner = tokenizers::Tokenizer::from_bytes(json).map_err(Error::invalid)?;
        inner.to_string(false).map(String::into_bytes).map_err(Error::invalid)
    }

    /// At least as many tokens of a text after an instruction as there is room for, and whether
    /// they are all of it. Only part of a long text is tokenized.
    fn encode_part(&self, instruction: &str, text: &str) -> Result<(tokenizers::Encoding, bool)> {
        let room = self.room();
        let (mut bytes, most) = (self.window.first(room), Window::most(room));
        loop {
            let of_instruction = window::cut(instruction, bytes);
            let of_text = window::cut(text, bytes - of_instruction.len());
            let is_all = of_instruction.len() + of_text.len() == instruction.len() + text.len();
            let encoding = self.inner.encode([of_instruction, of_text].concat(), false);
            let encoding = encoding.map_err(|e| Error::invalid(format!("tokenizer: {e}")))?;
            if is_all || self.known(&encoding, self.window.settled(&encoding)).count() > room {
                return Ok((encoding, is_all));
            }
            if bytes >= most {
                return Err(Error::invalid(format!(
                    "the {room} tokens that are kept of a text cannot be told from its first {most} bytes, which \
                     is where reading ends; break it up, or remove what stands there without a space"
                )));
            }
            bytes = (bytes * 4).min(most);
        }
    }

    /// How many tokens a whole text is after an instruction, with those that stand around it and whatever the
    /// length limit; all of it is tokenized.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn length(&self, instruction: &str, text: &str) -> Result<usize> {
        let encoding = self.inner.encode_fast([instruction, text].concat(), false);
        let encoding = encoding.map_err(|e| Error::invalid(format!("tokenizer: {e}")))?;
        let known = self.known(&encoding, encoding.len()).count();
        Ok(self.prefix.len() + known + self.suffix.len())
    }

    /// How many tokens an instruction is by itself; one that leaves no room for a text counts as that.
    fn count(&self, instruction: &str) -> Result<usize> {
        let part = window::cut(instruction, Window::most(self.room()));
        let encoding = self.inner.encode(part, false);
        let encoding = encoding.map_err(|e| Error::invalid(format!("tokenizer: {e}")))?;
        Ok(self.known(&encoding, encoding.len()).count().min(self.room()))
    }

    /// The first `count` tokens with their places in the text, less those that are left out.
    fn known<'a>(
        &self,
        encoding: &'a tokenizers::Encoding,
        count: usize,
    ) -> impl Iterator<Item = (u32, (usize, usize))> + use<'a> {
        let dropped = self.dropped;
        let tokens = encoding.get_ids()[..count].iter().zip(&encoding.get_offsets()[..count]);
        tokens.map(|(&id, &span)| (id, span)).filter(move |(id, _)| Some(*id) != dropped)
    }

    /// Most tokens kept of instruction and text.
    fn room(&self) -> usize {
        self.config.max_length - self.prefix.len() - self.suffix.len()
    }

    /// Tokens of a text after an instruction, which may be empty.
    ///
    /// # Errors
    /// A text whose first tokens cannot be determined from its first 256 KiB (or 16 bytes per kept
    /// token, if that is more): it begins with a longer word, or the tokenizer is not one that is
    /// known to split texts by local context.
    pub fn encode(&self, instruction: &str, text: &str) -> Result<Tokens> {
        let (encoding, is_all) = self.encode_part(instruction, text)?;
        let (ids, offsets): (Vec<u32>, Vec<(usize, usize)>) =
            self.known(&encoding, encoding.len()).unzip();
        let kept = ids.len().min(self.room());
        let is_cut = kept < ids.len();
        let (ids, offsets) = (&ids[..kept], &offsets[..kept]);
        let border = instruction.len();
        let is_instruction = |&(start, end): &(usize, usize)| end <= border && start < border;
        let instructed = offsets.iter().filter(|span| is_instruction(span)).count();

        let mut tokens = Tokens {
            ids: [&self.prefix, ids, &self.suffix].concat(),
            pooling: Vec::new(),
            offsets: vec![(0, 0); self.prefix.len()],
            content: self.prefix.len() + instructed..self.prefix.len() + kept,
            truncated: !is_all || is_cut,
            types: Vec::new(),
        };
        tokens.offsets.extend(offsets.iter().map(|&span| {
            if is_instruction(&span) {
                (0, 0)
            } else {
                (span.0.saturating_sub(border), span.1.saturating_sub(border))
            }
        }));
        tokens.offsets.resize(tokens.ids.len(), (0, 0));
        if tokens.ids.is_empty() {
            // An empty text without special tokens becomes one padding token that attention sees.
            tokens.ids.push(self.pad);
            tokens.offsets.push((0, 0));
        }
        let begin = self.prefix.len();
        let (from, to) = match self.config.instruction {
            _ if instructed == 0 => (0, 0),
            InstructionSpan::Pooled => (0, 0),
            InstructionSpan::Masked => (0, begin + instructed),
            InstructionSpan::MaskedWithoutBos => (0, self.count(instruction)?),
            InstructionSpan::MaskedAfterBos => (begin, begin + instructed),
        };
        tokens.pooling = (0..tokens.ids.len()).map(|i| !(from..to).contains(&i)).collect();
        if !tokens.pooling.contains(&true) {
            tokens.pooling.fill(true);
        }
        Ok(tokens)
    }

    /// Tokens of many texts after the same instruction, on all cores.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_all(
        &self,
        instruction: &str,
        texts: &[impl AsRef<str> + Sync],
    ) -> Result<Vec<Tokens>> {
        try_map(texts, |text| self.encode(instruction, text.as_ref()))
    }

    /// Pads rows to the longest.
    pub fn pad(&self, rows: &[&Tokens]) -> TokenBatch {
        self.pad_to(0, rows)
    }

    /// Pads rows to so many columns, or to the longest where that is longer.
    pub fn pad_to(&self, least: usize, rows: &[&Tokens]) -> TokenBatch {
        let seq = rows.iter().map(|row| row.ids.len()).max().unwrap_or(0).max(least);
        let total = rows.len() * seq;
        let mut batch = TokenBatch {
            ids: Vec::with_capacity(total),
            attention: Vec::with_capacity(total),
            pooling: Vec::with_capacity(total),
            types: Vec::new(),
            batch: rows.len(),
            seq,
        };
        let typed = rows.iter().any(|row| row.types.iter().any(|&kind| kind > 0));
        for row in rows {
            let padding = seq - row.ids.len();
            let (before, after) = match self.config.padding_side {
                PaddingSide::Right => (0, padding),
                PaddingSide::Left => (padding, 0),
            };
            let mut push = |id: u32, token: bool, pooled: bool| {
                batch.ids.push(id);
                batch.attention.push(token);
                batch.pooling.push(pooled);
            };
            (0..before).for_each(|_| push(self.pad, false, false));
            row.ids.iter().zip(&row.pooling).for_each(|(&id, &pooled)| push(id, true, pooled));
            (0..after).for_each(|_| push(self.pad, false, false));
            if typed {
                let own = (0..row.ids.len()).map(|i| row.types.get(i).copied().unwrap_or(0));
                batch.types.extend(std::iter::repeat_n(0, before).chain(own));
                batch.types.extend(std::iter::repeat_n(0, after));
            }
        }
        batch
    }
}

/// Puts lower-casing before all else that the tokenizer does to a text, so that offsets stay those of the text as it is:
/// some letters are longer in lower case.
fn lower_case_first(tokenizer: &mut tokenizers::Tokenizer) {
    let mut all = match tokenizer.get_normalizer() {
        Some(NormalizerWrapper::Sequence(own)) => own.as_ref().to_vec(),
        Some(own) => vec![own.clone()],
        None => Vec::new(),
    };
    // A model that was saved with it has it in its file.
    if !matches!(all.first(), Some(NormalizerWrapper::Lowercase(_))) {
        all.insert(0, NormalizerWrapper::Lowercase(Lowercase));
        tokenizer.with_normalizer(Some(Sequence::new(all)));
    }
}

/// The unknown token of a `tokenizer.json`, by its text or, in a Unigram model, by its number.
fn unknown_token(json: &[u8]) -> Option<String> {
    let file: Value = serde_json::from_slice(json).ok()?;
    let model = file.get("model")?;
    if let Some(token) = model.get("unk_token").and_then(Value::as_str) {
        return Some(token.into());
    }
    let id = model.get("unk_id")?.as_u64()?;
    Some(model.get("vocab")?.get(usize::try_from(id).ok()?)?.get(0)?.as_str()?.into())
}

/// A special token of `tokenizer_config.json`: a string or an object with `content`.
pub(crate) fn token_name<'a>(names: &'a Value, key: &str) -> Option<&'a str> {
    let value = names.get(key)?;
    value.as_str().or_else(|| value.get("content")?.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokenizer(config: TokenizerConfig) -> Tokenizer {
        let json = serde_json::json!({
            "version": "1.0",
            "added_tokens": [
                {"id": 0, "content": "<pad>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
                {"id": 1, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
                {"id": 2, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
            ],
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
            "model": {"type": "WordLevel", "vocab": {"<pad>": 0, "<s>": 1, "</s>": 2, "[UNK]": 3, "a": 4, "b": 5, "query": 6, ":": 7}, "unk_token": "[UNK]"}
        });
        let names = serde_json::json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": "<pad>"});
        Tokenizer::new(json.to_string().as_bytes(), &names, config).unwrap()
    }

    fn config() -> TokenizerConfig {
        TokenizerConfig {
            max_length: 6,
            padding_side: PaddingSide::Right,
            add_bos: Some(true),
            add_eos: Some(true),
            text_suffix: String::new(),
            lower_case: false,
            drop_unknown: false,
            instruction: InstructionSpan::Masked,
        }
    }

    #[test]
    fn special_tokens_survive_truncation() {
        let tokens = tokenizer(config()).encode("", "a b a b a b a b").unwrap();
        assert_eq!(tokens.ids, [1, 4, 5, 4, 5, 2]);
        assert!(tokens.truncated);
        assert_eq!(tokens.offsets, [(0, 0), (0, 1), (2, 3), (4, 5), (6, 7), (0, 0)]);
    }

    #[test]
    fn instruction_span_is_out_of_pooling() {
        let all = tokenizer(config()).encode("query: ", "a").unwrap();
        assert_eq!(all.ids, [1, 6, 7, 4, 2]);
        assert_eq!(all.content, 3..4);
        assert_eq!(all.pooling, [false, false, false, true, true]);
        assert_eq!(all.offsets[3], (0, 1));
        let nv = TokenizerConfig { instruction: InstructionSpan::MaskedWithoutBos, ..config() };
        assert_eq!(
            tokenizer(nv).encode("query: ", "a").unwrap().pooling,
            [false, false, true, true, true]
        );
        let after = TokenizerConfig { instruction: InstructionSpan::MaskedAfterBos, ..config() };
        let after = tokenizer(after);
        assert_eq!(after.encode("query: ", "a").unwrap().pooling, [true, false, false, true, true]);
        assert_eq!(after.encode("", "a").unwrap().pooling, [true; 3]);
        let pooled = TokenizerConfig { instruction: InstructionSpan::Pooled, ..config() };
        assert_eq!(tokenizer(pooled).encode("query: ", "a").unwrap().pooling, [true; 5]);
    }

    #[test]
    fn what_stands_around_a_text_is_added_and_taken_away() {
        let ids = |config: TokenizerConfig| {
            tokenizer(TokenizerConfig { max_length: 6, ..config })
                .encode("", "b b b b b b")
                .unwrap()
                .ids
        };
        let own = TokenizerConfig { add_bos: None, add_eos: None, ..config() };
        assert_eq!(ids(own.clone()), [1, 5, 5, 5, 5, 5], "the template's BOS alone");
        assert_eq!(ids(TokenizerConfig { add_bos: Some(false), ..own.clone() }), [5; 6]);
        let suffix = TokenizerConfig { text_suffix: " query:".into(), ..own };
        assert_eq!(ids(suffix.clone()), [1, 5, 5, 5, 6, 7]);
        assert_eq!(ids(TokenizerConfig { add_eos: Some(true), ..suffix }), [1, 5, 5, 6, 7, 2]);
    }

    #[test]
    fn a_suffix_closes_no_text_unless_it_is_eos() {
        for (add_eos, text_suffix, closing) in [
            (None, "", None),
            (Some(true), "", Some(2)),
            (Some(false), "query:", None),
            (None, "query:", None),
            (Some(true), "query:", Some(2)),
            (None, "</s>", Some(2)),
        ] {
            let config = TokenizerConfig { add_eos, text_suffix: text_suffix.into(), ..config() };
            assert_eq!(tokenizer(config).closing(), closing, "{add_eos:?} {text_suffix:?}");
        }
    }

    #[test]
    fn the_file_puts_the_same_around_a_text() {
        let names =
            serde_json::json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"});
        for (add_bos, add_eos, text_suffix) in [
            (None, Some(true), ""),
            (Some(false), None, ""),
            (Some(false), Some(true), "query:"),
            (None, None, "query:"),
            // A suffix that is EOS, alone and before another.
            (None, None, "</s>"),
            (None, Some(true), "</s>"),
        ] {
            let around =
                TokenizerConfig { add_bos, add_eos, text_suffix: text_suffix.into(), ..config() };
            let wanted = tokenizer(around.clone());
            let file = wanted.to_json().unwrap();
            // Neither a setting nor a second saving changes what the file has.
            for config in [TokenizerConfig::new(6), around] {
                let again = Tokenizer::new(&file, &names, config).unwrap();
                for text in ["", "a b", "b b b b b b b"] {
                    assert_eq!(
                        again.encode("", text).unwrap().ids,
                        wanted.encode("", text).unwrap().ids
                    );
                }
                assert!(again.to_json().unwrap() == file);
            }
        }
    }

    #[test]
    fn an_empty_text_is_something() {
        assert_eq!(tokenizer(config()).encode("", "").unwrap().ids, [1, 2]);
        let tokens = tokenizer(config()).encode("query: ", "").unwrap();
        assert_eq!(tokens.pooling, [false, false, false, true]);
    }

    #[test]
    fn what_is_left_out_makes_room_and_keeps_the_places_of_the_rest() {
        let config = TokenizerConfig {
            max_length: 3,
            add_bos: Some(false),
            drop_unknown: true,
            ..TokenizerConfig::new(3)
        };
        let tokens = tokenizer(config.clone()).encode("", "what a why who b a b").unwrap();
        assert_eq!((&tokens.ids[..], tokens.truncated), (&[4, 5, 4][..], true));
        assert_eq!(tokens.offsets, [(5, 6), (15, 16), (17, 18)]);
        let tokens = tokenizer(config.clone()).encode("query ", "what a").unwrap();
        assert_eq!((&tokens.ids[..], tokens.content.clone()), (&[6, 4][..], 1..2));
        assert_eq!((&tokens.offsets[..], tokens.truncated), (&[(0, 0), (5, 6)][..], false));
        let tokenizer = tokenizer(config);
        assert_eq!(tokenizer.encode("", "what").unwrap().ids, [0], "the padding token");
        assert_eq!(tokenizer.length("", "what a").unwrap(), 1);
        // Far behind much that is left out.
        let far = tokenizer.encode("", &("what ".repeat(20_000) + "a b")).unwrap();
        assert_eq!(far.ids, [4, 5]);
    }

    #[test]
    fn lower_case_is_of_instructions_too_and_keeps_places() {
        let lower = |json: &[u8]| {
            let names = serde_json::json!({"bos_token": "<s>", "eos_token": "</s>"});
            Tokenizer::new(
                json,
                &names,
                TokenizerConfig { lower_case: true, max_length: 9, ..config() },
            )
            .unwrap()
        };
        let own = tokenizer(config());
        assert_eq!(own.encode("Query: ", "A").unwrap().ids, [1, 3, 7, 3, 2]);
        let tokenizer = lower(&own.to_json().unwrap());
        // A letter of two bytes, and of three in lower case.
        let tokens = tokenizer.encode("Query: ", "A \u{130} B").unwrap();
        assert_eq!(tokens.ids, [1, 6, 7, 4, 3, 5, 2]);
        assert_eq!(tokens.offsets[3..6], [(0, 1), (2, 4), (5, 6)]);
        assert_eq!(tokenizer.length("Query: ", "A").unwrap(), 5);
        // It is in the file once, however often that is saved.
        let saved = tokenizer.to_json().unwrap();
        assert_eq!(lower(&saved).to_json().unwrap(), saved);
    }

    #[test]
    fn padding_on_either_side() {
        let right = tokenizer(config());
        let (long, short) = (right.encode("", "a b").unwrap(), right.encode("", "a").unwrap());
        let batch = right.pad(&[&long, &short]);
        assert_eq!(batch.ids, [1, 4, 5, 2, 1, 4, 2, 0]);
        assert_eq!(batch.positions(), [0, 1, 2, 3, 0, 1, 2, 0]);
        let left = tokenizer(TokenizerConfig { padding_side: PaddingSide::Left, ..config() });
        let batch = left.pad(&[&long, &short]);
        assert_eq!(batch.ids, [1, 4, 5, 2, 0, 1, 4, 2]);
        assert_eq!(batch.positions(), [0, 1, 2, 3, 0, 0, 1, 2]);
    }

    #[test]
    fn no_room_is_an_error() {
        assert!(tokenizer(config()).with_max_length(2).is_err());
        let json = tokenizer(config()).to_json().unwrap();
        let names = serde_json::json!({"eos_token": "</s>"});
        let long = TokenizerConfig { text_suffix: "a b a b a".into(), ..TokenizerConfig::new(6) };
        let error = Tokenizer::new(&json, &names, long).unwrap_err().to_string();
        assert!(error.contains("text_suffix"), "{error}");
    }

    proptest! {
        #[test]
        fn invariants_hold_for_any_text(instruction in "\\PC{0,12}", text in "\\PC{0,40}", max in 3usize..9) {
            let tokens = tokenizer(TokenizerConfig { max_length: max, ..config() }).encode(&instruction, &text).unwrap();
            prop_assert!(tokens.ids.len() <= max);
            prop_assert_eq!(tokens.ids[0], 1);
            prop_assert_eq!(*tokens.ids.last().unwrap(), 2);
            prop_assert!(tokens.pooling.contains(&true));
            prop_assert_eq!(tokens.ids.len(), tokens.offsets.len());
            for &(start, end) in &tokens.offsets {
                prop_assert!(start <= end && end <= text.len());
            }
        }
    }
}
