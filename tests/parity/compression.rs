//! GPTQ, SparseGPT and Wanda against the papers' own algorithms in PyTorch, in double precision
//! (`tests/reference/compression.py`).

use kiln_embed::model::Gram;
use serde::Deserialize;
use train_native::compress::{Gptq, PruneMethod, gptq, prune_weights};

#[derive(Deserialize)]
struct Fixture {
    shape: [usize; 2],
    rows: usize,
    damping: f64,
    weights: Vec<f32>,
    gram: Vec<f64>,
    gptq: Vec<Rounded>,
    pruned: Vec<Thinned>,
}

#[derive(Deserialize)]
struct Rounded {
    scheme: String,
    act_order: bool,
    weights: Vec<f32>,
}

#[derive(Deserialize)]
struct Thinned {
    method: String,
    pattern: String,
    weights: Vec<f32>,
}

fn fixture() -> (Fixture, Gram) {
    let fixture: Fixture =
        serde_json::from_str(include_str!("../fixtures/compression.json")).unwrap();
    let inputs = fixture.shape[1];
    let mut sum = vec![0.0; inputs * inputs];
    let mut next = fixture.gram.iter();
    for row in 0..inputs {
        for column in row..inputs {
            let value = *next.next().unwrap();
            (sum[row * inputs + column], sum[column * inputs + row]) = (value, value);
        }
    }
    let gram = Gram::new(inputs, sum, fixture.rows).unwrap();
    (fixture, gram)
}

#[test]
fn gptq_rounds_as_the_papers_code() {
    let (fixture, gram) = fixture();
    for expected in &fixture.gptq {
        let mut actual = fixture.weights.clone();
        let settings = Gptq { damping: fixture.damping, act_order: expected.act_order };
        let scheme = expected.scheme.parse().unwrap();
        gptq(&mut actual, fixture.shape, scheme, &gram, settings).unwrap();
        let step = actual.iter().fold(0.0f32, |most, weight| most.max(weight.abs())) / 127.0;
        let pairs = actual.iter().zip(&expected.weights);
        let other = pairs.clone().filter(|(a, b)| (*a - *b).abs() > step * 0.01).count();
        // A weight at the middle between two steps may go either way, and moves those after it.
        assert!(
            other * 200 < actual.len(),
            "{} {}: {other} of {} differ",
            expected.scheme,
            expected.act_order,
            actual.len()
        );
        assert!(pairs.clone().all(|(a, b)| (a - b).abs() < step * 1.5));
    }
}

#[test]
fn pruning_keeps_what_the_papers_code_keeps() {
    let (fixture, gram) = fixture();
    for expected in &fixture.pruned {
        let mut actual = fixture.weights.clone();
        let method = match expected.method.as_str() {
            "wanda" => PruneMethod::Wanda,
            _ => PruneMethod::SparseGpt,
        };
        let how = (method, expected.pattern.parse().unwrap(), fixture.damping);
        prune_weights(&mut actual, how, &gram).unwrap();
        for (actual, expected_weight) in actual.iter().zip(&expected.weights) {
            assert!(
                (actual - expected_weight).abs() < 1e-5,
                "{} {}: {actual}, expected {expected_weight}",
                expected.method,
                expected.pattern
            );
        }
    }
}
