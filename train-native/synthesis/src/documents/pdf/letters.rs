//! The letters that a PDF's pages show, where they stand and how large they are.

use hayro_cmap::{BfString, WritingMode};
use hayro_interpret::font::{Glyph, GlyphRun};
use hayro_interpret::hayro_syntax::Pdf;
use hayro_interpret::hayro_syntax::object::Dict;
use hayro_interpret::{
    BlendMode, ClipPath, Context, Device, DrawMode, DrawProps, Image, ImageDrawProps,
    InterpreterCache, InterpreterSettings, RenderContent, SoftMask, interpret_page,
};
use kurbo::{Affine, BezPath, Point, Rect};

/// Units of a glyph in its own size.
const UNITS: f64 = 1000.0;

/// Width of a letter that does not give its own, in its size.
const WIDTH: f64 = 0.5;

/// What a page and a document may draw, letters and lines together: more is made to do harm.
const MOST: [usize; 2] = [2_000_000, 50_000_000];

/// A letter, or a few that one sign of the font stands for. Places are in points from the page's lower left corner.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Letter {
    pub(super) text: String,
    pub(super) left: f64,
    pub(super) right: f64,
    /// Where it stands on.
    pub(super) baseline: f64,
    pub(super) size: f64,
    pub(super) bold: bool,
}

/// What a page shows, in the order in which it is written.
pub(super) struct Page<'c> {
    pub(super) letters: Vec<Letter>,
    /// Letters of which the file does not say which they are.
    pub(super) unknown: u32,
    /// Parts that are open, and at which of them began what is none of the text: a page's number, a line at its head.
    open: usize,
    beside: Option<usize>,
    /// Place and number of the letters that were filled last, which may be drawn once more around their edges.
    filled: Option<(Affine, usize)>,
    /// What was drawn, on this page and in all.
    drawn: [usize; 2],
    cancelled: &'c dyn Fn() -> bool,
}

/// All pages, one after another.
///
/// # Panics
/// A page that draws without end, and a user who asks for the end.
pub(super) fn pages<'c>(
    pdf: &Pdf,
    cancelled: &'c dyn Fn() -> bool,
) -> impl Iterator<Item = Page<'c>> {
    let cache = InterpreterCache::new();
    let mut before = 0;
    pdf.pages().iter().map(move |page| {
        let upright = Affine::new(page.initial_transform(false).as_coeffs());
        let (width, height) = page.render_dimensions();
        let rect = Rect::new(0.0, 0.0, width.into(), height.into());
        let mut shown = Page {
            letters: Vec::new(),
            unknown: 0,
            open: 0,
            beside: None,
            filled: None,
            drawn: [0, before],
            cancelled,
        };
        for render_content in [RenderContent::PAGE, RenderContent::ANNOTATIONS] {
            let settings = InterpreterSettings { render_content, ..InterpreterSettings::default() };
            let mut context = Context::new(upright, rect, &cache, pdf.xref(), settings);
            interpret_page(page, &mut context, &mut shown);
            // What a page leaves open ends with it.
            (shown.open, shown.beside) = (0, None);
        }
        before = shown.drawn[1];
        shown
    })
}

impl Page<'_> {
    /// Counts what is drawn; there is no other way out of the interpreter than a panic, which `silently` catches.
    fn draws(&mut self, count: usize) {
        let thousands = self.drawn[1] / 1024;
        self.drawn = self.drawn.map(|drawn| drawn + count);
        let asked = self.drawn[1] / 1024 > thousands && (self.cancelled)();
        let fits = self.drawn.iter().zip(MOST).all(|(drawn, most)| *drawn <= most);
        assert!(fits && !asked, "a page without end");
    }
}

impl Device<'_> for Page<'_> {
    fn draw_glyph_run(&mut self, run: &GlyphRun<'_, '_>, props: DrawProps<'_>, mode: &DrawMode) {
        let glyphs = run.glyphs();
        self.draws(glyphs.len() + 1);
        let Some(first) = glyphs.first() else { return };
        let place = (props.transform * first.transform(), glyphs.len());
        let again = matches!(mode, DrawMode::Stroke(_)) && self.filled == Some(place);
        self.filled = Some(place);
        // From the top to the bottom each letter would be a line.
        if self.beside.is_some() || again || run.writing_mode() == WritingMode::Vertical {
            return;
        }
        let (bold, units) = (is_bold(first), units(run));
        for glyph in glyphs {
            let place = props.transform * glyph.transform();
            let [a, b, _, d, ..] = place.as_coeffs();
            // What stands on its side is beside the text: a stamp, the axis of a plot.
            if a <= 0.0 || d <= 0.0 || b.abs() > 0.05 * a {
                continue;
            }
            let Some(text) = glyph.as_unicode() else {
                self.unknown += 1;
                continue;
            };
            let text = match text {
                BfString::Char(letter) => letter.to_string(),
                BfString::String(letters) => letters,
            };
            // Another font in the place of the file's is narrowed to its widths.
            let width = width(glyph) * a.max(d);
            let start = place * Point::ZERO;
            let (right, size) = (start.x + width, d * units);
            if [start.x, start.y, right, size].into_iter().all(f64::is_finite) && size > 0.0 {
                let baseline = start.y;
                self.letters.push(Letter { text, left: start.x, right, baseline, size, bold });
            }
        }
    }

    fn begin_marked_content(&mut self, tag: &[u8], _: Option<&Dict<'_>>) {
        self.open += 1;
        if tag == b"Artifact" && self.beside.is_none() {
            self.beside = Some(self.open);
        }
    }

    fn end_marked_content(&mut self) {
        if self.beside == Some(self.open) {
            self.beside = None;
        }
        self.open = self.open.saturating_sub(1);
    }

    fn draw_path(&mut self, _: &BezPath, _: DrawProps<'_>, _: &DrawMode) {
        self.draws(1);
    }

    fn push_clip_path(&mut self, _: &ClipPath) {
        self.draws(1);
    }

    fn push_transparency_group(&mut self, _: f32, _: Option<SoftMask<'_>>, _: BlendMode) {
        self.draws(1);
    }

    fn draw_image(&mut self, _: Image<'_, '_>, _: ImageDrawProps<'_>) {
        self.draws(1);
    }

    fn pop_clip(&mut self) {}
    fn pop_transparency_group(&mut self) {}
}

/// How far the next letter is, in units of a glyph.
fn width(glyph: &Glyph<'_>) -> f64 {
    let width = match glyph {
        Glyph::Outline(glyph) => glyph.advance_width(),
        Glyph::Type3(glyph) => glyph.advance_width(),
    };
    width.map_or(WIDTH * UNITS, f64::from)
}

/// Units of a run's glyphs in their size. Glyphs that are drawings may have others, of which their widths give an idea.
fn units(run: &GlyphRun<'_, '_>) -> f64 {
    let drawings = run.glyphs().iter().filter(|glyph| matches!(&***glyph, Glyph::Type3(_)));
    let mut widths: Vec<f64> = drawings.map(|glyph| width(glyph)).collect();
    widths.sort_by(f64::total_cmp);
    match widths.get(widths.len() / 2) {
        Some(middle) if *middle > 2.0 * UNITS => middle / WIDTH,
        _ => UNITS,
    }
}

/// Whether a font says that its letters are bold. Those of Type 1, which LaTeX writes, do not.
fn is_bold(glyph: &Glyph<'_>) -> bool {
    let Glyph::Outline(glyph) = glyph else { return false };
    glyph.font_data().is_some_and(|font| {
        let named = font.postscript_name.is_some_and(|name| {
            ["Bold", "Black", "Heavy", "Demi"].iter().any(|weight| name.contains(weight))
        });
        named || font.weight.is_some_and(|weight| weight >= 600)
    })
}
