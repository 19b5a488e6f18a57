//! Adapters from the Hub, by themselves and with their model.

use super::Hub;
use crate::adapters::lora;
use crate::harness::{Folder, TEXTS, failure, kiln, names, stdout};

/// PEFT wrote them so before it wrote safetensors.
#[test]
fn adapters_in_pytorchs_format_come_from_the_hub() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path("hub/someone")).unwrap();
    let model = folder.path("hub/someone/tiny");
    std::fs::rename(folder.model("{ mode = 'mean' }"), &model).unwrap();
    for place in [model.join("old"), folder.path("hub/someone/alone")] {
        lora(&place, "someone/tiny", 1.0);
        std::fs::remove_file(place.join("adapter_model.safetensors")).unwrap();
        std::fs::write(place.join("adapter_model.bin"), "none").unwrap();
    }
    let Some(hub) = Hub::start(&folder) else { return };
    for id in ["someone/tiny#old", "someone/alone"] {
        let mut command = kiln(&["--quiet", "similarity", "-m", id, "a river", "a ship"]);
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", folder.arg("cache"));
        let error = failure(&mut command);
        // It came, and is read.
        assert!(error.contains("adapter_model.bin"), "{error}");
    }
}

#[test]
fn an_adapter_by_name_comes_from_the_hub_whole() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path("hub/someone")).unwrap();
    let model = folder.path("hub/someone/tiny");
    std::fs::rename(folder.model("{ mode = 'mean' }"), &model).unwrap();
    // Their maker's own folder, which is of no use to anybody else.
    lora(&model.join("retrieval_query"), "/home/maker/model", 1.0);
    lora(&model.join("adapters/passage"), "/home/maker/model", 2.0);
    let Some(hub) = Hub::start(&folder) else { return };
    let run = |args: &[&str]| {
        let mut command = kiln(&[&["--quiet"], args].concat());
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", folder.arg("cache"));
        command
    };
    let similarity = |model: &str| run(&["similarity", "--json", "-m", model, "a river", "a ship"]);
    let local = |name: &str| stdout(&mut similarity(&format!("{}#{name}", model.display())));
    let expected = local("retrieval.query");
    std::fs::create_dir(folder.path("docs")).unwrap();
    folder.write("docs/a.txt", TEXTS.join("\n"));
    let (docs, vectors) = (folder.arg("docs"), folder.arg("vectors/"));
    stdout(&mut run(&["embed", "-m", "someone/tiny", "--input", &docs, "--output", &vectors]));

    // A download that breaks off between the two files.
    let (weights, aside) =
        (model.join("retrieval_query/adapter_model.safetensors"), folder.path("aside"));
    std::fs::rename(&weights, &aside).unwrap();
    let id = "someone/tiny#retrieval.query";
    let error = failure(&mut similarity(id));
    assert!(error.contains("retrieval_query/adapter_model.safetensors"), "{error}");
    let snapshots = folder.path("cache/hub/models--someone--tiny/snapshots");
    let snapshot = snapshots.join(&names(&snapshots)[0]);
    assert_eq!(names(&snapshot.join("retrieval_query")), ["adapter_config.json"]);
    let error = failure(similarity(id).env("HF_HUB_OFFLINE", "1"));
    assert!(error.contains("retrieval_query/adapter_model.safetensors"), "{error}");
    std::fs::rename(&aside, &weights).unwrap();
    assert_eq!(stdout(&mut similarity(id)), expected);
    assert_eq!(stdout(similarity(id).env("HF_HUB_OFFLINE", "1")), expected);
    // A whole one is not asked for again.
    let asked = || {
        // The log is read by another thread.
        std::thread::sleep(std::time::Duration::from_millis(200));
        hub.requests.lock().unwrap().iter().filter(|path| path.contains("retrieval_query")).count()
    };
    let before = asked();
    assert_eq!(stdout(&mut similarity(id)), expected);
    assert_eq!(asked(), before);

    assert_eq!(stdout(&mut similarity("someone/tiny#passage")), local("passage"));
    let error = failure(&mut similarity("someone/tiny#separation"));
    let known = "has no adapter \"separation\"; there are passage, retrieval_query";
    assert!(error.contains(known), "{error}");
    // By itself it is a stranger's that names a folder.
    let error = failure(&mut similarity(&snapshot.join("retrieval_query").display().to_string()));
    assert!(error.contains("names the base model"), "{error}");
    // The model's vectors are what they were before it had adapters.
    stdout(&mut run(&["search", "-m", "someone/tiny", "-Q", "x", "--index", &vectors]));
}
