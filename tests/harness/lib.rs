//! What the cross-crate tests share: fixtures, comparison, and one test body on every device.

#![allow(clippy::expect_used, clippy::panic)]

pub mod hostile;
pub mod named_models;

use std::path::{Path, PathBuf};

use burn::tensor::backend::Backend;
use kiln_embed::checkpoint::{Directory, Weights};
use train_native::device::{Device, DeviceChoice, open};

/// A file or folder of `tests/fixtures`.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

/// Named tensors of a fixture file, as f32.
pub struct Tensors(Weights);

impl Tensors {
    /// Opens `{folder}/{stem}.safetensors` of the fixtures.
    pub fn open(folder: &str, stem: &str) -> Self {
        let directory = Directory::new(fixture(folder)).expect("fixture folder");
        Self(Weights::open(&directory, stem).expect("fixture file"))
    }

    /// Shape and values.
    pub fn get(&mut self, name: &str) -> (Vec<usize>, Vec<f32>) {
        let shape = self.0.tensors().get(name).map(|info| info.shape.clone());
        let shape = shape.unwrap_or_else(|| panic!("the fixture has no tensor {name}"));
        let values = self.0.read(name).expect("fixture tensor").expect("fixture tensor");
        (shape, values)
    }

    /// Shape and values of small integers.
    pub fn ints(&mut self, name: &str) -> (Vec<usize>, Vec<i32>) {
        let (shape, values) = self.get(name);
        (shape, values.into_iter().map(|value| value as i32).collect())
    }

    /// Whether there is such a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.0.tensors().contains_key(name)
    }
}

/// Largest absolute difference over rows where `keep` holds, relative to the largest value of
/// `expected`; rows are of `width` values.
pub fn relative_error(actual: &[f32], expected: &[f32], width: usize, keep: &[bool]) -> f32 {
    assert_eq!(actual.len(), expected.len());
    assert_eq!(actual.len(), keep.len() * width);
    let (mut error, mut largest) = (0.0f32, 0.0f32);
    for (row, keep) in keep.iter().enumerate() {
        if *keep {
            for i in row * width..(row + 1) * width {
                assert!(actual[i].is_finite(), "value {i} is {}", actual[i]);
                error = error.max((actual[i] - expected[i]).abs());
                largest = largest.max(expected[i].abs());
            }
        }
    }
    error / largest
}

/// What is allowed on a device where `exact` is in f32: CUDA multiplies in TF32, which looks at ten bits of each factor.
pub fn allowed<B: Backend>(device: &B::Device, exact: f32) -> f32 {
    if B::name(device).contains("cuda") { exact.max(3e-3) } else { exact }
}

/// The device of a kind, or `None` after printing why it is skipped.
pub fn device_or_skip(choice: DeviceChoice) -> Option<Device> {
    match open(choice) {
        Ok(device) => Some(device),
        Err(reason) => {
            eprintln!("SKIPPED on {choice}: {reason}");
            None
        }
    }
}

/// The folder of the real all-MiniLM-L6-v2, which `tests/setup.sh` installs, or `None` after
/// printing how to get it. `KILN_MINILM` names it.
pub fn minilm_or_skip() -> Option<PathBuf> {
    match std::env::var_os("KILN_MINILM") {
        Some(path) => Some(path.into()),
        None => {
            eprintln!(
                "SKIPPED: KILN_MINILM is not set; tests/run.sh installs the model and sets it"
            );
            None
        }
    }
}

/// Instantiates test bodies `fn name<B: Kernels>(device: B::Device)` for each device kind.
#[macro_export]
macro_rules! on_every_device {
    ($($name:ident),* $(,)?) => {
        $crate::on_every_device!(@on cpu, train_native::device::DeviceChoice::Cpu, [$($name),*]);
        $crate::on_every_device!(@on vulkan, train_native::device::DeviceChoice::Vulkan(0), [$($name),*]);
        $crate::on_every_device!(@on cuda, train_native::device::DeviceChoice::Cuda(0), [$($name),*]);
    };
    (@on $kind:ident, $choice:expr, [$($name:ident),*]) => {
        mod $kind {
            $(#[test]
            fn $name() {
                if let Some(device) = $crate::device_or_skip($choice) {
                    train_native::with_backend!(&device, B, handle => super::$name::<B>(handle));
                }
            })*
        }
    };
}
