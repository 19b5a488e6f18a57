//! Models that go to the Hub.

use super::Hub;
use crate::harness::{Folder, failure, kiln, stdout};

#[test]
fn a_model_goes_to_the_hub_and_comes_back() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'latent_attention', latents = 4, heads = 2 }");
    let model = model.display().to_string();
    std::fs::create_dir_all(folder.path("hub")).unwrap();
    let Some(hub) = Hub::start(&folder) else { return };
    let push = |args: &[&str], token: &str| {
        let mut command = kiln(&[&["--quiet", "push"], args].concat());
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", folder.arg("cache"));
        command.env("HF_TOKEN", token);
        command
    };
    let id = "someone/pushed";
    let error = failure(&mut push(&[&model, id], "hf_reader"));
    assert!(error.contains("HF_TOKEN"), "{error}");
    assert!(!folder.path("hub/someone").exists());
    let url = stdout(&mut push(&[&model, id], "hf_writer"));
    assert!(url.contains("someone/pushed"), "{url}");
    let compare = |i: &str| {
        let mut command = kiln(&["--quiet", "similarity", "--json", "-m", i, "a river", "a ship"]);
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", folder.arg("cache"));
        stdout(&mut command)
    };
    assert_eq!(compare(id), compare(&model));

    let error = failure(&mut push(&[&folder.arg("hub"), id], "hf_writer"));
    assert!(error.contains("config.json"), "{error}");
    let error = failure(&mut push(&[&model, "no id"], "hf_writer"));
    assert!(error.contains("owner/name"), "{error}");
    let error = failure(push(&[&model, id], "hf_writer").env("HF_HUB_OFFLINE", "1"));
    assert!(error.contains("HF_HUB_OFFLINE"), "{error}");
}
