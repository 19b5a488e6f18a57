//! Documents, files and folders that texts and comments name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Files whose text is read.
const READ: [&str; 6] = ["md", "rs", "toml", "sh", "py", "mjs"];
/// Names with these endings are files of the repository where they stand in backticks.
const SOURCES: [&str; 9] = ["md", "rs", "toml", "sh", "py", "mjs", "js", "ts", "html"];
/// What is not ours, or made by a build.
const SKIPPED: [&str; 8] =
    ["target", "node_modules", "pkg", "pkg-train", "pkg-webgpu", "pkg.new", "dist", "dist.new"];

/// Names on purpose what does not exist.
const EXAMPLES: &str = "tests/house/main.rs";

/// What is named and does not exist, one line each: `file:line: name`. `generated` lists the
/// names of files that only a run makes, one a line.
pub(crate) fn missing(root: &Path, generated: &str) -> Vec<String> {
    let mut files = Vec::new();
    walk(root, &mut files);
    let tree = Tree {
        paths: files
            .iter()
            .flat_map(|file| file.ancestors())
            .map(|path| shown(root, path))
            .collect(),
    };
    let lines = generated.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let generated: BTreeSet<&str> = lines.collect();
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    for file in &files {
        let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        // What comes with the tests as data names whatever its authors liked.
        let fixture = file.components().any(|part| part.as_os_str() == "fixtures");
        if !READ.contains(&ending) || fixture {
            continue;
        }
        let Ok(text) = fs::read_to_string(file) else { continue };
        let name = shown(root, file);
        if name == EXAMPLES {
            continue;
        }
        for (i, line) in text.lines().enumerate() {
            for named in names(line, ending == "md") {
                if let Some(known) = generated.get(named.text) {
                    used.insert(*known);
                } else if !tree.has(&named, &name) {
                    wrong.push(format!("{name}:{}: {}", i + 1, named.text));
                }
            }
        }
    }
    for name in generated.difference(&used) {
        wrong.push(format!("tests/house/generated.txt: nothing names {name} any more"));
    }
    wrong
}

fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(Path::new("")).to_string_lossy().replace('\\', "/")
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match path.is_dir() {
            _ if name.starts_with('.') || SKIPPED.contains(&name.as_str()) => {}
            true => walk(&path, files),
            false => files.push(path),
        }
    }
}

struct Name<'a> {
    text: &'a str,
    /// The target of a link, relative to its own file.
    link: bool,
}

/// The names in a line: targets of links, what stands in backticks and looks like a file of the
/// repository, and every document.
fn names(line: &str, markdown: bool) -> Vec<Name<'_>> {
    let plain = |text: &str| {
        let odd = |c: char| !c.is_ascii_alphanumeric() && !"._-/".contains(c);
        !text.is_empty() && !text.contains(odd) && !text.starts_with(['/', '-'])
    };
    let ending = |text: &str| text.rsplit_once('.').map(|(_, ending)| ending.to_string());
    let mut names = Vec::new();
    if markdown {
        for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let text = target.split('#').next().unwrap_or_default();
            if plain(text) {
                names.push(Name { text, link: true });
            }
        }
    }
    for text in line.split('`').skip(1).step_by(2).filter(|text| plain(text)) {
        let source = ending(text).is_some_and(|ending| SOURCES.contains(&ending.as_str()));
        let inside = ["core/", "train-native/", "wasm/", "web-demo/", "tests/"];
        if source && !text.starts_with('.') || inside.iter().any(|first| text.starts_with(first)) {
            names.push(Name { text, link: false });
        }
    }
    let word = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    for text in line.split(|c| !word(c)).map(|word| word.trim_end_matches('.')) {
        let stem = text.strip_suffix(".md").unwrap_or_default();
        let known = names.iter().any(|name| name.text == text);
        if !stem.is_empty() && !text.starts_with('/') && !known {
            names.push(Name { text, link: false });
        }
    }
    names
}

/// Paths of all files and folders, from the root.
struct Tree {
    paths: BTreeSet<String>,
}

impl Tree {
    /// Whether something has this name: where a link points from its file, or at the end of a path
    /// from any folder (`quant/packed.rs`, said in `core/`).
    fn has(&self, name: &Name<'_>, file: &str) -> bool {
        let text = name.text.trim_end_matches('/');
        let mut parts: Vec<&str> = file.split('/').collect();
        parts.pop();
        for part in Path::new(text).components() {
            match part {
                Component::ParentDir => drop(parts.pop()),
                Component::Normal(part) => parts.extend(part.to_str()),
                _ => {}
            }
        }
        let from_file = self.paths.contains(&parts.join("/"));
        let below = format!("/{}", text.trim_start_matches("./").trim_start_matches("../"));
        let anywhere = || self.paths.iter().any(|path| format!("/{path}").ends_with(&below));
        from_file || (!name.link && anywhere())
    }
}
