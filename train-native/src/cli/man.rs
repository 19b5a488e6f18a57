//! `kiln man`

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Command, CommandFactory as _};
use clap_mangen::Man;
use serde_json::json;

use super::{Cli, Global};
use crate::vectors::write_atomically;

/// Write the manual pages: kiln.1, and one for each command.
///
/// `man -l DIR/kiln-embed.1` shows one; packages put them into share/man/man1.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Folder for the pages; pages of the same names are replaced
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
}

pub(super) fn run(args: &ManArgs, global: &Global) -> Result<()> {
    std::fs::create_dir_all(&args.output).with_context(|| args.output.display().to_string())?;
    // Global options are on the pages of all commands.
    let mut root = Cli::command();
    root.build();
    let mut pages = Vec::new();
    write(&root, "kiln", &args.output, &mut pages)?;
    global
        .terminal()
        .result(&json!(pages), || format!("{} pages in {}", pages.len(), args.output.display()))
}

fn write(command: &Command, name: &str, folder: &Path, pages: &mut Vec<String>) -> Result<()> {
    let mut page = Vec::new();
    // Named as one writes it, `kiln eval search`, in a file `kiln-eval-search.1`.
    let shown = command.clone().name(name.to_string()).bin_name(name.replace('-', " "));
    Man::new(shown).render(&mut page)?;
    write_atomically(&folder.join(format!("{name}.1")), &page)?;
    pages.push(format!("{name}.1"));
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        write(below, &format!("{name}-{}", below.get_name()), folder, pages)?;
    }
    Ok(())
}
