//! Our numbers against those of the reference implementations, on every device there is.

mod families;
mod minilm;
mod pooling;
