//! The environment and files that a plan's steps produce, computed from the plan's JSON and the snippets' effects.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::image::{Node, Tree, What};

/// The expected state of a pod.
pub struct Expected {
    /// The uid and gid of the agent.
    pub us: (u32, u32),
    pub tree: Tree,
    pub environment: BTreeMap<String, String>,
    pub directory: String,
    /// The option that restores the archive, if there is one.
    pub restore: Option<String>,
    /// The launched programs: argv, environment, working directory, ids.
    pub launched: Vec<Launched>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Launched {
    pub argv: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub directory: String,
    pub ids: (u64, u64),
}

/// The effect of a snippet. The test states it, since a plan has only the source.
pub type Effect = fn(&str, &mut Expected);

pub fn no_snippet(name: &str, _: &mut Expected) {
    panic!("there is no snippet {name} in this spec")
}

pub fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name]
        .as_str()
        .unwrap_or_else(|| panic!("no {name} in {value}"))
}

fn owner(value: &Value) -> (u32, u32) {
    let id = |name: &str| u32::try_from(value[name].as_u64().unwrap()).unwrap();
    (id("uid"), id("gid"))
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl Expected {
    fn word(&self, word: &Value) -> String {
        let Some(parts) = word.as_array() else {
            return word.as_str().unwrap().to_owned();
        };
        let part = |part: &Value| match part.get("env") {
            Some(name) => self
                .environment
                .get(name.as_str().unwrap())
                .cloned()
                .unwrap_or_default(),
            None => text(part, "text").to_owned(),
        };
        parts.iter().map(part).collect()
    }

    fn change(&mut self, change: &Value) {
        let name = text(change, "name").to_owned();
        match text(change, "change") {
            "set" => {
                let value = self.word(&change["value"]);
                self.environment.insert(name, value);
            }
            "default" => {
                self.environment
                    .entry(name)
                    .or_insert_with(|| text(change, "value").to_owned());
            }
            "append" => {
                let (value, separator) = (text(change, "value"), text(change, "separator"));
                let old = self.environment.get(&name).filter(|old| !old.is_empty());
                let new = match old {
                    None => value.to_owned(),
                    Some(old) if old.split(separator).any(|part| part == value) => old.clone(),
                    Some(old) => format!("{old}{separator}{value}"),
                };
                self.environment.insert(name, new);
            }
            "withdraw" => {
                let (value, separator) = (text(change, "value"), text(change, "separator"));
                let Some(old) = self.environment.get(&name).cloned() else {
                    return;
                };
                let mut parts: Vec<&str> = old.split(separator).collect();
                if let Some(last) = parts.iter().rposition(|part| *part == value) {
                    parts.remove(last);
                }
                if parts.is_empty() {
                    self.environment.remove(&name)
                } else {
                    self.environment.insert(name, parts.join(separator))
                };
            }
            "remove" => {
                self.environment.remove(&name);
            }
            other => panic!("unknown change {other}"),
        }
    }

    fn folders(&mut self, path: &str) {
        if path.is_empty() || self.tree.get(path).is_some_and(|node| node.what == What::Folder) {
            return;
        }
        self.folders(parent(path));
        self.put(path, 0o755, self.us, What::Folder);
    }

    pub fn put(&mut self, path: &str, mode: u32, owner: (u32, u32), what: What) {
        self.tree.insert(path.to_owned(), Node { mode, owner, what });
    }

    fn account(&mut self, path: &str, name: &str, line: String) {
        let us = self.us;
        let node = self.tree.entry(path.into()).or_insert(Node {
            mode: 0o644,
            owner: us,
            what: What::File(Vec::new()),
        });
        let What::File(bytes) = &mut node.what else {
            panic!("{path} is no file")
        };
        let known = String::from_utf8(bytes.clone()).unwrap();
        if !known.lines().any(|line| line.starts_with(&format!("{name}:"))) {
            bytes.extend_from_slice(line.as_bytes());
        }
    }

    fn content(&self, content: &Value) -> Vec<u8> {
        if let Some(text) = content["text"].as_str() {
            return text.into();
        }
        if let Some(source) = content["curve"]["source"]
            .as_str()
            .or(content["secret"]["source"].as_str())
        {
            let What::File(bytes) = &self.tree[source].what else {
                panic!("{source} is no file")
            };
            return bytes.clone();
        }
        let exports = content["exports"]
            .as_object()
            .unwrap_or_else(|| panic!("unknown content {content}"));
        let line = |(name, word): (&String, &Value)| {
            format!("export {name}='{}'\n", self.word(word).replace('\'', r"'\''"))
        };
        exports.iter().map(line).collect::<String>().into()
    }

    fn launch(&mut self, step: &Value) {
        let ids = step.get("run_as").map_or(self.us, owner);
        // `flux-agent program` writes the lead's result. The program of each case succeeds.
        if let Some(path) = step["result"].as_str() {
            let node = self.tree.get_mut(path).unwrap();
            node.what = What::File(b"started\nended 0\n".into());
        }
        let own = self.environment.clone();
        if let Some(user) = step.get("run_as") {
            let variables = [("HOME", "home"), ("USER", "name"), ("LOGNAME", "name")];
            let variables = variables.map(|(name, field)| (name.to_owned(), text(user, field).to_owned()));
            self.environment.extend(variables);
        }
        step["environment"]
            .as_array()
            .into_iter()
            .flatten()
            .for_each(|change| self.change(change));
        let mut argv: Vec<String> = step["argv"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| self.word(word))
            .collect();
        // A plan that looks for `flux` on the PATH after the snippets: here they do not change what it finds.
        if let Some(lookup) = step.get("flux") {
            let word = usize::try_from(lookup["word"].as_u64().unwrap()).unwrap();
            self.put(
                text(lookup, "link"),
                0,
                self.us,
                What::Link(argv[word].as_str().into()),
            );
        }
        if let Some(option) = self.restore.take() {
            let at = step["options"]["start"].as_u64().unwrap();
            argv.insert(usize::try_from(at).unwrap(), option);
        }
        self.launched.push(Launched {
            argv,
            environment: std::mem::replace(&mut self.environment, own),
            directory: self.directory.clone(),
            ids: (ids.0.into(), ids.1.into()),
        });
    }

    pub fn step(&mut self, step: &Value, effect: Effect) {
        match text(step, "step") {
            "environment" => step["changes"]
                .as_array()
                .unwrap()
                .iter()
                .for_each(|change| self.change(change)),
            "directory" | "file" => {
                let path = text(step, "path");
                self.folders(parent(path));
                let what = match step.get("content") {
                    Some(content) => What::File(self.content(content)),
                    None => What::Folder,
                };
                let mode = u32::from_str_radix(text(step, "mode"), 8).unwrap();
                self.put(path, mode, owner(&step["owner"]), what);
            }
            "link" => {
                let path = text(step, "path");
                self.folders(parent(path));
                if self
                    .tree
                    .get(path)
                    .is_none_or(|node| matches!(node.what, What::Link(_)))
                {
                    self.put(path, 0, self.us, What::Link(text(step, "target").into()));
                }
            }
            "user" => {
                let (name, home, (uid, gid)) = (text(step, "name"), text(step, "home"), owner(step));
                self.account(
                    "/etc/passwd",
                    name,
                    format!("{name}:x:{uid}:{gid}::{home}:/bin/sh\n"),
                );
                self.account("/etc/group", name, format!("{name}:x:{gid}:\n"));
            }
            // Only a folder that Flux's user cannot write to changes its owner.
            "give" => {
                if let Some(node) = self
                    .tree
                    .get_mut(text(step, "path"))
                    .filter(|node| node.mode & 0o002 == 0)
                {
                    node.owner = owner(&step["owner"]);
                }
            }
            "snippet" => effect(text(step, "name"), self),
            "launch" => self.launch(step),
            "publish-archive" => {
                // The fake Flux's archive has a line for each start. The existing one has the line of an earlier start.
                let path = text(step, "to");
                let state = if self.tree.contains_key(path) {
                    "start\nstart\n"
                } else {
                    "start\n"
                };
                self.put(path, 0o644, self.us, What::File(crate::archive::packed(state)));
                let mut files = self.tree.values_mut().filter_map(|node| match &mut node.what {
                    What::File(bytes) => Some(bytes),
                    _ => None,
                });
                if let Some(record) = files.find(|bytes| bytes.starts_with(b"started 1\n")) {
                    record.extend_from_slice(b"archive saved\n");
                }
            }
            "prepare-archive" => {
                let path = text(step, "archive");
                let has_archive = self.tree.contains_key(path);
                self.restore = has_archive.then(|| format!("-Scontent.restore={path}"));
            }
            "shell" | "end-shell" | "snippet-resources" | "wait-parent" | "wait-socket" | "linger"
            | "stay" => {}
            "note-end" => self.put(text(step, "note"), 0o644, self.us, What::File(Vec::new())),
            "once" => {
                let path = text(step, "record");
                self.folders(parent(parent(path)));
                self.put(parent(path), 0o700, self.us, What::Folder);
                self.put(path, 0o644, self.us, What::File(b"started 1\nended 0\n".to_vec()));
            }
            other => panic!("unknown step {other}"),
        }
    }
}
