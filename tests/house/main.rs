//! The house keeps its order: which module may use which, and that every document and path that is
//! named exists.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod modules;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use modules::{Arrows, Crate, circle, crates, reduced};

const TABLE: &str = "tests/house/modules.toml";
const MAP: &str = "CONTRIBUTING.md";
/// Folders whose modules still use one another in a circle: a debt, to be shortened only.
const CIRCLES: [&str; 4] =
    ["kiln-data::text", "train-native::hub", "train-native::serve", "train-native::train"];
const MARKS: (&str, &str) = ("<!-- modules -->\n", "<!-- /modules -->\n");

/// Allowed arrows by crate.
type Table = BTreeMap<String, Arrows>;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn write_table(table: &Table) -> String {
    let mut text = String::from(
        "# Which module of a crate may use which; tests/house/main.rs compares it with the sources.\n\
         # Add an arrow by hand and say in the commit why, or have all of them written anew:\n\
         # KILN_WRITE_MODULES=1 cargo nextest run --no-default-features -E 'binary(house)'\n",
    );
    for (name, arrows) in table {
        write!(text, "\n[{name}]\n").unwrap();
        for (module, targets) in arrows {
            let targets: Vec<String> = targets.iter().map(|to| format!("\"{to}\"")).collect();
            writeln!(text, "{module} = [{}]", targets.join(", ")).unwrap();
        }
    }
    text
}

/// The map of `CONTRIBUTING.md`: crates as boxes, arrows from user to used, without those that a
/// longer way says already.
fn draw(crates: &[Crate], table: &Table) -> String {
    let id = |name: &str| name.replace('-', "_");
    let mut text = format!("{}```mermaid\nflowchart TD\n", MARKS.0);
    for krate in crates {
        let arrows = &table[&krate.name];
        writeln!(text, "    subgraph {}[\"{}\"]", id(&krate.name), krate.name).unwrap();
        let node = |name: &str| format!("{}_{name}", id(&krate.name));
        for module in arrows.keys() {
            writeln!(text, "        {}[{module}]", node(module)).unwrap();
        }
        for (from, targets) in reduced(arrows).iter().filter(|(_, targets)| !targets.is_empty()) {
            let targets: Vec<String> = targets.iter().map(|to| node(to)).collect();
            writeln!(text, "        {} --> {}", node(from), targets.join(" & ")).unwrap();
        }
        text += "    end\n";
    }
    for krate in crates {
        for other in &krate.depends_on {
            writeln!(text, "    {} --> {}", id(&krate.name), id(other)).unwrap();
        }
    }
    text + "```\n" + MARKS.1
}

/// What is shipped is as whole as the tests' build, but for what needs a GPU.
#[test]
fn what_is_shipped_has_all_features() {
    let listed = |path: &str, feature: &str| -> BTreeSet<String> {
        let manifest: toml::Table = read(path).parse().unwrap();
        let names = manifest["features"][feature].as_array().unwrap();
        names.iter().map(|name| name.as_str().unwrap().to_string()).collect()
    };
    let mut all = listed("train-native/Cargo.toml", "all");
    for of_gpus in ["vulkan", "cuda", "autotune"] {
        assert!(all.remove(of_gpus), "{of_gpus}");
    }
    assert_eq!(listed("train-native/python/Cargo.toml", "default"), all);
}

/// A release has one number; what is not built from `Cargo.toml` says it for itself.
#[test]
fn all_packages_have_one_version() {
    let workspace: toml::Table = read("Cargo.toml").parse().unwrap();
    let version = workspace["workspace"]["package"]["version"].as_str();
    for path in
        ["wasm/package.json", "wasm/addons/train/package.json", "wasm/addons/webgpu/package.json"]
    {
        let npm: serde_json::Value = serde_json::from_str(&read(path)).unwrap();
        assert!(version.is_some() && npm["version"].as_str() == version, "{path}: {npm}");
        let of_peer = npm["peerDependencies"].get("kiln-embed");
        assert!(of_peer.is_none_or(|of_peer| of_peer.as_str() == version), "{path}: {npm}");
    }
    let said = format!("{:?}", version.unwrap());
    for path in ["wasm/js/addons.js", "wasm/addons/train/index.js", "wasm/addons/webgpu/index.js"] {
        assert!(read(path).contains(&said), "{path}");
    }
    let members = workspace["workspace"]["dependencies"].as_table().unwrap();
    for (name, member) in members.iter().filter(|(_, member)| member.get("path").is_some()) {
        assert_eq!(member["version"].as_str(), version, "Cargo.toml: {name}");
    }
}

#[test]
fn modules_use_only_what_the_table_allows() {
    let crates = crates(&workspace());
    let sources: Table = crates
        .iter()
        .map(|krate| (krate.name.clone(), krate.root.arrows().remove("").unwrap_or_default()))
        .collect();
    let map = read(MAP);
    let between = || -> Option<(usize, usize)> {
        let start = map.find(MARKS.0)?;
        Some((start, start + map[start..].find(MARKS.1)? + MARKS.1.len()))
    };
    let (start, end) = between().unwrap_or_else(|| {
        panic!("{MAP} has no {} ... {} around its map", MARKS.0.trim(), MARKS.1.trim())
    });
    if std::env::var_os("KILN_WRITE_MODULES").is_some() {
        fs::write(workspace().join(TABLE), write_table(&sources)).unwrap();
        let drawn = draw(&crates, &sources);
        let map = format!("{}{drawn}{}", &map[..start], &map[end..]);
        fs::write(workspace().join(MAP), map).unwrap();
        return;
    }
    let table: Table = toml::from_str(&read(TABLE)).unwrap();
    let mut wrong = String::new();
    for (name, arrows) in &sources {
        let allowed = table.get(name).cloned().unwrap_or_default();
        let pairs = |arrows: &Arrows| -> BTreeSet<(String, String)> {
            let pair = |from: &String, to: &String| (from.clone(), to.clone());
            arrows
                .iter()
                .flat_map(|(from, targets)| targets.iter().map(move |to| pair(from, to)))
                .collect()
        };
        let (is, may) = (pairs(arrows), pairs(&allowed));
        for (from, to) in is.difference(&may) {
            writeln!(wrong, "{name}: {from} uses {to}, which {TABLE} does not allow").unwrap();
        }
        for (from, to) in may.difference(&is) {
            writeln!(wrong, "{name}: {TABLE} lets {from} use {to}, which it does not").unwrap();
        }
        let (is, may): (BTreeSet<_>, BTreeSet<_>) =
            (arrows.keys().collect(), allowed.keys().collect());
        for module in is.symmetric_difference(&may) {
            writeln!(wrong, "{name}: {module} is only in {TABLE} or only in the sources").unwrap();
        }
    }
    for name in table.keys().filter(|name| !sources.contains_key(*name)) {
        writeln!(wrong, "{TABLE} names the crate {name}, which is not watched").unwrap();
    }
    assert!(wrong.is_empty(), "\n{wrong}KILN_WRITE_MODULES=1 writes the table anew");
    let drawn = draw(&crates, &table);
    assert!(
        map[start..end] == drawn,
        "the map of {MAP} is not that of {TABLE}; it should be\n{drawn}"
    );
}

#[test]
fn modules_use_one_another_in_no_circle() {
    let mut wrong = String::new();
    let mut standing = BTreeSet::from(CIRCLES);
    for krate in crates(&workspace()) {
        for (folder, arrows) in krate.root.arrows() {
            let folder = [krate.name.as_str(), &folder].join("::");
            let folder = folder.trim_end_matches(':');
            if let Some(circle) = circle(&arrows)
                && !standing.remove(folder)
            {
                writeln!(wrong, "{folder}: {} -> {}", circle.join(" -> "), circle[0]).unwrap();
            }
        }
    }
    for folder in standing {
        writeln!(wrong, "{folder} has no circle any more: take it off CIRCLES").unwrap();
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn arrows_are_read_from_paths_wherever_they_stand() {
    let folder = tempfile::tempdir().unwrap();
    let source = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    source(
        "lib.rs",
        "pub mod a; mod b; mod c; mod d; mod e; pub use e::Error;
         #[cfg(test)] mod tests { use crate::a::A; }",
    );
    // By a group, by a path in the code, by one in a macro, and by a re-export of the root.
    source("a.rs", "use crate::{b::{self, B}, Error}; fn f() -> crate::c::C { say!(crate::d::D) }");
    // Not in comments, strings and tests; a neighbour inside the module is none outside.
    source(
        "b.rs",
        "//! crate::a
         mod inner { use super::B; } mod other { use super::inner::X; }
         fn f() { g(\"crate::a\") } // crate::a
         #[cfg(test)] mod tests { use crate::a::A; }
         #[cfg(test)] use crate::a::A;",
    );
    source("c.rs", "mod deep { use super::super::d::D; }");
    source("d.rs", "#[macro_export] macro_rules! say { () => { $crate::e::hear!() } }");
    source("e.rs", "fn f() { crate::say!() }");
    let arrows = modules::read_crate(&folder.path().join("lib.rs")).arrows();
    let expected = "a = ['b', 'c', 'd', 'e']\nb = []\nc = ['d']\nd = ['e']\ne = ['d']";
    assert_eq!(arrows[""], toml::from_str::<Arrows>(expected).unwrap());
    assert_eq!(arrows["b"], toml::from_str::<Arrows>("inner = []\nother = ['inner']").unwrap());
    assert_eq!(circle(&arrows[""]), Some(vec!["d".to_string(), "e".to_string()]));
}

#[test]
fn names_are_found_in_links_backticks_and_words() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(
        "core/src/there.rs",
        "// See HERE.md and GONE.md; `there.rs`, `src/there.rs`, `a/b`, `x.y`.\n",
    );
    write("HERE.md", "[good](core/src/there.rs#top) [bad](src/there.rs) [web](https://a.b/c)\n");
    write("made.md", "`core/made/` `core/target` `gone.sh`\n");
    let missing = names::missing(folder.path(), "# made by a build\ncore/target\nunused\n");
    assert_eq!(
        missing,
        [
            "HERE.md:1: src/there.rs",
            "core/src/there.rs:1: GONE.md",
            "made.md:1: core/made/",
            "made.md:1: gone.sh",
            "tests/house/generated.txt: nothing names unused any more",
        ]
    );
}

#[test]
fn a_circle_is_found_and_long_ways_replace_short_ones() {
    let arrows = |text: &str| -> Arrows { toml::from_str(text).unwrap() };
    let line = arrows("a = ['b', 'c']\nb = ['c']\nc = []");
    assert_eq!(circle(&line), None);
    assert_eq!(reduced(&line), arrows("a = ['b']\nb = ['c']\nc = []"));
    let round = arrows("a = ['b']\nb = ['c']\nc = ['b']");
    assert_eq!(circle(&round), Some(vec!["b".to_string(), "c".to_string()]));
}

#[test]
fn every_document_and_path_that_is_named_exists() {
    let missing = names::missing(&workspace(), &read("tests/house/generated.txt"));
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}
