//! `kiln completions`

use anyhow::Result;
use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};
use serde_json::json;

use super::{Cli, Global};

/// Print the completion script of a shell.
///
/// bash: kiln completions bash > ~/.local/share/bash-completion/completions/kiln;
/// zsh: kiln completions zsh > "${fpath[1]}/_kiln";
/// fish: kiln completions fish > ~/.config/fish/completions/kiln.fish;
/// PowerShell: kiln completions powershell >> $PROFILE
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs, global: &Global) -> Result<()> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "kiln", &mut script);
    let script = String::from_utf8(script)?;
    let result = json!({ "shell": args.shell.to_string(), "script": script });
    global.terminal().result(&result, || script.trim_end().into())
}
