//! Two texts in one row, as cross-encoders read them.

use tokenizers::PostProcessor as _;
use tokenizers::utils::truncation::{TruncationParams, TruncationStrategy, truncate_encodings};

use super::{Tokenizer, Tokens};
use crate::{Error, Result};

impl Tokenizer {
    /// Whether the tokenizer's template says how two texts stand side by side.
    ///
    /// # Errors
    /// One that does not.
    pub fn check_pairs(&self) -> Result<()> {
        let (a, b) = (self.plain("a")?, self.plain("b")?);
        let apart = a.get_ids().len() + b.get_ids().len();
        let joined = self.inner.post_process(a, Some(b), true).map_err(failed)?;
        // Without a separator nobody could tell where the second begins.
        if joined.get_ids().len() > apart {
            return Ok(());
        }
        Err(Error::bad_file(
            "tokenizer.json",
            "has no template for pairs of texts",
            "use the tokenizer.json that was saved with the reranker",
        ))
    }

    fn plain(&self, text: &str) -> Result<tokenizers::Encoding> {
        self.inner.encode(text, false).map_err(failed)
    }

    /// Tokens of two texts as the tokenizer's template puts them side by side. Where both are too long, the
    /// longer is cut first (transformers' `longest_first`).
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<Tokens> {
        let (a, all_of_a) = self.encode_part("", first)?;
        let (b, all_of_b) = self.encode_part("", second)?;
        let around = self.inner.get_post_processor().map_or(0, |post| post.added_tokens(true));
        let room = self.config.max_length.saturating_sub(around);
        if room < 2 {
            return Err(Error::invalid(format!(
                "max_length {} leaves no room for two texts beside the {around} tokens that stand around them; raise \
                 it",
                self.config.max_length
            )));
        }
        let whole = a.get_ids().len() + b.get_ids().len();
        let cut = TruncationParams {
            max_length: room,
            strategy: TruncationStrategy::LongestFirst,
            ..TruncationParams::default()
        };
        let (mut a, mut b) = truncate_encodings(a, Some(b), &cut).map_err(failed)?;
        // What was cut would get a template, too.
        a.take_overflowing();
        b.as_mut().map(tokenizers::Encoding::take_overflowing);
        let joined = self.inner.post_process(a, b, true).map_err(failed)?;
        let ids = joined.get_ids().to_vec();
        if ids.is_empty() {
            return Err(Error::invalid("neither of the two texts has a token"));
        }
        Ok(Tokens {
            pooling: vec![true; ids.len()],
            offsets: vec![(0, 0); ids.len()],
            content: 0..ids.len(),
            truncated: !(all_of_a && all_of_b) || whole > room,
            types: joined.get_type_ids().to_vec(),
            ids,
        })
    }

    /// Tokens of a text between others that are never cut, all in one row (a chat template).
    ///
    /// # Errors
    /// As [`Tokenizer::encode`]; no room for the text.
    pub fn encode_between(&self, before: &str, text: &str, after: &str) -> Result<Tokens> {
        let (before, after) = (self.plain(before)?, self.plain(after)?);
        let around = before.get_ids().len() + after.get_ids().len();
        let Some(room) = self.config.max_length.checked_sub(around).filter(|&room| room > 0) else {
            return Err(Error::invalid(format!(
                "max_length {} leaves no room for a text beside the {around} tokens of the prompt; raise it",
                self.config.max_length
            )));
        };
        let (inside, is_all) = self.encode_part("", text)?;
        let kept = inside.get_ids().len().min(room);
        let ids = [before.get_ids(), &inside.get_ids()[..kept], after.get_ids()].concat();
        Ok(Tokens {
            pooling: vec![true; ids.len()],
            offsets: vec![(0, 0); ids.len()],
            content: before.get_ids().len()..before.get_ids().len() + kept,
            truncated: !is_all || kept < inside.get_ids().len(),
            types: Vec::new(),
            ids,
        })
    }
}

fn failed(error: tokenizers::Error) -> Error {
    Error::invalid(format!("tokenizer: {error}"))
}
