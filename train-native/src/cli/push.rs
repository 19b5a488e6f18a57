//! `kiln push`

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use super::Global;
use crate::hub::{ADAPTER, HubModel};

/// Upload a model to the Hugging Face Hub.
///
/// Uploads a model folder, or a folder of adapters, in one commit, with the token of HF_TOKEN or of
/// `hf auth login`.
#[derive(Debug, Args)]
pub(super) struct PushArgs {
    /// Folder to upload, such as a run's `model`, `best` or `adapter`
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Repository to upload to (owner/name or owner/name@branch), created if needed
    #[arg(value_name = "HUB_ID")]
    id: String,
    /// Create the repository as private
    #[arg(long)]
    private: bool,
    /// Commit message
    #[arg(long, value_name = "TEXT", default_value = "Upload model trained with Kiln")]
    message: String,
}

pub(super) fn run(args: &PushArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    let is_model = ["config.json", ADAPTER].iter().any(|file| args.folder.join(file).is_file());
    if !is_model {
        bail!(
            "{}: holds neither config.json nor {ADAPTER}; name a run's model, best or adapter folder",
            args.folder.display()
        );
    }
    let hub = HubModel::new(&args.id, terminal)?;
    let address = hub.push(&args.folder, &args.message, args.private)?;
    terminal.result(&json!({"id": args.id, "url": address}), || address.clone())
}
