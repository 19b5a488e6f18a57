//! Training losses, one file a method.

mod cross_encoder;
mod distillation;
mod gist;
mod info_nce;
mod matryoshka;
mod reconstruction;
mod scored;

pub use cross_encoder::{
    Preference, binary_cross_entropy, lambda_preferences, multiple_negatives_ranking,
    preference_loss, rank_net_preferences, score_margin_mse, score_mse,
};
pub use distillation::{score_distillation, state_distillation};
pub use gist::{Gist, Guide, MarginStrategy};
pub use info_nce::{Candidates, InfoNce, guided_info_nce, info_nce};
pub use matryoshka::{Matryoshka, matryoshka};
pub use reconstruction::{Reduction, token_cross_entropy};
pub use scored::{angle_similarities, cosent, cosines, margin_mse};
