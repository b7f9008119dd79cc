//! Finds the view in its image.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use flux_shared::exit::Category;
use flux_shared::paths::{VIEW_IMAGE_LINK, VIEW_IMAGE_VIEWS};

use crate::report::failure::Failure;
use crate::system::below;
use crate::view::tree::reading;

/// The view's folder in the image whose root is `root`.
pub fn find_view(root: &Path) -> Result<PathBuf, Failure> {
    let at = |path: &str| below(root, path);
    let missing = |cause: String| {
        Failure::new(
            Category::ViewMissing,
            cause,
            "use an image with a Flux view for flux.container.image, or set flux.container.disable",
        )
    };
    let views = at(VIEW_IMAGE_VIEWS);
    let link = at(VIEW_IMAGE_LINK);
    // The link is absolute, so below another root it leads elsewhere. Only its last part is used.
    let linked = fs::read_link(&link)
        .ok()
        .and_then(|target| target.file_name().map(|name| views.join(name)))
        .filter(|path| path.is_dir());
    if let Some(path) = linked {
        return Ok(path);
    }
    let folders = match folders_in(&views) {
        Err(_) if link.is_dir() => return Ok(link),
        folders => folders.map_err(reading(&views))?,
    };
    match folders.as_slice() {
        [one] => Ok(one.clone()),
        // An image with a folder in place of the link, or, if `root` is `/`, a link that leads elsewhere.
        [] if link.is_dir() => Ok(link),
        [] => Err(missing(format!(
            "failed to find a view: neither {VIEW_IMAGE_LINK} nor {VIEW_IMAGE_VIEWS} exists"
        ))),
        many => Err(missing(format!(
            "failed to choose a view: {} are in {VIEW_IMAGE_VIEWS} and {VIEW_IMAGE_LINK} points to none",
            many.len()
        ))),
    }
}

/// The folders in `folder`; none if it does not exist.
fn folders_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    Ok(paths.into_iter().filter(|path| path.is_dir()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_of_views_that_cannot_be_read_is_not_an_empty_one() {
        let root = tempfile::tempdir().unwrap();
        let views = below(root.path(), VIEW_IMAGE_VIEWS);
        fs::create_dir_all(views.parent().unwrap()).unwrap();
        // A file: root, whom the tests run as, may read every folder.
        fs::write(&views, "").unwrap();
        let failure = find_view(root.path()).unwrap_err();
        assert!(failure.cause.starts_with("failed to read "), "{}", failure.cause);
        // An image with a folder in place of the link needs no folder of views.
        let link = below(root.path(), VIEW_IMAGE_LINK);
        fs::create_dir_all(&link).unwrap();
        assert_eq!(find_view(root.path()).unwrap(), link);
    }
}
