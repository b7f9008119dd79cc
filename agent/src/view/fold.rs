//! Replaces folders of a view by links. Most folders of a view have nothing but a link to each entry of one folder of a
//! package. One link to that folder is enough.
//!
//! ```text
//! view/libexec/flux/cmd/{a,b} ─► /opt/software/flux/libexec/flux/cmd/{a,b}   becomes   view/libexec/flux/cmd ─► …/cmd
//! ```

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::tree::{EntryKind, Folder, Tree, TreeEntry};

/// Replaces folders of `view` by links, where this is possible. The view's links lead to paths below `place`, where
/// containers see the tree `software`.
pub fn fold_folders(view: &mut Tree, software: &Tree, place: &Path) {
    let contents: HashMap<PathBuf, &Folder> = software
        .folders
        .iter()
        .map(|folder| (place.join(&folder.path), folder))
        .collect();
    let mut folded: HashMap<PathBuf, PathBuf> = HashMap::new();
    // From the end, so that a folder comes after the folders in it.
    for folder in view
        .folders
        .iter()
        .rev()
        .filter(|folder| may_be_a_link(&folder.path))
    {
        // The folder that an entry of the view leads into, if the entry has the same name in that folder.
        let led_into = |entry| parent(leads_to(folder, entry, &folded)?, &entry.name);
        let Some(target) = folder.entries.first().and_then(led_into) else {
            continue;
        };
        // Whether the view's folder has all entries of `target`, and no others.
        let is_whole = contents
            .get(target)
            .is_some_and(|target_folder| target_folder.names().eq(folder.names()));
        if is_whole && folder.entries.iter().all(|entry| led_into(entry) == Some(target)) {
            folded.insert(folder.path.clone(), target.to_owned());
        }
    }
    view.folders.retain(|folder| !folded.contains_key(&folder.path));
    for folder in &mut view.folders {
        for entry in &mut folder.entries {
            if let Some(target) = folded.remove(&folder.path.join(&entry.name)) {
                entry.kind = EntryKind::Link { target };
            }
        }
    }
}

/// The target of an entry of the view that is a link, or a folder that becomes one.
fn leads_to<'a>(
    folder: &Folder,
    entry: &'a TreeEntry,
    folded: &'a HashMap<PathBuf, PathBuf>,
) -> Option<&'a Path> {
    match &entry.kind {
        EntryKind::Link { target } => Some(target),
        EntryKind::Directory { .. } => folded.get(&folder.path.join(&entry.name)).map(PathBuf::as_path),
        EntryKind::File { .. } => None,
    }
}

/// The folder of `path`, if its last part is `name`.
fn parent<'a>(path: &'a Path, name: &OsStr) -> Option<&'a Path> {
    let parent = path
        .as_os_str()
        .as_bytes()
        .strip_suffix(name.as_bytes())?
        .strip_suffix(b"/")?;
    Some(Path::new(OsStr::from_bytes(parent)))
}

/// Whether a folder may become a link. The top folders stay folders. So do those of the configuration, in which
/// `lay_out` makes links, and those that Python packages are installed into.
fn may_be_a_link(folder: &Path) -> bool {
    let is_pythons = |name: &OsStr| {
        name == "site-packages" || name == "dist-packages" || name.as_encoded_bytes().starts_with(b"python")
    };
    folder.components().count() > 1
        && !folder.starts_with("etc")
        && !folder.file_name().is_some_and(is_pythons)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Makes a view of the packages below `root/software`: a folder for each of their folders, and a link for each
    /// file.
    fn view_of(root: &Path) -> Tree {
        let view = root.join("view");
        fs::create_dir(&view).unwrap();
        for package in fs::read_dir(root.join("software")).unwrap() {
            let package = package.unwrap().path();
            for (inner, entry) in all(&Tree::list(&package).unwrap()) {
                let path = view.join(&inner);
                match entry.kind {
                    EntryKind::Directory { .. } => drop(fs::create_dir(path)),
                    _ => symlink(
                        Path::new("/opt/software")
                            .join(package.file_name().unwrap())
                            .join(inner),
                        path,
                    )
                    .unwrap(),
                }
            }
        }
        Tree::list(&view).unwrap()
    }

    /// Every entry and its path.
    fn all(tree: &Tree) -> Vec<(PathBuf, &TreeEntry)> {
        let mut all = Vec::new();
        for folder in &tree.folders {
            all.extend(
                folder
                    .entries
                    .iter()
                    .map(|entry| (folder.path.join(&entry.name), entry)),
            );
        }
        all
    }

    fn root(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join("software").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        root
    }

    /// The paths of the folded view. The path of a link is followed by its target.
    fn folded(root: &Path, mut view: Tree) -> Vec<String> {
        let software = Tree::list(&root.join("software")).unwrap();
        fold_folders(&mut view, &software, Path::new("/opt/software"));
        let mut lines: Vec<String> = all(&view)
            .iter()
            .map(|(path, entry)| match &entry.kind {
                EntryKind::Link { target } => format!("{} {}", path.display(), target.display()),
                _ => path.display().to_string(),
            })
            .collect();
        lines.sort();
        lines
    }

    #[test]
    fn folder_of_one_package_becomes_a_link() {
        let root = root(&[
            "a/bin/flux",
            "a/etc/flux/rc1.d/one",
            "a/libexec/flux/cmd/deep/x",
            "a/libexec/flux/cmd/y",
            "a/lib/python3.11/site-packages/flux/job.py",
            "a/share/man/a.1",
            "b/share/man/b.1",
        ]);
        let view = view_of(root.path());
        assert_eq!(
            folded(root.path(), view),
            [
                "bin",
                "bin/flux /opt/software/a/bin/flux",
                "etc",
                "etc/flux",
                "etc/flux/rc1.d",
                "etc/flux/rc1.d/one /opt/software/a/etc/flux/rc1.d/one",
                "lib",
                "lib/python3.11",
                "lib/python3.11/site-packages",
                "lib/python3.11/site-packages/flux /opt/software/a/lib/python3.11/site-packages/flux",
                "libexec",
                "libexec/flux /opt/software/a/libexec/flux",
                "share",
                "share/man",
                "share/man/a.1 /opt/software/a/share/man/a.1",
                "share/man/b.1 /opt/software/b/share/man/b.1",
            ]
        );
    }

    #[test]
    fn folder_with_other_contents_is_not_folded() {
        let files = ["a/share/one/x", "a/share/one/y"];
        for change in [
            |view: &Path| fs::remove_file(view.join("share/one/x")).unwrap(),
            |view: &Path| fs::write(view.join("share/one/z"), "").unwrap(),
            |view: &Path| fs::create_dir(view.join("share/one/empty")).unwrap(),
            |view: &Path| fs::rename(view.join("share/one/x"), view.join("share/one/w")).unwrap(),
            |view: &Path| {
                fs::remove_file(view.join("share/one/x")).unwrap();
                symlink("/opt/software/a/share/one/y", view.join("share/one/x")).unwrap();
            },
            |view: &Path| {
                fs::remove_file(view.join("share/one/x")).unwrap();
                symlink("/opt/elsewhere/share/one/x", view.join("share/one/x")).unwrap();
            },
        ] {
            let root = root(&files);
            view_of(root.path());
            change(&root.path().join("view"));
            let view = Tree::list(&root.path().join("view")).unwrap();
            let entries = all(&view).len();
            assert_eq!(folded(root.path(), view).len(), entries);
        }
    }
}
