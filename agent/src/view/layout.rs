//! Lays out the shared volume, apart from the view itself.

use std::path::Path;

use flux_shared::paths::{HELPER_LINKS, SOFTWARE_DIR, VIEW_LINKS};

use crate::files::{Files, create_folders};
use crate::report::failure::Failure;

/// Creates the documented links at the mount path and below the view, and the folder `config` that most of them lead
/// to. The agent's entrypoint will write the files there. A real file or folder in place of a link stays.
pub fn lay_out(mount: &Path) -> Result<(), Failure> {
    create_folders(&mount.join("config"))?;
    let files = Files::new(mount, "view");
    let links = VIEW_LINKS
        .iter()
        .chain(&HELPER_LINKS)
        .chain(&[("software", SOFTWARE_DIR)]);
    for (path, target) in links {
        let link = mount.join(path);
        // Behind a link, the path would lead out of the view.
        let is_behind_link = link
            .ancestors()
            .skip(1)
            .take_while(|up| *up != mount)
            .any(Path::is_symlink);
        if !is_behind_link {
            files.ensure_link(&format!("/{path}"), target)?;
        }
    }
    Ok(())
}
