//! The modules of a crate and which of them use which, from its sources.
//!
//! Why not cargo-modules: it has to be installed beside the tests and builds rust-analyzer's
//! crates; it prints a graph of items, and holds no table of allowed arrows. Names need no type
//! checker: a path that starts with `crate`, `super` or `self`, resolved through re-exports, says
//! which module an item lives in. What a method call reaches without a path is not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// For each module of one folder, the siblings that it uses.
pub(crate) type Arrows = BTreeMap<String, BTreeSet<String>>;

/// A module: its path from the crate's root, and what it says.
#[derive(Default)]
pub(crate) struct Module {
    path: Vec<String>,
    children: BTreeMap<String, Module>,
    /// Paths from the crate's root that it names.
    uses: Vec<Vec<String>>,
    /// What it re-exports, by name.
    reexports: BTreeMap<String, Vec<String>>,
}

/// A member of the workspace whose modules are watched.
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) root: Module,
    /// The watched members that it depends on.
    pub(crate) depends_on: BTreeSet<String>,
}

/// The library in `core/` and all members in and below `train-native/`.
pub(crate) fn crates(workspace: &Path) -> Vec<Crate> {
    let manifest = |folder: &Path| -> toml::Table {
        let text = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        text.parse().unwrap()
    };
    let members = &manifest(workspace)["workspace"]["members"];
    let watched = members.as_array().unwrap().iter().filter_map(|member| member.as_str());
    let watched = watched.filter(|member| *member == "core" || member.starts_with("train-native"));
    let packages: Vec<(PathBuf, toml::Table, String)> = watched
        .map(|member| {
            let folder = workspace.join(member);
            let manifest = manifest(&folder);
            let name = manifest["package"]["name"].as_str().unwrap().to_string();
            (folder, manifest, name)
        })
        .collect();
    let names: BTreeSet<&String> = packages.iter().map(|(_, _, name)| name).collect();
    packages
        .iter()
        .map(|(folder, manifest, name)| {
            let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
            let dependencies = dependencies.into_iter().flat_map(|table| table.keys());
            Crate {
                name: name.clone(),
                root: read_crate(&folder.join("src/lib.rs")),
                depends_on: dependencies.filter(|name| names.contains(name)).cloned().collect(),
            }
        })
        .collect()
}

pub(crate) fn read_crate(file: &Path) -> Module {
    let mut reader =
        Reader { module: Module::default(), folder: file.parent().unwrap().into(), macros: vec![] };
    reader.read(file);
    let Reader { mut module, macros, .. } = reader;
    // `#[macro_export]` puts a macro at the crate's root, wherever it is written.
    module.reexports.extend(macros);
    module
}

impl Module {
    /// The arrows among the children of every module, by the module's path.
    pub(crate) fn arrows(&self) -> BTreeMap<String, Arrows> {
        let mut all = BTreeMap::new();
        self.each(&mut |folder| {
            let children = folder.children.keys().map(|name| (name.clone(), BTreeSet::new()));
            all.insert(folder.path.join("::"), children.collect::<Arrows>());
        });
        self.each(&mut |module| {
            for target in &module.uses {
                let target = self.home(target, 0);
                let shared = module.path.iter().zip(&target).take_while(|(a, b)| a == b).count();
                if let (Some(from), Some(to)) = (module.path.get(shared), target.get(shared))
                    && let Some(arrows) = all.get_mut(&module.path[..shared].join("::"))
                {
                    arrows.entry(from.clone()).or_default().insert(to.clone());
                }
            }
        });
        all.retain(|_, arrows| arrows.len() > 1);
        all
    }

    fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Module)) {
        visit(self);
        self.children.values().for_each(|child| child.each(visit));
    }

    /// The module in which an item lives that a path from the root names.
    fn home(&self, path: &[String], depth: usize) -> Vec<String> {
        let mut module = self;
        for (i, segment) in path.iter().enumerate() {
            if let Some(child) = module.children.get(segment) {
                module = child;
            } else if let Some(target) = module.reexports.get(segment).filter(|_| depth < 8) {
                let target: Vec<String> = target.iter().chain(&path[i + 1..]).cloned().collect();
                return self.home(&target, depth + 1);
            } else {
                break;
            }
        }
        module.path.clone()
    }
}

/// Reads one module and its children; `folder` is where its children's files are.
struct Reader {
    module: Module,
    folder: PathBuf,
    macros: Vec<(String, Vec<String>)>,
}

impl Reader {
    fn read(&mut self, file: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.visit_file(&parsed);
    }

    /// A path from the crate's root.
    fn absolute(&self, path: &[String]) -> Vec<String> {
        let mut rest = path;
        let mut start = self.module.path.clone();
        if let [first, others @ ..] = rest
            && first == "crate"
        {
            (start, rest) = (vec![], others);
        }
        while let [first, others @ ..] = rest {
            match first.as_str() {
                "self" => {}
                "super" => drop(start.pop()),
                _ => break,
            }
            rest = others;
        }
        start.extend_from_slice(rest);
        start
    }

    fn add(&mut self, path: &[String]) {
        let path = self.absolute(path);
        self.module.uses.push(path);
    }

    /// The paths of a `use`, each with the name that it gets here.
    fn leaves(tree: &syn::UseTree, before: &[String], leaves: &mut Vec<(String, Vec<String>)>) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => Self::leaves(&path.tree, &with(&path.ident), leaves),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| Self::leaves(tree, before, leaves));
            }
            syn::UseTree::Glob(_) => leaves.push(("*".into(), before.to_vec())),
            syn::UseTree::Name(name) if name.ident == "self" => {
                leaves.push((before.last().cloned().unwrap_or_default(), before.to_vec()));
            }
            syn::UseTree::Name(name) => leaves.push((name.ident.to_string(), with(&name.ident))),
            syn::UseTree::Rename(name) => leaves.push((name.rename.to_string(), with(&name.ident))),
        }
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => {
            let tokens = list.tokens.to_string();
            list.path.is_ident("cfg") && (tokens == "test" || tokens.starts_with("all (test"))
        }
        _ => false,
    })
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_test(&item.attrs) {
            return;
        }
        let name = item.ident.to_string();
        let path = [self.module.path.as_slice(), std::slice::from_ref(&name)].concat();
        let folder = self.folder.join(&name);
        let module = Module { path, ..Module::default() };
        let mut child = Reader { module, folder: folder.clone(), macros: vec![] };
        match &item.content {
            Some((_, items)) => items.iter().for_each(|item| child.visit_item(item)),
            None => {
                let file = folder.with_extension("rs");
                let file = if file.is_file() { file } else { folder.join("mod.rs") };
                child.read(&file);
            }
        }
        self.macros.append(&mut child.macros);
        // Two modules of one name under different `cfg`s count as one.
        let kept = self.module.children.entry(name).or_default();
        kept.path = child.module.path;
        kept.uses.append(&mut child.module.uses);
        kept.reexports.append(&mut child.module.reexports);
        kept.children.append(&mut child.module.children);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if is_test(&item.attrs) || item.leading_colon.is_some() {
            return;
        }
        let mut leaves = Vec::new();
        Self::leaves(&item.tree, &[], &mut leaves);
        for (name, path) in leaves {
            self.add(&path);
            if !matches!(item.vis, syn::Visibility::Inherited) {
                let path = self.absolute(&path);
                self.module.reexports.insert(name, path);
            }
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_test(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        if let Some(name) = &item.ident
            && item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export"))
        {
            self.macros.push((name.to_string(), self.module.path.clone()));
        }
        visit::visit_item_macro(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if let [first, _, ..] = segments.as_slice()
            && matches!(first.as_str(), "crate" | "super" | "self")
        {
            self.add(&segments);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        // What a macro is handed is tokens: the paths among them begin with `crate ::`.
        let tokens = call.tokens.to_string().replace(" ::", "::").replace(":: ", "::");
        let word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        for path in tokens.split(|c| !word(c)).filter(|path| path.starts_with("crate::")) {
            let segments: Vec<String> = path.split("::").map(String::from).collect();
            self.add(&segments);
        }
        visit::visit_macro(self, call);
    }
}

/// A circle among modules, each using the next and the last the first; `None` where there is none.
pub(crate) fn circle(arrows: &Arrows) -> Option<Vec<String>> {
    fn follow(
        module: &str,
        arrows: &Arrows,
        trail: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> bool {
        if let Some(start) = trail.iter().position(|seen| seen == module) {
            trail.drain(..start);
            return true;
        }
        if done.contains(module) {
            return false;
        }
        trail.push(module.into());
        let targets = arrows.get(module).into_iter().flatten();
        for target in targets {
            if follow(target, arrows, trail, done) {
                return true;
            }
        }
        trail.pop();
        done.insert(module.into());
        false
    }
    let (mut trail, mut done) = (Vec::new(), BTreeSet::new());
    let found = arrows.keys().any(|module| follow(module, arrows, &mut trail, &mut done));
    found.then_some(trail)
}

/// The arrows without those that a longer way says already.
pub(crate) fn reduced(arrows: &Arrows) -> Arrows {
    fn reaches(from: &str, to: &str, arrows: &Arrows, seen: &mut BTreeSet<String>) -> bool {
        arrows.get(from).into_iter().flatten().any(|next| {
            next == to || (seen.insert(next.clone()) && reaches(next, to, arrows, seen))
        })
    }
    let mut kept = arrows.clone();
    for (from, targets) in arrows {
        for to in targets {
            kept.entry(from.clone()).or_default().remove(to);
            if !reaches(from, to, &kept, &mut BTreeSet::new()) {
                kept.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    kept
}
