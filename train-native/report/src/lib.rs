//! Numbers to pictures and pages. What the numbers are about is their owner's business: training's page
//! is beside training.

mod charts;
mod heat_map;
mod html;
#[cfg(feature = "png")]
mod png;
mod scatter;
mod tokens;

pub use charts::{Series, bar_chart, histogram, line_chart};
pub use heat_map::{HeatMap, HeatStyle, heat_maps};
pub use html::{Card, Page};
#[cfg(feature = "png")]
pub use png::{has_fonts, png};
pub use scatter::{Group, scatter};
pub use tokens::token_weights;
