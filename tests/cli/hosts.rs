//! Training in several processes, as on several hosts: the numbers of one device, and what is said where one of them
//! is killed, stopped, or none of ours.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Folder, kiln, names};
use crate::training::{DATA, losses, metrics, numbers, recipe, weights};

/// A loss that stays one: the other falls to nothing in a few steps.
const WARM: &str = "stage.1.loss={temperature=1.0}";
const SECRET: &str = "only for these tests";
/// Exit code of what was asked to stop.
const ASKED: Option<i32> = Some(130);

/// A port below those that systems hand out, so that no other connection takes it meanwhile.
fn free_port() -> u16 {
    // Each test is a process of its own.
    let first = 20_000 + (std::process::id() % 1000) as u16 * 10;
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    static USED: AtomicU16 = AtomicU16::new(0);
    let used = USED.fetch_add(1, Ordering::SeqCst);
    (first + used..32_000).find(free).unwrap()
}

/// Processes that find one another on loopback.
struct Job<'a> {
    folder: &'a Folder,
    world: usize,
    port: u16,
}

/// One of them.
struct Process(Child, std::path::PathBuf);

impl<'a> Job<'a> {
    fn new(folder: &'a Folder, world: usize) -> Self {
        Self { folder, world, port: free_port() }
    }

    fn command(&self, rank: usize, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        command
            .args(["--device", "cpu", "train"])
            .args(args)
            .envs([
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", self.world.to_string()),
                ("LOCAL_RANK", rank.to_string()),
                ("MASTER_ADDR", "127.0.0.1".to_string()),
                ("MASTER_PORT", self.port.to_string()),
                ("KILN_SECRET", SECRET.to_string()),
                ("KILN_TIMEOUT", "8".to_string()),
                ("KILN_JOIN_TIMEOUT", "60".to_string()),
                ("RAYON_NUM_THREADS", "1".to_string()),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    fn start(&self, rank: usize, command: &mut Command) -> Process {
        let said = self.folder.path(&format!("said-{}-{rank}.txt", self.port));
        let file = std::fs::File::create(&said).unwrap();
        Process(command.stderr(file).spawn().unwrap(), said)
    }

    /// All of them, of which each gets the same arguments and an output folder of its own.
    fn begin(&self, output: &str, args: &[&str]) -> Vec<Process> {
        (0..self.world)
            .map(|rank| {
                let output = self.folder.arg(&output_of(output, rank));
                let args = [args, &["--output", &output]].concat();
                self.start(rank, &mut self.command(rank, &args))
            })
            .collect()
    }

    /// Runs to the end.
    fn run(&self, output: &str, args: &[&str]) {
        for (rank, process) in self.begin(output, args).into_iter().enumerate() {
            let (code, said) = process.end();
            assert_eq!(code, Some(0), "rank {rank}: {said}");
            assert!(rank == 0 || said.is_empty(), "rank {rank}: {said}");
            let theirs = self.folder.path(&output_of(output, rank));
            assert_eq!(theirs.exists(), rank == 0, "only rank 0 writes");
        }
    }
}

fn output_of(name: &str, rank: usize) -> String {
    if rank == 0 { name.to_string() } else { format!("{name}-of-{rank}") }
}

impl Process {
    fn said(&self) -> String {
        std::fs::read_to_string(&self.1).unwrap()
    }

    fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Exit code and what it said.
    fn end(mut self) -> (Option<i32>, String) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return (status.code(), self.said());
            }
            if begun.elapsed() > Duration::from_secs(120) {
                self.0.kill().unwrap();
                panic!("still runs: {}", self.said());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Its one error line.
    fn error(self) -> String {
        let (code, said) = self.end();
        assert!(matches!(code, Some(1) | ASKED), "{code:?}: {said}");
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{said}");
        assert!(!said.contains("internal failure"), "{said}");
        errors[0].to_string()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test that failed leaves nothing behind.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Until a run has so many steps behind it.
fn wait_for_steps(folder: &Path, steps: usize) {
    let begun = Instant::now();
    let file = folder.join("metrics.jsonl");
    while !std::fs::read_to_string(&file).is_ok_and(|text| text.lines().count() >= steps) {
        assert!(begun.elapsed() < Duration::from_secs(60), "no {steps} steps in a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn assert_near(one: &Path, many: &Path, most: f64) {
    let (one, many) = (metrics(one), metrics(many));
    assert_eq!(one.len(), many.len());
    for (a, b) in one.iter().zip(&many) {
        for field in ["loss", "grad_norm"] {
            let number = |line: &Value| line[field].as_f64().unwrap();
            let (a, b) = (number(a), number(b));
            assert!((a - b).abs() < most * a.abs().max(1.0), "{field}: {a} and {b}");
        }
    }
}

/// The greatest difference of two models' weights.
fn farthest(one: &Path, many: &Path) -> f32 {
    let values = |run: &Path| {
        let directory = kiln_embed::checkpoint::Directory::new(run.join("model")).unwrap();
        let mut weights = kiln_embed::checkpoint::Weights::open(&directory, "model").unwrap();
        let names: Vec<String> = weights.tensors().keys().cloned().collect();
        names.iter().flat_map(|name| weights.read(name).unwrap().unwrap()).collect::<Vec<f32>>()
    };
    let (one, many) = (values(one), values(many));
    assert_eq!(one.len(), many.len());
    one.iter().zip(&many).fold(0.0, |most, (a, b)| f32::max(most, (a - b).abs()))
}

#[test]
fn processes_train_as_one_device_and_the_same_again() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(14));
    let one = folder.path("one");
    let args = ["--recipe", &*recipe, "--set", WARM, "--checkpoint-every", "5"];
    kiln(&[&["train", "--output", &folder.arg("one")], &args[..]].concat()).assert().success();
    for world in [2, 3] {
        let name = format!("of-{world}");
        Job::new(&folder, world).run(&name, &args);
        let many = folder.path(&name);
        assert_near(&one, &many, 1e-5);
        assert!(farthest(&one, &many) < 1e-4, "{}", farthest(&one, &many));
        let again = format!("again-{world}");
        Job::new(&folder, world).run(&again, &args);
        assert_eq!(numbers(&folder.path(&again)), numbers(&many));
        assert_eq!(weights(&folder.path(&again)), weights(&many));
    }
    // Rounded on the way, and near all the same.
    let rounded = [&args[..], &["--set", "compute.gradients='bf16'"]].concat();
    Job::new(&folder, 2).run("rounded", &rounded);
    let rounded = folder.path("rounded");
    assert_near(&one, &rounded, 0.1);
    assert_ne!(losses(&rounded), losses(&folder.path("of-2")));
}

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
fn an_optimizer_that_is_shared_out_takes_the_same_steps() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(14));
    let args = ["--recipe", &*recipe, "--set", WARM, "--checkpoint-every", "5", "--keep", "9"];
    Job::new(&folder, 2).run("whole", &args);
    let args = [&args[..], &["--set", "compute.shard_optimizer=true"]].concat();
    let (whole, shared) = (folder.path("whole"), folder.path("shared"));
    let checkpoints = shared.join("checkpoints");
    let kept = |checkpoint: &Path| -> [usize; 2] {
        ["", "-1"].map(|part| {
            let group =
                |group: &str| checkpoint.join(format!("optimizer-{group}decayed{part}.bin"));
            let size = |file: std::path::PathBuf| file.metadata().map_or(0, |file| file.len());
            (size(group("")) + size(group("un"))) as usize
        })
    };
    let again = |world: usize| {
        // From the tenth step on.
        for later in names(&checkpoints).into_iter().filter(|name| *name > format!("{:08}", 10)) {
            std::fs::remove_dir_all(checkpoints.join(later)).unwrap();
        }
        let args = [&args[..], &["--resume"]].concat();
        match world {
            1 => {
                let output = ["train", "--output", &shared.display().to_string()];
                kiln(&[&output[..], &args].concat()).assert().success();
            }
            _ => Job::new(&folder, world).run("shared", &args),
        }
    };
    Job::new(&folder, 2).run("shared", &args);
    for resumed in [false, true] {
        if resumed {
            again(2);
        }
        assert_eq!(numbers(&shared), numbers(&whole));
        assert_eq!(weights(&shared), weights(&whole));
    }
    // Each had about half of it.
    let last = "00000020";
    let [all, none] = kept(&whole.join("checkpoints").join(last));
    let shares = kept(&checkpoints.join(last));
    assert_eq!(none, 0);
    assert!(
        shares.iter().all(|share| *share > all / 3 && *share < 2 * all / 3),
        "{shares:?} {all}"
    );
    for world in [3, 1] {
        again(world);
        assert_near(&whole, &shared, 1e-4);
    }
}

#[test]
fn an_optimizer_that_is_shared_out_and_kept_knows_what_it_knew() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let recipe = folder.write("r.toml", recipe(5));
    // The pooling head trains in both stages, the base in the first alone, so that the head is shared out in another way.
    let args = [
        "--recipe",
        &*recipe,
        "--set",
        WARM,
        "--set",
        "model.pooling={mode='latent_attention',latents=8,heads=2}",
        "--set",
        "model.lora={rank=2,alpha=4,dropout=0.0,targets=['all-linear']}",
        "--set",
        "stage.1.full=true",
        "--set",
        "stage.2.keep_optimizer=true",
    ];
    Job::new(&folder, 2).run("whole", &args);
    Job::new(&folder, 2)
        .run("shared", &[&args[..], &["--set", "compute.shard_optimizer=true"]].concat());
    let [whole, shared] = ["whole", "shared"].map(|name| folder.path(name));
    assert_eq!(numbers(&shared), numbers(&whole));
    assert_eq!(weights(&shared), weights(&whole));
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
