//! Links to a view in an image that is mounted, or in the container's own image. Nothing is copied.
//!
//! ```text
//! ROOT/opt/views/._view/<one>/* ◄─ links ─ MOUNT/.view.new/* ─► renamed to MOUNT/view
//! ```
//!
//! `etc` and `etc/flux` are real folders, since the documented paths of the configuration lead through them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use flux_shared::paths::PodPaths;

use super::find::find_view;
use super::layout::lay_out;
use super::tree::{self, TreeError};
use crate::files::create_folders;
use crate::report::failure::Failure;

/// The folders of the view that are created and not linked: `etc`, and `flux` in it.
const REAL_FOLDERS: [&str; 2] = ["etc", "flux"];

/// Links the view of the image at `root` into the shared volume at `mount`. The caller also links the agent's binary:
/// `flux-agent install` links the copy that it has made, and not the binary that is running.
pub fn link_view(root: &Path, mount: &Path) -> Result<(), Failure> {
    let source = find_view(root)?;
    let paths = PodPaths::new(&mount.to_string_lossy());
    let (target, temporary) = (PathBuf::from(paths.view()), mount.join(".view.new"));
    create_folders(mount)?;
    // With the marker of an earlier copy, `super::install` could take these links for its copy, and do nothing.
    tree::remove(paths.view_done().as_ref())?;
    tree::remove(&temporary)?;
    link_entries(&source, &temporary, &REAL_FOLDERS)?;
    tree::remove(&target)?;
    fs::rename(&temporary, &target).map_err(|error| Failure::write("put in place", &target, &error))?;
    lay_out(mount)?;
    tracing::info!(
        stage = "view",
        "linked to {}: nothing is copied",
        source.display()
    );
    Ok(())
}

/// Creates the folder `to` with links to the entries of `from`. The entry with the first name of `inner` becomes such a
/// folder as well, with the other names as its `inner`.
fn link_entries(from: &Path, to: &Path, inner: &[&str]) -> Result<(), TreeError> {
    fs::create_dir(to).map_err(tree::writing(to))?;
    for entry in fs::read_dir(from).map_err(tree::reading(from))? {
        let entry = entry.map_err(tree::reading(from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        match inner {
            [name, rest @ ..] if is_folder && entry.file_name() == *name => {
                link_entries(&source, &target, rest)?
            }
            _ => symlink(&source, &target).map_err(tree::writing(&target))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::image;
    use super::*;

    #[test]
    fn the_documented_paths_lead_to_the_image_and_the_configuration() {
        let (root, pod) = (image(), tempfile::tempdir().unwrap());
        let mount = pod.path().join("flux");
        fs::create_dir_all(root.path().join("opt/views/._view/abc/etc/flux/modprobe")).unwrap();
        fs::write(root.path().join("opt/views/._view/abc/etc/other"), "other").unwrap();
        // Twice, and over what a killed run left.
        fs::create_dir_all(mount.join(".view.new/half")).unwrap();
        link_view(root.path(), &mount).unwrap();
        link_view(root.path(), &mount).unwrap();
        let leads = |path: &str| fs::read_link(mount.join(path)).unwrap();
        let in_image = |path: &str| root.path().join("opt/views/._view/abc").join(path);
        assert_eq!(leads("view/bin"), in_image("bin"));
        assert_eq!(leads("view/etc/other"), in_image("etc/other"));
        assert_eq!(leads("view/etc/flux/modprobe"), in_image("etc/flux/modprobe"));
        assert_eq!(leads("view/run"), Path::new("../config/run"));
        assert_eq!(
            leads("view/etc/flux/config"),
            Path::new("../../../config/etc/flux/config")
        );
        // The image has a folder there: the documented one counts.
        assert_eq!(
            leads("view/etc/flux/system"),
            Path::new("../../../config/etc/flux/system")
        );
        assert!(!mount.join(".view.new").exists());
        assert_eq!(
            fs::read_dir(root.path().join("opt/views/._view/abc"))
                .unwrap()
                .count(),
            2,
            "the image stays"
        );
    }
}
