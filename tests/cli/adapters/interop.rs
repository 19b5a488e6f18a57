//! Adapters beside PEFT's, in both directions.

use super::{furthest, peft};
use crate::harness::{Folder, embed, kiln, stdout};
use crate::training::DATA;

#[test]
fn peft_loads_what_we_train() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let base = folder.model("{ mode = 'mean' }").display().to_string();
    let recipe = folder.write(
        "r.toml",
        format!(
            "name = 'lora'\n[model]\nbase = '{base}'\n[model.lora]\nrank = 4\nalpha = 12\n\
             targets = ['q_proj', 'v_proj', 'layers.1.mlp.*']\n\
             [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 15\nbatch_size = 4\nlr = 1e-2\n"
        ),
    );
    let out = folder.arg("out");
    kiln(&["train", "--recipe", &recipe, "--output", &out]).assert().success();
    let adapter = folder.arg("out/adapter");
    let Some((theirs, adapted)) = peft(&base, &adapter, &folder) else { return };
    // A and B for q and v of two layers, and for gate, up and down of one.
    assert_eq!(adapted, 2 * (2 * 2 + 3));
    assert!(furthest(&embed(&base, &folder, &[]), &theirs) > 1e-2, "training changed nothing");
    // Rounded once they are in.
    let rounded = furthest(&embed(&adapter, &folder, &["--weights", "int8:8"]), &theirs);
    assert!(rounded > 1e-6 && rounded < 1e-2, "{rounded}");
    let merged = furthest(&embed(&folder.arg("out/model"), &folder, &[]), &theirs);
    let loaded = furthest(&embed(&adapter, &folder, &[]), &theirs);
    assert!(merged < 1e-5 && loaded < 1e-5, "merged {merged}, loaded {loaded}");
    println!("PEFT reads ours: {merged:e}; we read ours again: {loaded:e}");
}

#[test]
fn we_load_what_peft_makes() {
    let folder = Folder::new();
    let base = folder.model("{ mode = 'mean' }").display().to_string();
    let adapter = folder.arg("theirs");
    let Some((theirs, adapted)) = peft(&base, &adapter, &folder) else { return };
    assert_eq!(adapted, 2 * 2 * 2);
    let error = furthest(&embed(&adapter, &folder, &[]), &theirs);
    assert!(error < 1e-5, "{error}");
    assert!(furthest(&embed(&base, &folder, &[]), &theirs) > 1e-3);
    println!("we read PEFT's: {error:e}");

    // An adapter is also a base to train from.
    folder.write("data.jsonl", DATA);
    let recipe = folder.write(
        "r.toml",
        format!(
            "name = 'on'\n[model]\nbase = '{adapter}'\n\
             [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 1\nbatch_size = 4\nlr = 1e-9\n"
        ),
    );
    let out = folder.arg("out");
    kiln(&["train", "--recipe", &recipe, "--output", &out]).assert().success();
    let error = furthest(&embed(&folder.arg("out/model"), &folder, &[]), &theirs);
    assert!(error < 1e-5, "{error}");
    stdout(&mut kiln(&["train", "--recipe", &recipe, "--dry-run", "--json"]));
}
