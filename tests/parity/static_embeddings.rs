//! Static embeddings against sentence-transformers, and against Model2Vec's own arithmetic: shared rows, weights
//! of tokens, unknown tokens left out.

use kiln_embed::checkpoint::{Directory, LoadOptions, load, save};
use kiln_embed::kernels::Kernels;
use kiln_tests::{Tensors, fixture};

fn static_embeddings<B: Kernels>(device: B::Device) {
    let texts: Vec<String> =
        serde_json::from_slice(&std::fs::read(fixture("static/texts.json")).unwrap()).unwrap();
    let mut expected = Tensors::open("static", "expected");
    for name in ["sentence-transformers", "model2vec"] {
        let folder = Directory::new(fixture(&format!("static/{name}"))).unwrap();
        let embedder = load::<B>(&folder, &LoadOptions::default(), &device).unwrap();
        // What is saved is the same again.
        let again = load::<B>(&save(&embedder).unwrap(), &LoadOptions::default(), &device).unwrap();
        let (shape, reference) = expected.get(name);
        for embedder in [embedder, again] {
            let vectors = embedder.embed(&texts).unwrap();
            assert_eq!([vectors.len(), vectors[0].len()], shape[..]);
            for ((text, vector), expected) in
                texts.iter().zip(&vectors).zip(reference.chunks(shape[1]))
            {
                // A text without a known token has no direction there.
                if expected.iter().all(|value| *value == 0.0) {
                    continue;
                }
                for (found, expected) in vector.iter().zip(expected) {
                    assert!((found - expected).abs() < 1e-5, "{name} {text:?}: {found} {expected}");
                }
            }
        }
    }
}

kiln_tests::on_every_device!(static_embeddings);
