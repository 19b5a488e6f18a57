//! The terminal, to which no text of a file speaks.

use serde_json::{Value, json};

use super::{Place, has};
use crate::harness::stdout;

#[test]
fn no_text_speaks_to_the_terminal() {
    let place = Place::new();
    let evil = "\u{1b}[2J\u{1b}]0;owned\u{7} river \u{9b}31m\u{202e}txt\u{7f}";
    let row = json!({ "_id": "d\u{1b}[31m\n1", "text": evil });
    let corpus = place.write("evil.jsonl", format!("{row}\n"));
    let calm = |text: &str| {
        let quiet = |letter: char| !letter.is_control() || letter == '\n' || letter == '\t';
        assert!(text.chars().all(quiet) && !text.contains('\u{202e}'), "{text:?}");
    };
    let args = ["search", "--query", "river\u{1b}[31m", "--corpus", &corpus];
    let found = stdout(&mut place.command(&args));
    calm(&found);
    has(&found, &["\\u{1b}[2J", "d\\u{1b}[31m\\n1"]);
    // For programs it is what it was.
    let found = stdout(place.command(&args).arg("--json"));
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found[0]["hits"][0]["text"], evil);
    let pairs = json!({ "sentence1": evil, "sentence2": evil });
    let pairs = place.write("pairs.jsonl", format!("{pairs}\n"));
    calm(&stdout(&mut place.command(&["similarity", "--input", &pairs])));
    // Errors and notes that quote what a file holds, or name it.
    let wrong = place.write("wrong.jsonl", format!("{}\n", json!({ evil: [evil] })));
    let error = place.embed_error(&wrong);
    calm(&error);
    has(&error, &["wrong.jsonl:1", "\\u{1b}[2J"]);
    let huge = json!({ "text": vec!["x"; 100_000] });
    let error = place.embed_error(&place.write("huge.jsonl", format!("{huge}\n")));
    assert!(error.len() < 3000, "{}", error.len());
    calm(&place.embed_error(&place.write("n\u{1b}[31m.txt", "a\0b")));
    let suite = format!("[[task]]\nname = {}\nkind = 'sts'\npath = 'gone'\n", json!("t\u{1b}[31m"));
    let suite = place.write("suite.toml", suite);
    let args = ["eval", "--suite", &suite, "--output", &place.folder.arg("results")];
    let output = place.command(&args).output().unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    calm(&notes);
    calm(&String::from_utf8(output.stdout).unwrap());
    has(&notes, &["t\\u{1b}[31m"]);
}
