//! Finds the view in its image.

use std::fs;
use std::path::{Path, PathBuf};

use flux_shared::exit::Category;
use flux_shared::paths::{VIEW_IMAGE_LINK, VIEW_IMAGE_VIEWS};

use crate::report::failure::Failure;
use crate::system::below;
use crate::view::software::entries;

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
    let folders = entries(&views).map(|entries| {
        let paths = entries.into_keys().map(|name| views.join(name));
        paths.filter(|path| path.is_dir()).collect::<Vec<PathBuf>>()
    });
    match folders {
        Ok(mut one) if one.len() == 1 => Ok(one.remove(0)),
        Ok(many) if many.len() > 1 => Err(missing(format!(
            "failed to choose a view: {} are in {VIEW_IMAGE_VIEWS} and {VIEW_IMAGE_LINK} points to none",
            many.len()
        ))),
        // An image with a folder in place of the link, or, if `root` is `/`, a link that leads elsewhere.
        _ if link.is_dir() => Ok(link),
        Ok(_) => Err(missing(format!(
            "failed to find a view: neither {VIEW_IMAGE_LINK} nor {VIEW_IMAGE_VIEWS} exists"
        ))),
        Err(error) => Err(error.into()),
    }
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
