//! The lowest layer: system calls, and what a program finds in the image. Nothing here reads a spec or a plan.

pub mod elf;
pub mod glibc;
pub mod identity;
pub mod mount_table;
pub mod netlink;
pub mod raw;
pub mod runtime;
pub mod signals;

use std::path::{Path, PathBuf};

/// The absolute path `path` below another root.
pub fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
