//! Sweeps: variants with seeds, compared; finished runs are not trained again.

use serde_json::Value;

use crate::harness::{Folder, failure, kiln, stdout};
use crate::training::DATA;

#[test]
fn variants_are_trained_once_and_compared() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    folder.write(
        "dev.csv",
        "sentence1,sentence2,score\na river,the river floods,4\na ship,blue petals,1\ntea,timber,2\n",
    );
    folder.write(
        "base.toml",
        "name = 'base'\n[model]\nmax_length = 16\n[eval]\nset = [{ name = 'dev', path = 'dev.csv' }]\n\
         [model.new]\nvocab_size = 300\nhidden_size = 16\nintermediate_size = 24\nlayers = 1\nheads = 2\n\
         [[stage]]\nname = 's'\ndata = ['data.jsonl']\nsteps = 3\nbatch_size = 4\nlr = 1e-2\n",
    );
    let sweep = folder.write(
        "sweep.toml",
        "name = 'rates'\nrecipe = 'base.toml'\nseeds = [1, 2, 3]\n\
         variant = [{ name = 'slow', set = ['stage.s.lr=1e-5'] }, { name = 'fast' }]\n",
    );
    let out = folder.arg("out");
    let run = |seeds: &str| -> Vec<Value> {
        let args = ["sweep", &sweep, "--json", "--output", &out, "--seeds", seeds];
        serde_json::from_str(&stdout(&mut kiln(&args))).unwrap()
    };
    run("1");
    let first = folder.path("out/slow/seed-1/model/model.safetensors");
    let trained = first.metadata().unwrap().modified().unwrap();
    let actual = run("1,2,3");
    assert_eq!(first.metadata().unwrap().modified().unwrap(), trained, "trained again");
    assert_eq!(actual.len(), 2);
    for (variant, name) in actual.iter().zip(["slow", "fast"]) {
        assert_eq!(variant["variant"], name);
        let set = &variant["sets"][0];
        let scores: Vec<f64> = serde_json::from_value(set["scores"].clone()).unwrap();
        assert_eq!((scores.len(), &set["set"]), (3, &"dev".into()));
        let mean = scores.iter().sum::<f64>() / 3.0;
        assert!((set["mean"].as_f64().unwrap() - mean).abs() < 1e-12);
    }
    assert!(std::fs::read_to_string(folder.path("out/report.html")).unwrap().contains("<svg"));
    let text = stdout(&mut kiln(&["sweep", &sweep, "--output", &out]));
    assert!(text.contains("| fast |") && text.contains(" ± "), "{text}");
    // Evaluated at its end alone, a sweep has no curves; what is done is not trained again for models of steps.
    assert!(!text.contains("by step"), "{text}");
    let kept = kiln(&["sweep", &sweep, "--output", &out, "--save-every", "2"]).output().unwrap();
    let said = String::from_utf8(kept.stderr).unwrap();
    assert!(said.contains("seed-2: was trained without keeping the model of step 2"), "{said}");
    assert_eq!(first.metadata().unwrap().modified().unwrap(), trained, "trained again");

    let other = failure(&mut kiln(&[
        "--quiet",
        "sweep",
        &sweep,
        "--output",
        &out,
        "--set",
        "stage.s.lr=1",
    ]));
    assert!(other.contains("other settings"), "{other}");
    let none = failure(&mut kiln(&["--quiet", "sweep", "curiculum", "--output", &out]));
    assert!(none.contains("curriculum"), "{none}");
}
