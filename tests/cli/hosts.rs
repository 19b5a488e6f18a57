//! Training in several processes, as on several hosts: the numbers of one device.

mod lost;
mod network;

use std::net::TcpListener;
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
        "--set",
        "stage.2.weight_decay=0.01",
    ];
    Job::new(&folder, 2).run("whole", &args);
    Job::new(&folder, 2)
        .run("shared", &[&args[..], &["--set", "compute.shard_optimizer=true"]].concat());
    let [whole, shared] = ["whole", "shared"].map(|name| folder.path(name));
    assert_eq!(numbers(&shared), numbers(&whole));
    assert_eq!(weights(&shared), weights(&whole));
}
