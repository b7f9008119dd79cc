//! The C library that a program needs, and the one that the image has.

use std::fs;
use std::path::Path;

use crate::system::elf;

/// A program's loader and C library. Versions are the N of glibc 2.N.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libc {
    pub machine: &'static str,
    /// Path of the dynamic loader.
    pub loader: String,
    /// Whether the image has this loader.
    pub has_loader: bool,
    /// The version that the program needs; none: unknown.
    pub wanted: Option<u32>,
    /// The image's version; none: unknown.
    pub offered: Option<u32>,
}

/// The version as text: `2.N`, or `unknown`.
pub fn version(number: Option<u32>) -> String {
    number.map_or("unknown".into(), |number| format!("2.{number}"))
}

impl Libc {
    /// What `program`, with Flux's own library in `../lib`, needs of the image below `root`. None: the program is
    /// missing, static or a script.
    pub fn of(program: &Path, root: &Path) -> Option<Libc> {
        let bytes = fs::read(program).ok()?;
        let needs = elf::needs(&bytes)?;
        let loader = needs.loader?;
        let core = program
            .parent()
            .and_then(|folder| flux_core(&folder.parent()?.join("lib")));
        let real_loader = fs::canonicalize(super::below(root, &loader)).ok();
        // The library is beside the loader, or in Debian's folder.
        let debian_folder = format!("lib/{}-linux-gnu", needs.machine);
        let folders = real_loader
            .iter()
            .filter_map(|loader| Some(loader.parent()?.to_owned()))
            .chain([root.join(debian_folder)]);
        let library = folders
            .filter_map(|folder| fs::read(folder.join("libc.so.6")).ok())
            .next();
        Some(Libc {
            machine: needs.machine,
            loader,
            has_loader: real_loader.is_some(),
            wanted: elf::newest_glibc(&bytes).max(core.as_deref().and_then(elf::newest_glibc)),
            offered: library.as_deref().and_then(elf::newest_glibc),
        })
    }

    /// What to do if the program is for another architecture than this node's.
    pub fn other_machine(&self) -> Option<String> {
        let (machine, this_node) = (self.machine, std::env::consts::ARCH);
        (machine != this_node).then(|| {
            format!(
                "Flux is for {machine}, this node is {this_node}: use a view image for it, or set pod.nodeSelector"
            )
        })
    }

    /// Why the program cannot run, and what to do. None: it can run, as far as is known. Callers ask mostly about Flux, but
    /// also about a program of the user that did not start: then it is the loader that is missing.
    pub fn trouble(&self) -> Option<String> {
        self.other_machine().or_else(|| self.unfit_library())
    }

    fn unfit_library(&self) -> Option<String> {
        let Libc {
            loader,
            wanted,
            offered,
            ..
        } = self;
        // An unknown version is no trouble. (None is less than every version.)
        match (self.has_loader, wanted > offered && offered.is_some()) {
            (false, _) if loader.contains("musl") => Some(format!(
                "the image has no {loader}, which the program is linked with: use an image with musl"
            )),
            (false, _) => Some(format!(
                "the image has no {loader}: use an image with glibc (not Alpine), or, for Flux, one that brings Flux itself"
            )),
            (_, true) => Some(format!(
                "Flux needs glibc {}, the image has {}: use a newer image, or a view for an older system",
                version(*wanted),
                version(*offered)
            )),
            _ => None,
        }
    }
}

/// The bytes of Flux's own library in `folder`.
fn flux_core(folder: &Path) -> Option<Vec<u8>> {
    let mut entries = fs::read_dir(folder).ok()?.flatten();
    let core = entries.find(|entry| entry.file_name().to_string_lossy().starts_with("libflux-core.so"))?;
    fs::read(core.path()).ok()
}
