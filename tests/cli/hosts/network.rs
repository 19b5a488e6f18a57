//! A network between processes that delays, cuts, damages or stalls, and a process that does not keep up.

use std::time::Duration;

use super::{Job, Process, WARM, assert_near, free_port, output_of, wait_for_steps};
use crate::harness::{Folder, kiln, names};
use crate::proxy::{Harm, proxy};
use crate::training::{DATA, numbers, recipe, weights};

impl Job<'_> {
    /// As `begin`, where what rank 0 sends to rank 1 around the ring is harmed after so many bytes.
    fn begin_harmed(&self, output: &str, args: &[&str], harm: Harm, after: usize) -> Vec<Process> {
        let port = free_port();
        let there = proxy("127.0.0.1:0", ([127, 0, 0, 1], port).into(), harm, after).unwrap();
        let begin = |rank: usize| {
            let output = self.folder.arg(&output_of(output, rank));
            let mut command = self.command(rank, &[args, &["--output", &output]].concat());
            command.env("KILN_TIMEOUT", "3");
            if rank == 1 {
                command.env("KILN_BIND", format!("127.0.0.1:{port}"));
                command.env("KILN_ADVERTISE", there.to_string());
            }
            self.start(rank, &mut command)
        };
        (0..self.world).map(begin).collect()
    }
}

#[test]
fn a_network_that_delays_changes_no_number() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(14));
    let args = ["--recipe", &*recipe, "--set", WARM];
    Job::new(&folder, 2).run("swift", &args);
    for process in Job::new(&folder, 2).begin_harmed("late", &args, Harm::Delay, 1 << 18) {
        let (code, said) = process.end();
        assert_eq!(code, Some(0), "{said}");
    }
    let [swift, late] = ["swift", "late"].map(|name| folder.path(name));
    assert_eq!(numbers(&late), numbers(&swift));
    assert_eq!(weights(&late), weights(&swift));
}

#[test]
fn a_network_that_fails_ends_all_in_one_line_and_the_run_goes_on() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(60));
    let args = ["--recipe", &*recipe, "--set", WARM, "--checkpoint-every", "300"];
    kiln(&[&["train", "--output", &folder.arg("one")], &args[..]].concat()).assert().success();
    for (world, harm, expected) in [
        (2, Harm::Damage, "got a frame whose checksum is wrong from rank 0 ("),
        (3, Harm::Cut, "is lost: a connection closed"),
        (2, Harm::Stall, "have reached rank 1 ("),
    ] {
        let name = format!("{harm:?}");
        let job = Job::new(&folder, world);
        let processes = job.begin_harmed(&name, &args, harm, 1 << 20);
        let lines: Vec<String> = processes.into_iter().map(Process::error).collect();
        assert!(lines.iter().all(|line| line.contains(expected)), "{harm:?}: {lines:?}");
        assert!(lines[0].contains("go on with --resume"), "{harm:?}: {lines:?}");
        assert_eq!(names(&folder.path(&name).join("checkpoints")).len(), 1, "{lines:?}");
        Job::new(&folder, world).run(&name, &[&args[..], &["--resume"]].concat());
        assert_near(&folder.path("one"), &folder.path(&name), 1e-4);
    }
}

#[test]
fn a_process_that_does_not_keep_up_is_named() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(1000));
    // Steps of seconds, of which each computes its half.
    let sizes = "{vocab_size=320,hidden_size=384,intermediate_size=1536,layers=8,heads=4}";
    let larger = format!("model.new={sizes}");
    let job = Job::new(&folder, 2);
    let begin = |rank: usize| {
        let output = folder.arg(&output_of("slow", rank));
        let args = ["--recipe", &recipe, "--set", &larger, "--output", &output];
        let mut command = job.command(rank, &args);
        command.envs([("KILN_TIMEOUT", "10"), ("KILN_SLOW_TIMEOUT", "3")]);
        job.start(rank, &mut command)
    };
    let [main, other] = [begin(0), begin(1)];
    wait_for_steps(&folder.path("slow"), 2);
    // It is heard of again and again, and gets on too slowly.
    let halting = std::thread::spawn(move || {
        for _ in 0..50 {
            other.signal("-STOP");
            std::thread::sleep(Duration::from_millis(1900));
            other.signal("-CONT");
            std::thread::sleep(Duration::from_millis(100));
            if other.said().contains("error: ") {
                break;
            }
        }
        other.error()
    });
    let lines = [main.error(), halting.join().unwrap()];
    for line in &lines {
        assert!(line.starts_with("error: rank 1 ("), "{lines:?}");
        assert!(line.contains("is slow: the others have waited for it for 3 s"), "{lines:?}");
    }
    assert!(lines[0].contains("go on with --resume"), "{lines:?}");
}
