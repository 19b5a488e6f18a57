//! Capabilities: parameters and response formats that a server does not know, which are left out from then on.

use super::{Behaviour, STS, run};
use crate::chat::{Fake, Reply, Request, answer, answers, rows, summary};
use crate::harness::Folder;

#[test]
fn forms_that_a_server_does_not_know_are_left_out() {
    let no = |what: &str| Reply::error(400, "invalid_request_error", what);
    let object = move |request: &Request| match request.format() {
        "json_schema" => no("response_format json_schema is not supported"),
        _ => Reply::good(request),
    };
    let plain = move |request: &Request| match request.body.get("response_format") {
        Some(_) => no("Unrecognized request argument supplied: response_format"),
        None => Reply::content(request, format!("Of course:\n{}", answer(request))),
    };
    let newest = move |request: &Request| {
        let body = request.body.as_object().unwrap();
        let known = ["max_tokens", "temperature", "top_p", "seed"];
        match known.into_iter().find(|name| body.contains_key(*name)) {
            Some(name) => {
                no(&format!("Unsupported parameter: '{name}' is not supported with this model."))
            }
            None => Reply::good(request),
        }
    };
    let strict = move |request: &Request| match request.format() {
        "json_schema" => {
            Reply::new(422, r#"{"detail": [{"msg": "guided decoding: bad grammar"}]}"#)
        }
        _ => Reply::good(request),
    };
    let either = move |request: &Request| {
        let body = request.body.as_object().unwrap();
        match (body.contains_key("temperature"), body.contains_key("top_p")) {
            (true, true) => {
                no("`temperature` and `top_p` cannot both be specified for this model.")
            }
            (has_temperature, _) => {
                assert!(has_temperature, "{body:?}");
                Reply::good(request)
            }
        }
    };
    let cases: [(&str, Behaviour, usize); 5] = [
        ("json_object", Box::new(object), 1),
        ("either", Box::new(either), 1),
        ("plain", Box::new(plain), 2),
        ("newest", Box::new(newest), 3),
        ("strict", Box::new(strict), 1),
    ];
    for (name, behaviour, steps) in cases {
        let (model, folder) = (Fake::start(behaviour), Folder::new());
        let args = [&STS[..], &["--rows", "40", "--concurrency", "4"]].concat();
        let said = run(&model.url(), &folder, &args);
        assert_eq!((said.code, answers(&folder).len()), (Some(0), 40), "{name}: {}", said.error);
        // Without a seed our model says the same to all.
        assert!(name == "newest" || rows(&folder).len() == 40, "{name}: {}", summary(&folder));
        // It is learnt once, by those who ask at the same time.
        let most = 40 + steps * 4;
        assert!(model.count() > 40 && model.count() <= most, "{name}: {}", model.count());
    }
    // A server that knows nothing at all is no endless tale.
    let (model, folder) =
        (Fake::start(move |_| no("response_format, max_tokens, seed, temperature")), Folder::new());
    let said = run(&model.url(), &folder, &[&STS[..], &["--rows", "40"]].concat());
    assert_eq!(said.code, Some(1), "{}", said.out);
    assert!(said.error.contains("400") && model.count() < 200, "{}: {}", model.count(), said.error);
}
