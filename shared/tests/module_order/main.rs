//! No circles: in each folder of modules, one uses only what stands before it in the list (`order.rs`), which is one for
//! all members. And who logs: only what acts. (Who may look and act is clippy's ban, `clippy.toml` of each member.)
//!
//! A folder's own file (`plan.rs` of `plan/`) belongs to the folder above, and what it hands on by `pub use`
//! counts as its own. Tests are not looked at.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "reads our source")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use order::ORDER;

mod order;

/// Modules that decide or look: from their arguments only, without a word.
const SILENT: &[(&str, &[&str])] = &[
    (
        "agent/src",
        &["commands::findings", "commands::preflight", "commands::status", "dry_run", "facts", "plan", "spec"],
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
            "install",
            "labels",
            "observe",
            "observe::job",
            "observe::node",
            "observe::pod",
            "observe::service",
            "observe::storage",
            "reconcile::decide",
            "reconcile::fetch",
            "reconcile::keys",
            "reconcile::render",
            "reconcile::status",
            "reconcile::target",
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
        let source = folder.split_once("/src").map_or("", |(_, below)| below.trim_start_matches('/'));
        let prefix: Vec<String> = source.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let files = rust_files(&root.join(folder));
        for (path, text) in &files {
            let name = path[0].as_str();
            if path.len() == 1 && ["main", "lib", "testing", "tests"].contains(&name) {
                continue;
            }
            let module: Vec<String> = prefix.iter().chain(path).cloned().collect();
            wrong.extend(back_edges(folder, order, &prefix, &module, text));
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
    let order = ["below", "middle", "above"];
    let found = |module: &[&str], text: &str| {
        let module: Vec<String> = module.iter().map(|name| (*name).to_owned()).collect();
        back_edges("src", &order, &[], &module, text).len()
    };
    assert_eq!(found(&["middle"], "use crate::below::Thing;\nuse std::fs;"), 0);
    assert_eq!(found(&["middle"], "use crate::above::Thing;"), 1);
    assert_eq!(found(&["middle"], "use crate::{below, above::{One, Two}};"), 1);
    assert_eq!(found(&["middle", "part"], "use super::{Own, other};\nuse super::super::above;"), 1);
    assert_eq!(found(&["middle"], "fn act() { crate::above::act() }"), 1);
    assert_eq!(found(&["middle"], "// crate::above\n#[cfg(test)]\nmod tests { use crate::above; }"), 0);
    assert_eq!(found(&["unlisted"], ""), 1);
}

/// What a module of `folder` uses that does not stand before it.
fn back_edges(folder: &str, order: &[&str], prefix: &[String], module: &[String], text: &str) -> Vec<String> {
    let place = |name: &str| order.iter().position(|it| *it == name);
    let own = &module[prefix.len()];
    let Some(at) = place(own) else { return vec![format!("{folder}: {own} has no place in the order")] };
    let used = paths(module, text);
    let siblings = used.iter().filter(|path| path.starts_with(prefix)).filter_map(|path| path.get(prefix.len()));
    let mut above: Vec<&String> = siblings.filter(|name| place(name).is_some_and(|it| it > at)).collect();
    above.sort();
    above.dedup();
    above.iter().map(|name| format!("{folder}: {} uses {name}, which stands above {own}", module.join("::"))).collect()
}

/// All paths in a module's text that begin with `crate` or `super`, from the crate's root.
fn paths(module: &[String], text: &str) -> Vec<Vec<String>> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code: String =
        code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for (begin, word) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        let before = code[..begin].chars().next_back();
        if before.is_some_and(|it| it.is_alphanumeric() || it == '_' || it == ':' || it == '$') {
            continue;
        }
        let mut base = if word == "crate::" { Vec::new() } else { module[..module.len() - 1].to_vec() };
        let mut rest = &code[begin + word.len()..];
        while let Some(after) = rest.strip_prefix("super::") {
            base.pop();
            rest = after;
        }
        tree(base, rest, &mut found);
    }
    found
}

/// The paths of `a::{b, c::d}`; returns what comes after it.
fn tree<'a>(mut base: Vec<String>, mut rest: &'a str, found: &mut Vec<Vec<String>>) -> &'a str {
    loop {
        rest = rest.trim_start();
        if let Some(mut inner) = rest.strip_prefix('{') {
            loop {
                inner = inner.trim_start_matches([',', ' ', '\n']);
                match inner.strip_prefix('}') {
                    Some(after) => return after,
                    None if inner.is_empty() => return inner,
                    None => {
                        let after = tree(base.clone(), inner, found);
                        // What is no path (`*`, `as`) is passed over.
                        inner = if after.len() == inner.len() { &inner[1..] } else { after };
                    }
                }
            }
        }
        let end = rest.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(rest.len());
        base.push(rest[..end].to_owned());
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(after) => rest = after,
            None => {
                found.push(base);
                return rest;
            }
        }
    }
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
