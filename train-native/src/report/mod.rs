//! Numbers to pictures and pages.

mod charts;
mod heat_map;
mod html;
mod model_card;
mod png;
mod scatter;
mod tokens;
mod training;

pub use charts::{Series, bar_chart, histogram, line_chart};
pub use heat_map::{HeatMap, HeatStyle, heat_maps};
pub use html::Page;
pub use model_card::ModelCard;
pub use png::{has_fonts, png};
pub use scatter::{Group, scatter};
pub use tokens::token_weights;
pub use training::{curves, training_page};
