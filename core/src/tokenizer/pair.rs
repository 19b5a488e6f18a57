//! Two texts in one row, as cross-encoders read them.

use tokenizers::{Encoding, PostProcessor as _, TruncationDirection};

use super::window::{self, Window};
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

    fn plain(&self, text: &str) -> Result<Encoding> {
        self.inner.encode(text, false).map_err(failed)
    }

    /// How many tokens a text has of which this is the first part, or all; of a very long text, what is ever read of it.
    fn whole(&self, (part, is_all): (&Encoding, bool), text: &str) -> Result<usize> {
        if is_all {
            return Ok(part.len());
        }
        let text = window::cut(text, Window::most(self.room()));
        Ok(self.inner.encode_fast(text, false).map_err(failed)?.len())
    }

    /// Tokens of two texts as the tokenizer's template puts them side by side. Where both are too long, the
    /// longer is cut first (transformers' `longest_first`).
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<Tokens> {
        let (mut a, all_of_a) = self.encode_part("", first)?;
        let (mut b, all_of_b) = self.encode_part("", second)?;
        let around = self.inner.get_post_processor().map_or(0, |post| post.added_tokens(true));
        let room = self.config.max_length.saturating_sub(around);
        if room < 2 {
            return Err(Error::invalid(format!(
                "max_length {} leaves no room for two texts beside the {around} tokens that stand around them; raise \
                 it",
                self.config.max_length
            )));
        }
        let fits = a.len() + b.len() <= room;
        if !fits {
            let half = room / 2;
            let of_a = match (a.len() <= half, b.len() <= half) {
                (true, _) => a.len(),
                (_, true) => room - b.len(),
                // The odd token is the longer text's; what was read of it may be less than of the other.
                _ if room % 2 == 1
                    && self.whole((&a, all_of_a), first)?
                        > self.whole((&b, all_of_b), second)? =>
                {
                    half + 1
                }
                _ => half,
            };
            a.truncate(of_a, 0, TruncationDirection::Right);
            b.truncate(room - of_a, 0, TruncationDirection::Right);
            // What was cut would get a template, too.
            a.take_overflowing();
            b.take_overflowing();
        }
        let joined = self.inner.post_process(a, Some(b), true).map_err(failed)?;
        let ids = joined.get_ids().to_vec();
        if ids.is_empty() {
            return Err(Error::invalid("neither of the two texts has a token"));
        }
        Ok(Tokens {
            pooling: vec![true; ids.len()],
            offsets: vec![(0, 0); ids.len()],
            content: 0..ids.len(),
            truncated: !(all_of_a && all_of_b && fits),
            types: joined.get_type_ids().to_vec(),
            ids,
        })
    }

    /// Tokens of a prompt with two texts (`write`), all in one row. Where they are too many, what stands after both texts
    /// stays, and the end of what stands before that is cut, as sentence-transformers has it: what comes last is what two
    /// prompts with other texts end with.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`]; no room for a text.
    pub fn encode_prompt(
        &self,
        write: &dyn Fn(&str, &str) -> String,
        first: &str,
        second: &str,
    ) -> Result<Tokens> {
        let most = self.config.max_length;
        let (whole, is_all) = self.encode_part("", &write(first, second))?;
        let ids = whole.get_ids();
        let truncated = !is_all || ids.len() > most;
        let ids = match truncated {
            true => {
                let around = self.plain(&write("", ""))?.get_ids().len();
                if around >= most {
                    return Err(Error::invalid(format!(
                        "max_length {most} leaves no room for a text beside the {around} tokens of the prompt; raise it"
                    )));
                }
                let [one, other] =
                    [self.plain(&write("0", "0"))?, self.plain(&write("1 2 3 4", "1 2 3 4"))?];
                let ends = one.get_ids().iter().rev().zip(other.get_ids().iter().rev());
                let end = ends.take_while(|(one, other)| one == other).count();
                let end = &one.get_ids()[one.get_ids().len() - end..];
                [&ids[..ids.len().min(most.saturating_sub(end.len()))], end].concat()
            }
            false => ids.to_vec(),
        };
        Ok(Tokens {
            pooling: vec![true; ids.len()],
            offsets: vec![(0, 0); ids.len()],
            content: 0..ids.len(),
            truncated,
            types: Vec::new(),
            ids,
        })
    }
}

fn failed(error: tokenizers::Error) -> Error {
    Error::invalid(format!("tokenizer: {error}"))
}
