//! Models on disk: opens a path, and loads an [`Embedder`] that has passed its own test.

#[cfg(not(target_arch = "wasm32"))]
use std::path::Path;

use burn::tensor::read_sync;

#[cfg(not(target_arch = "wasm32"))]
use super::KilnFile;
use super::{LoadOptions, load};
use crate::Result;
use crate::embedder::Embedder;
#[cfg(not(target_arch = "wasm32"))]
use crate::folder::Directory;
use crate::folder::Folder;
use crate::kernels::Kernels;

/// Opens a model on disk: a directory or, where the path is no directory, a `.kiln` file.
///
/// # Errors
/// Missing, unreadable, or a file that is no model.
#[cfg(not(target_arch = "wasm32"))]
pub fn open_folder(path: &Path) -> Result<Box<dyn Folder>> {
    Ok(match path.is_dir() {
        true => Box::new(Directory::new(path)?),
        false => Box::new(KilnFile::on_disk(path)?),
    })
}

/// The default backend: the CPU. Other devices: [`Embedder::load_on`].
#[cfg(all(feature = "flex", not(target_arch = "wasm32")))]
impl Embedder<burn::backend::Flex> {
    /// Loads a model from a folder or a `.kiln` file, to be computed on the CPU.
    ///
    /// # Errors
    /// As [`Embedder::load_with`], and a path that cannot be read.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_on(path, &Default::default())
    }
}

impl<B: Kernels> Embedder<B> {
    /// Loads a model from a folder or a `.kiln` file onto a device.
    ///
    /// # Errors
    /// As [`Embedder::load_with`], and a path that cannot be read.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn load_on(path: impl AsRef<Path>, device: &B::Device) -> Result<Self> {
        let folder = open_folder(path.as_ref())?;
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
        let embedder = load(folder, options, device)?;
        embedder.verify_async().await?;
        Ok(embedder)
    }
}
