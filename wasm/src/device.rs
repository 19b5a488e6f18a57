//! Where a model computes: the only place that names Burn's backends.

use burn::backend::Flex;
use kiln_embed::Error;
use kiln_embed::checkpoint::{Files, Folder, LoadOptions, is_reranker, load_adapted};
use kiln_embed::embedder::Embedder;
use kiln_embed::kernels::Kernels;
use kiln_embed::quant::WeightPrecision;
use wasm_bindgen::{JsError, JsValue};

use crate::wrongly_asked;

/// A model on its device.
#[allow(clippy::large_enum_variant, reason = "models are few, and large beside this")]
pub(crate) enum Loaded {
    Cpu(Embedder<Flex>),
    #[cfg(feature = "webgpu")]
    WebGpu(Embedder<burn::backend::Wgpu>),
}

/// The same for a model on either device.
macro_rules! on_either {
    ($loaded:expr, $embedder:ident => $body:expr) => {
        match $loaded {
            $crate::device::Loaded::Cpu($embedder) => $body,
            #[cfg(feature = "webgpu")]
            $crate::device::Loaded::WebGpu($embedder) => $body,
        }
    };
}
pub(crate) use on_either;

impl Loaded {
    /// Reads a model, and checks it against the vectors that it carries.
    pub(crate) async fn open(
        folder: &dyn Folder,
        device: &str,
        precision: WeightPrecision,
    ) -> Result<Self, JsValue> {
        let options = LoadOptions { precision, ..LoadOptions::default() };
        let loaded = match device {
            "cpu" => {
                let device = Default::default();
                Embedder::<Flex>::load_with_async(folder, &options, &device).await.map(Self::Cpu)
            }
            #[cfg(feature = "webgpu")]
            "webgpu" => {
                let device = web_gpu().await;
                Embedder::<burn::backend::Wgpu>::load_with_async(folder, &options, &device)
                    .await
                    .map(Self::WebGpu)
            }
            other => Err(Error::invalid(format!("this build computes nothing on {other}"))),
        };
        loaded.map_err(|error| unread(folder, error, device != "cpu"))
    }
}

/// What weights are computed with, by its name.
pub(crate) fn precision(weights: &str) -> Result<WeightPrecision, JsValue> {
    weights.parse::<WeightPrecision>().map_err(|error| wrongly_asked(&error))
}

/// Why an embedder cannot be read. A reranker in its place is asked for wrongly, and so is what a GPU cannot do.
pub(crate) fn unread(folder: &dyn Folder, error: Error, on_gpu: bool) -> JsValue {
    match error {
        Error::Invalid(_) if on_gpu || is_reranker(folder).unwrap_or_default() => {
            wrongly_asked(&error)
        }
        other => JsError::from(other).into(),
    }
}

impl Loaded {
    /// The same model with adapters beside its weights; `fingerprint` is the model's own.
    pub(crate) fn with_adapter(
        &self,
        files: &Files,
        fingerprint: Option<&str>,
    ) -> Result<Self, JsError> {
        Ok(match self {
            Self::Cpu(embedder) => Self::Cpu(adapted(embedder, files, fingerprint)?),
            #[cfg(feature = "webgpu")]
            Self::WebGpu(embedder) => Self::WebGpu(adapted(embedder, files, fingerprint)?),
        })
    }
}

fn adapted<B: Kernels>(
    embedder: &Embedder<B>,
    files: &Files,
    fingerprint: Option<&str>,
) -> Result<Embedder<B>, JsError> {
    let device = embedder.device().clone();
    let adapt = |model| load_adapted(model, files, fingerprint, &device);
    Ok(embedder.clone().map_model(adapt)?)
}

/// The page's WebGPU device; there has to be an adapter.
#[cfg(feature = "webgpu")]
async fn web_gpu() -> burn::backend::wgpu::WgpuDevice {
    use burn::backend::wgpu::{WgpuDevice, graphics::WebGpu, init_setup_async};
    use std::cell::Cell;
    thread_local!(static READY: Cell<bool> = const { Cell::new(false) });
    let device = WgpuDevice::DefaultDevice;
    if !READY.replace(true) {
        init_setup_async::<WebGpu>(&device, Default::default()).await;
    }
    device
}
