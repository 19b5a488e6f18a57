//! What is not taught, and what is said of it.

use kiln_data::data::Example;
use kiln_embed::checkpoint::{Files, write_safetensors};
use kiln_lessons::{AdapterSettings, TeachingPlan, Trainer};

use crate::teacher::{B, lessons, model, trainer};

#[test]
fn adapters_of_tables_are_not_taught_further() {
    let mut files = Files::default();
    let config = r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 2, "lora_dropout": 0}"#;
    files.0.insert("adapter_config.json".into(), config.into());
    let table = "base_model.model.embeddings.word_embeddings.lora_embedding_A".to_string();
    let weights = write_safetensors(&[(table, vec![1, 2], vec![0.0, 1.0])], &[]).unwrap();
    files.0.insert("adapter_model.safetensors".into(), weights.into());
    let error = trainer("kept").adapters(&files, None).unwrap_err().to_string();
    assert!(error.contains("tables of tokens"), "{error}");
}

#[test]
fn what_makes_no_sense_is_said() {
    let said = |plan: TeachingPlan, lessons: Vec<Example>| {
        trainer("f32").begin(lessons, &[], plan).unwrap_err().to_string()
    };
    let plan = TeachingPlan::default();
    assert!(
        said(TeachingPlan { steps: Some(0), ..plan.clone() }, lessons(9)).contains("steps is 0")
    );
    assert!(
        said(TeachingPlan { batch_size: Some(1), ..plan.clone() }, lessons(9))
            .contains("batchSize is 1")
    );
    assert!(
        said(TeachingPlan { learning_rate: Some(f64::NAN), ..plan.clone() }, lessons(9))
            .contains("learningRate")
    );
    assert!(said(TeachingPlan { hold_back: 1.0, ..plan.clone() }, lessons(9)).contains("holdBack"));
    let mut alone = lessons(1);
    alone[0].neg.clear();
    assert!(said(plan, alone).contains("one lesson without a wrong answer"));
    let settings = AdapterSettings { rank: Some(0), ..AdapterSettings::default() };
    let error = Trainer::<B>::new(model("f32"), settings).err().unwrap();
    assert!(error.to_string().contains("rank is 0"), "{error}");
    let settings =
        AdapterSettings { targets: vec!["nothing".into()], ..AdapterSettings::default() };
    let error = Trainer::<B>::new(model("f32"), settings).err().unwrap();
    assert!(error.to_string().contains("\"nothing\""), "{error}");
}
