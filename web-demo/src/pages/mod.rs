//! The pages, one file each.

pub(crate) mod collection;
pub(crate) mod lens;
pub(crate) mod map;
pub(crate) mod models;
pub(crate) mod search;
pub(crate) mod teach;
