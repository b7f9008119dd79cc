//! Paths in the text of a module, as far as that can be told without a compiler.

/// All paths in a module's text that begin with `crate` or `super`, from the crate's root.
pub fn paths(module: &[String], text: &str) -> Vec<Vec<String>> {
    let code = code(text);
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
    found.into_iter().map(|(_, path)| path).collect()
}

/// What a folder's own file, which has the module path `own`, takes by `use`: the name that each has there, and its path. Of
/// the folder's modules (`children`) it is from the crate's root.
pub fn uses(own: &[String], children: &[&str], text: &str) -> Vec<(String, Vec<String>)> {
    let code = code(text);
    let mut found = Vec::new();
    for (begin, word) in code.match_indices("use ") {
        let line = code[..begin].rsplit('\n').next().unwrap_or_default().trim();
        if !line.is_empty() && !line.starts_with("pub") {
            continue;
        }
        tree(Vec::new(), &code[begin + word.len()..], &mut found);
    }
    for (name, path) in &mut found {
        let above = match path[0].as_str() {
            "crate" => &[],
            "self" => own,
            "super" => &own[..own.len().saturating_sub(1)],
            child if children.contains(&child) => {
                path.splice(..0, own.iter().cloned());
                continue;
            }
            _ => continue,
        };
        path.splice(..1, above.iter().cloned());
        if name == "self" {
            *name = path.iter().rev().nth(1).cloned().unwrap_or_default();
        }
    }
    found
}

/// Without tests and comments.
fn code(text: &str) -> String {
    let code = text.split("\nmod tests").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The paths of `a::{b, c::d as e}`, each with the name that it has from there on; returns what comes after it.
fn tree<'a>(mut base: Vec<String>, mut rest: &'a str, found: &mut Vec<(String, Vec<String>)>) -> &'a str {
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
                        // What is no path is passed over.
                        inner = if after.len() == inner.len() { &inner[1..] } else { after };
                    }
                }
            }
        }
        let (name, after) = word(rest);
        base.push(name.to_owned());
        rest = after;
        match rest.strip_prefix("::") {
            Some(after) => rest = after,
            None => {
                let (called, after) = rest.strip_prefix(" as ").map_or((name, rest), word);
                found.push((called.to_owned(), base));
                return after;
            }
        }
    }
}

/// The name that a text begins with, or the `*` of all names, and what comes after it.
fn word(text: &str) -> (&str, &str) {
    if text.starts_with('*') {
        return text.split_at(1);
    }
    text.split_at(text.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(text.len()))
}
