//! Map keys of a text that kubectl reads differently from [`super::documents`], which takes each key as it is written.
//! kubectl (YAML 1.1) reads an unquoted `N` as false, and then names the key `false`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, Spanned};

use crate::problem::{Notice, Problem};

/// A node of a document. A mapping has its entries in the order of the text, `<<` among them.
pub enum Node {
    Mapping(Vec<Entry>),
    List(Vec<Node>),
    Scalar,
}

/// A key, as YAML 1.1 reads it.
type Key = Spanned<Value>;

type Entry = (Key, Node);

/// The documents of a text. Empty if it is not YAML, which [`super::documents`] reports.
pub fn documents(text: &str) -> Vec<Node> {
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        merge_keys: MergeKeyPolicy::AsOrdinary,
        legacy_octal_numbers: true,
    };
    serde_saphyr::from_multiple_with_options(text, options).unwrap_or_default()
}

/// The problems with keys that kubectl names otherwise than they are written in `text`. `has_item`: whether this item of a
/// List counts.
pub fn misread(document: &Node, has_item: impl Fn(usize) -> bool, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    document.visit_mappings(String::new(), &mut |path, entries| {
        if item_of(path).is_some_and(|item| !has_item(item)) {
            return;
        }
        for (key, _) in entries {
            let Some((written, read)) = written(key, text).zip(name_in_kubectl(&key.value)) else {
                continue;
            };
            if written != read && !is_text_in_kubectl(key, written) {
                let line = key.defined.line();
                problems.push(Problem::new(
                    path,
                    format!("kubectl reads the key `{written}` in line {line} as `{read}`: quote it"),
                ));
            }
        }
    });
    problems
}

/// For each `<<`, a notice about the first key before it that it has too: kubectl lets the merged value win, and
/// [`super::documents`] the other one.
pub fn overridden(document: &Node) -> Vec<Notice> {
    let mut notices = Vec::new();
    document.visit_mappings(String::new(), &mut |path, entries| {
        let merges = entries.iter().enumerate().filter(|(_, (key, _))| key.value == "<<");
        for (position, (merge, merged)) in merges {
            let is_merged = |key: &&Key| merged.has(&key.value);
            let Some(key) = entries[..position].iter().map(|(key, _)| key).find(is_merged) else {
                continue;
            };
            let (name, line) = (key.value.as_str().unwrap_or("a key"), merge.referenced.line());
            notices.push(Notice::new(
                path,
                format!("kubectl takes `{name}` from `<<` in line {line}, not the value before it: write `<<` first"),
            ));
        }
    });
    notices
}

/// The number of the List's item that the path is in.
fn item_of(path: &str) -> Option<usize> {
    let (number, _) = path.strip_prefix("items[")?.split_once(']')?;
    number.parse().ok()
}

/// How the key is written in the text.
fn written<'a>(key: &Key, text: &'a str) -> Option<&'a str> {
    let span = key.defined.span();
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let end = start.checked_add(usize::try_from(span.byte_len()?).ok()?)?;
    text.get(start..end)
}

/// Whether kubectl reads the key as a text although it is a boolean here: `oN`.
fn is_text_in_kubectl(key: &Key, written: &str) -> bool {
    let (upper, lower) = (written.to_ascii_uppercase(), written.to_ascii_lowercase());
    let is_capitalized = || written.get(..1) == upper.get(..1) && written.get(1..) == lower.get(1..);
    key.value.is_boolean() && written != upper && written != lower && !is_capitalized()
}

/// The name that kubectl gives to a key that is not a text.
fn name_in_kubectl(key: &Value) -> Option<String> {
    match key {
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(number) if number.is_f64() => Some(number.as_f64()?.to_string()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

impl Node {
    /// Whether this is a mapping with the key, or a list with such a mapping.
    fn has(&self, key: &Value) -> bool {
        match self {
            Node::Mapping(entries) => entries.iter().any(|(own, _)| own.value == *key),
            Node::List(items) => items.iter().any(|item| item.has(key)),
            Node::Scalar => false,
        }
    }

    /// Calls `visit` with the path and the entries of each mapping.
    fn visit_mappings(&self, path: String, visit: &mut dyn FnMut(&str, &[Entry])) {
        match self {
            Node::Mapping(entries) => {
                visit(&path, entries);
                for (key, value) in entries {
                    let key = key
                        .value
                        .as_str()
                        .map_or_else(|| key.value.to_string(), str::to_owned);
                    let inner = if path.is_empty() {
                        key
                    } else {
                        format!("{path}.{key}")
                    };
                    value.visit_mappings(inner, visit);
                }
            }
            Node::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    item.visit_mappings(format!("{path}[{i}]"), visit);
                }
            }
            Node::Scalar => {}
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a node of YAML")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Mapping(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, find: impl Fn(&Node) -> Vec<Problem>) -> Vec<String> {
        let documents = documents(text);
        assert_eq!(documents.len(), 1, "{text}");
        find(&documents[0]).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn key_that_kubectl_reads_as_another_text_is_reported() {
        for (key, read) in [
            ("N", "false"),
            ("Y", "true"),
            ("no", "false"),
            ("on", "true"),
            ("True", "true"),
            ("010", "8"),
            ("1.0", "1"),
            ("1.10", "1.1"),
            ("1e3", "1000"),
        ] {
            for text in [
                format!("a:\n- b:\n    c: 1\n    {key}: x\n"),
                format!("# ä\n\na: [{{b: {{{key}: x}}}}]\n"),
                format!("x: &x {{{key}: x}}\n\na: [{{b: *x}}]\n"),
                format!("x: &x {{{key}: x}}\n\na: [{{b: {{<<: *x}}}}]\n"),
            ] {
                let found = lines(&text, |document| misread(document, |_| true, &text));
                let wanted = format!("kubectl reads the key `{key}` in line ");
                let is_wanted = |line: &String| line.starts_with("a[0].b") && line.contains(&wanted);
                let found: Vec<&String> = found.iter().filter(|line| is_wanted(line)).collect();
                assert_eq!(found.len(), 1, "{text}");
                assert!(
                    found[0].ends_with(&format!("as `{read}`: quote it")),
                    "{}",
                    found[0]
                );
            }
        }
    }

    #[test]
    fn key_that_kubectl_reads_as_written_is_not_reported() {
        for key in [
            "\"N\"",
            "'on'",
            "!!str N",
            "name",
            "true",
            "false",
            "8",
            "-3",
            "1.5",
            "oN",
            "2001-01-01",
            "1.2.3",
        ] {
            let text = format!("a: {{{key}: x}}\n");
            assert_eq!(
                lines(&text, |document| misread(document, |_| true, &text)),
                [""; 0],
                "{key}"
            );
        }
    }

    #[test]
    fn key_before_a_merge_that_has_it_is_noted() {
        let base = "x: &x {A: 1, B: 2}\n";
        for (mapping, wanted) in [
            ("{A: 3, <<: *x}", Some("A")),
            ("{C: 3, B: 3, <<: [{D: 1}, *x]}", Some("B")),
            ("{<<: *x, A: 3}", None),
            ("{C: 3, <<: *x, A: 3}", None),
        ] {
            let found = lines(&format!("{base}z: {mapping}\n"), overridden);
            let wanted: Vec<String> = wanted
                .map(|key| {
                    format!("z: kubectl takes `{key}` from `<<` in line 2, not the value before it: write `<<` first")
                })
                .into_iter()
                .collect();
            assert_eq!(found, wanted, "{mapping}");
        }
    }
}
