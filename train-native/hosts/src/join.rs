//! How the ranks find one another: each calls rank 0, which compares what they were started for and says where all
//! are; then each calls the next. Nothing listens once the ring is closed.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::frame::{Broken, Deadline, Patience, prepare, receive, send_message};
use crate::handshake::{Refusal, call, serve};
use crate::launch::{Launch, start};
use crate::watch::{Link, Watch};
use crate::{Error, Result};

const JOIN: u8 = 10;
const TABLE: u8 = 11;
const REFUSED: u8 = 12;
const HELLO: u8 = 13;

/// How long a handshake may take, whoever calls.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Strangers that are listened to at once.
const CALLERS: usize = 64;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// What all ranks have to agree on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Kiln's version.
    pub version: String,
    /// A hash of the recipe and whatever else decides what is computed.
    pub recipe: String,
}

/// What a rank says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Member {
    rank: usize,
    world: usize,
    host: String,
    /// Where the rank before it finds it.
    address: String,
    terms: Terms,
}

/// What rank 0 says when all have come.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Table {
    /// Says that two processes are of the same start.
    session: String,
    members: Vec<Member>,
}

/// The first words to the next rank.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    session: String,
    rank: usize,
}

/// A closed ring.
pub(crate) struct Joined {
    pub(crate) watch: Arc<Watch>,
    pub(crate) threads: Vec<JoinHandle<()>>,
    pub(crate) next: TcpStream,
    pub(crate) previous: TcpStream,
}

/// What a rank needs while it looks for the others.
struct Search<'a> {
    launch: &'a Launch,
    terms: &'a Terms,
    note: &'a (dyn Fn(&str) + Sync),
    stops: &'a (dyn Fn() -> bool + Sync),
    deadline: Instant,
}

/// Those who call, and are listened to until they have said who they are.
#[derive(Default)]
struct Callers {
    count: AtomicUsize,
    /// Nobody is waited for any more.
    over: AtomicBool,
}

/// The place of one of them.
struct Place<'a>(&'a Callers);

impl Callers {
    /// A place, unless all are taken.
    fn place(&self) -> Option<Place<'_>> {
        let place = Place(self);
        (self.count.fetch_add(1, Ordering::SeqCst) < CALLERS).then_some(place)
    }

    fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// With one of them, until it takes too long or nobody is waited for.
struct Hearing<'a> {
    until: Deadline,
    callers: &'a Callers,
}

impl Patience for Hearing<'_> {
    fn check(&self) -> Result<()> {
        match self.callers.over.load(Ordering::SeqCst) {
            true => Err(Error::Stopped),
            false => self.until.check(),
        }
    }
}

impl Patience for Search<'_> {
    fn check(&self) -> Result<()> {
        if (self.stops)() {
            return Err(Error::Stopped);
        }
        if Instant::now() >= self.deadline {
            return Err(self.too_late("the others have not come"));
        }
        Ok(())
    }
}

/// Finds the other ranks and closes the ring.
pub(crate) fn join(
    launch: &Launch,
    terms: &Terms,
    note: &(dyn Fn(&str) + Sync),
    stops: &(dyn Fn() -> bool + Sync),
) -> Result<Joined> {
    let deadline = Instant::now() + launch.timeouts.join;
    Search { launch, terms, note, stops, deadline }.join()
}

impl Search<'_> {
    fn join(&self) -> Result<Joined> {
        let (links, table, listener) = match self.launch.is_main() {
            true => self.wait_for_all()?,
            false => self.call_main()?,
        };
        let hosts = table.members.iter().map(|member| member.host.clone()).collect();
        let watch = Arc::new(Watch::new(self.launch.rank, hosts, self.launch.timeouts, links));
        let threads = watch.begin();
        let closed = self.close_ring(&table, &listener, &watch);
        let ended = |error: Error| {
            // The others are told which of them was stopped.
            let error = match error {
                Error::Stopped => {
                    watch.judge(start(self.was_stopped()));
                    Error::Stopped
                }
                error => watch.judge(error),
            };
            watch.depart("it could not reach the others");
            error
        };
        match closed {
            Ok((next, previous)) => {
                let shut = [&next, &previous].map(TcpStream::try_clone);
                let shut = shut.into_iter().collect::<std::io::Result<Vec<_>>>();
                let shut =
                    shut.map_err(|error| ended(start(format!("a connection failed: {error}"))))?;
                watch.guard_ring(shut);
                // A verdict that came before has not shut them.
                if let Some(error) = watch.verdict() {
                    return Err(ended(error));
                }
                Ok(Joined { watch, threads, next, previous })
            }
            Err(error) => Err(ended(error)),
        }
    }

    fn too_late(&self, what: &str) -> Error {
        start(format!(
            "{what} within {:.0} s (KILN_JOIN_TIMEOUT)",
            self.launch.timeouts.join.as_secs_f64()
        ))
    }

    fn handshake_deadline(&self) -> Deadline {
        let until =
            (Instant::now() + HANDSHAKE).min(self.deadline.max(Instant::now() + HANDSHAKE / 10));
        let seconds = HANDSHAKE.as_secs_f64();
        Deadline(until, start(format!("has not said within {seconds:.0} s who it is")))
    }

    fn was_stopped(&self) -> String {
        format!("rank {} ({}) was asked to stop", self.launch.rank, self.launch.host)
    }

    /// What this rank says of itself.
    fn member(&self, address: String) -> Member {
        let Launch { rank, world, ref host, .. } = *self.launch;
        Member { rank, world, host: host.clone(), address, terms: self.terms.clone() }
    }

    /// Listens for the rank before this one, on an address that others may know under another name.
    fn listen(&self, usual: IpAddr) -> Result<(TcpListener, String)> {
        let bind = self.launch.bind.unwrap_or(SocketAddr::new(usual, 0));
        let listener = TcpListener::bind(bind).map_err(|error| {
            start(format!(
                "cannot listen on {bind}: {error}; KILN_BIND names an address of this host"
            ))
        })?;
        let bound = listener.local_addr();
        let mut bound =
            bound.map_err(|error| start(format!("cannot listen on {bind}: {error}")))?;
        if bound.ip().is_unspecified() {
            bound.set_ip(usual);
        }
        let address = match &self.launch.advertise {
            Some(text) => match text.parse::<IpAddr>() {
                Ok(ip) => SocketAddr::new(ip, bound.port()).to_string(),
                Err(_) if text.contains(':') => text.clone(),
                Err(_) => format!("{text}:{}", bound.port()),
            },
            None => bound.to_string(),
        };
        Ok((listener, address))
    }

    // ------------------------------------------------------------------------------------ rank 0

    /// Where rank 0 listens for the others.
    fn main_listener(&self) -> Result<TcpListener> {
        let Launch { master, port, bind, .. } = self.launch;
        let mut noted = false;
        let addresses = loop {
            if let Some(bind) = bind {
                break vec![SocketAddr::new(bind.ip(), *port)];
            }
            match self.launch.master_addresses() {
                Ok(addresses) => break addresses,
                // Where names are given out as processes start, its own may come a little later.
                Err(error) => match self.check() {
                    Ok(()) if !std::mem::replace(&mut noted, true) => {
                        (self.note)(&format!("{error}; waiting for it"));
                    }
                    Ok(()) => {}
                    Err(Error::Stopped) => return Err(Error::Stopped),
                    Err(_) => return Err(error),
                },
            }
            std::thread::sleep(10 * PAUSE);
        };
        TcpListener::bind(&addresses[..]).map_err(|error| {
            start(format!(
                "rank 0 cannot listen on {master}:{port}: {error}; MASTER_ADDR has to be an address of rank 0's host (or \
                 name one in KILN_BIND), and MASTER_PORT free (or name one in KILN_PORT on all hosts)"
            ))
        })
    }

    /// Waits for all others, and tells them where all are.
    fn wait_for_all(&self) -> Result<(Vec<Link>, Table, TcpListener)> {
        let listener = self.main_listener()?;
        let address = listener.local_addr();
        let address = address.map_err(|error| start(format!("rank 0 cannot listen: {error}")))?;
        let usual = match address.ip() {
            ip if ip.is_unspecified() => self.own_address(),
            ip => ip,
        };
        let (ring, own) = self.listen(usual)?;
        let found = self.gather(&listener);
        let refuse = |come: &BTreeMap<usize, Caller>, error: &Error| {
            for caller in come.values() {
                let deadline = self.handshake_deadline();
                let _ =
                    send_message(&caller.stream, REFUSED, error.to_string().as_bytes(), &deadline);
            }
        };
        let (come, wrong) = found;
        if let Some(error) = wrong {
            match &error {
                Error::Stopped => refuse(&come, &start(self.was_stopped())),
                error => refuse(&come, error),
            }
            return Err(error);
        }
        let session = session()?;
        let mut members = vec![self.member(own)];
        members.extend(come.values().map(|caller| caller.member.clone()));
        let table = Table { session, members };
        let text = serde_json::to_vec(&table).map_err(|error| start(error.to_string()))?;
        let mut links = Vec::new();
        for (rank, caller) in come {
            let sent = send_message(&caller.stream, TABLE, &text, &self.handshake_deadline());
            if sent.is_err() {
                return Err(start(format!(
                    "rank {rank} ({}) went away before all had come",
                    caller.member.host
                )));
            }
            links.push(Link::new(rank, caller.stream));
        }
        Ok((links, table, ring))
    }

    /// The others by rank, and what is wrong with them or with the last that came.
    fn gather(&self, listener: &TcpListener) -> (BTreeMap<usize, Caller>, Option<Error>) {
        let mut come = BTreeMap::new();
        if let Err(error) = listener.set_nonblocking(true) {
            return (come, Some(start(format!("rank 0 cannot listen: {error}"))));
        }
        let unheard = self.heard_here_alone(listener);
        let (tell, told) = mpsc::channel();
        let (callers, refused) = (Callers::default(), Mutex::new(None));
        let wrong = std::thread::scope(|scope| -> Option<Error> {
            let mut noted = 0;
            let wrong = loop {
                let called = listener.accept();
                let waits = called.is_err();
                // Where all places are taken, one more is hung up on.
                if let (Ok((stream, from)), Some(place)) = (called, callers.place()) {
                    let (tell, refused) = (tell.clone(), &refused);
                    scope.spawn(move || {
                        match self.hear(stream, &place) {
                            // Nobody is told where all have come.
                            Ok(caller) => drop(tell.send(caller)),
                            Err(refusal) => {
                                let why = format!("{} {}", from.ip(), said_of(&refusal));
                                if !matches!(refusal, Refusal::Stranger | Refusal::Broken(_)) {
                                    (self.note)(&format!("refused {why}"));
                                }
                                *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                            }
                        }
                    });
                }
                let mut admitted = told.try_iter().map(|caller| self.admit(&mut come, caller));
                if let Some(error) = admitted.find_map(Result::err) {
                    break Some(error);
                }
                // One that was stopped while it waited may be started again.
                come.retain(|_, caller: &mut Caller| caller.is_there());
                let missing: Vec<String> = (1..self.launch.world)
                    .filter(|rank| !come.contains_key(rank))
                    .map(|rank| rank.to_string())
                    .collect();
                if missing.is_empty() {
                    break None;
                }
                if noted != missing.len() {
                    noted = missing.len();
                    (self.note)(&format!("waiting for rank {}{unheard}", listed(&missing)));
                }
                if let Err(error) = self.check() {
                    let Error::Start(_) = error else { break Some(error) };
                    let last = refused.lock().unwrap_or_else(PoisonError::into_inner).take();
                    let last = last
                        .map_or(String::new(), |why| format!("; the last that was refused: {why}"));
                    let late = self.too_late(&format!("rank {} has not come", listed(&missing)));
                    break Some(start(format!("{late}{unheard}{last}")));
                }
                if waits {
                    std::thread::sleep(PAUSE);
                }
            };
            callers.end();
            wrong
        });
        (come, wrong)
    }

    /// What to say where rank 0 listens on an address that only its own host reaches, as many a host's own name leads to.
    fn heard_here_alone(&self, listener: &TcpListener) -> String {
        let master = &self.launch.master;
        let meant = master == "localhost" || master.parse::<IpAddr>().is_ok();
        match listener.local_addr() {
            Ok(address) if address.ip().is_loopback() && !meant => format!(
                ": {master} is {} here, which only this host reaches; KILN_BIND names another address",
                address.ip()
            ),
            _ => String::new(),
        }
    }

    /// A caller that knows the secret, and what it says of itself.
    fn hear(&self, stream: TcpStream, place: &Place<'_>) -> Result<Caller, Refusal> {
        let member = self.first_words(&stream, JOIN, place)?;
        Ok(Caller { stream, member })
    }

    /// The first message of one that knows the secret.
    fn first_words<T: serde::de::DeserializeOwned>(
        &self,
        stream: &TcpStream,
        kind: u8,
        place: &Place<'_>,
    ) -> Result<T, Refusal> {
        let hearing = Hearing { until: self.handshake_deadline(), callers: place.0 };
        prepare(stream).map_err(Broken::Closed)?;
        serve(stream, &self.launch.secret, self.launch.protocol, &hearing)?;
        message(stream, kind, &hearing)
    }

    /// Takes a caller in, or says why all have to stop: it knows the secret, so that it is one of ours.
    fn admit(&self, come: &mut BTreeMap<usize, Caller>, caller: Caller) -> Result<()> {
        let Member { rank, world, host, terms, .. } = &caller.member;
        let who = format!("rank {rank} ({host})");
        let main = format!("rank 0 ({})", self.launch.host);
        let wrong = if *world != self.launch.world {
            Some(format!(
                "{who} was started as one of {world}, and {main} as one of {}; give all the same WORLD_SIZE",
                self.launch.world
            ))
        } else if *rank == 0 || *rank >= *world {
            Some(format!("{host} came as rank {rank} of {world}, which is not one that is missing"))
        } else if terms.version != self.terms.version {
            Some(format!(
                "{who} runs Kiln {}, and {main} Kiln {}; install the same on all hosts",
                terms.version, self.terms.version
            ))
        } else if terms.recipe != self.terms.recipe {
            Some(format!(
                "{who} trains by another recipe than {main}; give all the same --recipe, --set and --checkpoint-every"
            ))
        } else {
            match come.get(rank) {
                Some(first) if first.is_there() => Some(format!(
                    "two processes came as rank {rank}, of {} and {host}; give each its own RANK",
                    first.member.host
                )),
                _ => None,
            }
        };
        let Some(line) = wrong else {
            come.insert(*rank, caller);
            return Ok(());
        };
        let deadline = self.handshake_deadline();
        let _ = send_message(&caller.stream, REFUSED, line.as_bytes(), &deadline);
        Err(start(line))
    }

    /// An address of this host, where it listens on all.
    fn own_address(&self) -> IpAddr {
        let addresses = self.launch.master_addresses().unwrap_or_default();
        addresses.first().map_or(Ipv4Addr::LOCALHOST.into(), SocketAddr::ip)
    }

    // ------------------------------------------------------------------------------- other ranks

    /// Calls rank 0 until it answers, and waits until all have come.
    fn call_main(&self) -> Result<(Vec<Link>, Table, TcpListener)> {
        let Launch { master, port, .. } = self.launch;
        let main = format!("rank 0 ({master}:{port})");
        let (mut noted, mut pause) = (false, PAUSE);
        let stream = loop {
            // Where names are given out as processes start, that of rank 0 may come later.
            let found = self.launch.master_addresses();
            let found = found.map_err(|error| Refusal::Broken(Broken::Ended(error)));
            let failed = match found.and_then(|addresses| self.call(&addresses)) {
                Ok(stream) => break stream,
                Err(Refusal::Secret) => {
                    return Err(start(format!(
                        "{main} has another secret than this host ({}); give all the same KILN_SECRET",
                        self.launch.host
                    )));
                }
                Err(Refusal::Version(theirs)) => {
                    return Err(start(format!(
                        "{main} speaks version {theirs} of what ranks say, and this host ({}) version {}; install the \
                         same Kiln on all hosts",
                        self.launch.host, self.launch.protocol
                    )));
                }
                Err(Refusal::Stranger) => "what listens there is no Kiln that trains".to_string(),
                Err(Refusal::Broken(Broken::Ended(Error::Stopped))) => return Err(Error::Stopped),
                Err(Refusal::Broken(broken)) => said_of(&Refusal::Broken(broken)),
            };
            if let Err(error) = self.check() {
                let Error::Start(_) = error else { return Err(error) };
                let late = self.too_late(&format!("{main} has not answered"));
                return Err(start(format!("{late}: {failed}")));
            }
            if !std::mem::replace(&mut noted, true) {
                (self.note)(&format!("waiting for {main}: {failed}"));
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(10 * PAUSE);
        };
        let local = stream.local_addr();
        let local = local.map_err(|error| start(format!("{main}: {error}")))?.ip();
        let (listener, address) = self.listen(local)?;
        let gone = |broken: Broken| match broken {
            Broken::Ended(error) => error,
            broken => start(format!(
                "{main} went away before all had come ({})",
                said_of(&Refusal::Broken(broken))
            )),
        };
        let member = serde_json::to_vec(&self.member(address));
        let member = member.map_err(|error| start(error.to_string()))?;
        send_message(&stream, JOIN, &member, self).map_err(gone)?;
        let mut answer = Vec::new();
        let header = receive(&stream, &mut answer, self).map_err(gone)?;
        let text = String::from_utf8_lossy(&answer);
        match header.kind {
            TABLE => {
                let table = serde_json::from_slice(&answer);
                let table = table.map_err(|error| start(format!("{main}: {error}")))?;
                Ok((vec![Link::new(0, stream)], table, listener))
            }
            REFUSED => Err(start(text.into_owned())),
            kind => Err(start(format!("{main} sent a message of kind {kind}"))),
        }
    }

    /// A connection to one of some addresses, on which both sides have proved that they know the secret.
    fn call(&self, addresses: &[SocketAddr]) -> Result<TcpStream, Refusal> {
        let mut last = std::io::Error::other("no address");
        for address in addresses {
            match TcpStream::connect_timeout(address, HANDSHAKE / 2) {
                Ok(stream) => {
                    prepare(&stream).map_err(Broken::Closed)?;
                    let deadline = self.handshake_deadline();
                    call(&stream, &self.launch.secret, self.launch.protocol, &deadline)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(Refusal::Broken(Broken::Closed(last)))
    }

    // ---------------------------------------------------------------------------------- the ring

    /// Calls the next rank, and is called by the one before.
    fn close_ring(
        &self,
        table: &Table,
        listener: &TcpListener,
        watch: &Watch,
    ) -> Result<(TcpStream, TcpStream)> {
        let world = table.members.len();
        let next = (self.launch.rank + 1) % world;
        let before = (self.launch.rank + world - 1) % world;
        // Data may take longer than the first words, but hosts that all called rank 0 are there.
        let deadline =
            Instant::now() + self.launch.timeouts.join.min(3 * self.launch.timeouts.silence);
        let goes_on = |what: &str| -> Result<()> {
            if let Some(error) = watch.verdict() {
                return Err(error);
            }
            if (self.stops)() {
                return Err(Error::Stopped);
            }
            if Instant::now() > deadline {
                let me = watch.name(self.launch.rank);
                return Err(start(format!(
                    "{me} {what} within {:.0} s",
                    self.launch.timeouts.join.min(3 * self.launch.timeouts.silence).as_secs_f64()
                )));
            }
            Ok(())
        };
        let callers = Callers::default();
        let callers = &callers;
        std::thread::scope(|scope| {
            let called = scope.spawn(|| -> Result<TcpStream> {
                let address = &table.members[next].address;
                let who = watch.name(next);
                let found = || -> Result<TcpStream, Refusal> {
                    let addresses = address.to_socket_addrs().map_err(Broken::Closed)?;
                    let stream = self.call(&addresses.collect::<Vec<_>>())?;
                    let hello = Hello { session: table.session.clone(), rank: self.launch.rank };
                    let hello = serde_json::to_vec(&hello)
                        .map_err(|error| Broken::Damaged(error.to_string()))?;
                    send_message(&stream, HELLO, &hello, &self.handshake_deadline())?;
                    Ok(stream)
                };
                loop {
                    match found() {
                        Ok(stream) => return Ok(stream),
                        Err(refusal) => goes_on(&format!(
                            "has not reached {who} at {address} ({})",
                            said_of(&refusal)
                        ))?,
                    }
                    std::thread::sleep(5 * PAUSE);
                }
            });
            let accepted = || -> Result<TcpStream> {
                let cannot = |error| start(format!("cannot listen: {error}"));
                listener.set_nonblocking(true).map_err(cannot)?;
                let (tell, told) = mpsc::channel();
                loop {
                    let called = listener.accept();
                    let waits = called.is_err();
                    if let (Ok((stream, _)), Some(place)) = (called, callers.place()) {
                        let tell = tell.clone();
                        scope.spawn(move || {
                            // Whoever else calls is not answered.
                            if let Ok(stream) = self.hear_before(stream, table, before, &place) {
                                let _ = tell.send(stream);
                            }
                        });
                    }
                    if let Ok(stream) = told.try_recv() {
                        return Ok(stream);
                    }
                    goes_on(&format!("has not been called by {}", watch.name(before)))?;
                    if waits {
                        std::thread::sleep(PAUSE);
                    }
                }
            };
            let accepted = accepted();
            callers.end();
            let called = called.join().unwrap_or_else(|_| Err(start("a thread ended early")));
            Ok((called?, accepted?))
        })
    }

    /// The rank before this one.
    fn hear_before(
        &self,
        stream: TcpStream,
        table: &Table,
        before: usize,
        place: &Place<'_>,
    ) -> Result<TcpStream, Refusal> {
        let hello: Hello = self.first_words(&stream, HELLO, place)?;
        match hello.session == table.session && hello.rank == before {
            true => Ok(stream),
            false => Err(Refusal::Stranger),
        }
    }
}

/// A rank that has come.
struct Caller {
    stream: TcpStream,
    member: Member,
}

impl Caller {
    /// Whether it is still there.
    fn is_there(&self) -> bool {
        let looked = self.stream.set_nonblocking(true).and_then(|()| self.stream.peek(&mut [0]));
        let there = match looked {
            // A rank that waits says nothing.
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            Ok(count) => count > 0,
        };
        there && self.stream.set_nonblocking(false).is_ok()
    }
}

/// A message of one kind.
fn message<T: serde::de::DeserializeOwned>(
    stream: &TcpStream,
    kind: u8,
    patience: &dyn Patience,
) -> Result<T, Refusal> {
    let mut payload = Vec::new();
    let header = receive(stream, &mut payload, patience)?;
    if header.kind != kind {
        return Err(Refusal::Stranger);
    }
    serde_json::from_slice(&payload).map_err(|_| Refusal::Stranger)
}

/// A random name of a start.
fn session() -> Result<String> {
    use ring::rand::SecureRandom as _;
    let mut bytes = [0; 16];
    let filled = ring::rand::SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| start("the system has no random numbers"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// `1`, `1 and 3`, `1, 2 and 3`.
fn listed(numbers: &[String]) -> String {
    match numbers {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn said_of(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Stranger => "is no Kiln that trains".into(),
        Refusal::Secret => "has another KILN_SECRET".into(),
        Refusal::Version(version) => format!("speaks version {version} of what ranks say"),
        Refusal::Broken(Broken::Closed(error)) => format!("broke off: {error}"),
        Refusal::Broken(Broken::Damaged(what)) => format!("sent {what}"),
        Refusal::Broken(Broken::Unexpected) => "sent what was not expected".into(),
        Refusal::Broken(Broken::Ended(error)) => error.to_string(),
    }
}
