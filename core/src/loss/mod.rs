//! Training losses, one file a method.

mod info_nce;

pub use info_nce::{InfoNce, info_nce};
