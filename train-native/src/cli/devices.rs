//! `kiln devices`

use anyhow::Result;

use super::Global;
use crate::device::inventory;

pub(super) fn run(global: &Global) -> Result<()> {
    let found = inventory();
    global.terminal().result(&found, || {
        let mut lines: Vec<String> = found
            .devices
            .iter()
            .map(|listed| {
                let kind = if listed.software { "  (software, slow: for tests)" } else { "" };
                format!("{:<10} {}{kind}", listed.device, listed.name)
            })
            .collect();
        lines.extend(
            found.absent.iter().map(|(kind, reason)| format!("{kind:<10} not available: {reason}")),
        );
        lines.join("\n")
    })
}
