//! The real all-MiniLM-L6-v2 against sentence-transformers on 100 mixed texts.

use std::ops::ControlFlow;

use kiln_embed::checkpoint::{Directory, LoadOptions, load};
use kiln_embed::embedder::{EmbedOptions, Embedder};
use kiln_embed::index::cosine;
use kiln_embed::kernels::Kernels;
use kiln_tests::{Tensors, fixture, minilm_or_skip};

fn compare<B: Kernels>(device: &B::Device, most_words: usize) {
    let Some(path) = minilm_or_skip() else { return };
    let folder = Directory::new(path).unwrap();
    let embedder: Embedder<B> = load(&folder, &LoadOptions::default(), device).unwrap();
    let texts = std::fs::read(fixture("minilm/texts.json")).unwrap();
    let texts: Vec<String> = serde_json::from_slice(&texts).unwrap();
    let (shape, expected) = Tensors::open("minilm", "vectors").get("vectors");
    assert_eq!(shape, [100, 384]);
    let kept: Vec<usize> =
        (0..100).filter(|&i| texts[i].split_whitespace().count() <= most_words).collect();
    let chosen: Vec<&String> = kept.iter().map(|&i| &texts[i]).collect();
    let mut reports = Vec::new();
    let vectors = embedder
        .embed_with(&chosen, &EmbedOptions::default(), |progress| {
            reports.push(progress.texts);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(reports.last(), Some(&kept.len()));
    let mut worst = 1.0f32;
    for (vector, &i) in vectors.iter().zip(&kept) {
        let similarity = cosine(vector, &expected[i * 384..][..384]);
        assert!(
            similarity > 0.99999,
            "text {i} {:?}: cosine {similarity}",
            texts[i].chars().take(40).collect::<String>()
        );
        worst = worst.min(similarity);
    }
    eprintln!("PARITY all-MiniLM-L6-v2, {} texts: smallest cosine {worst:.8}", kept.len());
}

/// All texts on the CPU and on real GPUs.
fn mixed_texts<B: Kernels>(device: B::Device) {
    compare::<B>(&device, usize::MAX);
}

mod cpu {
    #[test]
    fn mixed_texts() {
        super::mixed_texts::<train_native::device::Cpu>(Default::default());
    }
}

mod cuda {
    #[test]
    fn mixed_texts() {
        use train_native::device::DeviceChoice;
        if let Some(device) = kiln_tests::device_or_skip(DeviceChoice::Cuda(0)) {
            train_native::with_backend!(&device, B, handle => super::mixed_texts::<B>(handle));
        }
    }
}

mod vulkan {
    /// A software adapter is some ten times slower than the CPU, so the longest texts are left out.
    #[test]
    fn short_texts() {
        use train_native::device::DeviceChoice;
        if let Some(device) = kiln_tests::device_or_skip(DeviceChoice::Vulkan(0)) {
            train_native::with_backend!(&device, B, handle => super::compare::<B>(&handle, 30));
        }
    }
}

#[test]
fn a_run_can_be_cancelled() {
    let Some(path) = minilm_or_skip() else { return };
    let folder = Directory::new(path).unwrap();
    let embedder: Embedder<train_native::device::Cpu> =
        load(&folder, &LoadOptions::default(), &Default::default()).unwrap();
    let texts = vec!["a few words to embed"; 64];
    let options = EmbedOptions { batch_tokens: Some(32), ..Default::default() };
    let mut calls = 0;
    let result = embedder.embed_with(&texts, &options, |_| {
        calls += 1;
        if calls == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(result, Err(kiln_embed::Error::Cancelled)));
    assert_eq!(calls, 2);
}
