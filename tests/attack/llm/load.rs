//! Load: bodies without end and many requests at once, in little memory.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;

use super::STS;
use crate::chat::{Fake, Reply, Running, Then, summary};
use crate::harness::{self, Folder};

#[test]
fn bodies_are_bounded() {
    // Eight that never end, at once.
    let model = Fake::start(|_| Reply::new(200, "{\"choices\": [").then(Then::Endless));
    let folder = Folder::new();
    let args = [&STS[..], &["--rows", "8", "--concurrency", "8", "--llm-retries", "0"]].concat();
    let Some(peak) = peak(Running::start(&model.url(), &folder, &args)) else { return };
    assert!(peak < 400 << 20, "{} MiB", peak >> 20);
    let model = Fake::start(|request| Reply::content(request, "a".repeat(7 << 20)));
    let folder = Folder::new();
    let args = [&STS[..], &["--rows", "6", "--concurrency", "3", "--attempts", "1"]].concat();
    let Some(peak) = self::peak(Running::start(&model.url(), &folder, &args)) else { return };
    assert!(peak < 500 << 20, "{} MiB", peak >> 20);
}

fn peak(mut running: Running) -> Option<usize> {
    harness::peak(&mut running.0)
}

/// Many questions in little memory, with the server kept busy. `KILN_LLM_REQUESTS` asks for more of them; the
/// numbers go to standard error.
#[test]
fn many_requests_keep_the_server_busy_in_little_memory() {
    const AT_ONCE: usize = 64;
    let number = std::env::var("KILN_LLM_REQUESTS").map_or(3000, |text| text.parse().unwrap());
    // What 2,000 answers a second take on average. Were all to take the same, all would be asked for at once.
    let delay = |hash: u64| Duration::from_micros(16_000 + hash % 32_001);
    let model = Fake::start(move |request| {
        // Cheap to make, as this is on the same machine.
        let text = format!(
            r#"{{"S1": "The weavers of house {0} keep their wool dry.", "S2": "In house {0} wool is kept dry by weavers.", "S3": "House {0} sells its wool wet."}}"#,
            request.number
        );
        let reply = Reply::content(request, text).delay(delay(request.hash));
        // Now and then it goes wrong, as it does.
        match request.again == 0 && request.hash % 997 == 0 {
            true => Reply::html(500),
            false => reply,
        }
    });
    let folder = Folder::new();
    let (rows, at_once) = (number.to_string(), AT_ONCE.to_string());
    let args = [&STS[..], &["--rows", &rows, "--concurrency", &at_once]].concat();
    let begun = Instant::now();
    let Some(peak) = peak(Running::start(&model.url(), &folder, &args)) else { return };
    let (seen, done) = (model.seen(), summary(&folder));
    eprintln!(
        "{} requests in {:.1} s, {:.1} s of them asking: {:.0} a second; {:.1} of {AT_ONCE} in flight on average, \
         at most {}, idle {:.1} %; {} connections; {} MiB at most",
        seen.count,
        begun.elapsed().as_secs_f64(),
        seen.time().as_secs_f64(),
        seen.count as f64 / seen.time().as_secs_f64(),
        seen.mean(),
        seen.most,
        100.0 * (1.0 - seen.mean() / AT_ONCE as f64),
        seen.connections,
        peak >> 20,
    );
    assert_eq!((&done["rows"], &done["unanswered"]), (&json!(number), &json!(0)), "{done}");
    assert!(seen.asked.len() == number && seen.most_asked() <= 2, "{} asked", seen.asked.len());
    assert!(seen.most <= AT_ONCE + 2, "{} at once", seen.most);
    assert!(peak < 300 << 20, "{} MiB", peak >> 20);
    let counts: BTreeMap<String, usize> = serde_json::from_value(done["types"].clone()).unwrap();
    assert_eq!(counts["sts"], number);
}
