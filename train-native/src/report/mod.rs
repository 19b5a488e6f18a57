//! Numbers to pictures and pages.

mod charts;
mod html;

pub use charts::{Series, bar_chart, line_chart};
pub use html::Page;
