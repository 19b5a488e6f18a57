//! Processes on several hosts that sum, gather and pass on what they computed, over TCP and without a backend.
//!
//! [`Launch`] is what a launcher such as torchrun says of a process, in the environment. [`Ring::join`] finds the
//! others: every rank calls rank 0, both prove that they know the secret (`handshake`), rank 0 compares what
//! they were started for and sends a table of addresses (`join`), and each rank calls the next one. Data go
//! around this ring in frames with checksums (`frame`, `ring`), in an order that follows from the ranks alone,
//! so that the same processes give the same bits. The connections to rank 0 stay open: over them each rank says
//! that it lives, and rank 0 tells all which one is lost (`watch`).
//!
//! Nothing is encrypted. The secret keeps strangers out of a job; it does not hide what is sent from those who
//! can read the network.
//!
//! Why not MPI or gloo: the crate `mpi` is bindings to an MPI that has to be installed, with its C compiler, wherever
//! Kiln is built, and its launchers end all processes with the first that is lost; gloo, which is C++, has no
//! bindings on crates.io.

mod frame;
mod handshake;
mod join;
mod launch;
mod ring;
mod watch;

#[cfg(test)]
mod tests;

pub use join::Terms;
pub use launch::{Launch, Secret, Timeouts};
pub use ring::{Format, Ring};
pub use watch::Busy;

/// What goes wrong between hosts: one line that names the rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The environment, or a process that may not take part.
    #[error("{0}")]
    Start(String),
    /// A rank that is lost, slow, or has failed.
    #[error("{0}")]
    Lost(String),
    /// The caller was asked to stop while it waited.
    #[error("stopped while waiting for the other ranks")]
    Stopped,
}

/// How what ranks do together by another way than around the ring goes wrong; see [`Ring::outside`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Here, and in one line why: all ranks stop with it.
    Here(String),
    /// As it does where another rank is gone; the line is what can be said if nobody knows which.
    Elsewhere(String),
}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
