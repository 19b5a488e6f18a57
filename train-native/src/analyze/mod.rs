//! Pictures that explain a model: what its layers hold, where it looks, what its space is like.
//!
//! `View (a model, layer by layer) + Inputs (texts, labels, examples) -> Picture -> folder`

mod attention;
mod latents;
mod layers;
mod projection;
mod similarity;
mod space;
mod view;

use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde_json::{Value, json};

pub use layers::{LayerTask, layer_correlations};
pub use projection::{Points, principal_components, t_sne};
pub use space::{Health, health};
pub use view::{LayerStates, TextView, View};

use crate::data::DataSet;
use crate::eval::Cache;
use crate::interrupt;
use crate::report::Page;
#[cfg(feature = "png")]
use crate::report::{has_fonts, png};
use crate::terminal::Terminal;
use crate::vectors::write_atomically;
use kiln_embed::pooling::LayerState;

/// One kind of analysis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Analysis {
    /// Spearman correlation between the layers' states
    Layers,
    /// Score of each layer's state on a task
    LayerScores,
    /// Attention of the last layer, head by head, anchors marked
    Attention,
    /// Anchor weights over the tokens of a text, beside the model's own pooling
    Anchors,
    /// Attention over the latents for texts of two groups
    Latents,
    /// Weight of each layer in multi-layer pooling
    LayerWeights,
    /// Uniformity, alignment, isotropy, effective dimension
    Space,
    /// Similarities of positives and of each level of negatives
    Similarity,
    /// The texts in two dimensions, by PCA and t-SNE
    Projection,
}

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.to_possible_value();
        f.write_str(name.as_ref().map_or("", |name| name.get_name()))
    }
}

/// What a model is looked at with.
pub struct Inputs {
    /// Texts whose tokens are drawn.
    pub texts: Vec<String>,
    /// Texts with labels, and what they are called.
    pub labelled: Vec<(String, String)>,
    /// The two labels that the latents are compared for; the two most frequent if `None`.
    pub groups: Option<[String; 2]>,
    /// Queries with positives and negatives.
    pub examples: DataSet,
    /// Most examples that are read.
    pub limit: usize,
    /// The task of the layers.
    pub task: LayerTask,
    /// What stands for a layer.
    pub state: LayerState,
    /// Prompt of all texts that are no queries or documents.
    pub prompt_text: String,
}

/// A picture, with its numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// Name of its files.
    pub name: String,
    /// Heading.
    pub title: String,
    /// What is to be seen.
    pub caption: String,
    /// The picture.
    pub svg: String,
    /// Its numbers.
    pub data: Value,
}

/// Everything that was found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Analyzed {
    /// The pictures.
    pub pictures: Vec<Picture>,
    /// Analyses that this model or these inputs do not allow, and why.
    pub skipped: Vec<(Analysis, String)>,
    /// Measures of the space.
    pub health: Option<Health>,
}

/// An analysis that a model or its inputs do not allow.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotHere(String);

fn not_here<T>(why: impl Into<String>) -> Result<T> {
    Err(NotHere(why.into()).into())
}

/// Makes the pictures of some analyses.
///
/// # Errors
/// Texts that cannot be embedded, [`kiln_embed::Error::Cancelled`] after Ctrl-C.
pub fn analyze(
    view: &dyn View,
    inputs: &Inputs,
    wanted: &[Analysis],
    cache: &Cache,
    terminal: Terminal,
) -> Result<Analyzed> {
    let mut result = Analyzed::default();
    for &analysis in wanted {
        if interrupt::asked() {
            return Err(kiln_embed::Error::Cancelled.into());
        }
        let made = match analysis {
            Analysis::Layers => layers::correlations(view, inputs),
            Analysis::LayerScores => layers::scores(view, inputs, cache, terminal),
            Analysis::Attention => attention::maps(view, inputs),
            Analysis::Anchors => attention::anchors(view, inputs),
            Analysis::Latents => latents::latents(view, inputs),
            Analysis::LayerWeights => latents::layer_weights(view, inputs),
            Analysis::Space => space::space(view, inputs, terminal).map(|(picture, health)| {
                result.health = Some(health);
                vec![picture]
            }),
            Analysis::Similarity => similarity::similarity(view, inputs, terminal),
            Analysis::Projection => projection::projection(view, inputs, terminal),
        };
        match made {
            Ok(pictures) => {
                let names: Vec<&str> = pictures.iter().map(|one| one.name.as_str()).collect();
                terminal.note(format!("{analysis}: {}", names.join(", ")));
                result.pictures.extend(pictures);
            }
            Err(error) => match error.downcast::<NotHere>() {
                Ok(why) => {
                    terminal.note(format!("{analysis}: skipped: {why}"));
                    result.skipped.push((analysis, why.to_string()));
                }
                Err(error) => return Err(error.context(format!("{analysis}"))),
            },
        }
    }
    Ok(result)
}

impl Analyzed {
    /// Writes each picture as SVG, PNG (with the feature `png`) and JSON, and all of them as one page,
    /// `index.html`.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn write(&self, folder: &Path, model: &str, terminal: Terminal) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        #[cfg(feature = "png")]
        if !has_fonts() {
            terminal.note("no fonts on this machine: the PNG files have no letters, the SVG do");
        }
        #[cfg(not(feature = "png"))]
        terminal.note(
            "this build draws no PNG beside the SVG: build with --features png, or install the package",
        );
        let bar = terminal.progress(self.pictures.len() as u64, "drawing");
        for picture in &self.pictures {
            if interrupt::asked() {
                return Err(kiln_embed::Error::Cancelled.into());
            }
            let write = |ending: &str, bytes: &[u8]| {
                write_atomically(&folder.join(format!("{}.{ending}", picture.name)), bytes)
            };
            write("svg", picture.svg.as_bytes())?;
            #[cfg(feature = "png")]
            write("png", &png(&picture.svg).with_context(|| picture.name.clone())?)?;
            write("json", &serde_json::to_vec(&picture.data)?)?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        write_atomically(&folder.join("index.html"), self.page(model).to_html().as_bytes())
    }

    fn page(&self, model: &str) -> Page {
        let mut page = Page::new(&format!("Analysis of {model}"));
        if let Some(health) = &self.health {
            page.heading("Health of the embedding space").table(&health.rows());
        }
        let mut heading = "";
        for picture in &self.pictures {
            if picture.title != heading {
                page.heading(&picture.title);
                heading = &picture.title;
            }
            page.figure(&picture.svg, &picture.caption);
        }
        if !self.skipped.is_empty() {
            page.heading("Not drawn");
            for (analysis, why) in &self.skipped {
                page.paragraph(&format!("{analysis}: {why}"));
            }
        }
        page
    }

    /// What scripts read.
    pub fn to_json(&self, folder: &Path) -> Value {
        let names = |picture: &Picture| folder.join(&picture.name).display().to_string();
        json!({
            "page": folder.join("index.html").display().to_string(),
            "pictures": self.pictures.iter().map(names).collect::<Vec<_>>(),
            "health": self.health,
            "skipped": self.skipped.iter().map(|(analysis, why)| {
                json!({ "analysis": analysis.to_string(), "reason": why })
            }).collect::<Vec<_>>(),
        })
    }
}
