//! SVG to PNG by resvg, with the system's fonts.

use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result};
use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{Options, Tree};

/// Pixels of the PNG for one of the SVG.
const SCALE: f32 = 2.0;

/// Families that stand for `sans-serif`, where the system does not say which does.
const FAMILIES: [&str; 6] =
    ["DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica", "Segoe UI"];

fn fonts() -> &'static Arc<Database> {
    static FONTS: OnceLock<Arc<Database>> = OnceLock::new();
    FONTS.get_or_init(|| {
        let mut fonts = Database::new();
        fonts.load_system_fonts();
        let has = |family: &str| {
            fonts.faces().any(|face| face.families.iter().any(|(name, _)| name == family))
        };
        let any = || Some(fonts.faces().next()?.families.first()?.0.clone());
        let family = FAMILIES.iter().find(|family| has(family)).map(|family| family.to_string());
        if let Some(family) = family.or_else(any) {
            fonts.set_sans_serif_family(family);
        }
        Arc::new(fonts)
    })
}

/// Whether there is a font at all; without one pictures have no letters.
pub fn has_fonts() -> bool {
    !fonts().is_empty()
}

/// The picture on white, twice as large.
///
/// # Errors
/// An SVG that resvg cannot read, or one without a size.
pub fn png(svg: &str) -> Result<Vec<u8>> {
    let options = Options { fontdb: fonts().clone(), ..Options::default() };
    let tree = Tree::from_str(svg, &options).context("the SVG cannot be drawn")?;
    let size = tree.size().to_int_size().scale_by(SCALE).context("the SVG has no size")?;
    let mut pixels = Pixmap::new(size.width(), size.height()).context("the SVG has no size")?;
    pixels.fill(Color::WHITE);
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().context("the PNG cannot be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_its_size_and_colours() {
        let svg = r##"<svg width="30" height="20" xmlns="http://www.w3.org/2000/svg"><rect width="15" height="20" fill="#ff0000"/></svg>"##;
        let pixels = Pixmap::decode_png(&png(svg).unwrap()).unwrap();
        assert_eq!((pixels.width(), pixels.height()), (60, 40));
        let at = |x| pixels.pixel(x, 20).map(|pixel| (pixel.red(), pixel.green()));
        assert_eq!(at(5), Some((255, 0)));
        assert_eq!(at(50), Some((255, 255)));
        assert!(png("<svg").is_err());
    }
}
