//! Credentials: the key goes to its own server in one header, and to no file, no error and no other host.

use serde_json::json;

use super::{STS, each, run};
use crate::chat::{Fake, KEY, Reply, Request, synthesize};
use crate::harness::Folder;

#[test]
fn the_key_goes_to_its_server_in_one_header_alone() {
    // A server that repeats all it is told, wherever it can.
    let all = |request: &Request| {
        let headers = request.headers.iter().map(|(name, value)| format!("{name}: {value}"));
        headers.collect::<Vec<_>>().join(" | ")
    };
    let echo = move |request: &Request| {
        let said = all(request);
        let texts = json!({"S1": format!("{said} one"), "S2": format!("two {said}"), "S3": &said});
        // In JSON the key can hide behind numbers of letters.
        let hidden: String =
            KEY.chars().map(|letter| format!("\\u{:04x}", letter as u32)).collect();
        match request.number % 4 {
            0 => Reply::content(request, texts.to_string()),
            1 => Reply::content(request, texts.to_string()).changed(|body| {
                for name in ["id", "model", "system_fingerprint", "created"] {
                    body[name] = json!(&said);
                }
                body["usage"][&said] = json!(&said);
            }),
            2 => Reply::content(request, said),
            _ => {
                let content = format!("{{\\\"S1\\\": \\\"{hidden}\\\", \\\"S2\\\": \\\"b b\\\", \\\"S3\\\": \\\"c c\\\"}}");
                Reply::new(200, format!("{{\"choices\": [{{\"message\": {{\"content\": \"{content}\"}}}}]}}"))
            }
        }
        .with("X-Echo", KEY)
    };
    let (model, folder) = (Fake::start(echo), Folder::new());
    let args = [&STS[..], &["--rows", "12", "--without-check", "language,length"]].concat();
    let said = run(&model.url(), &folder, &args);
    assert_eq!(said.code, Some(0), "{}", said.error);
    for request in model.seen().requests {
        for (name, value) in &request.headers {
            let bearer = name == "authorization" && *value == format!("Bearer {KEY}");
            assert!(bearer || !value.contains(KEY), "{name}: {value}");
        }
        assert_eq!(request.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
        assert!(!request.path.contains(KEY) && !request.body.to_string().contains(KEY));
        assert!(request.header("cookie").is_none() && request.header("referer").is_none());
    }
    // Errors of every kind, the key at every place of them.
    let places: Vec<usize> = (200..320).step_by(7).collect();
    each(&places, |place| {
        let place = *place;
        for status in [400, 401, 500] {
            let model = Fake::start(move |request| {
                let words =
                    format!("{}{}", "x".repeat(place), request.header("authorization").unwrap());
                match status {
                    500 => Reply::new(500, words),
                    _ => Reply::error(status, "no", &words),
                }
            });
            let args =
                ["--types", "sts", "--rows", "9", "--concurrency", "16", "--llm-retries", "0"];
            assert_eq!(run(&model.url(), &Folder::new(), &args).code, Some(1));
        }
    });
}

#[test]
fn a_key_that_was_not_named_is_not_sent_in_the_clear() {
    let model = Fake::good();
    // This machine by a name that is not its own: as any host of a network.
    let url = model.url().replace("127.0.0.1", "0.0.0.0");
    let args = [&STS[..], &["--rows", "2"]].concat();
    let said = run(&url, &Folder::new(), &args);
    if said.error.contains("is the server running") {
        eprintln!("SKIPPED: this machine does not answer at 0.0.0.0");
        return;
    }
    assert_eq!(said.code, Some(0), "{}", said.error);
    assert!(model.seen().requests.iter().all(|request| request.header("authorization").is_none()));
    let named = [&args[..], &["--llm-key-env", "OPENAI_API_KEY"]].concat();
    run(&url, &Folder::new(), &named);
    assert_eq!(
        model.seen().requests.iter().filter(|r| r.header("authorization").is_some()).count(),
        2
    );
    // In an address it is refused, and not repeated.
    for url in [format!("http://user:{KEY}@127.0.0.1/v1"), format!("http://127.0.0.1/v1?key={KEY}")]
    {
        let said = run(&url, &Folder::new(), &args);
        assert!(matches!(said.code, Some(1 | 2)), "{}", said.error);
    }
    for wrong in ["no\nkey", "schlüssel\u{7f}"] {
        let folder = Folder::new();
        let mut command = synthesize(&model.url(), &folder, &args);
        let output = command.env("OPENAI_API_KEY", wrong).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!error.contains(wrong) && error.contains("OPENAI_API_KEY"), "{error}");
    }
}
