//! Answers that end too soon, never, or not at all; what an earlier run left; a full disk.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::server::{COMMIT, Reply, Request, Server, Then, sha256};
use super::{User, WEIGHTS, honest, lying_about, server};
use crate::harness::{Disk, failure, stdout};

#[test]
fn endless_answers_end() {
    let user = User::new();
    // Longer than announced, also where what was announced came first.
    for file in [WEIGHTS, "config.json"] {
        let hub = lying_about(file, &user.files, |request, reply| {
            let reply = reply.then(Then::Endless);
            if request.is_get() { reply.without("Content-Length") } else { reply }
        });
        let output = user.inspect(&hub).output().unwrap();
        assert!(output.status.code().is_some_and(|code| code < 2), "{output:?}");
        user.check();
        std::fs::remove_dir_all(user.folder.path("home/cache")).unwrap();
    }
    // Of no announced length.
    let hub = lying_about("config.json", &user.files, |_, reply| {
        reply.without("Content-Length").then(Then::Endless)
    });
    user.refused(&mut user.inspect(&hub), &["config.json", "64 MiB"]);
    // Too long for what it is.
    let hub = lying_about("tokenizer.json", &user.files, |_, reply| {
        reply.with("Content-Length", 1u64 << 40).then(Then::Endless)
    });
    user.refused(&mut user.inspect(&hub), &["tokenizer.json", "too many"]);
    // What the Hub says of the repository.
    let hub = server(&user.files, |request, reply| {
        if request.path.starts_with("/api/") { Reply::new(200).then(Then::Endless) } else { reply }
    });
    user.accepted(&mut user.inspect(&hub));
}

#[test]
fn a_body_that_is_cut_short_is_continued() {
    let user = User::new();
    let half = user.files.0[WEIGHTS].len() / 2;
    let first = AtomicUsize::new(0);
    let hub = lying_about(WEIGHTS, &user.files, move |request, reply| {
        let cut = request.is_get() && first.fetch_add(1, Ordering::SeqCst) == 0;
        if cut { reply.cut(half) } else { reply }
    });
    user.accepted(&mut user.inspect(&hub));
    let ranges: Vec<_> = hub.gets(WEIGHTS).iter().map(Request::range).collect();
    assert_eq!(ranges, [None, Some(half)]);
}

#[test]
fn a_body_of_no_length_that_is_cut_short_is_seen_and_healed() {
    let user = User::new();
    let hub = lying_about("tokenizer.json", &user.files, |request, reply| {
        let half = reply.body.len() / 2;
        let reply = reply.without("Content-Length");
        if request.is_get() { reply.cut(half) } else { reply }
    });
    user.refused(&mut user.inspect(&hub), &["tokenizer.json", "not what the Hub announced"]);
    user.accepted(&mut user.inspect(&honest(&user.files)));
}

#[test]
fn what_an_earlier_run_left_is_continued_or_replaced() {
    let user = User::new();
    let weights = user.files.0[WEIGHTS].clone();
    let (half, blobs) = (weights.len() / 2, user.repo().join("blobs"));
    let left = blobs.join(format!("{}.incomplete", sha256(&weights)));
    let leave = |content: &[u8]| {
        let _ = std::fs::remove_dir_all(user.folder.path("home/cache"));
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(&left, content).unwrap();
    };
    let ranges = |hub: &Server| hub.gets(WEIGHTS).iter().map(Request::range).collect::<Vec<_>>();
    // A half that is right.
    leave(&weights[..half]);
    let hub = honest(&user.files);
    user.accepted(&mut user.inspect(&hub));
    assert_eq!(ranges(&hub), [Some(half)]);
    // All of it, which need not be asked for.
    leave(&weights);
    let hub = honest(&user.files);
    user.accepted(&mut user.inspect(&hub));
    assert_eq!(ranges(&hub), []);
    // A half of something else.
    leave(&vec![7; half]);
    let hub = honest(&user.files);
    user.accepted(&mut user.inspect(&hub));
    assert_eq!(ranges(&hub), [Some(half), None]);
    // A server that gives another part, another version, or no part.
    let lies: [fn(Reply) -> Reply; 4] = [
        |reply| reply.with("Content-Range", "bytes 0-9/10"),
        |reply| reply.without("Content-Range"),
        |reply| reply.with("X-Linked-Etag", "\"other\""),
        |_| Reply::new(416).body(""),
    ];
    for lie in lies {
        leave(&weights[..half]);
        let hub = lying_about(WEIGHTS, &user.files, move |request, reply| {
            if request.range().is_some() { lie(reply) } else { reply }
        });
        user.accepted(&mut user.inspect(&hub));
        assert_eq!(ranges(&hub), [Some(half), None]);
    }
    // A link in its place is not written through.
    leave(b"");
    std::fs::remove_file(&left).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(user.canary(), &left).unwrap();
    user.accepted(&mut user.inspect(&honest(&user.files)));
}

#[test]
fn empty_and_short_files_in_the_cache_are_fetched_again() {
    let user = User::new();
    let hub = honest(&user.files);
    let actual = user.accepted(&mut user.inspect(&hub));
    for file in [WEIGHTS, "config.json"] {
        let blob = std::fs::canonicalize(user.snapshot().join(file)).unwrap();
        std::fs::write(&blob, "").unwrap();
        let error = failure(user.inspect(&hub).env("HF_HUB_OFFLINE", "1"));
        assert!(error.contains(file) && error.contains("empty"), "{error}");
        assert_eq!(user.accepted(&mut user.inspect(&hub)), actual);
    }
    // Where the Hub says how long its files are, shorter ones are seen too.
    let list = |(name, content): (&String, &Vec<u8>)| serde_json::json!({ "rfilename": name, "size": content.len() });
    let siblings: Vec<_> = user.files.0.iter().map(list).collect();
    let info = serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string();
    let hub = server(&user.files, move |request, reply| {
        if request.path.starts_with("/api/") { Reply::new(200).body(&info) } else { reply }
    });
    let blob = std::fs::canonicalize(user.snapshot().join(WEIGHTS)).unwrap();
    std::fs::write(&blob, "short").unwrap();
    assert_eq!(user.accepted(&mut user.inspect(&hub)), actual);
    // All is there: nothing but the list is asked for.
    let before = hub.requests().len();
    user.accepted(&mut user.inspect(&hub));
    let more = &hub.requests()[before..];
    assert!(!more.is_empty() && more.iter().all(|request| request.path.starts_with("/api/")));
}

#[test]
fn a_silent_hub_is_given_up() {
    let user = User::new();
    let hub = Server::start(|_| Reply::new(200).then(Then::Silence).with("Content-Length", 9));
    user.refused(user.inspect(&hub).env("HF_HUB_DOWNLOAD_TIMEOUT", "1"), &["no network"]);
    // One that falls silent in the middle of a file, again and again.
    let hub = lying_about(WEIGHTS, &user.files, |request, reply| {
        if request.is_get() { reply.cut(0).then(Then::Silence) } else { reply }
    });
    let error = user.refused(user.inspect(&hub).env("HF_HUB_DOWNLOAD_TIMEOUT", "1"), &[WEIGHTS]);
    assert!(error.contains("attempts") && error.contains("nothing came"), "{error}");
}

#[test]
fn a_busy_hub_is_asked_again() {
    let user = User::new();
    for (status, pause) in [(503, ""), (500, ""), (429, "1")] {
        let seen = AtomicUsize::new(0);
        let hub = server(&user.files, move |_, reply| {
            // Every request is answered at its second try.
            match seen.fetch_add(1, Ordering::SeqCst) % 8 {
                0 => Reply::new(status).with("Retry-After", pause).body("busy"),
                _ => reply,
            }
        });
        user.accepted(&mut user.inspect(&hub));
        std::fs::remove_dir_all(user.folder.path("home/cache")).unwrap();
    }
    let hub = lying_about(WEIGHTS, &user.files, |_, _| {
        Reply::new(429).with("Retry-After", 86_400).body("")
    });
    user.refused(&mut user.inspect(&hub), &[WEIGHTS, "86400 seconds"]);
}

#[test]
fn two_at_once_download_a_file_once() {
    let user = User::new();
    let hub = lying_about(WEIGHTS, &user.files, |request, reply| {
        if request.is_get() {
            // Long enough for the other to come.
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        reply
    });
    std::thread::scope(|scope| {
        let one = || stdout(&mut user.inspect(&hub));
        let (first, second) = (scope.spawn(one), scope.spawn(one));
        assert_eq!(first.join().unwrap(), second.join().unwrap());
    });
    assert_eq!(hub.gets(WEIGHTS).len(), 1);
    user.check();
}

#[test]
fn a_full_disk_is_one_line() {
    let user = User::new();
    let Some(disk) = Disk::mount(user.folder.path("small"), "32k") else {
        eprintln!("SKIPPED: this process may not mount");
        return;
    };
    let hub = honest(&user.files);
    user.refused(user.inspect(&hub).env("HF_HOME", &disk.0), &["No space left", "HF_HOME"]);
}
