//! Scores of cross-encoders of every family against sentence-transformers (and, for the decoder, against the
//! recipe of its model card): pairs of one and of two token types, texts that are cut, empty texts.

use kiln_embed::checkpoint::{Directory, LoadOptions};
use kiln_embed::kernels::Kernels;
use kiln_embed::reranker::{Reranker, ScoreActivation};
use kiln_tests::fixture;

fn reranker<B: Kernels>(name: &str, device: &B::Device) {
    let folder = fixture(&format!("rerankers/{name}"));
    let reranker = Reranker::<B>::load_with(
        &Directory::new(folder.clone()).unwrap(),
        &LoadOptions::default(),
        device,
    )
    .unwrap();
    assert_eq!(reranker.activation(), ScoreActivation::Sigmoid);
    let reranker = reranker.with_activation(ScoreActivation::Identity);
    let read = |path| std::fs::read(path).unwrap();
    let pairs: Vec<(String, String)> =
        serde_json::from_slice(&read(fixture("rerankers/pairs.json"))).unwrap();
    let expected: Vec<f32> = serde_json::from_slice(&read(folder.join("scores.json"))).unwrap();
    let scores = reranker.scores(&pairs).unwrap();
    assert_eq!(scores.len(), expected.len());
    let mut worst = 0.0f32;
    for (pair, (score, expected)) in pairs.iter().zip(scores.iter().zip(&expected)) {
        let error = (score - expected).abs() / expected.abs().max(1.0);
        assert!(error < 1e-4, "{name} {pair:?}: {score} {expected}");
        worst = worst.max(error);
    }
    let (query, _) = &pairs[0];
    let texts: Vec<&str> = pairs.iter().map(|(_, text)| text.as_str()).collect();
    let ranked = reranker.rank(query, &texts).unwrap();
    assert!(ranked.windows(2).all(|pair| pair[0].score >= pair[1].score));
    assert_eq!(ranked.len(), texts.len());
    eprintln!("PARITY reranker {name}: {worst:.1e} over {} pairs", pairs.len());
}

fn encoders<B: Kernels>(device: B::Device) {
    for name in ["bert", "roberta", "xlm-roberta", "distilbert", "mpnet", "modernbert", "gte"] {
        reranker::<B>(name, &device);
    }
}

fn decoder<B: Kernels>(device: B::Device) {
    reranker::<B>("qwen3", &device);
}

kiln_tests::on_every_device!(encoders, decoder);
