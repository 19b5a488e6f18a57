//! Decoders that rank by a chat template, against sentence-transformers, and templates that are none.

use kiln_embed::checkpoint::{Files, LoadOptions};
use kiln_embed::kernels::Kernels;
use kiln_embed::reranker::{Reranker, ScoreActivation};
use kiln_tests::fixture;
use serde_json::Value;

use super::{change, chat, pairs};

/// sentence-transformers' scores of its own files: with an instruction, without, and cut.
fn chat_templates<B: Kernels>(device: B::Device) {
    for (name, activation, length) in [
        ("qwen3-chat", ScoreActivation::Sigmoid, 320),
        ("qwen3-one-token", ScoreActivation::Identity, 90),
    ] {
        let expected = std::fs::read(fixture(&format!("rerankers/{name}/scores.json"))).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let load = |options: &LoadOptions| {
            let reranker = Reranker::<B>::load_with(&chat(name), options, &device).unwrap();
            assert_eq!(reranker.activation(), activation);
            reranker.with_activation(ScoreActivation::Identity)
        };
        let same = |reranker: &Reranker<B>, key: &str| {
            let expected: Vec<f32> = serde_json::from_value(expected[key].clone()).unwrap();
            let scores = reranker.scores(&pairs()).unwrap();
            for (pair, (score, expected)) in pairs().iter().zip(scores.iter().zip(&expected)) {
                let error = (score - expected).abs() / expected.abs().max(1.0);
                let allowed = kiln_tests::allowed::<B>(&device, 1e-4);
                assert!(error < allowed, "{name} {key} {pair:?}: {score} {expected}");
            }
        };
        let whole = load(&LoadOptions::default());
        same(&whole, "scores");
        if !B::HOST {
            // The rest is a matter of tokens.
            continue;
        }
        same(&load(&LoadOptions { max_length: Some(length), ..LoadOptions::default() }), "cut");
        let instructed = whole.with_instruction("Find what is asked for");
        if expected["instructed"].is_null() {
            assert!(instructed.unwrap_err().to_string().contains("takes no instruction"));
        } else {
            same(&instructed.unwrap(), "instructed");
        }
        // Too short for the prompt.
        let short = load(&LoadOptions { max_length: Some(20), ..LoadOptions::default() });
        assert!(short.scores(&pairs()).unwrap_err().to_string().contains("leaves no room"));
    }
}

#[test]
fn chat_templates_that_are_none_are_refused() {
    type B = burn::backend::Flex;
    let refused = |files: &Files| -> String {
        let options = LoadOptions::default();
        let error = Reranker::<B>::load_with(files, &options, &Default::default()).unwrap_err();
        let error = error.to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    };
    let template = |text: &str| {
        let mut files = chat("qwen3-chat");
        files.0.insert("chat_template.jinja".into(), text.to_string().into());
        refused(&files)
    };
    let both = "{{ messages[-2].content }} {{ messages[-1].content }}";
    for (text, why) in [
        ("{{ messages[-2].content }}", "leaves out messages of the role document"),
        ("nothing", "leaves out messages of the role query"),
        (&format!("{both} {{{{ messages[-1].content }}}}"), "document twice"),
        (
            "{{ messages[-2].content | upper }} {{ messages[-1].content }}",
            "leaves out messages of the role query",
        ),
        (
            "{{ messages[-2].content | replace('a', 'b') }} {{ messages[-1].content }}",
            "changes the texts",
        ),
        ("{{ messages[-2].content }} {{ messages[-1].content[:2000] }}", "changes the texts"),
        (&format!("{both} {{{{ strftime_now('%Y') }}}}"), "asks for the date"),
        (&format!("{both} {{{{ [1] | batch(9999999999999) }}}}"), "cannot be rendered"),
        ("{% for message in %}", "cannot be rendered"),
        ("{{ raise_exception('not for pairs') }}", "not for pairs"),
        (
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
            "cannot be rendered: engine ran out of fuel",
        ),
    ] {
        let error = template(text);
        assert!(error.contains("is no reranker") && error.contains(why), "{text}: {error}");
    }
    // The files have an instruction, for which this one has no place.
    let flat = "{{ (messages | selectattr('role', 'eq', 'query') | first).content }} \
                {{ (messages | selectattr('role', 'eq', 'document') | first).content }}";
    let error = template(flat);
    assert!(
        error.contains("has the default prompt") && error.contains("of the role system"),
        "{error}"
    );

    let changed = |file: &str, how: &dyn Fn(&mut Value)| {
        let mut files = chat("qwen3-chat");
        change(&mut files, file, how);
        refused(&files)
    };
    let score = "1_LogitScore/config.json";
    assert!(
        changed(score, &|value| value["true_token_id"] = "yes".into()).contains("true_token_id")
    );
    assert!(
        changed(score, &|value| value["false_token_id"] = (-1).into()).contains("false_token_id")
    );
    assert!(changed(score, &|value| value["true_token_id"] = 64.into()).contains("token 64 of 64"));
    let modality = |value: &mut Value| value["modality_config"]["message"] = Value::Null;
    let settings = "sentence_bert_config.json";
    assert!(changed(settings, &modality).contains("does not say that texts are messages"));
    let format = |value: &mut Value| value["modality_config"]["message"]["format"] = "other".into();
    assert!(changed(settings, &format).contains("the format of messages is \"other\""));
    for (bucket, key, value, why) in [
        ("chat_template", "restore_suffix", serde_json::json!(false), "restore_suffix is false"),
        ("text", "truncation", serde_json::json!(false), "truncation is false"),
        ("chat_template", "tools", serde_json::json!([{}]), "chat_template.tools is not supported"),
        ("common", "stride", serde_json::json!(3), "common.stride is not supported"),
        ("text", "max_length", serde_json::json!("long"), "max_length is \"long\""),
        (
            "chat_template",
            "chat_template",
            serde_json::json!("a"),
            "chat template \"a\", which is not there",
        ),
    ] {
        let given = |settings: &mut Value| {
            settings["processing_kwargs"] = serde_json::json!({ bucket: { key: value } });
        };
        let error = changed(settings, &given);
        assert!(error.contains(why), "{error}");
    }
    let capped = |value: &mut Value| value["final_logit_softcapping"] = 30.0.into();
    assert!(changed("config.json", &capped).contains("final_logit_softcapping"));
    let third = |value: &mut Value| {
        let last = value[1].clone();
        value.as_array_mut().unwrap().push(last);
        value[2]["idx"] = 2.into();
    };
    assert!(changed("modules.json", &third).contains("LogitScore"));
    // Its template may stand in the tokenizer's settings, too, by a name.
    let mut files = chat("qwen3-chat");
    let text = String::from_utf8(files.0.remove("chat_template.jinja").unwrap().to_vec()).unwrap();
    assert!(refused(&files).contains("there is no chat template"));
    change(&mut files, "tokenizer_config.json", |value| {
        value["chat_template"] = serde_json::json!([{ "name": "rank", "template": text }]);
    });
    assert!(refused(&files).contains("there is no chat template"));
    change(&mut files, "sentence_bert_config.json", |value| {
        value["processing_kwargs"] =
            serde_json::json!({"chat_template": {"chat_template": "rank"}});
    });
    let options = LoadOptions::default();
    let by_name = Reranker::<B>::load_with(&files, &options, &Default::default()).unwrap();
    let by_file =
        Reranker::<B>::load_with(&chat("qwen3-chat"), &options, &Default::default()).unwrap();
    assert_eq!(by_name.scores(&pairs()).unwrap(), by_file.scores(&pairs()).unwrap());
    // A length beside the template is the row's.
    let mut shorter = chat("qwen3-one-token");
    change(&mut shorter, "sentence_bert_config.json", |value| {
        value["processing_kwargs"]["text"] = serde_json::json!({ "max_length": 90 });
    });
    let shorter = Reranker::<B>::load_with(&shorter, &options, &Default::default()).unwrap();
    assert_eq!(shorter.tokenizer().config().max_length, 90);
    // It gives no vectors.
    let error = kiln_embed::checkpoint::load::<B>(&files, &options, &Default::default());
    assert!(error.unwrap_err().to_string().contains("is a reranker (LogitScore)"));
}

kiln_tests::on_every_device!(chat_templates);
