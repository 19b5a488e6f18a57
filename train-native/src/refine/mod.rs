//! What refining needs of a model: a teacher's ranks of the rows' passages. The filters are in
//! [`kiln_synthesis::refine`].

mod ranks;

pub use ranks::{Ask, ranks};
