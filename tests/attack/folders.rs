//! Folders of the user: what Kiln did not write it does not remove.

use std::fs;
use std::path::Path;

use crate::harness::{Folder, failure, kiln, names, stdout};

/// A recipe of some steps, and its data.
fn recipe(folder: &Folder, steps: usize) -> String {
    folder.write("data.jsonl", crate::power::DATA);
    folder.write("recipe.toml", crate::power::recipe(steps))
}

/// Everything below a folder, with its bytes; what a link leads to is not looked at.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for name in names(folder) {
        let path = folder.join(&name);
        if path.is_symlink() {
            all.push((name, fs::read_link(&path).unwrap().display().to_string().into_bytes()));
        } else if path.is_dir() {
            let inner = contents(&path).into_iter();
            all.extend(inner.map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else {
            all.push((name, fs::read(&path).unwrap()));
        }
    }
    all
}

#[test]
fn compression_never_empties_a_folder() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let texts = folder.write("calibration.txt", "the river floods\n".repeat(40));
    fs::create_dir_all(folder.path("mine/thesis")).unwrap();
    folder.write("mine/thesis/chapter-1.txt", "three years of work");
    fs::create_dir(folder.path("data-only")).unwrap();
    folder.write("data-only/model.safetensors", "somebody's weights");
    let commands: [&[&str]; 3] = [
        &["quantize", "-m", &model, "--scheme", "int8:4"],
        &["export", "-m", &model],
        &[
            "prune",
            "-m",
            &model,
            "--method",
            "magnitude",
            "--pattern",
            "50%",
            "--calibration",
            &texts,
        ],
    ];
    for command in commands {
        for (target, actual) in [("mine", "chapter-1.txt"), ("data-only", "model.safetensors")] {
            for overwrite in [&[][..], &["--overwrite"]] {
                let before = contents(&folder.path(target));
                let target = folder.arg(target);
                let args = [command, &["-o", &target], overwrite].concat();
                let error = failure(kiln(&args).arg("--quiet"));
                assert!(error.contains(actual) && error.contains("did not write"), "{error}");
                assert_eq!(contents(Path::new(&target)), before);
            }
        }
        // What it wrote itself it replaces where it is told to.
        let out = folder.arg("out");
        let args = [command, &["-o", &out, "--quiet"]].concat();
        kiln(&args).assert().success();
        let error = failure(&mut kiln(&args));
        assert!(error.contains("--overwrite"), "{error}");
        kiln(&args).arg("--overwrite").assert().success();
        // But not with something of the user's in it, nor a file that the user has changed.
        folder.write("out/notes.txt", "mine");
        let error = failure(kiln(&args).arg("--overwrite"));
        assert!(error.contains("notes.txt"), "{error}");
        fs::remove_file(folder.path("out/notes.txt")).unwrap();
        folder.write("out/config.json", "{}");
        let error = failure(kiln(&args).arg("--overwrite"));
        assert!(error.contains("config.json") && error.contains("changed"), "{error}");
        fs::remove_dir_all(folder.path("out")).unwrap();
    }
    // A file of another kind, whatever its name says.
    let target = folder.write("thesis.kiln", "not a model");
    let args = ["export", "--quiet", "-m", &model, "-o", &target];
    assert!(failure(&mut kiln(&args)).contains("--overwrite"));
    assert!(failure(kiln(&args).arg("--overwrite")).contains("no .kiln file"));
    assert_eq!(fs::read(&target).unwrap(), b"not a model");
    let target = folder.arg("model.kiln");
    let args = ["export", "--quiet", "-m", &model, "-o", &target];
    kiln(&args).assert().success();
    assert!(failure(&mut kiln(&args)).contains("--overwrite"));
    kiln(&args).arg("--overwrite").assert().success();
}

#[test]
#[cfg(unix)]
fn links_stay_links() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    fs::create_dir(folder.path("real")).unwrap();
    std::os::unix::fs::symlink(folder.path("real"), folder.path("link")).unwrap();
    kiln(&["export", "--quiet", "-m", &model, "-o", &folder.arg("link")]).assert().success();
    assert!(folder.path("link").is_symlink());
    assert!(folder.path("real/kiln.json").is_file());
    fs::create_dir(folder.path("mine")).unwrap();
    folder.write("mine/thesis.txt", "three years of work");
    std::os::unix::fs::symlink(folder.path("mine"), folder.path("other")).unwrap();
    let args = ["export", "--quiet", "-m", &model, "--overwrite", "-o", &folder.arg("other")];
    assert!(failure(&mut kiln(&args)).contains("thesis.txt"));
    assert!(folder.path("other").is_symlink() && folder.path("mine/thesis.txt").is_file());
}

#[test]
fn training_takes_only_its_own_names() {
    let folder = Folder::new();
    let recipe = recipe(&folder, 2);
    // A model of the user's where the run's would go.
    fs::create_dir_all(folder.path("run/model")).unwrap();
    folder.write("run/model/config.json", "somebody's model");
    let out = folder.arg("run");
    let args = ["train", "--quiet", "-r", &recipe, "-o", &out];
    for overwrite in [&[][..], &["--overwrite"]] {
        let error = failure(kiln(&args).args(overwrite));
        assert!(error.contains("config.json") && error.contains("did not write"), "{error}");
        assert_eq!(fs::read(folder.path("run/model/config.json")).unwrap(), b"somebody's model");
    }
    // The recipe's own folder: it is not replaced by the resolved one.
    let before = fs::read(&recipe).unwrap();
    let here = recipe.trim_end_matches("/recipe.toml");
    let error = failure(&mut kiln(&["train", "--quiet", "-r", &recipe, "-o", here]));
    assert!(error.contains("recipe.toml"), "{error}");
    assert_eq!(fs::read(&recipe).unwrap(), before);

    let out = folder.arg("clean");
    let args = ["train", "--quiet", "-r", &recipe, "-o", &out];
    kiln(&args).assert().success();
    folder.write("clean/notes.txt", "beside the model, in nobody's way");
    fs::remove_dir_all(folder.path("clean/checkpoints")).unwrap();
    let error = failure(&mut kiln(&args));
    assert!(error.contains("--overwrite"), "{error}");
    kiln(&args).arg("--overwrite").assert().success();
    assert!(folder.path("clean/notes.txt").is_file());

    folder.write("report.html", "somebody's report");
    let error = failure(&mut kiln(&["quickstart", "--quiet", "--steps", "0.01", "-o", here]));
    assert!(error.contains("report.html") || error.contains("recipe.toml"), "{error}");
    assert_eq!(fs::read(folder.path("report.html")).unwrap(), b"somebody's report");
}

#[test]
fn a_mounted_folder_is_written_to() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let Some(disk) = crate::harness::Disk::mount(folder.path("disk"), "20m") else {
        eprintln!("SKIPPED: this process may not mount a file system");
        return;
    };
    let target = disk.0.display().to_string();
    let args = ["export", "--quiet", "-w", "f32", "-m", &model, "-o", &target];
    kiln(&args).assert().success();
    let first = names(&disk.0);
    assert!(first.contains(&"kiln.json".to_string()), "{first:?}");
    kiln(&args).arg("--overwrite").assert().success();
    assert_eq!(names(&disk.0), first);
    let compare = |i: &str| stdout(&mut kiln(&["similarity", "-q", "-m", i, "a river", "a ship"]));
    assert_eq!(compare(&target), compare(&model));
    fs::write(disk.0.join("mine.txt"), "mine").unwrap();
    assert!(failure(kiln(&args).arg("--overwrite")).contains("mine.txt"));
}
