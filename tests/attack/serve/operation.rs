//! Operation: limits that are no numbers, a model that changes on disk, and a terminal that hangs up.

use std::process::Command;

use serde_json::json;

use super::server::Server;
use super::{mini, tiny};
use crate::harness::{Folder, failure, kiln};

#[test]
fn limits_are_numbers_that_can_be() {
    let folder = Folder::new();
    let model = tiny(&folder);
    for flag in [
        "--max-batch-tokens",
        "--max-concurrent-requests",
        "--max-connections",
        "--max-client-batch-size",
        "--payload-limit",
        "--expanded-limit",
        "--request-memory",
        "--timeout",
        "--header-timeout",
        "--stall-timeout",
        "--dimensions",
        "--max-length",
        "--port",
    ] {
        for value in ["18446744073709551615", "99999999999999999999", "-1", "0.5", "x"] {
            let error = failure(&mut kiln(&["serve", "-m", &model, flag, value]));
            assert!(error.len() < 600, "{flag} {value}: {error}");
        }
        if flag != "--port" {
            failure(&mut kiln(&["serve", "-m", &model, flag, "0"]));
        }
    }
    for flag in ["--batch", "--connections", "--requests"] {
        for value in ["18446744073709551615", "0", "-1", "1,,2"] {
            failure(&mut kiln(&["load", "--url", "http://127.0.0.1:9", flag, value]));
        }
    }
    let few = ["--max-concurrent-requests", "9", "--max-connections", "9"];
    let error = failure(kiln(&["serve", "-m", &model]).args(few));
    assert!(error.contains("--max-connections 9"), "{error}");
}

#[test]
fn the_model_may_change_on_disk_while_it_is_served() {
    let folder = Folder::new();
    let model = folder.arg("served.kiln");
    std::fs::copy(mini(), &model).unwrap();
    let server = Server::start(&model, &[]);
    let texts = json!({ "inputs": ["the river floods the lower streets", "petals of pale blue"] });
    let (status, before) = server.post("/embed", texts.clone());
    assert_eq!(status, 200, "{before}");
    // In place, as `cp` does it; and to nothing.
    std::fs::write(&model, vec![0xff; 5_000_000]).unwrap();
    assert_eq!(server.post("/embed", texts.clone()), (200, before.clone()));
    std::fs::OpenOptions::new().write(true).open(&model).unwrap().set_len(0).unwrap();
    assert_eq!(server.post("/embed", texts), (200, before));
    server.serves_others();
}

#[test]
fn hanging_up_ends_a_server_unless_it_was_told_to_outlive_that() {
    let folder = Folder::new();
    let model = tiny(&folder);
    let mut command = Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" \"$@\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_kiln")]);
    let mut server = Server::start_by(command, &model, &[]);
    for _ in 0..3 {
        server.signal("-HUP");
    }
    server.serves_others();
    assert_eq!(server.end(), Some(0));
    let mut server = Server::start(&model, &[]);
    server.signal("-HUP");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}
