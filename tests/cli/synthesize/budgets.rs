//! Budgets of requests, tokens and money.

use serde_json::{Value, json};

use super::{STS, with};
use crate::chat::{Fake, Reply, answers, summary, synthesize};
use crate::harness::{Folder, failure, stdout};

#[test]
fn budgets_end_a_run_and_more_of_them_go_on() {
    let usage = |body: &mut Value| {
        body["usage"] = json!({"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150});
    };
    let model = || Fake::start(move |request| Reply::good(request).changed(usage));
    let prices = ["--prompt-price", "10", "--completion-price", "20"];
    // Of 20 examples 8 are paid for: 0.002 each.
    let budgets: [(&[&str], &[&str]); 3] = [
        (&["--max-requests", "8"], &["--max-requests", "30"]),
        (&["--max-tokens", "1200"], &["--max-tokens", "5000"]),
        (&["--max-cost", "0.016"], &["--max-cost", "1"]),
    ];
    for (little, much) in budgets {
        for concurrency in ["1", "4"] {
            let (folder, model) = (Folder::new(), model());
            let args = with(&STS, &["--rows", "20", "--concurrency", concurrency]);
            let args = with(&args, &prices);
            let first = synthesize(&model.url(), &folder, &with(&args, little)).output().unwrap();
            let text = String::from_utf8(first.stdout).unwrap();
            assert!(first.status.success(), "{text}");
            assert!(text.contains("--resume asks for them"), "{text}");
            let asked = model.count();
            // What is under way is counted, about, so that none is wasted and little is overspent.
            assert!((5..=8).contains(&asked), "{little:?}: {asked} requests");
            let done = summary(&folder);
            assert_eq!(done["prompt_tokens"], 100 * asked);
            assert!((done["cost"].as_f64().unwrap() - 0.002 * asked as f64).abs() < 1e-9, "{done}");
            assert!(done["spent"]["stopped"].is_object(), "{done}");

            // Spent is spent.
            let resumed = with(&args, &["--resume"]);
            if little[0] != "--max-requests" {
                stdout(&mut synthesize(&model.url(), &folder, &with(&resumed, little)));
                assert!(model.count() <= 8, "{}", model.count());
            }
            stdout(&mut synthesize(&model.url(), &folder, &with(&resumed, much)));
            let (answers, done) = (answers(&folder).len(), summary(&folder));
            assert_eq!((model.count(), model.seen().most_asked()), (answers, 1));
            assert_eq!((&done["unanswered"], done["spent"].get("stopped")), (&json!(0), None));
        }
    }
    // While nothing is known of its answers, a server gets no more than the budget surely bears.
    let (folder, hasty) = (Folder::new(), model());
    let args = with(&STS, &["--rows", "20", "--concurrency", "16", "--max-tokens", "100"]);
    stdout(&mut synthesize(&hasty.url(), &folder, &args));
    assert_eq!(hasty.count(), 1);
    // Money without prices is none.
    let (folder, model) = (Folder::new(), model());
    let args = with(&STS, &["--rows", "20", "--max-cost", "1"]);
    let error = failure(&mut synthesize(&model.url(), &folder, &args));
    assert!(error.contains("--prompt-price"), "{error}");
    assert_eq!(model.count(), 0);
}
