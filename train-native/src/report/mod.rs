//! Numbers to pictures and pages.

mod charts;
mod html;
mod model_card;
mod training;

pub use charts::{Series, bar_chart, histogram, line_chart};
pub use html::Page;
pub use model_card::ModelCard;
pub use training::{curves, training_page};
