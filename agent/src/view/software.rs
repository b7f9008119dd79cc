//! Makes one /opt/software of two: the view's packages, and those of the runner's image. The runner is the container
//! that runs Flux.
//!
//! ```text
//! PACKAGES/* ◄─ links ────┐
//! /opt/software/* ─copied─┴─► .TO.new ─► renamed to TO, which other containers see as /opt/software
//! ```
//!
//! A folder that both have is created, with the entries of both. Of other entries that both have, the view's is used.
//! Everything is made again at each run.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use flux_shared::exit::Category;
use flux_shared::paths::SOFTWARE_DIR;

use super::copy;
use super::progress::Progress;
use super::tree::{self, EntryKind, Tree, TreeError};
use crate::facts::host::HostFiles;
use crate::files::create_folders;
use crate::report::failure::{Failure, plain};
use crate::system::below;

/// Sources and target of the merge.
#[derive(Debug)]
pub struct SoftwareOptions {
    /// The root of the runner's image.
    pub root: PathBuf,
    /// The path where all containers see the view's packages.
    pub packages: PathBuf,
    /// The folder to create.
    pub to: PathBuf,
}

/// Creates the folder `to` of the options, in place of one from an earlier run.
pub fn merge_software(options: &SoftwareOptions) -> Result<(), Failure> {
    let SoftwareOptions { root, packages, to } = options;
    // Links are followed inside `root`: an absolute one would lead to the files of this container's own image.
    let image_software = HostFiles::new(root)
        .real(SOFTWARE_DIR)
        .unwrap_or_else(|| below(root, SOFTWARE_DIR));
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let temporary = to.with_file_name(format!(".{name}.new"));
    // For the folders above `to`, where the temporary folder is made. `to` itself is replaced below.
    create_folders(to)?;
    let (files, bytes) = merge(&image_software, packages, &temporary).map_err(failure)?;
    tree::remove(to).map_err(failure)?;
    fs::rename(&temporary, to).map_err(|error| Failure::write("put in place", to, &error))?;
    if files > 0 {
        let megabytes = bytes / 1_000_000;
        tracing::info!(
            stage = "software",
            "copied the image's own {SOFTWARE_DIR}: {files} files, {megabytes} MB"
        );
    }
    Ok(())
}

/// Copies what only the image has, then creates the links to the view's packages. Returns the number of copied files
/// and their bytes.
fn merge(image_software: &Path, packages: &Path, to: &Path) -> Result<(usize, u64), TreeError> {
    tree::remove(to)?;
    let mut tree = if image_software.is_dir() {
        Tree::list(image_software)?
    } else {
        Tree::empty(image_software)
    };
    let links = links(&mut tree, packages)?;
    copy::copy_tree(
        &tree,
        to,
        // This container's own limit: a mounted image has no `/sys`.
        copy::is_memory_scarce(Path::new("/")),
        &Progress::new(tree.bytes),
    )?;
    for path in links {
        let link = to.join(&path);
        symlink(packages.join(&path), &link).map_err(tree::writing(&link))?;
    }
    Ok((tree.files, tree.bytes))
}

/// Removes from `tree`, the image's software, what the view has. Returns the paths of the links to create.
fn links(tree: &mut Tree, packages: &Path) -> Result<Vec<PathBuf>, TreeError> {
    // Folders that both have.
    let mut in_both = BTreeSet::from([PathBuf::new()]);
    let mut links = Vec::new();
    // Folders of the image in whose place the view has another kind of entry.
    let mut hidden = Vec::new();
    for folder in &mut tree.folders {
        if !in_both.contains(&folder.path) {
            continue;
        }
        let mut view_entries = entries(&packages.join(&folder.path))?;
        folder.entries.retain_mut(|entry| {
            let Some(is_folder) = view_entries.get(&entry.name) else {
                return true;
            };
            let path = folder.path.join(&entry.name);
            match &mut entry.kind {
                EntryKind::Directory { mode } if *is_folder => {
                    // Links are created in this folder.
                    *mode |= 0o700;
                    view_entries.remove(&entry.name);
                    in_both.insert(path);
                    return true;
                }
                EntryKind::Directory { .. } => hidden.push(path),
                _ => {}
            }
            false
        });
        links.extend(view_entries.into_keys().map(|name| folder.path.join(name)));
    }
    tree.folders
        .retain(|folder| !hidden.iter().any(|path| folder.path.starts_with(path)));
    tree.count();
    Ok(links)
}

/// The entries of a folder, and whether each is a folder. Empty if there is no such folder.
pub fn entries(folder: &Path) -> Result<BTreeMap<OsString, bool>, TreeError> {
    let listed = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        listed => listed.map_err(tree::reading(folder))?,
    };
    let mut entries = BTreeMap::new();
    for entry in listed {
        let entry = entry.map_err(tree::reading(folder))?;
        entries.insert(
            entry.file_name(),
            entry.file_type().is_ok_and(|kind| kind.is_dir()),
        );
    }
    Ok(entries)
}

fn failure(error: TreeError) -> Failure {
    if !error.is_read_error || error.may_pass() {
        return error.into();
    }
    let (path, why) = (error.path.display(), plain(&error.error));
    let cause =
        format!("failed to put the image's own {SOFTWARE_DIR} beside the view's: cannot read {path}: {why}");
    // With `source: copy`, a container of the runner's image merges, with the runner's securityContext. If images are
    // mounted, the agent's init container merges, with a securityContext of its own.
    let remedy = "let the container run as a user that may read it (securityContext.runAsUser) and set \
                  flux.container.source: copy, or use an image that brings Flux itself and set \
                  flux.container.disable: true";
    Failure::new(Category::ViewMissing, cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn file(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn merged_software_has_both_and_prefers_the_views() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        let own = |path: &str, text: &str| file(at("image/opt/software").join(path), text);
        let of_view = |path: &str| file(at("packages").join(path), "view");
        own("linux/gcc/app-1/bin/app", "own");
        own("linux/gcc/zlib-1/lib/z", "own");
        own("linux/gcc/zlib-1/lib/own", "own");
        own("linux/is-file-there/x", "own");
        own("linux/is-folder-there", "own");
        own("mine", "own");
        symlink("linux/gcc", at("image/opt/software/link")).unwrap();
        of_view("linux/gcc/flux-1/bin/flux");
        of_view("linux/gcc/zlib-1/lib/z");
        of_view("linux/is-file-there");
        of_view("linux/is-folder-there/y");
        of_view("other/z");
        fs::set_permissions(
            at("image/opt/software/linux/gcc"),
            fs::Permissions::from_mode(0o555),
        )
        .unwrap();
        let options = SoftwareOptions {
            root: at("image"),
            packages: at("packages"),
            to: at("volume/software"),
        };
        // A left-over of a killed run, which the merge removes.
        file(at("volume/.software.new/half"), "");
        for _ in 0..2 {
            merge_software(&options).unwrap();
            let read = |path: &str| fs::read_to_string(at("volume/software").join(path)).unwrap();
            let all = [
                ("linux/gcc/app-1/bin/app", "own"),
                ("linux/gcc/flux-1/bin/flux", "view"),
                ("linux/gcc/zlib-1/lib/z", "view"),
                ("linux/gcc/zlib-1/lib/own", "own"),
                ("linux/is-file-there", "view"),
                ("linux/is-folder-there/y", "view"),
                ("mine", "own"),
                ("link/app-1/bin/app", "own"),
                ("other/z", "view"),
            ];
            all.iter()
                .for_each(|(path, text)| assert_eq!(read(path), *text, "{path}"));
            assert_eq!(
                fs::read_link(at("volume/software/other")).unwrap(),
                at("packages/other")
            );
            assert!(!at("volume/.software.new").exists());
        }
    }

    #[test]
    fn image_without_software_has_the_views_alone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        file(at("packages/flux/bin/flux"), "view");
        let to = at("volume/software");
        for (packages, count) in [("packages", 1), ("nothing", 0)] {
            merge_software(&SoftwareOptions {
                root: at("image"),
                packages: at(packages),
                to: to.clone(),
            })
            .unwrap();
            assert_eq!(fs::read_dir(&to).unwrap().count(), count);
        }
    }

    #[test]
    fn software_that_cannot_be_read_fails_with_a_remedy() {
        let own = Path::new("/opt/software");
        let error = tree::reading(&own.join("a"))(std::io::ErrorKind::PermissionDenied.into());
        let message = failure(error).to_string();
        assert!(
            message.contains("cannot read /opt/software/a: permission denied. Let the container run as"),
            "{message}"
        );
    }
}
