//! Two processes prove to one another that they know the secret, which neither sends.
//!
//! ```text
//! server -> client: "KILNHOST", version u16, challenge [32]
//! client -> server: "KILNHOST", version u16, challenge [32], HMAC-SHA256(secret, "client" version challenges)
//! server -> client: 0, HMAC-SHA256(secret, "server" version challenges); or why not, u8, and its version u16
//! ```
//!
//! Both challenges are random, so that what was heard of another handshake opens nothing, and the two words keep
//! one side's answer from being given back to it as the other's.

use std::net::TcpStream;

use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::frame::{Broken, Patience, read, write};
use crate::launch::Secret;

const MAGIC: &[u8; 8] = b"KILNHOST";
const CHALLENGE: usize = 32;
const TAG: usize = 32;
/// Magic, version, challenge.
const HELLO: usize = 8 + 2 + CHALLENGE;

const WELCOME: u8 = 0;
const OTHER_SECRET: u8 = 1;
const OTHER_VERSION: u8 = 2;

/// Why two processes do not talk.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The other side is no Kiln that trains.
    Stranger,
    /// It has another secret.
    Secret,
    /// It speaks another version.
    Version(u16),
    /// The connection broke, or took too long.
    Broken(Broken),
}

impl From<Broken> for Refusal {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

fn challenge() -> Result<[u8; CHALLENGE], Refusal> {
    let mut bytes = [0; CHALLENGE];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| {
        Refusal::Broken(Broken::Closed(std::io::Error::other("the system has no random numbers")))
    })?;
    Ok(bytes)
}

fn hello(version: u16, challenge: &[u8; CHALLENGE]) -> Vec<u8> {
    [&MAGIC[..], &version.to_le_bytes(), challenge].concat()
}

/// Version and challenge of the other side.
fn opened(hello: &[u8; HELLO]) -> Result<(u16, [u8; CHALLENGE]), Refusal> {
    if &hello[..8] != MAGIC {
        return Err(Refusal::Stranger);
    }
    let mut challenge = [0; CHALLENGE];
    challenge.copy_from_slice(&hello[10..]);
    Ok((u16::from_le_bytes([hello[8], hello[9]]), challenge))
}

/// What a side proves its knowledge with: word, version, the server's and the client's challenge.
fn said(side: &str, version: u16, server: &[u8], client: &[u8]) -> Vec<u8> {
    [side.as_bytes(), &version.to_le_bytes(), server, client].concat()
}

fn key(secret: &Secret) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret.bytes())
}

/// The side that was called.
pub(crate) fn serve(
    stream: &TcpStream,
    secret: &Secret,
    version: u16,
    patience: &dyn Patience,
) -> Result<(), Refusal> {
    let ours = challenge()?;
    write(stream, &hello(version, &ours), patience)?;
    let mut theirs = [0; HELLO];
    read(stream, &mut theirs, patience)?;
    let (spoken, challenge) = opened(&theirs)?;
    let refuse = |why: u8| {
        let [low, high] = version.to_le_bytes();
        // The caller may be gone already.
        let _ = write(stream, &[why, low, high], patience);
    };
    if spoken != version {
        refuse(OTHER_VERSION);
        return Err(Refusal::Version(spoken));
    }
    let mut tag = [0; TAG];
    read(stream, &mut tag, patience)?;
    let key = key(secret);
    if hmac::verify(&key, &said("client", version, &ours, &challenge), &tag).is_err() {
        refuse(OTHER_SECRET);
        return Err(Refusal::Secret);
    }
    let tag = hmac::sign(&key, &said("server", version, &ours, &challenge));
    write(stream, &[&[WELCOME][..], tag.as_ref()].concat(), patience)?;
    Ok(())
}

/// The side that calls.
pub(crate) fn call(
    stream: &TcpStream,
    secret: &Secret,
    version: u16,
    patience: &dyn Patience,
) -> Result<(), Refusal> {
    let mut theirs = [0; HELLO];
    read(stream, &mut theirs, patience)?;
    let (spoken, challenge_of_server) = opened(&theirs)?;
    let ours = challenge()?;
    let key = key(secret);
    let tag = hmac::sign(&key, &said("client", version, &challenge_of_server, &ours));
    write(stream, &[&hello(version, &ours)[..], tag.as_ref()].concat(), patience)?;
    if spoken != version {
        return Err(Refusal::Version(spoken));
    }
    let mut answer = [0; 1];
    read(stream, &mut answer, patience)?;
    match answer[0] {
        WELCOME => {}
        OTHER_SECRET => return Err(Refusal::Secret),
        _ => return Err(Refusal::Stranger),
    }
    let mut tag = [0; TAG];
    read(stream, &mut tag, patience)?;
    let expected = said("server", version, &challenge_of_server, &ours);
    hmac::verify(&key, &expected, &tag).map_err(|_| Refusal::Secret)
}
