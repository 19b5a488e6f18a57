//! Lessons for kiln-mini, as the demo has it: int4 weights that stay packed.

#![allow(clippy::unwrap_used)]

mod going_on;
mod learned;
mod new_words;
mod refused;
mod steps;
mod teacher;
