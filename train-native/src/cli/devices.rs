//! `kiln devices`

use anyhow::Result;

use super::Global;
use crate::device::inventory;

pub(super) fn run(global: &Global) -> Result<()> {
    let results = inventory();
    global.terminal().result(&results, || {
        let mut lines: Vec<String> = results
            .devices
            .iter()
            .map(|listed| {
                let kind = if listed.software { "  (software, slow: for tests)" } else { "" };
                format!("{:<10} {}{kind}", listed.device, listed.name)
            })
            .collect();
        lines.extend(
            results
                .absent
                .iter()
                .map(|(kind, reason)| format!("{kind:<10} not available: {reason}")),
        );
        lines.join("\n")
    })
}
