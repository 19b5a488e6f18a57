//! The loss of a run's first step beside the papers' formulas in PyTorch.

use std::path::Path;

/// `tests/reference/objectives.py` on a random Llama of four layers: losses and gradients, heads, NV-Embed's masked
/// pooling, and the tokens of 100 texts.
#[test]
fn first_steps_are_those_of_the_papers_formulas() {
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!(
            "SKIPPED: KILN_PYTHON is not set; tests/run.sh installs transformers and peft and sets it"
        );
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference/objectives.py");
    let run = std::process::Command::new(python)
        .arg(script)
        .args(["--tiny", "--threads", "1", "--kiln", env!("CARGO_BIN_EXE_kiln")])
        .output()
        .unwrap();
    let (said, error) =
        (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{said}\n{error}");
    for case in [
        "anchor, column_product, bidirectional",
        "known positives masked",
        "reconstruction, EOS written too",
        "reconstruction, a head of its own",
        "distillation, NV-Embed's appendix A",
        "MNTP, BOS, gradient",
        "NV-Embed's masked pooling, prompt ends in a colon",
        "tokens of 100 texts, BOS, suffix, EOS, left",
    ] {
        let line = said.lines().find(|line| line.starts_with(case)).unwrap_or_default();
        assert!(line.ends_with("  yes"), "{case}: {said}");
    }
}
