//! Folders of runs: what Kiln may write there. A run's files have names that a user's may have too
//! (`recipe.toml`, `report.html`), and only Kiln's are replaced.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// The file that says that a folder's files of certain names are Kiln's.
const MARK: &str = ".kiln-run";

/// Makes a folder where it is not there, and takes files of some names in it as Kiln's own from now on.
///
/// # Errors
/// One of them is there already, and the folder is none of Kiln's; or the file system's.
pub fn claim(folder: &Path, names: &[&str]) -> Result<()> {
    let mark = folder.join(MARK);
    if mark.exists() {
        return Ok(());
    }
    for name in names {
        let path = folder.join(name);
        if path.symlink_metadata().is_ok() {
            bail!(
                "{}: is there already, and Kiln did not write it; choose another --output, or move it away",
                path.display()
            );
        }
    }
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let text = "Kiln wrote files of this folder, and may replace them.\n";
    std::fs::write(&mark, text).with_context(|| mark.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_users_are_not_taken() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        claim(&folder, &["report.html"]).unwrap();
        std::fs::write(folder.join("report.html"), "ours").unwrap();
        claim(&folder, &["report.html"]).unwrap();
        std::fs::write(place.path().join("report.html"), "theirs").unwrap();
        let error = claim(place.path(), &["recipe.toml", "report.html"]).unwrap_err().to_string();
        assert!(error.contains("report.html"), "{error}");
        // Other files are in nobody's way.
        claim(place.path(), &["recipe.toml"]).unwrap();
    }
}
