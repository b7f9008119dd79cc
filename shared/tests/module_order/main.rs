//! No circles: in each folder of modules, one uses only what stands before it in the list (`order.rs`), which is one for
//! all members. And who logs: only what acts. (Who may look and act is clippy's ban, `clippy.toml`.)
//!
//! A folder's own file (`plan.rs` of `plan/`) belongs to the folder above. What it takes from a module of the folder by
//! `use` counts as that module's, whoever of the folder reaches it by the file. What the file defines itself is for
//! those above it: a module of the folder that uses it makes a circle with the file, but in the folders of
//! `SHARE_BY_FILE`.
//!
//! What is looked at are the paths that begin with `crate::` or `super::`, as they are written: not methods, nor what
//! macros make. Tests are not looked at.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "reads our source")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use order::{ORDER, SHARE_BY_FILE};
use paths::{paths, uses};

mod order;
mod paths;

/// Modules that decide or look: from their arguments only, without a word.
const SILENT: &[(&str, &[&str])] = &[
    (
        "agent/src",
        &[
            "commands::completions",
            "commands::container",
            "commands::findings",
            "commands::observe",
            "commands::pod",
            "commands::preflight",
            "commands::status",
            "dry_run",
            "facts",
            "known_paths",
            "local::containers",
            "plan",
            "spec",
            "view::fold",
        ],
    ),
    (
        "operator/src",
        &[
            "health::families",
            "health::metrics",
            "health::process",
            "health::queue",
            "health::registry",
            "health::webhook_metrics",
            "input",
            "install",
            "labels",
            "observe",
            "observe::cluster",
            "observe::job",
            "observe::node",
            "observe::pod",
            "observe::pod_end",
            "observe::service",
            "observe::storage",
            "observe::workload",
            "reconcile::decide",
            "reconcile::lookups",
            "reconcile::obstacle",
            "reconcile::previous_status",
            "reconcile::random",
            "reconcile::render",
            "reconcile::spans",
            "reconcile::status",
            "reconcile::target",
            "vocabulary",
            "yaml",
        ],
    ),
];

#[test]
fn what_decides_does_not_log() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (folder, silent) in SILENT {
        let files = rust_files(&root.join(folder));
        for name in *silent {
            let below =
                |module: &str| module == *name || module.starts_with(&format!("{name}::")) && *name != "observe";
            let mut found = files.iter().filter(|(module, _)| below(&module.join("::"))).peekable();
            assert!(found.peek().is_some(), "{folder} has no module {name}");
            for (module, text) in found {
                assert!(!text.contains("tracing::") && !text.contains("log::"), "{} logs", module.join("::"));
            }
        }
    }
}

#[test]
fn a_module_uses_only_what_stands_before_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut wrong = Vec::new();
    for (folder, order) in ORDER {
        let prefix = prefix_of(folder);
        let files = rust_files(&root.join(folder));
        let own = Folder::new(folder, order, &prefix, &own_file(&root, folder));
        for (path, text) in &files {
            let name = path[0].as_str();
            if path.len() == 1 && ["main", "lib", "testing", "tests"].contains(&name) {
                continue;
            }
            let module: Vec<String> = prefix.iter().chain(path).cloned().collect();
            wrong.extend(own.back_edges(&module, text));
        }
        if let Some(Some(all_of)) = own.taken.get("*") {
            wrong.push(format!("{folder}: its own file takes all of {all_of}: which names, nobody sees"));
        }
        for name in *order {
            assert!(files.iter().any(|(path, _)| path[0] == *name), "{folder} has no module {name}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_folder_of_modules_has_an_order() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = manifest.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    let mut folders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for member in members.split(',').map(|member| member.trim().trim_matches('"')) {
        for (mut path, _) in rust_files(&root.join(member).join("src")) {
            let module = path.pop().unwrap();
            path.insert(0, format!("{member}/src"));
            folders.entry(path.join("/")).or_default().insert(module);
        }
    }
    let named: Vec<&str> = ORDER.iter().map(|(folder, _)| *folder).collect();
    // A module that is alone in its folder has no sibling to use.
    folders.retain(|folder, modules| modules.len() > 1 && !named.contains(&folder.as_str()));
    assert!(folders.is_empty(), "without an order: {folders:?}");
}

#[test]
fn a_back_edge_is_found_however_it_is_written() {
    let found = |module: &[&str], text: &str| found_beside("", module, text).len();
    assert_eq!(found(&["middle"], "use crate::below::Thing;\nuse std::fs;"), 0);
    assert_eq!(found(&["middle"], "use crate::above::Thing;"), 1);
    assert_eq!(found(&["middle"], "use crate::{below, above::{One, Two}};"), 1);
    assert_eq!(found(&["middle", "part"], "use super::{Own, other};\nuse super::super::above;"), 1);
    assert_eq!(found(&["middle"], "fn act() { crate::above::act() }"), 1);
    assert_eq!(found(&["middle"], "// crate::above\n#[cfg(test)]\nmod tests { use crate::above; }"), 0);
    assert_eq!(found(&["unlisted"], ""), 1);
}

#[test]
fn what_the_folders_own_file_takes_from_a_module_counts_as_that_modules() {
    let own_file = "mod above;\nuse std::fmt::{Debug as Shown};\nuse crate::outside::Outer;\npub use above::{High, deep::Low as Renamed};\n\
                    use self::below::Deep;\npub(crate) use crate::folder::above::Full;\nuse super::folder::above::Near;\nstruct Defined;";
    let found = |text: &str| found_beside(own_file, &["folder", "middle"], text);
    for name in ["High", "Renamed", "Full", "Near"] {
        for text in [format!("use super::{name};"), format!("use crate::folder::{{Deep, {name} as Other}};")] {
            assert_eq!(found(&text), ["src: folder::middle uses above, which stands above middle"], "{text}");
        }
    }
    assert_eq!(found("use super::{Deep, Outer, Shown, below::Low};"), [""; 0], "from below, and from elsewhere");
    assert_eq!(found_beside(own_file, &["folder", "above"], "use super::High;"), [""; 0], "its own");
    assert_eq!(found("use super::*;").len(), 1, "whatever it has");
    let below = found_beside(own_file, &["folder", "middle", "part"], "fn act(it: super::super::High) {}");
    assert_eq!(below.len(), 1, "{below:?}");
    assert_eq!(found("use super::Defined;"), ["src: folder::middle uses Defined, which the folder's own file defines"]);
}

/// The back edges of a module of `folder` (or of the crate), whose own file is given.
fn found_beside(own_file: &str, module: &[&str], text: &str) -> Vec<String> {
    let module: Vec<String> = module.iter().map(|name| (*name).to_owned()).collect();
    let prefix = if module[0] == "folder" { &module[..1] } else { &[] };
    Folder::new("src", &["below", "middle", "above"], prefix, own_file).back_edges(&module, text)
}

#[test]
fn where_modules_share_by_the_folders_own_file_they_still_do() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for name in SHARE_BY_FILE {
        let (_, order) = ORDER.iter().find(|(folder, _)| folder == name).unwrap();
        let prefix = prefix_of(name);
        let folder = Folder { shares_by_file: false, ..Folder::new(name, order, &prefix, &own_file(&root, name)) };
        let shares = rust_files(&root.join(name)).iter().any(|(path, text)| {
            let module: Vec<String> = prefix.iter().chain(path).cloned().collect();
            folder.back_edges(&module, text).iter().any(|it| it.ends_with("own file defines"))
        });
        assert!(shares, "{name} need not be in SHARE_BY_FILE");
    }
}

/// The modules above those of a folder, from the crate's root.
fn prefix_of(folder: &str) -> Vec<String> {
    let below = folder.split_once("/src").map_or("", |(_, below)| below);
    below.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// A folder of modules, and what its own file (`plan.rs` of `plan/`) has for them.
struct Folder<'a> {
    name: &'a str,
    order: &'a [&'a str],
    prefix: &'a [String],
    /// Names that the own file takes by `use`, and the module of the folder that they come from; none: from elsewhere.
    taken: BTreeMap<String, Option<String>>,
    shares_by_file: bool,
}

impl<'a> Folder<'a> {
    fn new(name: &'a str, order: &'a [&'a str], prefix: &'a [String], own_file: &str) -> Self {
        let from =
            |path: &[String]| path.strip_prefix(prefix)?.first().filter(|it| order.contains(&it.as_str())).cloned();
        let mut taken: Vec<_> =
            uses(prefix, order, own_file).into_iter().map(|(name, path)| (name, from(&path))).collect();
        // Of a name that is there more than once, that of a module counts.
        taken.sort_by_key(|(_, from)| from.is_some());
        let taken = taken.into_iter().collect();
        Folder { name, order, prefix, taken, shares_by_file: SHARE_BY_FILE.contains(&name) }
    }

    /// What a module of the folder uses that does not stand before it.
    fn back_edges(&self, module: &[String], text: &str) -> Vec<String> {
        let (folder, place) = (self.name, |name: &str| self.order.iter().position(|it| *it == name));
        let own = &module[self.prefix.len()];
        let Some(at) = place(own) else { return vec![format!("{folder}: {own} has no place in the order")] };
        let (who, mut wrong) = (module.join("::"), BTreeSet::new());
        for name in self.reached(module, text) {
            let from = if place(&name).is_some() { Some(&Some(name.clone())) } else { self.taken.get(&name) };
            match from {
                _ if name == "*" => {
                    wrong
                        .insert(format!("{folder}: {who} uses all of the folder's own file: which names, nobody sees"));
                }
                Some(Some(from)) if place(from) > Some(at) => {
                    wrong.insert(format!("{folder}: {who} uses {from}, which stands above {own}"));
                }
                None if !self.shares_by_file => {
                    wrong.insert(format!("{folder}: {who} uses {name}, which the folder's own file defines"));
                }
                _ => {}
            }
        }
        wrong.into_iter().collect()
    }

    /// What a module's text names of the folder: its modules, and what its own file has.
    fn reached(&self, module: &[String], text: &str) -> BTreeSet<String> {
        let of_the_folder = |path: Vec<String>| path.strip_prefix(self.prefix)?.first().cloned();
        paths(module, text).into_iter().filter_map(of_the_folder).collect()
    }
}

/// The text of a folder's own file: `plan.rs` of `plan/`, and of a member what its crate begins with.
fn own_file(root: &Path, folder: &str) -> String {
    let names = if folder.ends_with("/src") { ["/lib.rs", "/main.rs"] } else { [".rs", "/mod.rs"] };
    names.iter().filter_map(|name| std::fs::read_to_string(root.join(format!("{folder}{name}"))).ok()).collect()
}

/// The Rust files below a folder: module path from there, and text.
fn rust_files(folder: &Path) -> Vec<(Vec<String>, String)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            files.extend(rust_files(&path).into_iter().map(|(mut module, text)| {
                module.insert(0, name.clone());
                (module, text)
            }));
        } else if path.extension().is_some_and(|it| it == "rs") && name != "tests" {
            files.push((vec![name], std::fs::read_to_string(&path).unwrap()));
        }
    }
    files
}
