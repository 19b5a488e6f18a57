//! Training losses, one file a method.

mod distillation;
mod info_nce;
mod matryoshka;
mod reconstruction;

pub use distillation::{score_distillation, state_distillation};
pub use info_nce::{Candidates, InfoNce, info_nce};
pub use matryoshka::{Matryoshka, matryoshka};
pub use reconstruction::{Reduction, token_cross_entropy};
