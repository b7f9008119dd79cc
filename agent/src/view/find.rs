//! Finds the view in its image.

use std::fs;
use std::path::{Path, PathBuf};

use flux_shared::exit::Category;
use flux_shared::paths::{VIEW_IMAGE_LINK, VIEW_IMAGE_VIEWS};

use crate::report::failure::Failure;
use crate::system::below;

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
    let folders: Vec<PathBuf> = fs::read_dir(&views)
        .map(|entries| {
            entries
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| path.is_dir())
                .collect()
        })
        .unwrap_or_default();
    let link = at(VIEW_IMAGE_LINK);
    // The link is absolute, so below another root it leads elsewhere. Only its last part is used.
    let linked = fs::read_link(&link)
        .ok()
        .and_then(|target| target.file_name().map(|name| views.join(name)))
        .filter(|path| path.is_dir());
    match (linked, folders.as_slice()) {
        (Some(path), _) => Ok(path),
        (None, [one]) => Ok(one.clone()),
        // An image with a folder in place of the link, or, if `root` is `/`, a link that leads elsewhere.
        (None, []) if link.is_dir() => Ok(link),
        (None, []) => Err(missing(format!(
            "failed to find a view: neither {VIEW_IMAGE_LINK} nor {VIEW_IMAGE_VIEWS} exists"
        ))),
        (None, many) => Err(missing(format!(
            "failed to choose a view: {} are in {VIEW_IMAGE_VIEWS} and {VIEW_IMAGE_LINK} points to none",
            many.len()
        ))),
    }
}
