//! Reads what the Flux view has.

use flux_agent_plan::facts::ViewFacts;

use super::host::HostFiles;

/// What the view at the absolute path `view` has. Of several Pythons, the newest one with packages counts.
pub fn read(host: &HostFiles, view: &str) -> ViewFacts {
    let at = |path: &str| format!("{view}/{path}");
    let python = host
        .names(&at("lib"))
        .into_iter()
        .filter_map(|name| Some((name.strip_prefix("python3.")?.parse::<u32>().ok()?, name)))
        .filter(|(_, name)| host.exists(&at(&format!("lib/{name}/site-packages"))))
        .max();
    ViewFacts {
        flux: host.is_executable(&at("bin/flux")),
        python: python.map(|(_, name)| name),
        fluxion: host.exists(&at("lib/flux/modules/sched-fluxion-qmanager.so")),
        fluxion_modprobe: host.exists(&at("etc/flux/modprobe/modprobe.d/fluxion.toml")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_python_counts_and_fluxion_is_seen_by_its_modules() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        make("view/lib/python3.9/site-packages/flux.py");
        make("view/lib/python3.11/site-packages/flux.py");
        make("view/lib/python3.13/other");
        make("view/lib/flux/modules/sched-fluxion-qmanager.so");
        let view = read(&HostFiles::new(root.path()), "/view");
        assert_eq!(
            view,
            ViewFacts {
                flux: false,
                python: Some("python3.11".into()),
                fluxion: true,
                fluxion_modprobe: false
            }
        );
    }
}
