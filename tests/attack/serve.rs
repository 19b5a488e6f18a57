//! Hostile clients of a server.
