//! Several endpoints, each with its share, its roles and its key.

use std::collections::BTreeSet;

use super::counts;
use crate::chat::{Fake, rows, summary};
use crate::harness::{Folder, failure, kiln, stdout};

#[test]
fn endpoints_are_mixed_by_share_and_role() {
    let (folder, strong, cheap, slow) = (Folder::new(), Fake::good(), Fake::good(), Fake::good());
    let config = folder.write(
        "models.toml",
        format!(
            "[[endpoint]]\nurl = '{}'\nmodel = 'strong'\nroles = ['seed']\nkey_env = 'STRONG_KEY'\n\
             prompt_price = 10\ncompletion_price = 30\n\
             [[endpoint]]\nurl = '{}'\nmodel = 'cheap'\nroles = ['write']\nshare = 3\nanswer_tokens = 700\n\
             [[endpoint]]\nurl = '{}'\nmodel = 'slow'\nroles = ['write', 'judge']\n",
            strong.url(),
            cheap.url(),
            slow.url()
        ),
    );
    let out = folder.arg("out");
    let args = ["--quiet", "synthesize", "--llm-config", &config, "-o", &out, "--rows", "60"];
    let mut command = kiln(&args);
    command.args(["--types", "sts,short-short=8", "--brainstorms", "2", "--samples", "2"]);
    command.env("STRONG_KEY", "sk-strong-0123456789").env_remove("OPENAI_API_KEY");
    stdout(&mut command);
    let [strong, cheap, slow] = [&strong, &cheap, &slow].map(Fake::seen);
    // Tasks, and samples of two types.
    assert_eq!(strong.count, 2 + 4);
    assert!(cheap.count > slow.count && slow.count > 5, "{} {}", cheap.count, slow.count);
    assert!(
        strong
            .requests
            .iter()
            .all(|r| r.header("authorization") == Some("Bearer sk-strong-0123456789"))
    );
    for request in cheap.requests.iter().chain(&slow.requests) {
        assert_eq!(request.header("authorization"), None);
        assert!(request.prompt().starts_with("Examples of what is asked"), "{}", request.prompt());
    }
    assert!(cheap.requests.iter().all(|request| request.body["max_tokens"] == 700));
    // A prefix that a provider can keep: one of each type.
    let starts: BTreeSet<String> =
        cheap.prompts().iter().map(|prompt| prompt.chars().take(300).collect()).collect();
    assert_eq!(starts.len(), 2);
    let generators = counts(&rows(&folder), "generator");
    assert_eq!(generators.keys().collect::<Vec<_>>(), ["cheap", "slow"]);
    assert!(summary(&folder)["cost"].as_f64() > Some(0.0));
    // A key that is named must be there.
    let mut command = kiln(&args);
    let error = failure(command.env_remove("STRONG_KEY"));
    assert!(error.contains("STRONG_KEY"), "{error}");
}
