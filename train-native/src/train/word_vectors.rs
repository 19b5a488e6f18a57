//! What the token embeddings of a new model may start from: another model's vectors of the single
//! tokens, so that the student begins as a good bag of words and learns the rest.
//!
//! As Model2Vec distils (github.com/MinishLab/model2vec): each token is a text of its own for the
//! teacher, the vectors are cut to their principal components, and frequent tokens count less
//! (smooth inverse frequency, Arora et al., ICLR 2017). A model with norms cannot keep the tokens'
//! weights in the length of their embeddings; so all have the same length, and what a frequent token
//! lacks is in one dimension more that the projection to the vectors leaves out.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use burn::module::Param;
use burn::tensor::{Tensor, TensorData};
use kiln_embed::checkpoint::LoadOptions;
use kiln_embed::embedder::{EmbedOptions, Embedder};
use kiln_embed::kernels::Kernels;
use kiln_embed::model::Backbone;
use linfa_linalg::eigh::{EigSort as _, Eigh as _};
use ndarray::{Array1, Array2, Axis, s};
use rayon::prelude::*;

use crate::interrupt;
use crate::model::load_embedder;
use crate::terminal::Terminal;

/// How rare a token is whose weight is one half (`a` in smooth inverse frequency).
const HALF_WEIGHT: f64 = 1e-3;

/// Makes the token embeddings of a new model, and its projection, out of a teacher's vectors of the
/// tokens; `texts` say how frequent they are.
///
/// # Errors
/// A model without a projection to the teacher's width; what is wrong with the teacher's files.
pub(super) fn start_from_words<B: Kernels>(
    embedder: &mut Embedder<B>,
    teacher: &str,
    texts: &[String],
    terminal: Terminal,
) -> Result<()> {
    let device = embedder.device().clone();
    let teacher_model = load_embedder::<B>(teacher, &LoadOptions::default(), &device, terminal)
        .context("model.new.word_vectors")?;
    let wide = teacher_model.model().dimensions();
    let hidden = embedder.model().config().hidden_size;
    let fits = embedder.model().dense().last().is_some_and(|dense| {
        (dense.config().in_features, dense.config().out_features) == (hidden, wide)
    });
    if !fits {
        bail!(
            "model.new.word_vectors: {teacher} has vectors of {wide} dimensions; set \
             model.new.dimensions = {wide}, and a pooling whose output is as wide as the hidden states"
        );
    }

    // Tokens that are the same word for the teacher share a vector.
    let vocabulary = embedder.model().config().vocab_size;
    let mut tokens: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for id in 0..vocabulary {
        if let Some(word) = embedder.tokenizer().token(id as u32).as_deref().and_then(word) {
            tokens.entry(word.into()).or_default().push(id);
        }
    }
    let words: Vec<&str> = tokens.keys().map(String::as_str).collect();
    if words.len() < 2 {
        bail!("model.new.word_vectors: the tokenizer has no tokens that are words");
    }
    let bar = terminal.progress(words.len() as u64, "words");
    let vectors = teacher_model.embed_with(&words, &EmbedOptions::default(), |progress| {
        bar.set_position(progress.texts as u64);
        interrupt::flow()
    })?;
    bar.finish_and_clear();
    let mut vectors =
        Array2::from_shape_fn((words.len(), wide), |(row, column)| f64::from(vectors[row][column]));

    // Principal components, the largest first; one dimension of the states is kept free.
    let mean = vectors.mean_axis(Axis(0)).context("no vectors")?;
    vectors -= &mean;
    let covariance = vectors.t().dot(&vectors);
    let (_, components) = covariance.eigh().context("principal components")?.sort_eig_desc();
    let kept = (hidden - 1).min(wide);
    let components = components.slice(s![.., ..kept]).to_owned();
    let points = vectors.dot(&components);

    // Each token's vector, the nearer to the origin the more frequent the token is.
    let weights = weights(embedder, texts)?;
    let mut starts: Vec<Option<Array1<f64>>> = vec![None; vocabulary];
    for (point, ids) in points.outer_iter().zip(tokens.values()) {
        for &id in ids {
            starts[id] = Some(&point * weights[id]);
        }
    }
    let longest = starts.iter().flatten().map(|start| start.dot(start)).fold(0.0, f64::max).sqrt();
    if !(longest.is_finite() && longest > 0.0) {
        bail!("model.new.word_vectors: {teacher} gives all words the same vector");
    }
    // Values of size one, as norms leave them. The random values that stand there stay as small
    // differences between tokens that are no words.
    let scale = (hidden as f64).sqrt() / longest;
    let Backbone::Decoder(decoder) = embedder.model_mut().backbone_mut() else {
        bail!("model.new.word_vectors needs a new model");
    };
    let mut table: Vec<f32> =
        decoder.token_embedding.table().into_data().to_vec().map_err(|error| {
            anyhow::anyhow!("the new token embeddings cannot be read: {error:?}")
        })?;
    for (row, start) in table.chunks_exact_mut(hidden).zip(&starts) {
        let square = start.as_ref().map_or(0.0, |start| start.dot(start));
        row[hidden - 1] += ((longest * longest - square).max(0.0).sqrt() * scale) as f32;
        for (value, part) in row.iter_mut().zip(start.iter().flatten()) {
            *value += (part * scale) as f32;
        }
    }
    let table = TensorData::new(table, [vocabulary, hidden]);
    decoder.token_embedding.weight = Param::from_tensor(Tensor::from_data(table, &device));
    let mut projection = vec![0.0f32; hidden * wide];
    for (row, component) in projection.chunks_exact_mut(wide).zip(components.columns()) {
        row.iter_mut().zip(component).for_each(|(to, &from)| *to = from as f32);
    }
    let projection = Tensor::from_data(TensorData::new(projection, [hidden, wide]), &device);
    if let Some(dense) = embedder.model_mut().dense_mut().last_mut() {
        dense.set_weight(projection)?;
    }
    Ok(())
}

/// The text of a byte-level token; none for special ones and parts of characters.
fn word(token: &str) -> Option<&str> {
    let word = token.strip_prefix('Ġ').unwrap_or(token);
    let plain = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic());
    (plain && !(word.len() > 1 && word.starts_with('<'))).then_some(word)
}

/// Smooth inverse frequency of each token, between 0 and 1.
fn weights<B: Kernels>(embedder: &Embedder<B>, texts: &[String]) -> Result<Vec<f64>> {
    let vocabulary = embedder.model().config().vocab_size;
    let counts = texts
        .par_chunks(1024)
        .map(|texts| {
            let mut counts = vec![0u64; vocabulary];
            for text in texts {
                for id in embedder.tokenizer().encode("", text)?.ids {
                    counts[id as usize] += 1;
                }
            }
            Ok(counts)
        })
        .try_reduce(
            || vec![0u64; vocabulary],
            |mut all, counts| {
                all.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
                Ok::<_, kiln_embed::Error>(all)
            },
        )?;
    let total = counts.iter().sum::<u64>().max(1) as f64;
    Ok(counts.into_iter().map(|count| HALF_WEIGHT / (HALF_WEIGHT + count as f64 / total)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;
    use crate::train::build::new_model;
    use burn::backend::Flex;
    use burn::tensor::backend::Backend as _;
    use kiln_embed::checkpoint::{Existing, save, write_directory};
    use kiln_embed::index::cosine;

    const QUIET: Terminal = Terminal { json: false, quiet: true };

    fn tiny(hidden: usize, dimensions: usize) -> Embedder<Flex> {
        let recipe = Recipe::parse(&format!(
            "name = 'tiny'\n[model]\nmax_length = 24\nattention = 'bidirectional'\npooling = {{ mode = 'mean' }}\n\
             [model.new]\nvocab_size = 340\nhidden_size = {hidden}\nintermediate_size = 48\nlayers = 2\nheads = 4\n\
             dimensions = {dimensions}\n\
             [[stage]]\nname = 'x'\ndata = ['x']\nsteps = 1\nbatch_size = 4\nlr = 1e-3\n"
        ))
        .unwrap();
        let new = recipe.model.new.clone().unwrap();
        new_model(&new, &recipe.model, texts().iter().map(String::as_str), &Default::default())
            .unwrap()
    }

    fn texts() -> Vec<String> {
        let line = "the ship carried the tea and the timber down the river while the petals of the pale blue \
                    flowers covered the walls of the town and the violinist carried the prize to the ship";
        vec![line.into(); 4]
    }

    #[test]
    fn a_student_begins_with_its_teachers_words() {
        Flex::seed(&Default::default(), 5);
        let folder = tempfile::tempdir().unwrap();
        let teacher = tiny(16, 12);
        write_directory(folder.path(), &save(&teacher).unwrap(), Existing::Refuse).unwrap();
        let mut student = tiny(32, 12);
        let name = folder.path().display().to_string();
        start_from_words(&mut student, &name, &texts(), QUIET).unwrap();

        let mut words: Vec<String> = (0..340)
            .filter_map(|id| student.tokenizer().token(id))
            .filter_map(|token| word(&token).map(String::from))
            .collect();
        words.sort();
        words.dedup();
        let theirs = teacher.embed(&words).unwrap();
        let ours = student.embed(&words).unwrap();
        let mean: Vec<f32> = (0..12)
            .map(|i| theirs.iter().map(|vector| vector[i]).sum::<f32>() / words.len() as f32)
            .collect();
        // Letters that never stand alone in the texts are the rarest tokens there are.
        let rare = |word: &str| word.len() == 1 && !"aeiou".contains(word);
        let mut seen = 0;
        for ((word, theirs), ours) in words.iter().zip(&theirs).zip(&ours) {
            if rare(word) {
                let middle: Vec<f32> = theirs.iter().zip(&mean).map(|(x, mean)| x - mean).collect();
                let actual = cosine(&middle, ours);
                assert!(actual > 0.8, "{word}: {actual}");
                seen += 1;
            }
        }
        assert!(seen > 20, "{words:?}");
        // A frequent word says less among others than rare ones do, whatever their direction.
        let near = |word: &str| {
            let both = format!("{word} timber");
            let vectors = student.embed(&[both.as_str(), "timber"]);
            let vectors = vectors.unwrap();
            cosine(&vectors[0], &vectors[1])
        };
        let rare = ["prize", "violinist", "petals", "flowers", "river", "town", "tea", "walls"];
        let rare = rare.map(near).iter().sum::<f32>() / rare.len() as f32;
        assert!(near("the") > rare, "{} {rare}", near("the"));

        let mut other = tiny(32, 8);
        let error = start_from_words(&mut other, &name, &texts(), QUIET).unwrap_err().to_string();
        assert!(error.contains("model.new.dimensions = 12"), "{error}");
    }
}
