//! An [`Embedder`] out of files.

use burn::tensor::read_sync;

use super::Embedder;
use crate::Result;
use crate::checkpoint::{self, Folder, LoadOptions};
use crate::kernels::Kernels;

/// The default backend: the CPU. Other devices: [`Embedder::load_on`].
#[cfg(all(feature = "flex", not(target_arch = "wasm32")))]
impl Embedder<burn::backend::Flex> {
    /// Loads a model from a folder or a `.kiln` file, to be computed on the CPU.
    ///
    /// # Errors
    /// As [`Embedder::load_with`], and a path that cannot be read.
    pub fn load(path: impl AsRef<std::path::Path>) -> Result<Self> {
        Self::load_on(path, &Default::default())
    }
}

impl<B: Kernels> Embedder<B> {
    /// Loads a model from a folder or a `.kiln` file onto a device.
    ///
    /// # Errors
    /// As [`Embedder::load_with`], and a path that cannot be read.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn load_on(path: impl AsRef<std::path::Path>, device: &B::Device) -> Result<Self> {
        let folder = checkpoint::open_folder(path.as_ref())?;
        Self::load_with(folder.as_ref(), &LoadOptions::default(), device)
    }

    /// Loads a model from its files onto a device and, where it carries a test, has it compute that
    /// ([`Embedder::verify`]).
    ///
    /// # Errors
    /// What is wrong with the files; a device or a precision at which the model computes wrongly.
    pub fn load_with(
        folder: &dyn Folder,
        options: &LoadOptions,
        device: &B::Device,
    ) -> Result<Self> {
        read_sync(Self::load_with_async(folder, options, device))
    }

    /// As [`Embedder::load_with`], for devices that cannot be waited for (WebGPU in a page).
    ///
    /// # Errors
    /// As [`Embedder::load_with`].
    pub async fn load_with_async(
        folder: &dyn Folder,
        options: &LoadOptions,
        device: &B::Device,
    ) -> Result<Self> {
        let embedder = checkpoint::load(folder, options, device)?;
        embedder.verify_async().await?;
        Ok(embedder)
    }

    /// Compares the vectors that an exported model carries with those that it gives here; a model
    /// without such a test passes. `load` and `load_with` have done so; after
    /// [`checkpoint::load`] it is to be called once.
    ///
    /// # Errors
    /// A device or a precision at which the model computes wrongly.
    pub fn verify(&self) -> Result<()> {
        read_sync(self.verify_async())
    }

    /// As [`Embedder::verify`], for devices that cannot be waited for (WebGPU in a page).
    ///
    /// # Errors
    /// As [`Embedder::verify`].
    pub async fn verify_async(&self) -> Result<()> {
        let place = if B::HOST { "the CPU" } else { "this GPU" };
        match &self.self_test {
            Some(test) => test.judge(test.run(self).await?, place),
            None => Ok(()),
        }
    }
}
