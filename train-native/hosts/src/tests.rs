//! Ranks in threads on loopback, and what may stand between them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use proxy::Harm;

use crate::{Ended, Error, Format, Launch, Result, Ring, Secret, Terms, Timeouts};

#[path = "../../../tests/harness/proxy.rs"]
mod proxy;

/// What goes to a port of this machine, harmed after so many bytes.
fn proxied(port: u16, harm: Harm, after: usize) -> SocketAddr {
    proxy::proxy("127.0.0.1:0", ([127, 0, 0, 1], port).into(), harm, after).unwrap()
}

/// A port below those that systems hand out, so that no other connection takes it meanwhile.
fn free_port() -> u16 {
    // Each test is a process of its own, and some take a dozen.
    let first = 10_000 + (std::process::id() % 250) as u16 * 40;
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    static USED: AtomicU16 = AtomicU16::new(0);
    let used = USED.fetch_add(1, Ordering::SeqCst);
    (first + used..20_000).find(free).unwrap()
}

fn terms() -> Terms {
    Terms { version: "1".into(), recipe: "r".into() }
}

/// Ranks that wait seconds, not minutes.
fn launches(world: usize) -> Vec<Launch> {
    let port = free_port();
    let seconds = Duration::from_secs_f64;
    (0..world)
        .map(|rank| {
            let secret = Secret::new("0123456789abcdef").unwrap();
            let mut launch = Launch::new(rank, world, "127.0.0.1", port, secret);
            launch.host = format!("host{rank}");
            launch.timeouts = Timeouts {
                join: seconds(20.0),
                silence: seconds(3.0),
                slow: seconds(4.0),
                busy: seconds(60.0),
            };
            launch
        })
        .collect()
}

fn join(launch: &Launch, terms: &Terms) -> Result<Ring> {
    Ring::join(launch, terms, &|_| (), &|| false)
}

/// Runs a function on each rank, and returns what each gave.
fn run<T: Send>(launches: &[Launch], run: impl Fn(Ring) -> T + Sync) -> Vec<Result<T>> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = launches
            .iter()
            .map(|launch| scope.spawn(|| join(launch, &terms()).map(&run)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn values(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + rank * 13) % 101) as f32 * 0.37 - 11.0).collect()
}

#[test]
fn sums_are_right_the_same_on_all_ranks_and_the_same_again() {
    for world in [2, 3, 5] {
        let once = || {
            run(&launches(world), |ring| {
                let mut results = Vec::new();
                for (format, most) in [(Format::F32, 1e-6), (Format::Bf16, 0.02)] {
                    for count in [0, 1, world - 1, 1000, 700_001] {
                        let mut sum = values(ring.rank(), count);
                        ring.all_reduce(&mut sum, format).unwrap();
                        let all: Vec<Vec<f32>> =
                            (0..world).map(|rank| values(rank, count)).collect();
                        for (i, sum) in sum.iter().enumerate() {
                            let exact: f64 = all.iter().map(|of| f64::from(of[i])).sum();
                            let size: f64 = all.iter().map(|of| f64::from(of[i]).abs()).sum();
                            let far = (f64::from(*sum) - exact).abs() / size.max(1e-9);
                            assert!(far < most, "{world} {format:?} {count}: {sum} {exact}");
                        }
                        results.push(sum);
                    }
                }
                ring.leave().unwrap();
                results
            })
        };
        let first: Vec<_> = once().into_iter().map(Result::unwrap).collect();
        assert!(first.iter().all(|rank| *rank == first[0]));
        let again: Vec<_> = once().into_iter().map(Result::unwrap).collect();
        assert_eq!(first, again);
    }
}

#[test]
fn gathers_exchanges_and_passes_on() {
    for world in [2, 3] {
        let done = run(&launches(world), |ring| {
            let lengths: Vec<usize> = (0..world).map(|rank| rank * 300_000).collect();
            let all =
                ring.all_gather(&values(ring.rank(), lengths[ring.rank()]), &lengths).unwrap();
            let expected: Vec<f32> = lengths
                .iter()
                .enumerate()
                .flat_map(|(rank, length)| values(rank, *length))
                .collect();
            assert_eq!(all, expected);
            let bytes = |rank: usize| vec![rank as u8; rank * 1_500_000 + 3];
            let all = ring.all_gather_bytes(&bytes(ring.rank())).unwrap();
            assert_eq!(all, (0..world).map(bytes).collect::<Vec<_>>());
            let long: Vec<u8> = (0..5_000_001u32).map(|i| (i % 251) as u8).collect();
            let own = if ring.is_main() { long.clone() } else { Vec::new() };
            assert!(ring.broadcast(own).unwrap() == long);
            assert!(ring.broadcast(Vec::new()).unwrap().is_empty());
            assert_eq!(ring.name(1), "rank 1 (host1)");
            ring.leave().unwrap();
        });
        done.into_iter().for_each(|rank| rank.unwrap());
    }
}

/// A rank that falls silent in one way or another, and what the others say.
fn lost(world: usize, victim: usize, end: impl Fn(Ring) + Sync) -> Vec<String> {
    let said = run(&launches(world), |ring| {
        let mut sum = values(ring.rank(), 100_000);
        if ring.rank() == victim {
            // The others may hear of its end before they have the sum.
            ring.all_reduce(&mut sum, Format::F32).unwrap();
            end(ring);
            return String::new();
        }
        let begun = Instant::now();
        let error = loop {
            if let Err(error) = ring.all_reduce(&mut sum, Format::F32) {
                break error;
            }
        };
        assert!(matches!(error, Error::Lost(_)), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        error.to_string()
    });
    said.into_iter().map(|said| said.unwrap()).filter(|said| !said.is_empty()).collect()
}

#[test]
fn a_rank_that_fails_is_named_with_its_reason() {
    for (world, victim) in [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)] {
        for said in lost(world, victim, |ring| ring.fail("the disk is full")) {
            assert_eq!(said, format!("rank {victim} (host{victim}) has failed: the disk is full"));
        }
        for said in lost(world, victim, drop) {
            assert_eq!(said, format!("rank {victim} (host{victim}) has failed: it ended early"));
        }
    }
}

#[test]
fn a_rank_that_is_slow_is_named_and_one_that_is_busy_is_waited_for() {
    let slow = |victim: usize| {
        for said in lost(3, victim, |ring| {
            std::thread::sleep(Duration::from_secs(7));
            drop(ring);
        }) {
            let expected = format!(
                "rank {victim} (host{victim}) is slow: the others have waited for it for 4 s"
            );
            assert_eq!(said, expected);
        }
    };
    let busy = || {
        let done = run(&launches(2), |ring| {
            if ring.is_main() {
                let _busy = ring.busy();
                std::thread::sleep(Duration::from_secs(6));
            }
            ring.barrier().unwrap();
            // All go on for a while, which nobody takes for more of the same.
            std::thread::sleep(Duration::from_secs(1));
            ring.barrier().unwrap();
            ring.leave().unwrap();
        });
        done.into_iter().for_each(|rank| rank.unwrap());
    };
    std::thread::scope(|scope| {
        scope.spawn(|| slow(0));
        scope.spawn(|| slow(1));
        scope.spawn(busy);
    });
}

#[test]
fn a_rank_that_is_busy_for_ever_is_named() {
    let stuck = |victim: usize| {
        let mut launches = launches(3);
        for launch in &mut launches {
            launch.timeouts.busy = Duration::from_secs(5);
        }
        let begun = Instant::now();
        let said = run(&launches, |ring| {
            if ring.rank() != victim {
                return ring.barrier().unwrap_err().to_string();
            }
            // As on a mount that hangs, until somebody ends the process: it may be rank 0 itself, which judges.
            let _busy = ring.busy();
            let ends = ring.ends();
            while !ends.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(20));
            }
            ring.barrier().unwrap_err().to_string()
        });
        for said in said.into_iter().map(Result::unwrap) {
            let name =
                format!("rank {victim} (host{victim}) has loaded, evaluated or saved for 5 s");
            assert!(said.starts_with(&name) && said.contains("KILN_BUSY_TIMEOUT"), "{said}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| stuck(0));
        scope.spawn(|| stuck(2));
    });
}

#[test]
fn what_goes_another_way_ends_with_a_lost_rank() {
    let each = |ends: fn(&Ring) -> Result<(), Ended>| {
        let said = run(&launches(3), |ring| {
            assert_eq!(ring.outside(false, |_| Ok(ring.rank())).unwrap(), ring.rank());
            // For longer than data may stand still.
            let leisurely = ring.outside(true, |lost| {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_secs(6) && !lost() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(())
            });
            leisurely.unwrap();
            let begun = Instant::now();
            let done = ring.outside(false, |lost| {
                if ring.rank() == 1 {
                    return ends(&ring);
                }
                while !lost() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(Ended::Elsewhere("given up".into()))
            });
            (done.unwrap_err().to_string(), begun.elapsed())
        });
        said.into_iter().map(|said| said.unwrap()).collect::<Vec<_>>()
    };
    let lines = |said: &[(String, Duration)]| -> Vec<String> {
        said.iter().map(|(line, _)| line.clone()).collect()
    };
    let words = "rank 1 (host1): its GPU is gone";
    let said = each(|_| Err(Ended::Here("its GPU is gone".into())));
    assert_eq!(lines(&said), [words; 3]);
    assert!(said.iter().all(|(_, after)| *after < Duration::from_secs(3)), "{said:?}");
    // The others may know better; where they do not, that is all there is to say.
    assert_eq!(lines(&each(|_| Err(Ended::Elsewhere("its GPU is gone".into())))), [words; 3]);
    // One that hangs there while it lives is found out as in any operation.
    for (said, _) in each(|_| {
        std::thread::sleep(Duration::from_secs(9));
        Err(Ended::Here("too late".into()))
    }) {
        assert!(said.ends_with("the network between them stands still"), "{said}");
    }
}

#[test]
fn another_secret_version_recipe_or_number_is_refused() {
    let both = |change: &dyn Fn(&mut Launch, &mut Terms)| {
        let mut launches = launches(2);
        let mut other = terms();
        change(&mut launches[1], &mut other);
        // One that is refused without a word does not come.
        if launches[1].secret != launches[0].secret || launches[1].protocol == 99 {
            launches[0].timeouts.join = Duration::from_secs(2);
        }
        std::thread::scope(|scope| {
            let main = scope.spawn(|| join(&launches[0], &terms()).unwrap_err().to_string());
            let said = join(&launches[1], &other).unwrap_err().to_string();
            (main.join().unwrap(), said)
        })
    };
    let (main, said) = both(&|launch, _| launch.secret = Secret::new("another secret!!").unwrap());
    assert!(said.contains("another secret than this host (host1)"), "{said}");
    assert!(main.starts_with("rank 1 has not come within 2 s"), "{main}");
    assert!(main.contains("127.0.0.1 has another KILN_SECRET"), "{main}");
    let (main, said) = both(&|launch, _| launch.protocol = 99);
    assert!(
        said.contains("speaks version 1") && said.contains("this host (host1) version 99"),
        "{said}"
    );
    assert!(main.contains("127.0.0.1 speaks version 99"), "{main}");
    let (main, said) = both(&|_, terms| terms.version = "2".into());
    assert_eq!(
        said,
        "rank 1 (host1) runs Kiln 2, and rank 0 (host0) Kiln 1; install the same on all hosts"
    );
    assert_eq!(main, said);
    let (main, said) = both(&|_, terms| terms.recipe = "s".into());
    assert!(
        said.starts_with("rank 1 (host1) trains by another recipe than rank 0 (host0)"),
        "{said}"
    );
    assert_eq!(main, said);
    let (main, said) = both(&|launch, _| launch.world = 3);
    assert!(said.contains("WORLD_SIZE"), "{said}");
    assert_eq!(main, said);
}

#[test]
fn the_same_rank_twice_is_named_and_a_restarted_one_is_taken() {
    let mut launches = launches(3);
    launches[2].rank = 1;
    let said: Vec<String> = std::thread::scope(|scope| {
        let ranks: Vec<_> = launches
            .iter()
            .map(|launch| scope.spawn(|| join(launch, &terms()).unwrap_err().to_string()))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(said.iter().all(|said| said.contains("two processes came as rank 1")), "{said:?}");

    let launches = self::launches(3);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let main = scope.spawn(|| join(&launches[0], &terms()).and_then(|ring| ring.leave()));
        let first = scope.spawn(|| {
            let stops = || stop.load(std::sync::atomic::Ordering::SeqCst);
            Ring::join(&launches[1], &terms(), &|_| (), &stops).unwrap_err()
        });
        std::thread::sleep(Duration::from_millis(700));
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(first.join().unwrap(), Error::Stopped);
        let again = scope.spawn(|| join(&launches[1], &terms()).and_then(|ring| ring.leave()));
        let last = scope.spawn(|| join(&launches[2], &terms()).and_then(|ring| ring.leave()));
        for rank in [main, again, last] {
            rank.join().unwrap().unwrap();
        }
    });
}

#[test]
fn what_strangers_send_is_let_go() {
    let launches = launches(2);
    std::thread::scope(|scope| {
        let main = scope.spawn(|| join(&launches[0], &terms()).and_then(|ring| ring.leave()));
        let mut held = Vec::new();
        for garbage in
            [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b"KILNHOST", &[], b"\x16\x03\x01"]
        {
            let mut stream = loop {
                match TcpStream::connect(("127.0.0.1", launches[0].port)) {
                    Ok(stream) => break stream,
                    Err(_) => std::thread::sleep(Duration::from_millis(20)),
                }
            };
            // It may hang up on us in the middle.
            let _ = stream.write_all(garbage);
            held.push(stream);
        }
        // Some that say nothing and stay.
        let other = scope.spawn(|| join(&launches[1], &terms()).and_then(|ring| ring.leave()));
        main.join().unwrap().unwrap();
        other.join().unwrap().unwrap();
        assert!(TcpStream::connect(("127.0.0.1", launches[0].port)).is_err(), "still listens");
    });
}

/// What ranks say when what rank 0 sends to rank 1 around the ring is harmed.
fn harmed(world: usize, harm: Harm) -> Vec<Result<()>> {
    let mut launches = launches(world);
    let port = free_port();
    launches[1].bind = Some(([127, 0, 0, 1], port).into());
    launches[1].advertise = Some(proxied(port, harm, 1 << 20).to_string());
    let said = run(&launches, |ring| {
        for _ in 0..8 {
            ring.all_reduce(&mut values(ring.rank(), 200_000), Format::F32)?;
        }
        ring.leave()
    });
    said.into_iter().map(|said| said.and_then(|said| said)).collect()
}

#[test]
fn a_network_that_delays_is_waited_for() {
    harmed(3, Harm::Delay).into_iter().for_each(|rank| rank.unwrap());
}

#[test]
fn a_network_that_damages_cuts_or_stalls_is_found_out() {
    let found_out = |world: usize, harm: Harm, expected: &str| {
        let said: Vec<String> =
            harmed(world, harm).into_iter().map(|rank| rank.unwrap_err().to_string()).collect();
        assert!(said.iter().all(|line| *line == said[0]), "{said:?}");
        assert!(said[0].contains(expected), "{said:?}");
    };
    std::thread::scope(|scope| {
        for world in [2, 3] {
            for (harm, expected) in [
                (
                    Harm::Damage,
                    "rank 1 (host1) got a frame whose checksum is wrong from rank 0 (host0)",
                ),
                (Harm::Cut, "is lost: a connection closed"),
                (Harm::Stall, "no data of rank 0 (host0) have reached rank 1 (host1) for 3 s"),
            ] {
                scope.spawn(move || found_out(world, harm, expected));
            }
        }
    });
}

#[test]
fn a_rank_that_falls_silent_is_named() {
    // Rank 1 reaches rank 0 through a proxy that stalls: it is there, and not heard.
    let mut launches = launches(3);
    let stalls = proxied(launches[0].port, Harm::Stall, 400);
    launches[1].port = stalls.port();
    let said = run(&launches, |ring| {
        loop {
            let mut sum = values(ring.rank(), 1000);
            if let Err(error) = ring.all_reduce(&mut sum, Format::F32) {
                return error.to_string();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let said: Vec<String> = said.into_iter().map(Result::unwrap).collect();
    for rank in [0, 2] {
        assert_eq!(said[rank], "rank 1 (host1) is lost: nothing has been heard of it for 3 s");
    }
}

/// How fast loopback and a core or two are: `cargo test --release -p kiln-hosts -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn speed() {
    for world in [2, 3] {
        for format in [Format::F32, Format::Bf16] {
            let seconds = run(&launches(world), |ring| {
                let mut sum = values(ring.rank(), 30_000_000);
                let times = (0..4).map(|_| {
                    ring.barrier().unwrap();
                    let begun = Instant::now();
                    ring.all_reduce(&mut sum, format).unwrap();
                    begun.elapsed().as_secs_f64()
                });
                let best = times.fold(f64::MAX, f64::min);
                ring.leave().unwrap();
                best
            });
            let seconds = seconds.into_iter().map(Result::unwrap).fold(0.0, f64::max);
            let size = if format == Format::F32 { 4.0 } else { 2.0 };
            let sent = 2.0 * (world as f64 - 1.0) / world as f64 * 30e6 * size;
            let rate = sent / seconds / 1e9;
            eprintln!("{world} ranks, {format:?}: {seconds:.3} s, {rate:.2} GB/s sent by each");
        }
    }
}
