//! HTTP clients with Kiln's way of encrypting.

/// A builder of clients. All of Kiln's come from here: the way of encrypting has to be chosen before
/// the first of them is built.
pub fn client() -> reqwest::ClientBuilder {
    // An error says that the process has chosen already, which does as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
}
