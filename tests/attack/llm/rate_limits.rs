//! Rate limits: a busy server is left alone for as long as it asks, and others are not.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::{STS, run};
use crate::chat::{Fake, Reply, answers, rows, summary};
use crate::harness::{Folder, kiln};

#[test]
fn a_busy_server_is_given_time() {
    // Nothing is asked while it wants to be left alone.
    let times = std::sync::Arc::new(Mutex::new(Vec::new()));
    let kept = times.clone();
    let model = Fake::start(move |request| {
        kept.lock().unwrap().push(Instant::now());
        match request.number {
            5 => Reply::error(429, "rate_limit_exceeded", "Wait").with("Retry-After", 2),
            _ => Reply::good(request).delay(Duration::from_millis(20)),
        }
    });
    let folder = Folder::new();
    let args = [&STS[..], &["--rows", "40", "--concurrency", "4"]].concat();
    let said = run(&model.url(), &folder, &args);
    assert_eq!((said.code, rows(&folder).len()), (Some(0), 40), "{}", said.error);
    let times = times.lock().unwrap();
    let pauses: Vec<Duration> = times.windows(2).map(|two| two[1] - two[0]).collect();
    let longest = pauses.iter().max().unwrap();
    assert!(
        *longest > Duration::from_millis(1900) && *longest < Duration::from_secs(4),
        "{longest:?}"
    );
    // It comes after what was under way: at most three more.
    let place = pauses.iter().position(|pause| pause == longest).unwrap();
    assert!((5..=8).contains(&place), "{place}");

    // One that serves four at a time gets about four, and no row is lost.
    let model = Fake::start(|request| match request.in_flight {
        0..=4 => Reply::good(request).delay(Duration::from_millis(30)),
        _ => Reply::error(429, "rate_limit_exceeded", "Four at a time"),
    });
    let folder = Folder::new();
    let args = [&STS[..], &["--rows", "200", "--concurrency", "32", "--llm-retries", "8"]].concat();
    let said = run(&model.url(), &folder, &args);
    assert_eq!((said.code, rows(&folder).len()), (Some(0), 200), "{}", said.error);
    let refused = model.count() - 200;
    assert!(refused < 100, "{refused} refused of {}", model.count());
    assert_eq!(answers(&folder).len(), 200);
}

#[test]
fn a_server_that_wants_a_pause_does_not_keep_others() {
    let busy = Fake::start(|request| match request.number {
        0..=1 => Reply::error(429, "rate_limit_exceeded", "Wait").with("Retry-After", 4),
        _ => Reply::good(request),
    });
    let times = std::sync::Arc::new(Mutex::new(Vec::new()));
    let kept = times.clone();
    let free = Fake::start(move |request| {
        kept.lock().unwrap().push(Instant::now());
        Reply::good(request).delay(Duration::from_millis(10))
    });
    let folder = Folder::new();
    let models: String = [("busy", &busy), ("free", &free)]
        .map(|(name, server)| format!("[[endpoint]]\nurl = '{}'\nmodel = '{name}'\n", server.url()))
        .concat();
    let config = folder.write("models.toml", models);
    let out = folder.arg("out");
    let args = ["--quiet", "synthesize", "--llm-config", &config, "-o", &out, "--rows", "60"];
    let args = [&args[..], &STS, &["--concurrency", "4"]].concat();
    kiln(&args).assert().success();
    assert_eq!(rows(&folder).len(), 60, "{}", summary(&folder));
    let times = times.lock().unwrap();
    let took = *times.last().unwrap() - times[0];
    assert!(times.len() > 15 && took < Duration::from_secs(3), "{} in {took:?}", times.len());
}
