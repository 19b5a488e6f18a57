//! What a launcher says of a process, in the environment: the names are torchrun's, which Ray Train and
//! most scripts for SLURM and Kubernetes set, too.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use crate::{Error, Result};

/// Version of everything that is sent.
const PROTOCOL: u16 = 1;
/// PyTorch's port where none is said.
const PORT: u16 = 29_500;
/// Bytes that a secret has at least: who sees a handshake can try short ones at leisure.
const LEAST_SECRET: usize = 16;

/// What all ranks know and strangers do not.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// A secret of 16 bytes or more.
    ///
    /// # Errors
    /// A shorter one.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let bytes = bytes.into();
        if bytes.len() < LEAST_SECRET {
            return Err(Error::Start(format!(
                "the secret has {} bytes, and needs {LEAST_SECRET}; make one with `openssl rand -hex 32`",
                bytes.len()
            )));
        }
        Ok(Self(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// How long is waited for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For all to come.
    pub join: Duration,
    /// For a sign of life, and for data on their way.
    pub silence: Duration,
    /// For a rank that lives and does not come to where the others are.
    pub slow: Duration,
    /// For one that says that it loads, evaluates or saves, which a disk that hangs would make last for ever.
    pub busy: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            join: Duration::from_secs(600),
            silence: Duration::from_secs(60),
            slow: Duration::from_secs(1800),
            // A teacher that embeds all texts first, or an evaluation on a CPU, may take an hour and more.
            busy: Duration::from_secs(4 * 3600),
        }
    }
}

/// A process among those that train together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Its number, from 0.
    pub rank: usize,
    /// How many there are.
    pub world: usize,
    /// Its number among those of its host.
    pub local_rank: usize,
    /// Name of its host, for messages.
    pub host: String,
    /// Name or address of rank 0's host.
    pub master: String,
    /// Port that rank 0 listens on.
    pub port: u16,
    /// Address (and port, or 0) to listen on; where absent rank 0 listens on `master`'s, and others on that from
    /// which they reach it.
    pub bind: Option<SocketAddr>,
    /// Address and port that the others are told, where they reach this host by another way than `bind`.
    pub advertise: Option<String>,
    /// What all ranks know.
    pub secret: Secret,
    /// How long is waited.
    pub timeouts: Timeouts,
    /// Version of what is spoken; another one only in tests.
    pub(crate) protocol: u16,
}

impl Launch {
    /// A rank of `world`, with a master and a secret and everything else as usual.
    pub fn new(rank: usize, world: usize, master: &str, port: u16, secret: Secret) -> Self {
        Self {
            rank,
            world,
            local_rank: rank,
            host: "localhost".into(),
            master: master.into(),
            port,
            bind: None,
            advertise: None,
            secret,
            timeouts: Timeouts::default(),
            protocol: PROTOCOL,
        }
    }

    /// What the environment says, by a function that looks names up in it; `None` where it names no other
    /// process. `host` is the name of this one's.
    ///
    /// # Errors
    /// Names that do not fit together, numbers that are none, a secret that is missing.
    pub fn from_environment(
        host: &str,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let number = |name: &str| -> Result<Option<usize>> {
            let Some(text) = get(name) else { return Ok(None) };
            let parsed = text.trim().parse::<usize>();
            parsed.map(Some).map_err(|_| start(format!("{name} is {text:?}, not a number")))
        };
        let (mut rank, mut world) = (number("RANK")?, number("WORLD_SIZE")?);
        let mut local = number("LOCAL_RANK")?;
        // A SLURM task that was told where the first one is, by `srun` without a launcher.
        if rank.is_none() && world.is_none() && get("MASTER_ADDR").is_some() {
            (rank, world) = (number("SLURM_PROCID")?, number("SLURM_NTASKS")?);
            local = local.or(number("SLURM_LOCALID")?);
        }
        let (rank, world) = match (rank, world) {
            (None, None) => return Ok(None),
            (Some(_), None) => return Err(start("RANK is set, and WORLD_SIZE is not")),
            (None, Some(1)) => return Ok(None),
            (None, Some(_)) => return Err(start("WORLD_SIZE is set, and RANK is not")),
            (Some(rank), Some(world)) if rank >= world => {
                return Err(start(format!(
                    "RANK is {rank}, and WORLD_SIZE {world}: ranks count from 0"
                )));
            }
            (Some(_), Some(1)) => return Ok(None),
            (Some(rank), Some(world)) => (rank, world),
        };
        let Some(master) = get("MASTER_ADDR") else {
            return Err(start(format!(
                "WORLD_SIZE is {world}, and MASTER_ADDR, the host of rank 0, is not set"
            )));
        };
        let port = |name: &str| -> Result<Option<u16>> {
            let Some(number) = number(name)? else { return Ok(None) };
            let port = u16::try_from(number).ok().filter(|port| *port > 0);
            port.map(Some).ok_or_else(|| start(format!("{name} is {number}, not a port")))
        };
        // torchrun's own store listens on the port that it names; ours is the next.
        let taken = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        let port = match (port("KILN_PORT")?, port("MASTER_PORT")?.unwrap_or(PORT)) {
            (Some(port), _) => port,
            (None, port) if taken => port.checked_add(1).unwrap_or(PORT),
            (None, port) => port,
        };
        let bind = match get("KILN_BIND") {
            Some(text) => Some(bind_address(&text)?),
            None => None,
        };
        let seconds = |name: &str, usual: Duration| -> Result<Duration> {
            let Some(text) = get(name) else { return Ok(usual) };
            let parsed = text.parse::<f64>().ok().filter(|seconds| (0.1..=1e9).contains(seconds));
            let parsed = parsed.map(Duration::from_secs_f64);
            parsed.ok_or_else(|| start(format!("{name} is {text:?}, not seconds from 0.1")))
        };
        let usual = Timeouts::default();
        let timeouts = Timeouts {
            join: seconds("KILN_JOIN_TIMEOUT", usual.join)?,
            silence: seconds("KILN_TIMEOUT", usual.silence)?,
            slow: seconds("KILN_SLOW_TIMEOUT", usual.slow)?,
            busy: seconds("KILN_BUSY_TIMEOUT", usual.busy)?,
        };
        Ok(Some(Self {
            local_rank: local.unwrap_or(0),
            host: host.into(),
            bind,
            advertise: get("KILN_ADVERTISE"),
            timeouts,
            ..Self::new(rank, world, &master, port, secret(get)?)
        }))
    }

    /// Whether this is rank 0.
    pub fn is_main(&self) -> bool {
        self.rank == 0
    }

    /// The addresses of rank 0.
    pub(crate) fn master_addresses(&self) -> Result<Vec<SocketAddr>> {
        let found = (self.master.as_str(), self.port).to_socket_addrs();
        let found: Vec<SocketAddr> = match found {
            Ok(found) => found.collect(),
            Err(error) => {
                return Err(start(format!("MASTER_ADDR {:?} is no host: {error}", self.master)));
            }
        };
        Ok(found)
    }
}

/// The secret of `KILN_SECRET`, or of the file that `KILN_SECRET_FILE` names.
fn secret(get: impl Fn(&str) -> Option<String>) -> Result<Secret> {
    if let Some(text) = get("KILN_SECRET") {
        return Secret::new(text.trim()).map_err(|error| start(format!("KILN_SECRET: {error}")));
    }
    let Some(path) = get("KILN_SECRET_FILE") else {
        return Err(start(
            "KILN_SECRET is not set: processes prove by it that they belong together; give all the same, such as what \
             `openssl rand -hex 32` prints, or name a file that holds it in KILN_SECRET_FILE",
        ));
    };
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|error| start(format!("KILN_SECRET_FILE: {path}: {error}")))?;
    Secret::new(text.trim()).map_err(|error| start(format!("KILN_SECRET_FILE: {path}: {error}")))
}

/// `10.0.0.7`, `10.0.0.7:4000`, `[fe80::1]:4000`.
fn bind_address(text: &str) -> Result<SocketAddr> {
    let bare = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 0));
    let wrong = || {
        start(format!("KILN_BIND is {text:?}, not an address of this host, with a port or without"))
    };
    bare.or_else(|_| text.parse::<SocketAddr>()).map_err(|_| wrong())
}

pub(crate) fn start(line: impl Into<String>) -> Error {
    Error::Start(line.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Option<Launch>> {
        let find = |name: &str| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.to_string())
        };
        Launch::from_environment("here", find)
    }

    const SECRET: (&str, &str) = ("KILN_SECRET", "0123456789abcdef");

    #[test]
    fn launchers_are_understood() {
        assert_eq!(of(&[]).unwrap(), None);
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap(), None);
        // An allocation of SLURM's alone is no job of several processes.
        assert_eq!(of(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]).unwrap(), None);
        let torchrun = [
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "1234"),
            SECRET,
        ];
        let launch = of(&torchrun).unwrap().unwrap();
        assert_eq!((launch.rank, launch.world, launch.local_rank), (3, 4, 1));
        assert_eq!((launch.master.as_str(), launch.port, launch.bind), ("node0", 1234, None));
        let with = |more: &[(&str, &str)]| of(&[&torchrun[..], more].concat()).unwrap().unwrap();
        assert_eq!(with(&[("TORCHELASTIC_USE_AGENT_STORE", "True")]).port, 1235);
        assert_eq!(with(&[("KILN_PORT", "77")]).port, 77);
        assert_eq!(launch.timeouts, Timeouts::default());
        let bound = with(&[("KILN_BIND", "10.0.0.7"), ("KILN_TIMEOUT", "2.5")]);
        assert_eq!(bound.bind, Some(([10, 0, 0, 7], 0).into()));
        assert_eq!(bound.timeouts.silence, Duration::from_millis(2500));
        let patient = with(&[("KILN_SLOW_TIMEOUT", "60"), ("KILN_BUSY_TIMEOUT", "86400")]).timeouts;
        assert_eq!((patient.slow.as_secs(), patient.busy.as_secs()), (60, 86_400));
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("MASTER_ADDR", "n"), SECRET];
        let launch = of(&slurm).unwrap().unwrap();
        assert_eq!((launch.rank, launch.world, launch.port), (1, 2, PORT));
    }

    #[test]
    fn what_does_not_fit_is_one_line() {
        let wrong = |pairs: &[(&str, &str)], said: &str| {
            let error = of(pairs).unwrap_err().to_string();
            assert!(error.contains(said) && error.lines().count() == 1, "{error}");
        };
        let two = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "n")];
        wrong(&two[..1], "WORLD_SIZE is not");
        wrong(&two[1..2], "RANK is not");
        wrong(&[("RANK", "2"), two[1]], "ranks count from 0");
        wrong(&[("RANK", "x"), two[1]], "not a number");
        wrong(&two[..2], "MASTER_ADDR");
        wrong(&two, "KILN_SECRET is not set");
        wrong(&[&two[..], &[("KILN_SECRET", "short")]].concat(), "needs 16");
        wrong(&[&two[..], &[("KILN_SECRET_FILE", "/no/such")]].concat(), "/no/such");
        wrong(&[&two[..], &[SECRET, ("KILN_BIND", "eth0")]].concat(), "KILN_BIND");
        wrong(&[&two[..], &[SECRET, ("MASTER_PORT", "70000")]].concat(), "not a port");
        wrong(&[&two[..], &[SECRET, ("KILN_TIMEOUT", "never")]].concat(), "KILN_TIMEOUT");
        wrong(&[&two[..], &[SECRET, ("KILN_BUSY_TIMEOUT", "0")]].concat(), "KILN_BUSY_TIMEOUT");
        assert_eq!(format!("{:?}", Secret::new("0123456789abcdef").unwrap()), "Secret");
    }
}
