//! What is said where a process is killed, stopped, or none of ours, and that the run goes on.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{ASKED, Job, Process, WARM, assert_near, wait_for_steps};
use crate::harness::{Folder, kiln, names};
use crate::training::{DATA, losses, metrics, recipe};

#[test]
fn a_killed_process_is_named_and_another_number_goes_on() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(240));
    let args = ["--recipe", &*recipe, "--set", WARM, "--checkpoint-every", "300"];
    kiln(&[&["train", "--output", &folder.arg("one")], &args[..]].concat()).assert().success();
    for victim in [1, 2, 0] {
        let name = format!("without-{victim}");
        let mut processes = Job::new(&folder, 3).begin(&name, &args);
        wait_for_steps(&folder.path(&name), 20);
        let killed = processes.remove(victim);
        killed.signal("-KILL");
        let begun = Instant::now();
        let said: Vec<String> = processes.into_iter().map(Process::error).collect();
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        for line in &said {
            assert!(line.starts_with(&format!("error: rank {victim} (")), "{said:?}");
            assert!(line.contains("is lost"), "{said:?}");
        }
        if victim == 0 {
            assert!(said[0].contains("the last checkpoint of rank 0 holds"), "{said:?}");
            continue;
        }
        // Rank 0 saved the last whole step, which was no multiple of 300.
        assert!(said[0].contains("go on with --resume"), "{said:?}");
        let saved = names(&folder.path(&name).join("checkpoints"));
        assert!(!saved.is_empty(), "{said:?}");
        let resume = [&args[..], &["--resume"]].concat();
        match victim {
            1 => Job::new(&folder, 2).run(&name, &resume),
            _ => {
                let output = ["train", "--output", &folder.arg(&name)];
                kiln(&[&output[..], &resume].concat()).assert().success();
            }
        }
        assert_near(&folder.path("one"), &folder.path(&name), 1e-3);
    }
}

#[test]
fn a_process_that_evaluates_stops_where_another_is_killed() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let words = ["river", "streets", "violinist", "town", "granite", "walls", "ship", "timber"];
    let row = |i: usize| {
        let word = |place: usize| words[i / 8usize.pow(place as u32) % 8];
        let text: Vec<&str> = (0..14).map(|place| word(place % 6)).collect();
        format!("{} {i},{} {i},{}\n", text.join(" "), word(0), i % 6)
    };
    let rows: String = (0..60_000).map(row).collect();
    folder.write("dev.csv", format!("sentence1,sentence2,score\n{rows}"));
    let measured = format!(
        "{}\n[eval]\nevery = 5\nset = [{{ name = 'dev', path = 'dev.csv' }}]\n",
        recipe(240)
    );
    let recipe = folder.write("r.toml", measured);
    let mut processes = Job::new(&folder, 2).begin("run", &["--recipe", &recipe]);
    wait_for_steps(&folder.path("run"), 4);
    // The fifth step takes no such time, and its evaluation takes many times as long.
    std::thread::sleep(Duration::from_millis(400));
    processes.remove(1).signal("-KILL");
    let error = processes.remove(0);
    let (code, said) = error.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("error: rank 1 (") && said.contains("is lost"), "{said}");
    // It was broken off, and said no score; the step stands.
    assert!(!said.contains("step 5: dev") && said.contains("after 5 steps"), "{said}");
    let steps = metrics(&folder.path("run"));
    assert_eq!(steps.len(), 5, "{said}");
    assert!(steps[4]["scores"].is_null(), "{said}");
    // And the run goes on from there, with texts to measure by that take no such time.
    folder.write("dev.csv", format!("sentence1,sentence2,score\n{}{}{}", row(0), row(1), row(2)));
    let args = ["train", "--recipe", &recipe, "--output", &folder.arg("run"), "--resume"];
    kiln(&args).assert().success();
    assert_eq!(metrics(&folder.path("run")).len(), 246);
}

#[test]
fn a_process_that_is_asked_to_stop_stops_all() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(100_000));
    for victim in [0, 1] {
        let name = format!("asked-{victim}");
        let args = ["--recipe", &*recipe, "--checkpoint-every", "100000"];
        let processes = Job::new(&folder, 2).begin(&name, &args);
        wait_for_steps(&folder.path(&name), 5);
        processes[victim].signal("-TERM");
        for process in processes {
            let (code, said) = process.end();
            assert_eq!(code, ASKED, "{said}");
            let stopped = format!("error: rank {victim} (");
            let line = said.lines().find(|line| line.starts_with(&stopped));
            assert!(line.is_some_and(|line| line.contains("was asked to stop")), "{said}");
        }
        let steps = losses(&folder.path(&name)).len();
        let saved = names(&folder.path(&name).join("checkpoints"));
        assert_eq!(saved, [format!("{steps:08}")]);
    }
}

#[test]
fn a_process_that_is_stopped_or_fails_is_named() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let text = recipe(100_000);
    let recipe = folder.write("r.toml", &text);
    let mut silent = Job::new(&folder, 2).begin("still", &["--recipe", &recipe]);
    wait_for_steps(&folder.path("still"), 5);
    let stopped = silent.remove(1);
    stopped.signal("-STOP");

    // Other data on one of the hosts.
    folder.write("other.jsonl", DATA.replace("river", "brook"));
    let theirs = folder.path("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::fs::copy(folder.path("other.jsonl"), theirs.join("data.jsonl")).unwrap();
    let job = Job::new(&folder, 2);
    let begin = |rank: usize, more: &[&str]| {
        let output = folder.arg(&format!("data-{rank}"));
        let args = [&["--recipe", &*recipe, "--output", &output], more].concat();
        job.start(rank, &mut job.command(rank, &args))
    };
    let processes = [begin(0, &[]), begin(1, &["--data-dir", &theirs.display().to_string()])];
    for process in processes {
        let line = process.error();
        assert!(line.contains("reads other data than rank 0"), "{line}");
    }

    // Another base, which stays packed, so that nobody is given the first one's.
    let full = folder.model("{ mode = 'mean' }").display().to_string();
    for (place, scheme) in [("one", "int4:8"), ("two", "int8:8")] {
        let base = folder.arg(&format!("{place}/base"));
        kiln(&["quantize", "-m", &full, "--scheme", scheme, "-o", &base]).assert().success();
    }
    let packed = "name = 'packed'\nseed = 5\n[model]\nbase = 'base'\nfrozen_weights = 'int4:8'\n\
                  [model.lora]\nrank = 4\nalpha = 8\n\
                  [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 8\nbatch_size = 4\nlr = 1e-2\n";
    let packed = folder.write("packed.toml", packed);
    let job = Job::new(&folder, 2);
    let begin = |rank: usize, place: &str| {
        let output = folder.arg(&format!("base-{rank}"));
        let mut command = job.command(rank, &["--recipe", &packed, "--output", &output]);
        job.start(rank, command.current_dir(folder.path(place)))
    };
    for process in [begin(0, "one"), begin(1, "two")] {
        let line = process.error();
        assert!(line.contains("reads another base than rank 0"), "{line}");
    }

    // Meanwhile the one that stands still has been noticed.
    let line = silent.remove(0).error();
    assert!(
        line.starts_with("error: rank 1 (") && line.contains("nothing has been heard"),
        "{line}"
    );
    stopped.signal("-CONT");
    let line = stopped.error();
    assert!(line.starts_with("error: rank "), "{line}");

    // One that cannot write, and one whose data are not there.
    let job = Job::new(&folder, 2);
    let begin = |rank: usize, more: &[&str]| {
        let output = folder.arg("still");
        let args = [&["--recipe", &*recipe, "--output", &output], more].concat();
        job.start(rank, &mut job.command(rank, &args))
    };
    let [first, second] = [begin(0, &[]), begin(1, &[])];
    let line = first.error();
    assert!(line.contains("holds a checkpoint"), "{line}");
    let line = second.error();
    assert!(
        line.contains("rank 0 (")
            && line.contains("has failed")
            && line.contains("holds a checkpoint"),
        "{line}"
    );
}

#[test]
fn what_does_not_belong_together_does_not_train() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(5));
    // The first one need not wait long for one that is refused; where it is told more, it waits for that.
    let run = |seconds: &str, change: &dyn Fn(&mut Command), more: &[&str]| -> [String; 2] {
        let job = Job::new(&folder, 2);
        let args = ["--recipe", &*recipe, "--output", &folder.arg("never")];
        let mut first = job.command(0, &args);
        first.env("KILN_JOIN_TIMEOUT", seconds);
        let mut second = job.command(1, &[&args[..], more].concat());
        change(&mut second);
        let second = job.start(1, &mut second);
        [job.start(0, &mut first), second].map(Process::error)
    };
    let keep = |_: &mut Command| ();
    let [main, other] = run(
        "4",
        &|command| {
            command.env("KILN_SECRET", "not the same secret");
        },
        &[],
    );
    assert!(other.contains("another secret than this host"), "{other}");
    assert!(!other.contains("not the same secret"), "{other}");
    assert!(main.contains("rank 1 has not come") && main.contains("another KILN_SECRET"), "{main}");
    for more in [["--set", "stage.1.lr=1e-4"], ["--checkpoint-every", "3"]] {
        let [main, other] = run("60", &keep, &more);
        assert!(other.contains("trains by another recipe than rank 0"), "{other}");
        assert_eq!(main, other);
    }
    let [main, other] = run(
        "60",
        &|command| {
            command.env("WORLD_SIZE", "3");
        },
        &[],
    );
    assert!(other.contains("WORLD_SIZE"), "{other}");
    assert_eq!(main, other);
    assert!(!folder.path("never").exists());
    // What launchers leave out.
    let alone = |change: &dyn Fn(&mut Command)| {
        let job = Job::new(&folder, 2);
        let mut command = job.command(0, &["--recipe", &recipe, "--output", &folder.arg("never")]);
        change(&mut command);
        job.start(0, &mut command).error()
    };
    let line = alone(&|command| {
        command.env_remove("KILN_SECRET");
    });
    assert!(line.contains("KILN_SECRET is not set"), "{line}");
    let line = alone(&|command| {
        command.env_remove("MASTER_ADDR");
    });
    assert!(line.contains("MASTER_ADDR"), "{line}");
    let line = alone(&|command| {
        command.env("MASTER_ADDR", "192.0.2.1");
    });
    assert!(line.contains("cannot listen on 192.0.2.1"), "{line}");
}

#[test]
fn a_port_scan_and_another_version_disturb_nobody() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(5));
    let job = Job::new(&folder, 2);
    let output = folder.arg("run");
    let begin = |rank: usize| {
        let output = if rank == 0 { output.clone() } else { folder.arg("none") };
        job.start(rank, &mut job.command(rank, &["--recipe", &recipe, "--output", &output]))
    };
    let first = begin(0);
    let connect = || loop {
        match TcpStream::connect(("127.0.0.1", job.port)) {
            Ok(stream) => return stream,
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut held = Vec::new();
    let another_version = [&b"KILNHOST"[..], &99u16.to_le_bytes(), &[7; 64]].concat();
    for garbage in [b"GET / HTTP/1.0\r\n\r\n", &[0xff; 5000][..], b"\0", &another_version] {
        let mut stream = connect();
        let _ = stream.write_all(garbage);
        held.push(stream);
    }
    let begun = Instant::now();
    while !first.said().contains("127.0.0.1 speaks version 99") {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", first.said());
        std::thread::sleep(Duration::from_millis(20));
    }
    let second = begin(1);
    let (code, said) = first.end();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(second.end(), (Some(0), String::new()));
    assert!(folder.path("run/model").is_dir());
}
