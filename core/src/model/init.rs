//! Random modules with their values drawn.

use burn::module::{Module, ModuleMapper};

use crate::kernels::Kernels;

/// The module with the value of every parameter drawn.
///
/// Burn initialises a parameter at its first use, and a clone made before that would draw other
/// values; so a random module leaves here with all of its values drawn.
pub(crate) fn initialized<B: Kernels, M: Module<B>>(module: M) -> M {
    struct Draw;
    impl<B: Kernels> ModuleMapper<B> for Draw {}
    module.map(&mut Draw)
}
