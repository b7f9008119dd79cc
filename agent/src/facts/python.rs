//! Whether Flux's own Python has to compile its modules again for every command.
//!
//! Python uses a compiled file (.pyc) if it records the time and size of its source (or a hash). A view without such
//! files, or one whose sources were copied without their times, has no usable ones: each command then takes a second
//! longer.

use super::host::HostFiles;

/// Whether Flux's own package and its interpreter's library are compiled, judged by one file of each. Files that do
/// not exist are skipped.
pub fn is_compiled(host: &HostFiles, installation: &str) -> bool {
    let sources = pythons(host, installation).into_iter().flat_map(|python| {
        let known = [
            format!("{installation}/lib/{python}/os.py"),
            format!("{installation}/lib/{python}/site-packages/flux/__init__.py"),
            format!("{installation}/lib/flux/{python}/flux/__init__.py"),
        ];
        known
            .into_iter()
            .chain(library(host, installation, &python))
            .map(move |source| (python.clone(), source))
    });
    sources
        .into_iter()
        .all(|(python, source)| is_fresh(host, &python, &source).unwrap_or(true))
}

/// The Pythons with a library or Flux's modules in the installation, such as `python3.11`.
fn pythons(host: &HostFiles, installation: &str) -> Vec<String> {
    let folders = ["lib", "lib/flux"]
        .into_iter()
        .flat_map(|folder| host.names(&format!("{installation}/{folder}")));
    let mut names: Vec<String> = folders.filter(|name| is_python(name)).collect();
    names.sort();
    names.dedup();
    names
}

fn is_python(name: &str) -> bool {
    name.strip_prefix("python3.")
        .is_some_and(|minor| !minor.is_empty() && minor.bytes().all(|b| b.is_ascii_digit()))
}

/// The path of `os.py` in the library of the interpreter that Flux's wrapper for this Python starts, by the line
/// `exec /usr/bin/python3 "$@"`.
fn library(host: &HostFiles, installation: &str, python: &str) -> Option<String> {
    let wrapper = host.text(&format!("{installation}/libexec/flux/cmd/flux-{python}"))?;
    let interpreter = wrapper
        .lines()
        .find_map(|line| line.strip_prefix("exec ")?.split_whitespace().next())?;
    // The interpreter's prefix, such as `/usr` for `/usr/bin/python3`.
    Some(format!(
        "{}/lib/{python}/os.py",
        interpreter.rsplitn(3, '/').nth(2)?
    ))
}

/// Whether the compiled file of `source` is up to date. None: there is no such source.
fn is_fresh(host: &HostFiles, python: &str, source: &str) -> Option<bool> {
    let (seconds, size) = host.time_and_size(source)?;
    let (folder, name) = source.rsplit_once('/')?;
    // `os.py` of python3.11 is compiled to `__pycache__/os.cpython-311.pyc`.
    let tag = format!("c{}", python.replacen("python3.", "python-3", 1));
    let compiled = format!("{folder}/__pycache__/{}.{tag}.pyc", name.strip_suffix(".py")?);
    let Some(head) = host.head(&compiled) else {
        return Some(false);
    };
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    // The second word is 0 if time and size follow, and has flags if a hash follows instead (PEP 552).
    Some(word(4) != 0 || (word(8), word(12)) == (seconds as u32, size as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether Flux is compiled in a host of these files, where `change` has changed something.
    fn compiled(change: impl Fn(&std::path::Path)) -> bool {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, bytes: &[u8]| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        let source = |folder: &str, name: &str| {
            write(&format!("{folder}/{name}.py"), b"pass\n");
            let modified = std::fs::metadata(root.path().join(format!("{folder}/{name}.py")))
                .unwrap()
                .modified()
                .unwrap();
            let seconds = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as u32;
            let head = [
                [0xa7, 0x0d, 0x0d, 0x0a],
                [0; 4],
                seconds.to_le_bytes(),
                5_u32.to_le_bytes(),
            ]
            .concat();
            write(&format!("{folder}/__pycache__/{name}.cpython-311.pyc"), &head);
        };
        source("opt/flux/lib/flux/python3.11/flux", "__init__");
        source("usr/lib/python3.11", "os");
        write(
            "opt/flux/libexec/flux/cmd/flux-python3.11",
            b"#!/bin/sh\nexec /usr/bin/python3 \"$@\"\n",
        );
        change(root.path());
        is_compiled(&HostFiles::new(root.path()), "/opt/flux")
    }

    #[test]
    fn python_is_compiled_if_pyc_files_match_their_sources() {
        assert!(compiled(|_| {}));
        assert!(
            is_compiled(&HostFiles::new(tempfile::tempdir().unwrap().path()), "/opt/flux"),
            "nothing is known"
        );
        let own = "opt/flux/lib/flux/python3.11/flux";
        assert!(!compiled(|root| std::fs::remove_dir_all(
            root.join(own).join("__pycache__")
        )
        .unwrap()));
        assert!(
            !compiled(|root| std::fs::write(root.join(own).join("__init__.py"), "other\n").unwrap()),
            "another size"
        );
        let file = |root: &std::path::Path| root.join("usr/lib/python3.11/__pycache__/os.cpython-311.pyc");
        let change = |at: usize| {
            move |root: &std::path::Path| {
                let mut bytes = std::fs::read(file(root)).unwrap();
                bytes[at] ^= 1;
                std::fs::write(file(root), bytes).unwrap();
            }
        };
        assert!(
            !compiled(change(8)),
            "the interpreter's library, copied without its time"
        );
        assert!(compiled(change(4)), "a hash");
        assert!(
            !compiled(|root| std::fs::write(file(root), "").unwrap()),
            "an empty file"
        );
    }
}
