//! Why a text gets its vector: what the model's own pooling looked at, and what other heads would.

use burn::tensor::{Tensor, read_sync};

use crate::embedder::{EmbedOptions, Embedder, EmbeddingModel, read};
use crate::index::cosine;
use crate::kernels::Kernels;
use crate::model::{ForwardOptions, ModelInput};
use crate::pooling::{self, Explanation, Pooling, PoolingConfig};
use crate::tokenizer::Tokens;
use crate::{Error, Result};

/// Why a text got its vector.
#[derive(Debug, Clone, PartialEq)]
pub struct TextExplanation {
    /// The tokens, special ones included.
    pub tokens: Vec<String>,
    /// Byte range of each token in the text, empty for special and prompt tokens.
    pub offsets: Vec<(usize, usize)>,
    /// Pooling weight of each token.
    pub token_weights: Option<Vec<f32>>,
    /// Attention between each token and each latent, head by head: `[heads][tokens][latents]`.
    pub latents: Option<Vec<Vec<Vec<f32>>>>,
    /// Weight of each layer.
    pub layers: Option<Vec<f32>>,
}

/// A text seen through every pooling head that has no parameters, whatever the model's own is.
#[derive(Debug, Clone, PartialEq)]
pub struct Lens {
    /// The model's own head, and the tokens.
    pub own: TextExplanation,
    /// The heads without parameters.
    pub heads: Vec<HeadView>,
    /// Cosine between the mean state after each layer, the embeddings first, and after the last.
    pub layers: Vec<f32>,
    /// Number of attention heads.
    pub attention_heads: usize,
    /// The last layer's attention weights `[heads, query, key]`.
    pub attention: Vec<f32>,
    /// The last layer's states `[tokens, hidden]`, each divided by its norm.
    pub states: Vec<f32>,
}

/// What one pooling head looks at.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadView {
    /// Name of the head.
    pub name: &'static str,
    /// Weight of each token; 0 for those that pooling leaves out.
    pub weights: Vec<f32>,
    /// Cosine between the vector that this head gives and the model's own; absent where the
    /// model's projection takes another width.
    pub cosine: Option<f32>,
}

impl<B: Kernels> Embedder<B> {
    /// Why a text gets its vector.
    ///
    /// # Errors
    /// An unknown prompt; a text that the tokenizer cannot take.
    pub fn explain(&self, text: &str, options: &EmbedOptions) -> Result<TextExplanation> {
        read_sync(self.explain_async(text, options))
    }

    /// As [`Embedder::explain`], for devices that cannot be waited for.
    ///
    /// # Errors
    /// An unknown prompt; a text that the tokenizer cannot take.
    pub async fn explain_async(
        &self,
        text: &str,
        options: &EmbedOptions,
    ) -> Result<TextExplanation> {
        let (tokens, input) = self.one(text, options)?;
        let (_, why) = self.model().forward(&input)?;
        self.explained(tokens, why).await
    }

    /// The tokens of one text.
    fn one(&self, text: &str, options: &EmbedOptions) -> Result<(Tokens, ModelInput<B>)> {
        let tokens = self.tokenizer().encode(self.prompts().text(&options.prompt)?, text)?;
        let input = ModelInput::new(&self.tokenizer().pad(&[&tokens]), self.device());
        Ok((tokens, input))
    }

    /// An explanation of one text, read back from the device.
    async fn explained(&self, tokens: Tokens, why: Explanation<B>) -> Result<TextExplanation> {
        let latents = match why.latents {
            Some(map) => {
                let [_, _, seq, latents] = map.dims();
                let all = read(map).await?;
                let head = |head: &[f32]| head.chunks(latents).map(<[f32]>::to_vec).collect();
                Some(all.chunks(seq * latents).map(head).collect())
            }
            None => None,
        };
        let name = |&id: &u32| self.tokenizer().token(id).unwrap_or_default();
        Ok(TextExplanation {
            tokens: tokens.ids.iter().map(name).collect(),
            offsets: tokens.offsets,
            token_weights: maybe_read(why.tokens).await?,
            latents,
            layers: maybe_read(why.layers).await?,
        })
    }

    /// What the last layer's tokens look like and at, and what each head without parameters would
    /// make of them.
    ///
    /// # Errors
    /// An unknown prompt; a text that the tokenizer cannot take.
    pub fn lens(&self, text: &str, options: &EmbedOptions) -> Result<Lens> {
        read_sync(self.lens_async(text, options))
    }

    /// As [`Embedder::lens`], for devices that cannot be waited for.
    ///
    /// # Errors
    /// An unknown prompt; a text that the tokenizer cannot take.
    pub async fn lens_async(&self, text: &str, options: &EmbedOptions) -> Result<Lens> {
        let (tokens, input) = self.one(text, options)?;
        let EmbeddingModel { config, pooling, .. } = self.model();
        let want = ForwardOptions { layers: true, attention: true };
        let (vector, why, states) = self.model().projected(&input, want)?;
        let vector = read(vector).await?;

        // Heads whose vectors are as wide as the model's own can be compared with it.
        let width = config.output_size();
        let fits = pooling.config().output_size(width) == width;
        let mut heads = Vec::new();
        for head in PoolingConfig::parameter_free() {
            let head = Pooling::new(&head, config, self.device());
            let (pooled, why) = head.forward(&states, &input, config.attention)?;
            let cosine = match fits {
                true => Some(cosine(&vector, &read(self.model().project(pooled)).await?)),
                false => None,
            };
            let weights = maybe_read(why.tokens).await?.unwrap_or_default();
            heads.push(HeadView { name: head.config().name(), weights, cosine });
        }
        let middle = |states: &Tensor<B, 3>| read(states.clone().mean_dim(1));
        let last = middle(&states.last).await?;
        let mut layers = Vec::new();
        for layer in &states.layers {
            // A layer of another width is compared by what the model would make of it if it were the last.
            let layer = match layer.dims()[2] == width {
                true => middle(layer).await?,
                false => middle(&self.model().backbone().finish(layer.clone())).await?,
            };
            layers.push(cosine(&layer, &last));
        }
        let [_, seq, hidden] = states.last.dims();
        let rows = states.last.reshape([seq, hidden]);
        let attention = states.attention.ok_or_else(|| Error::invalid("no attention weights"))?;
        Ok(Lens {
            heads,
            layers,
            attention_heads: attention.dims()[1],
            attention: read(attention).await?,
            states: read(pooling::l2_normalize(rows)).await?,
            own: self.explained(tokens, why).await?,
        })
    }
}

/// As [`read`], of a tensor that may not be there.
async fn maybe_read<B: Kernels, const D: usize>(
    x: Option<Tensor<B, D>>,
) -> Result<Option<Vec<f32>>> {
    match x {
        Some(x) => Ok(Some(read(x).await?)),
        None => Ok(None),
    }
}
