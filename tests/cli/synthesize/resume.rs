//! A run that was stopped, killed or cut short goes on from its journal, and asks nothing twice.

use std::time::Duration;

use serde_json::json;

use super::{STS, passages, refused, with};
use crate::chat::{Fake, Reply, Running, answers, rows, summary, synthesize};
use crate::harness::{Folder, failure, kiln, stdout};

#[test]
fn a_run_that_goes_on_asks_nothing_twice() {
    let (folder, model) = (Folder::new(), Fake::good());
    let args = ["--types", "sts,short-short=10", "--rows", "40", "--brainstorms", "3"];
    let part = with(&args, &["--max-requests", "20"]);
    stdout(&mut synthesize(&model.url(), &folder, &part));
    assert_eq!(model.count(), 20);
    assert!(rows(&folder).len() >= 15, "{}", summary(&folder));

    // Not by accident.
    let error = failure(&mut synthesize(&model.url(), &folder, &args));
    assert!(error.contains("--resume"), "{error}");
    let other = with(&args, &["--resume", "--seed", "2"]);
    let error = failure(&mut synthesize(&model.url(), &folder, &other));
    assert!(error.contains("seed"), "{error}");
    assert_eq!(model.count(), 20);

    let again = with(&args, &["--resume"]);
    stdout(&mut synthesize(&model.url(), &folder, &again));
    let (asked, whole) = (model.count(), std::fs::read(folder.path("out/rows.jsonl")).unwrap());
    assert_eq!((model.seen().most_asked(), asked), (1, answers(&folder).len()));
    let done = summary(&folder);
    assert_eq!((&done["unanswered"], &done["examples"]), (&json!(0), &json!(40)));
    stdout(&mut synthesize(&model.url(), &folder, &again));
    assert_eq!((model.count(), summary(&folder)["spent"]["requests"].clone()), (asked, json!(0)));
    assert_eq!(std::fs::read(folder.path("out/rows.jsonl")).unwrap(), whole);

    // All at once is the same.
    let out = Folder::new();
    stdout(&mut synthesize(&model.url(), &out, &args));
    assert_eq!(std::fs::read(out.path("out/rows.jsonl")).unwrap(), whole);
    // More of them begin with those.
    let more = with(
        &["--types", "sts,short-short=10", "--rows", "50", "--brainstorms", "3"],
        &["--resume"],
    );
    stdout(&mut synthesize(&model.url(), &out, &more));
    assert!(std::fs::read(out.path("out/rows.jsonl")).unwrap().starts_with(&whole));
}

#[test]
fn the_same_journal_is_the_same_rows() {
    let folder = Folder::new();
    // Answers that come in any order, and are no good now and then.
    let model = Fake::start(|request| {
        let good = Reply::good(request).delay(Duration::from_millis(request.hash % 20));
        match request.hash % 5 {
            0 => Reply::content(request, "no").delay(Duration::from_millis(7)),
            _ => good,
        }
    });
    let args = ["--types", "sts,short-short=10", "--rows", "60", "--brainstorms", "4"];
    stdout(&mut synthesize(&model.url(), &folder, &with(&args, &["--concurrency", "32"])));
    let files = ["rows.jsonl", "rejected.jsonl"];
    let read = |folder: &Folder| {
        files.map(|name| std::fs::read_to_string(folder.path(&format!("out/{name}"))).unwrap())
    };
    let before = read(&folder);
    assert!(
        before[0].lines().count() > 40 && before[1].lines().count() > 5,
        "{}",
        summary(&folder)
    );
    // One after the other.
    let slow = Folder::new();
    stdout(&mut synthesize(&model.url(), &slow, &with(&args, &["--concurrency", "1"])));
    assert_eq!(read(&slow), before);
    // Nobody is asked, as nobody is there.
    for name in files {
        std::fs::remove_file(folder.path(&format!("out/{name}"))).unwrap();
    }
    stdout(&mut synthesize("http://127.0.0.1:9/v1", &folder, &with(&args, &["--resume"])));
    assert_eq!(read(&folder), before);
    // The order of the journal's lines does not matter.
    let path = folder.path("out/answers.jsonl");
    let journal = std::fs::read_to_string(&path).unwrap();
    let turned: Vec<&str> = journal.lines().rev().collect();
    std::fs::write(&path, turned.join("\n") + "\n").unwrap();
    stdout(&mut synthesize("http://127.0.0.1:9/v1", &folder, &with(&args, &["--resume"])));
    assert_eq!(read(&folder), before);
}

#[test]
fn a_killed_run_loses_only_what_was_under_way() {
    const AT_ONCE: usize = 8;
    let (folder, rows) = (Folder::new(), 150);
    let model = Fake::start(|request| Reply::good(request).delay(Duration::from_millis(15)));
    let rows = rows.to_string();
    let at_once = AT_ONCE.to_string();
    let args = with(&STS, &["--rows", &rows, "--concurrency", &at_once]);
    let resumed = with(&args, &["--resume"]);
    let mut kills = 0;
    for wanted in [10, 45, 80] {
        let arguments = if kills == 0 { &args } else { &resumed };
        let mut running = Running::start(&model.url(), &folder, arguments);
        model.wait_for(wanted);
        running.0.kill().unwrap();
        kills += usize::from(!running.0.wait().unwrap().success());
        // The journal holds every answer that was read but, perhaps, a cut last line.
        let journal = std::fs::read_to_string(folder.path("out/answers.jsonl")).unwrap();
        let whole = journal.lines().filter(|line| line.ends_with('}')).count();
        let asked = model.count();
        assert!(whole + kills * AT_ONCE >= asked, "{whole} kept of {asked} after {kills} kills");
    }
    stdout(&mut synthesize(&model.url(), &folder, &resumed));
    let (kept, seen) = (answers(&folder).len(), model.seen());
    assert_eq!(summary(&folder)["unanswered"], 0);
    assert!(kills == 3 && seen.count <= kept + kills * AT_ONCE, "{} for {kept}", seen.count);

    // A run that was never killed writes the same.
    let whole = Folder::new();
    stdout(&mut synthesize(&model.url(), &whole, &args));
    let read = |folder: &Folder| std::fs::read_to_string(folder.path("out/rows.jsonl")).unwrap();
    assert_eq!(read(&whole), read(&folder));
}

#[test]
fn a_journal_that_was_cut_or_spoilt() {
    let (folder, model) = (Folder::new(), Fake::good());
    let args = with(&STS, &["--rows", "6", "--concurrency", "1"]);
    stdout(&mut synthesize(&model.url(), &folder, &args));
    let path = folder.path("out/answers.jsonl");
    let (whole, rows) =
        (std::fs::read(&path).unwrap(), std::fs::read(folder.path("out/rows.jsonl")).unwrap());
    let asked = model.count();
    let resumed = with(&args, &["--resume"]);
    // The last line is asked again, and no other; where only its end is missing not even that.
    for (cut, more) in [(1, 0), (20, 1)] {
        std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        stdout(&mut synthesize(&model.url(), &folder, &resumed));
        assert_eq!(std::fs::read(folder.path("out/rows.jsonl")).unwrap(), rows);
        assert_eq!(model.count(), asked + more);
    }
    // A spoilt one is named, and nothing is asked or written.
    let mut spoilt = whole.clone();
    spoilt[3] = b'#';
    std::fs::write(&path, &spoilt).unwrap();
    let error = failure(&mut synthesize(&model.url(), &folder, &resumed));
    assert!(error.contains("answers.jsonl:1"), "{error}");
    assert_eq!((model.count(), std::fs::read(&path).unwrap()), (asked + 1, spoilt));
    // Nobody else's files are taken.
    let other = Folder::new();
    std::fs::create_dir(other.path("out")).unwrap();
    other.write("out/rows.jsonl", "mine");
    let error = failure(&mut synthesize(&model.url(), &other, &args));
    assert!(error.contains("rows.jsonl"), "{error}");
    assert_eq!(std::fs::read_to_string(other.path("out/rows.jsonl")).unwrap(), "mine");
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_there_is() {
    let folder = Folder::new();
    let model = Fake::start(|request| Reply::good(request).delay(Duration::from_millis(20)));
    let args = with(&STS, &["--rows", "400", "--concurrency", "4"]);
    let running = Running::start(&model.url(), &folder, &args);
    model.wait_for(30);
    assert_eq!(running.interrupt(), Some(130));
    let (kept, asked) = (answers(&folder).len(), model.count());
    assert!(kept >= 20 && kept + 4 >= asked, "{kept} of {asked}");
    assert!(rows(&folder).len() >= 20, "{}", summary(&folder));
    assert_eq!(summary(&folder)["spent"]["stopped"], "interrupted");
    // From a server that does not answer, too.
    let (folder, silent) = (Folder::new(), Fake::start(|_| Reply::silence()));
    let running = Running::start(&silent.url(), &folder, &args);
    silent.wait_for(1);
    let begun = std::time::Instant::now();
    assert_eq!(running.interrupt(), Some(130));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn what_only_sorts_answers_pays_for_none() {
    let (folder, model) = (Folder::new(), Fake::good());
    let corpus = passages(&folder);
    let args = ["--corpus", &corpus, "--queries", "1"];
    stdout(&mut synthesize(&model.url(), &folder, &args));
    let asked = model.count();
    for more in [&["--without-check", "length"][..], &["--attempts", "4"]] {
        let args = [&args[..], &["--resume"], more].concat();
        stdout(&mut synthesize(&model.url(), &folder, &args));
        assert_eq!(model.count(), asked, "{more:?}");
    }
    // A judge is asked by others.
    let models = |more: &str| {
        let text = format!(
            "[[endpoint]]\nurl = '{}'\nmodel = 'writer'\nroles = ['write']\n{more}",
            model.url()
        );
        folder.write("models.toml", text)
    };
    let judge = "[[endpoint]]\nurl = 'http://127.0.0.1:9'\nmodel = 'judge'\nroles = ['judge']\n";
    let output = folder.arg("configured");
    for more in ["", judge] {
        let config = models(more);
        let words = ["synthesize", "--llm-config", &config, "-o", &output, "--resume"];
        stdout(&mut kiln(&[&words[..], &args].concat()));
    }
    assert_eq!(model.count(), 2 * asked);
    let error =
        refused(&mut synthesize(&model.url(), &folder, &[&args[..2], &["--resume"]].concat()));
    assert!(error.contains("queries"), "{error}");
}
