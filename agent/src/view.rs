//! `flux-agent view`: runs in the init container of the view image, and brings Flux into the pod's volumes. It copies
//! Flux ([`install`]), or links to it in an image that all containers see ([`link_view`]).
//!
//! The copy:
//!
//! ```text
//! /opt/view | /opt/views/._view/<one> ─► MOUNT/.view.new ─► renamed to MOUNT/view ┐
//! /opt/software ─► STAGING/.software.new ─► its entries renamed into STAGING      ┴► links ─► MOUNT/.flux-view.done
//! ```
//!
//! STAGING is in another volume. In the operator's pods, /opt/software has links to the entries of STAGING
//! (`software.rs`). Other pods may mount STAGING itself at /opt/software.
//!
//! The marker `.flux-view.done` is written last, and describes the source of the copy. So a second run does nothing,
//! and a run that was killed at any moment is repeated from the beginning.

mod copy;
mod find;
mod fold;
mod layout;
mod link;
mod progress;
mod software;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use flux_shared::paths::{PodPaths, SOFTWARE_DIR};

use crate::files::{Files, create_folders};
use crate::report::failure::Failure;
use crate::system::below;
use find::find_view;
pub use layout::lay_out;
pub use link::link_view;
use progress::Progress;
pub use software::{SoftwareOptions, merge_software};
use tree::{Tree, TreeError};

/// Source and targets of the copy.
#[derive(Debug)]
pub struct Places {
    /// Root of the view image: the sources are below it.
    pub root: PathBuf,
    /// The shared volume, MOUNT above.
    pub mount: PathBuf,
    /// The folder for the packages of /opt/software, STAGING above.
    pub staging: PathBuf,
}

/// Copies the view into the pod's volumes, unless the same copy is already there.
pub fn install(places: &Places) -> Result<(), Failure> {
    let begin = Instant::now();
    let paths = PodPaths::new(&places.mount.to_string_lossy());
    let (marker, target) = (PathBuf::from(paths.view_done()), PathBuf::from(paths.view()));
    let source = find_view(&places.root)?;
    let software = below(&places.root, SOFTWARE_DIR);
    let (mut view, software) = list_trees(&source, &software)?;
    // Before `fold_folders` changes the listing: a later run compares the marker with an unchanged one.
    let marker_text = marker_text(&view, software.as_ref());
    // The marker is in the volume of `mount`: it does not show that `staging` exists.
    if fs::read_to_string(&marker).is_ok_and(|text| text == marker_text) && places.staging.is_dir() {
        tracing::info!(stage = "view", "the view is already there");
        return Ok(());
    }
    // Without the marker, a run that is interrupted from here on is repeated.
    tree::remove(&marker)?;
    let save_memory = copy::is_memory_scarce(&places.root);
    create_folders(&places.mount)?;
    // Needed even if the image has no /opt/software: other containers mount this folder.
    create_folders(&places.staging)?;
    if let Some(software) = &software {
        fold::fold_folders(&mut view, software, Path::new(SOFTWARE_DIR));
    }
    let progress = Progress::new(view.bytes + software.as_ref().map_or(0, |tree| tree.bytes));
    let result = copy_trees(places, &view, software.as_ref(), &target, save_memory, &progress);
    if result.is_err() {
        remove_partial_copies(places);
    }
    result?;
    lay_out(&places.mount)?;
    crate::install::link_own(&places.mount)?;
    let files = Files::new(Path::new("/"), "view");
    let own_ids = flux_agent_plan::plan::Owner {
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
    };
    files.ensure_file(
        &marker.to_string_lossy(),
        flux_agent_plan::plan::Mode(0o644),
        own_ids,
        marker_text.as_bytes(),
    )?;
    let (count, bytes) = software
        .iter()
        .fold((view.files, view.bytes), |(count, bytes), tree| {
            (count + tree.files, bytes + tree.bytes)
        });
    let seconds = begin.elapsed().as_secs_f64();
    tracing::info!(
        stage = "view",
        "copied Flux: {count} files, {} MB in {seconds:.2} s",
        bytes / 1_000_000
    );
    Ok(())
}

/// Lists the view and /opt/software, in parallel unless the limit of threads is reached. The latter is none if the image
/// has no such folder.
fn list_trees(view: &Path, software: &Path) -> Result<(Tree, Option<Tree>), TreeError> {
    let list_software = || software.is_dir().then(|| Tree::list(software)).transpose();
    let mut listed_in_parallel = None;
    let view = std::thread::scope(|scope| {
        let list = || listed_in_parallel = Some(list_software());
        let _ = std::thread::Builder::new().spawn_scoped(scope, list);
        Tree::list(view)
    })?;
    Ok((view, listed_in_parallel.unwrap_or_else(list_software)?))
}

/// `save_memory`: written data goes to the disk at once, so that it does not fill the memory limit.
fn copy_trees(
    places: &Places,
    view: &Tree,
    software: Option<&Tree>,
    target: &Path,
    save_memory: bool,
    progress: &Progress,
) -> Result<(), Failure> {
    if let Some(software) = software {
        copy_software(software, &places.staging, save_memory, progress)?;
    }
    let temporary = places.mount.join(".view.new");
    tree::remove(&temporary)?;
    copy::copy_tree(view, &temporary, save_memory, progress)?;
    tree::remove(target)?;
    fs::rename(&temporary, target).map_err(|error| Failure::write("put in place", target, &error))
}

/// Copies into a temporary folder in `staging`, then renames its entries one by one: `staging` itself may be a volume's
/// mount point (the default of `--software`), which no rename can replace.
fn copy_software(
    software: &Tree,
    staging: &Path,
    save_memory: bool,
    progress: &Progress,
) -> Result<(), Failure> {
    create_folders(staging)?;
    let temporary = staging.join(".software.new");
    tree::remove(&temporary)?;
    copy::copy_tree(software, &temporary, save_memory, progress)?;
    for name in software.top_names() {
        let target = staging.join(name);
        tree::remove(&target)?;
        fs::rename(temporary.join(name), &target)
            .map_err(|error| Failure::write("put in place", &target, &error))?;
    }
    Ok(tree::remove(&temporary)?)
}

/// Removes the temporary folders of a failed copy, to free the disk space.
fn remove_partial_copies(places: &Places) {
    let _ = tree::remove(&places.mount.join(".view.new"));
    let _ = tree::remove(&places.staging.join(".software.new"));
}

/// The marker's text: digests of the sources, and the boot ID. After a reboot the copy is made again, since files may
/// be empty after a crash of the node.
fn marker_text(view: &Tree, software: Option<&Tree>) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let software = software.map_or(0, Tree::digest);
    format!(
        "view {:016x}\nsoftware {software:016x}\nboot {}\n",
        view.digest(),
        boot.trim()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    use flux_shared::exit::Category;

    use crate::system::runtime::exit_on_stop_signal;
    use crate::testing::{allow_processes, alone, become_user};

    pub fn image() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("opt/views/._view/abc/bin")).unwrap();
        fs::create_dir_all(at("opt/views/._view/abc/etc/flux/system")).unwrap();
        fs::create_dir_all(at("opt/software/flux/bin")).unwrap();
        fs::write(at("opt/software/flux/bin/flux"), "flux").unwrap();
        symlink("/opt/software/flux/bin/flux", at("opt/views/._view/abc/bin/flux")).unwrap();
        symlink("/opt/views/._view/abc", at("opt/view")).unwrap();
        root
    }

    fn places(root: &Path, pod: &Path) -> Places {
        Places {
            root: root.to_owned(),
            mount: pod.join("flux"),
            staging: pod.join("software"),
        }
    }

    #[test]
    fn view_copy_has_software_links_and_a_marker() {
        let (root, pod) = (image(), tempfile::tempdir().unwrap());
        let places = places(root.path(), pod.path());
        install(&places).unwrap();
        let at = |path: &str| pod.path().join(path);
        let link = |path: &str| fs::read_link(at(path)).unwrap();
        assert_eq!(fs::read(at("software/flux/bin/flux")).unwrap(), b"flux");
        assert_eq!(
            link("flux/view/bin/flux"),
            Path::new("/opt/software/flux/bin/flux")
        );
        assert_eq!(link("flux/view/run"), Path::new("../config/run"));
        assert_eq!(
            link("flux/view/etc/flux/config"),
            Path::new("../../../config/etc/flux/config")
        );
        assert!(
            at("flux/view/etc/flux/system")
                .symlink_metadata()
                .unwrap()
                .is_dir(),
            "a real folder is not replaced by a link"
        );
        assert_eq!(link("flux/software"), Path::new("/opt/software"));
        assert_eq!(link("flux/flux-view.sh"), Path::new("config/flux-view.sh"));
        assert!(at("flux/config").is_dir());
        assert!(
            at("flux/.flux-view.done").is_file()
                && !at("flux/.view.new").exists()
                && !at("software/.software.new").exists()
        );
    }

    #[test]
    fn view_is_copied_when_no_thread_is_allowed() {
        let test = "view::tests::view_is_copied_when_no_thread_is_allowed";
        alone(test, |folder| {
            become_user(61_241, folder);
            let (root, pod) = (image(), folder.join("pod"));
            allow_processes(0);
            exit_on_stop_signal().unwrap();
            install(&places(root.path(), &pod)).unwrap();
            assert_eq!(fs::read(pod.join("software/flux/bin/flux")).unwrap(), b"flux");
            assert!(pod.join("flux/view/etc/flux/system").is_dir());
        });
    }

    #[test]
    fn view_is_copied_again_only_when_the_image_has_changed() {
        let (root, pod) = (image(), tempfile::tempdir().unwrap());
        let places = places(root.path(), pod.path());
        install(&places).unwrap();
        fs::write(pod.path().join("flux/view/mine"), "").unwrap();
        install(&places).unwrap();
        assert!(pod.path().join("flux/view/mine").exists());
        fs::write(root.path().join("opt/software/flux/bin/flux"), "newer flux").unwrap();
        install(&places).unwrap();
        assert!(!pod.path().join("flux/view/mine").exists());
        assert_eq!(
            fs::read(pod.path().join("software/flux/bin/flux")).unwrap(),
            b"newer flux"
        );
    }

    #[test]
    fn view_copy_replaces_leftovers_of_a_killed_run() {
        let (root, pod) = (image(), tempfile::tempdir().unwrap());
        let places = places(root.path(), pod.path());
        fs::create_dir_all(pod.path().join("flux/.view.new/bin")).unwrap();
        fs::create_dir_all(pod.path().join("flux/view/half")).unwrap();
        fs::create_dir_all(pod.path().join("software/.software.new/x")).unwrap();
        fs::create_dir_all(pod.path().join("software/flux/half")).unwrap();
        install(&places).unwrap();
        assert!(
            !pod.path().join("flux/view/half").exists() && !pod.path().join("software/flux/half").exists()
        );
    }

    #[test]
    fn an_image_without_a_view_or_with_two_is_refused() {
        let pod = tempfile::tempdir().unwrap();
        let empty = tempfile::tempdir().unwrap();
        let refused = |root: &Path| install(&places(root, pod.path())).unwrap_err();
        assert_eq!(refused(empty.path()).category, Category::ViewMissing);
        let two = image();
        fs::create_dir(two.path().join("opt/views/._view/def")).unwrap();
        fs::remove_file(two.path().join("opt/view")).unwrap();
        assert!(refused(two.path()).cause.contains("2 are in"));
        assert!(!pod.path().join("flux/.flux-view.done").exists());
    }
}
