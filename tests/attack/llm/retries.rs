//! Faults of servers and networks: those that pass are retried, those that do not end the run, and no answer is lost.

use std::io::Write as _;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::{Behaviour, Lie, STS, each, run, stream};
use crate::chat::{Fake, KEY, Reply, Then, answer, answers, rejected, rows, summary};
use crate::harness::Folder;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// What servers and networks do, with what an error then says. The question is sent again.
const OF_SERVERS: &[(&str, Lie, &str)] = &[
    ("429", |_| Reply::error(429, "rate_limit_exceeded", "Slow down"), "429"),
    ("429 in seconds", |_| Reply::html(429).with("Retry-After", 1), "429"),
    ("429 in parts of them", |_| Reply::html(429).with("Retry-After", "0.2"), "429"),
    (
        "429 by date",
        |_| {
            let soon = SystemTime::now() + Duration::from_secs(2);
            Reply::html(429).with("Retry-After", httpdate(soon))
        },
        "429",
    ),
    ("429 until nonsense", |_| Reply::html(429).with("Retry-After", "-1e99 \u{fffd}"), "429"),
    ("500", |_| Reply::html(500), "500"),
    ("502", |_| Reply::html(502), "502"),
    ("503", |_| Reply::html(503).with("Retry-After", "0"), "503"),
    (
        "529",
        |_| Reply::error(529, "overloaded_error", "\u{1b}[2J\u{7}\u{202e}gone\nsecond line"),
        "529",
    ),
    ("timeout", |_| Reply::silence(), "within 1"),
    ("timeout in the body", |r| Reply::good(r).cut_body(20).then(Then::Silence), "within 1"),
    ("trickle", |r| Reply::good(r).trickle(Duration::from_millis(30)), "within 1"),
    ("nothing", |_| Reply::new(200, "").cut_head(0), ""),
    ("reset before the head", |_| Reply::new(200, "").cut_head(0).then(Then::Reset), ""),
    ("reset in the head", |r| Reply::good(r).cut_head(25).then(Then::Reset), ""),
    ("reset in the body", |r| Reply::good(r).cut_body(60).then(Then::Reset), ""),
    ("closed in the head", |r| Reply::good(r).cut_head(25), ""),
    ("closed in the body", |r| Reply::good(r).cut_body(60), ""),
    ("no HTTP", |_| Reply::new(200, "").raw("SSH-2.0-OpenSSH_9.6\r\n"), ""),
    (
        "a head without end",
        |_| {
            Reply::new(200, "")
                .raw(&("HTTP/1.1 200 x\r\n".to_string() + &"x: y\r\n".repeat(100_000)))
        },
        "",
    ),
    ("cut JSON", |r| Reply::good(r).shortened(90), "JSON"),
    ("no JSON", |_| Reply::html(200), "JSON"),
    ("no body", |_| Reply::new(200, ""), "JSON"),
    ("a list", |_| Reply::new(200, "[]"), ""),
    ("no UTF-8", |_| Reply::new(200, b"{\"choices\": [\"\xff\xfe\x80"), "JSON"),
    (
        "gzip",
        |r| {
            Reply::new(200, gzip(answer(r).to_string().as_bytes())).with("Content-Encoding", "gzip")
        },
        "",
    ),
    (
        "a bomb",
        |_| Reply::new(200, gzip(&vec![b' '; 64 << 20])).with("Content-Encoding", "gzip"),
        "",
    ),
    ("without end", |_| Reply::new(200, "{").then(Then::Endless), "MiB"),
    (
        "an error that is called 200",
        |_| Reply::new(200, json!({"error": {"message": "CUDA"}}).to_string()),
        "CUDA",
    ),
    (
        "an error in a word",
        |_| Reply::new(200, json!({"error": "overloaded"}).to_string()),
        "overloaded",
    ),
    ("no choices", |r| Reply::good(r).changed(|body| body["choices"] = json!([])), "choices"),
    ("no message", |r| Reply::good(r).changed(|body| body["choices"] = json!([{}])), "message"),
    (
        "a cut stream",
        |r| Reply::new(200, &stream(r)[..90]).with("Content-Type", "text/event-stream"),
        "stream",
    ),
];

fn httpdate(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // By Howard Hinnant's calendar.
    let z = days + 719_468;
    let (era, day) = (z / 146_097, z % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let part = (5 * of_year + 2) / 153;
    let month = if part < 10 { part + 3 } else { part - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let names =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][days as usize % 7];
    format!(
        "{weekday}, {:02} {} {year} {:02}:{:02}:{:02} GMT",
        of_year - (153 * part + 2) / 5 + 1,
        names[month as usize - 1],
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[test]
fn what_passes_loses_nothing() {
    each(OF_SERVERS, |(name, lie, _)| {
        let lie = *lie;
        // The first try of every third question goes wrong.
        let model = Fake::start(move |request| match request.hash % 3 {
            0 if request.again == 0 => lie(request),
            _ => Reply::good(request),
        });
        let folder = Folder::new();
        let args =
            [&STS[..], &["--rows", "12", "--llm-timeout", "1", "--llm-retries", "3"]].concat();
        let said = run(&model.url(), &folder, &args);
        assert_eq!(said.code, Some(0), "{name}: {}", said.error);
        assert!(said.time < Duration::from_secs(30), "{name}: {:?}", said.time);
        let (seen, done) = (model.seen(), summary(&folder));
        assert_eq!((rows(&folder).len(), answers(&folder).len()), (12, 12), "{name}: {done}");
        // Once more, and never after an answer.
        let wrong = seen.asked.keys().filter(|hash| *hash % 3 == 0).count();
        assert!(wrong > 0 && seen.most_asked() == 2, "{name}: {:?}", seen.asked);
        assert_eq!((seen.count, seen.asked.len()), (12 + wrong, 12), "{name}");
    });
}

#[test]
fn what_does_not_pass_ends_in_one_line() {
    each(OF_SERVERS, |(name, lie, words)| {
        let lie = *lie;
        let (model, folder) = (Fake::start(lie), Folder::new());
        let args = [&STS[..], &["--rows", "1000", "--concurrency", "4"]].concat();
        let said = run(
            &model.url(),
            &folder,
            &[&args[..], &["--llm-timeout", "1", "--llm-retries", "1"]].concat(),
        );
        assert_eq!(said.code, Some(1), "{name}: {}", said.out);
        assert!(said.error.contains(words), "{name}: {}", said.error);
        assert!(
            said.error.contains("writer") && said.error.contains("kept"),
            "{name}: {}",
            said.error
        );
        assert!(said.time < Duration::from_secs(60), "{name}: {:?}", said.time);
        // It is given up after a few questions, each asked twice.
        let seen = model.seen();
        assert!(seen.most_asked() <= 2 && seen.count <= 2 * (8 + 2 * 4), "{name}: {}", seen.count);
        assert!(answers(&folder).is_empty(), "{name}");
    });
}

#[test]
fn what_cannot_be_mended_is_not_tried_again() {
    let elsewhere: &'static Fake = Box::leak(Box::new(Fake::good()));
    let cases: [(&str, Behaviour, &str); 7] = [
        (
            "a wrong key",
            Box::new(|_| {
                let long = "x".repeat(270);
                Reply::error(
                    401,
                    "invalid_api_key",
                    &format!("Incorrect API key {KEY} {long} {KEY} {KEY}"),
                )
            }),
            "[the key]",
        ),
        ("forbidden", Box::new(|_| Reply::html(403)), "403"),
        ("not here", Box::new(|_| Reply::html(404)), "404"),
        (
            "no money",
            Box::new(|_| Reply::error(429, "insufficient_quota", "You exceeded your quota")),
            "quota",
        ),
        ("much later", Box::new(|_| Reply::html(429).with("Retry-After", 86_400)), "86400"),
        (
            "elsewhere",
            Box::new(|r| {
                let status = if r.number == 0 { 307 } else { 301 };
                Reply::new(status, "")
                    .with("Location", format!("{}/chat/completions", elsewhere.url()))
            }),
            "leads elsewhere",
        ),
        ("a body that says so in HTML", Box::new(|_| Reply::html(405)), "405"),
    ];
    for (name, behaviour, words) in cases {
        let (model, folder) = (Fake::start(behaviour), Folder::new());
        let args = [&STS[..], &["--rows", "500", "--concurrency", "8"]].concat();
        let said = run(&model.url(), &folder, &args);
        assert_eq!(said.code, Some(1), "{name}: {}", said.out);
        assert!(
            said.error.contains(words) && said.error.contains("kept"),
            "{name}: {}",
            said.error
        );
        assert!(said.time < Duration::from_secs(20), "{name}: {:?}", said.time);
        assert!(model.count() <= 8 && model.seen().most_asked() == 1, "{name}: {}", model.count());
    }
    assert_eq!(elsewhere.count(), 0);
    // Nobody at all.
    let folder = Folder::new();
    let said = run("http://127.0.0.1:9/v1", &folder, &[&STS[..], &["--rows", "5"]].concat());
    assert_eq!(said.code, Some(1));
    assert!(said.error.contains("is the server running"), "{}", said.error);
    assert!(said.time < Duration::from_secs(20), "{:?}", said.time);
    // A question that is too long is left out, and others are not.
    let model = Fake::start(|request| match request.hash % 4 {
        0 => Reply::error(
            400,
            "context_length_exceeded",
            "This model's maximum context length is 10 words",
        ),
        _ => Reply::good(request),
    });
    let folder = Folder::new();
    let said = run(&model.url(), &folder, &[&STS[..], &["--rows", "40"]].concat());
    assert_eq!(said.code, Some(0), "{}", said.error);
    assert_eq!(model.seen().most_asked(), 1);
    assert!(rows(&folder).len() > 20, "{}", summary(&folder));
    // That it was refused is kept, so that it is not asked again.
    let refused = answers(&folder).iter().filter(|answer| answer["finish"] == "refused").count();
    assert_eq!(
        (rejected(&folder).len(), rows(&folder).len()),
        (refused, answers(&folder).len() - refused)
    );
    let asked = model.count();
    run(&model.url(), &folder, &[&STS[..], &["--rows", "40", "--resume"]].concat());
    // But for those that came before any answer.
    assert!(model.count() <= asked + 32, "{} after {asked}", model.count());
}

#[test]
fn a_server_that_dies_takes_no_answer_with_it() {
    // After twenty answers it is gone, later it is back.
    let answered = Mutex::new(0);
    let model = Fake::start(move |request| {
        let mut answered = answered.lock().unwrap();
        if *answered >= 20 && request.again < 2 {
            return Reply::new(200, "").cut_head(0).then(Then::Reset);
        }
        *answered += 1;
        Reply::good(request)
    });
    let folder = Folder::new();
    let args = [&STS[..], &["--rows", "60", "--concurrency", "4", "--llm-retries", "1"]].concat();
    let said = run(&model.url(), &folder, &args);
    assert_eq!(said.code, Some(1), "{}", said.out);
    assert!(said.error.contains("the answers so far are kept"), "{}", said.error);
    let kept = answers(&folder);
    assert!(kept.len() >= 20, "{}", kept.len());
    let asked = model.seen().asked;
    // Those questions that failed twice are answered now; the rest fail, and are answered in the end.
    for _ in 0..8 {
        let code = run(&model.url(), &folder, &[&args[..], &["--resume"]].concat()).code;
        // A run that others answer ends well, and says which questions were not.
        if code == Some(0) && rows(&folder).len() == 60 {
            break;
        }
    }
    let (now, seen) = (answers(&folder), model.seen());
    assert_eq!((rows(&folder).len(), &now[..kept.len()]), (60, &kept[..]), "{}", summary(&folder));
    // What was answered the first time was not asked again.
    let answered = asked.iter().filter(|(_, count)| **count == 1);
    assert!(answered.filter(|(hash, _)| seen.asked[*hash] == 1).count() >= 16);
}
