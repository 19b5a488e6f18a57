//! Reconstruction: the state and the language-model head that write.

use serde_json::Value;

use super::{DATA, metrics};
use crate::harness::{Folder, kiln, stdout};

/// The last token's state is what reconstruction writes from, whatever is pooled.
#[test]
fn what_reconstruction_writes_from_is_said() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let base = folder.model("{ mode = 'mean' }").display().to_string();
    let notes = |model: &str, out: &str| {
        let text = format!(
            "name = 'r'\n[model]\nbase = '{base}'\n{model}\n[[stage]]\nname = 's'\ndata = ['data.jsonl']\n\
             objective = 'reconstruction'\nreconstruction = {{ tied = true }}\nsteps = 1\nbatch_size = 2\nlr = 1e-3\n\
             [sources.idle]\npath = 'none.jsonl'\n"
        );
        let recipe = folder.write("r.toml", text);
        let run = kiln(&["train", "-r", &recipe, "-o", &folder.arg(out)]).assert().success();
        String::from_utf8(run.get_output().stderr.clone()).unwrap()
    };
    let (warning, note) = ("reconstruction writes from", "model.pooling is \"mean\"");
    let last = "pooling = { mode = 'last_token' }";
    for (model, out, warned, noted) in [
        ("", "closed", false, true),
        ("add_eos = false", "open", true, true),
        (last, "last", false, false),
    ] {
        let said = notes(model, out);
        assert_eq!(
            (said.contains(warning), said.contains(note)),
            (warned, noted),
            "{model}: {said}"
        );
        assert!(said.contains("sources.idle: no stage"), "{said}");
    }
    // The base's own warning is enough.
    let said = notes(&format!("{last}\nadd_eos = false"), "said");
    assert_eq!(said.matches("add_eos = true").count(), 1, "{said}");
}

/// What writes is the base's own language-model head, unless its config.json or the recipe ties it to the embeddings.
#[test]
fn a_pretrained_head_is_what_writes() {
    let folder = Folder::new();
    folder.write("data.jsonl", DATA);
    let base = folder.model("{ mode = 'last_token' }");
    let (config, weights) = (base.join("config.json"), base.join("model.safetensors"));
    let mut settings: Value =
        serde_json::from_str(&std::fs::read_to_string(&config).unwrap()).unwrap();
    let size = |name: &str| settings[name].as_u64().unwrap() as usize;
    let [vocab, width] = ["vocab_size", "hidden_size"].map(size);

    // The same weights with a head of zeros, which finds all tokens alike: a loss of ln(vocab).
    let without = std::fs::read(&weights).unwrap();
    let end = 8 + u64::from_le_bytes(without[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&without[8..end]).unwrap();
    let (begin, bytes) = (without.len() - end, 4 * vocab * width);
    header["lm_head.weight"] = serde_json::json!({
        "dtype": "F32", "shape": [vocab, width], "data_offsets": [begin, begin + bytes]
    });
    let mut header = header.to_string();
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let length = (header.len() as u64).to_le_bytes();
    let zeros = vec![0; bytes];
    let with = [&length[..], header.as_bytes(), &without[end..], &zeros[..]].concat();

    let mut loss = |file: &[u8], config_ties: bool, objective: &str, of_stage: &str| {
        std::fs::write(&weights, file).unwrap();
        settings["tie_word_embeddings"] = config_ties.into();
        std::fs::write(&config, settings.to_string()).unwrap();
        let recipe = format!(
            "name = 'tiny'\n[model]\nbase = '{}'\nmax_length = 24\n[[stage]]\nname = 'first'\ndata = ['data.jsonl']\n\
             objective = '{objective}'\nsteps = 1\nbatch_size = 4\nlr = 1e-9\n{of_stage}\n",
            base.display()
        );
        let out = folder.path("out");
        if out.exists() {
            std::fs::remove_dir_all(&out).unwrap();
        }
        let recipe = folder.write("head.toml", recipe);
        stdout(&mut kiln(&["--quiet", "train", "-r", &recipe, "-o", &folder.arg("out")]));
        metrics(&out)[0]["loss"].as_f64().unwrap()
    };
    for (objective, more) in
        [("reconstruction", "alpha = 0.5"), ("mntp", "mask = 1.0, mask_token = 'a'")]
    {
        let stage = |tied: &str| format!("{objective} = {{ {tied}{more} }}");
        let [unsaid, tied, own] = ["", "tied = true, ", "tied = false, "].map(stage);
        let by_embeddings = loss(&without, true, objective, &unsaid);
        let by_head = (vocab as f64).ln();
        assert!((by_embeddings - by_head).abs() > 1e-4, "{objective}: {by_embeddings} {by_head}");
        for (file, config_ties, of_stage, expected) in [
            (&with, false, &unsaid, by_head),
            (&with, false, &own, by_head),
            (&with, false, &tied, by_embeddings),
            (&with, true, &unsaid, by_embeddings),
            // A copy of the embeddings, which trains.
            (&without, true, &own, by_embeddings),
            (&without, false, &own, by_embeddings),
        ] {
            let actual = loss(file, config_ties, objective, of_stage);
            let what = format!("{objective}: config {config_ties}, {of_stage}");
            assert!((actual - expected).abs() < 1e-5, "{what}: {actual} {expected}");
        }
    }
}
