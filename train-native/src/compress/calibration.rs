//! Goes through a model block by block with a user's texts.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use kiln_embed::embedder::Embedder;
use kiln_embed::kernels::Kernels;
use kiln_embed::model::{Gram, ModelInput};
use kiln_embed::tokenizer::{TokenBatch, Tokenizer};

use crate::interrupt;
use crate::terminal::{Terminal, counted};

/// Tokens that are computed at once.
const BATCH_TOKENS: usize = 4096;

/// The texts, as batches without padding: only texts of one length stand together, so that nothing but
/// tokens is summed up.
pub struct Calibration {
    batches: Vec<TokenBatch>,
    /// How many texts there are.
    pub texts: usize,
    /// How many tokens.
    pub tokens: usize,
}

impl Calibration {
    /// Takes texts until there are `most_tokens` tokens; this bounds the memory, which is one state a
    /// token.
    ///
    /// # Errors
    /// Fewer than `least` texts that are not empty.
    pub fn new(
        tokenizer: &Tokenizer,
        texts: &[String],
        least: usize,
        most_tokens: usize,
    ) -> Result<Self> {
        let mut by_length: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        let (mut count, mut tokens) = (0, 0);
        for text in texts.iter().filter(|text| !text.trim().is_empty()) {
            let encoded = tokenizer.encode("", text)?;
            if tokens + encoded.ids.len() > most_tokens && count >= least {
                break;
            }
            count += 1;
            tokens += encoded.ids.len();
            by_length.entry(encoded.ids.len()).or_default().push(encoded);
        }
        if count < least {
            let texts = counted(count, "calibration text is", "calibration texts are");
            bail!("{texts} not empty, and at least {least} are needed");
        }
        let mut batches = Vec::new();
        for (length, texts) in &by_length {
            for part in texts.chunks((BATCH_TOKENS / length.max(&1)).max(1)) {
                batches.push(tokenizer.pad(&part.iter().collect::<Vec<_>>()));
            }
        }
        Ok(Self { batches, texts: count, tokens })
    }

    /// Changes every projection of the blocks, the first block first. `change` gets a projection's
    /// name in checkpoints, its weights `[out, in]`, their shape, and what goes into it once all blocks
    /// before it are changed.
    ///
    /// # Errors
    /// `change`'s own, with the projection's name; [`kiln_embed::Error::Cancelled`] after Ctrl-C.
    pub fn walk<B: Kernels>(
        &self,
        embedder: &mut Embedder<B>,
        terminal: Terminal,
        mut change: impl FnMut(&str, &mut [f32], [usize; 2], &Gram) -> Result<()>,
    ) -> Result<()> {
        let config = embedder.model().config().clone();
        let (mode, device) = (config.attention, embedder.device().clone());
        let has_experts = config.encoder().is_ok_and(|encoder| encoder.experts.is_some());
        let backbone = embedder.model_mut().backbone_mut();
        let inputs: Vec<ModelInput<B>> =
            self.batches.iter().map(|batch| ModelInput::new(batch, &device)).collect();
        let embedded: Vec<_> = inputs.iter().map(|input| backbone.embed_tokens(input)).collect();
        let mut states = embedded.clone();
        let layers = backbone.layers();
        let bar = terminal.progress((2 * layers * inputs.len()) as u64, "calibrating");
        let mut untouched = 0;
        for block in 0..layers {
            let observers = backbone.observe_block(block, &config)?;
            for ((input, first), state) in inputs.iter().zip(&embedded).zip(&states) {
                if interrupt::asked() {
                    return Err(kiln_embed::Error::Cancelled.into());
                }
                let shared = backbone.prepare(input, mode, first);
                backbone.layer(block, state.clone(), &shared, false);
                bar.inc(1);
            }
            backbone.observe_nothing();
            let mut failure = None;
            let changed = backbone.change_block(block, &config, |name, weights, shape| {
                let observer =
                    observers.iter().find(|(parts, _)| parts.iter().any(|part| part == name));
                let seen = observer.and_then(|(_, gram)| gram.lock().ok());
                let result = match seen {
                    // An expert that no token of the texts takes: all its inputs count alike.
                    Some(gram) if has_experts && gram.rows == 0 => {
                        untouched += 1;
                        alike(shape[1])
                            .map_err(anyhow::Error::from)
                            .and_then(|gram| change(name, weights, shape, &gram))
                    }
                    Some(gram) => gram
                        .seen()
                        .map_err(anyhow::Error::from)
                        .and_then(|gram| change(name, weights, shape, gram)),
                    None => Err(anyhow::anyhow!("nobody saw its inputs")),
                };
                result.map_err(|error| {
                    let said = error.to_string();
                    failure = Some(error.context(name.to_string()));
                    kiln_embed::Error::invalid(said)
                })
            });
            if let Some(failure) = failure {
                return Err(failure);
            }
            changed?;
            for ((input, first), state) in inputs.iter().zip(&embedded).zip(&mut states) {
                if interrupt::asked() {
                    return Err(kiln_embed::Error::Cancelled.into());
                }
                let shared = backbone.prepare(input, mode, first);
                *state = backbone.layer(block, state.clone(), &shared, false).0;
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        if untouched > 0 {
            terminal.note(format_args!(
                "no token of the calibration texts takes the experts of {}, for which all inputs counted alike; \
                 more texts would reach them",
                counted(untouched, "projection", "projections")
            ));
        }
        Ok(())
    }

    /// Reads texts of a file for calibration.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read_texts(path: &str, columns: &[String], most: usize) -> Result<Vec<String>> {
        let columns = match columns {
            [] => crate::text::Columns::required(&["text"]),
            named => crate::text::Columns { fields: named.to_vec(), optional: Vec::new() },
        };
        let file = crate::text::TextFile::open(path, columns)?;
        let records = file.records()?.take(most);
        records
            .map(|record| Ok(record?.joined()))
            .collect::<Result<_>>()
            .with_context(|| "calibration texts".to_string())
    }
}

/// What independent inputs of one size would be.
fn alike(inputs: usize) -> kiln_embed::Result<Gram> {
    let mut sum = vec![0.0; inputs * inputs];
    sum.iter_mut().step_by(inputs + 1).for_each(|square| *square = 1.0);
    Gram::new(inputs, sum, 1)
}
