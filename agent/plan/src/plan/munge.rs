//! Munge, which signs the jobs of several users. It is started if Flux is the image's own, the spec names a
//! user for Flux, the agent is root, and the container has Munge and its key.

use super::{Mode, Owner, Resolved, Step};
use crate::known_paths::{MUNGE, MUNGE_KEY};

/// The folder of Munge's socket.
const RUN_DIR: &str = "/run/munge";

pub fn steps(resolved: &Resolved) -> Vec<Step> {
    let facts = resolved.facts;
    let is_wanted = resolved.is_system_instance() && facts.uid == 0;
    if !is_wanted || !facts.is_present(MUNGE) || !facts.is_present(MUNGE_KEY) {
        return Vec::new();
    }
    let root = Owner { uid: 0, gid: 0 };
    let folder = Step::Directory {
        path: RUN_DIR.into(),
        mode: Mode(0o755),
        owner: root,
    };
    // --force: munged runs as root here, but the key, the log and their folders may belong to a user `munge`. It
    // then warns instead of stopping.
    let daemon = Step::Daemon {
        argv: [MUNGE, "--force"].map(str::to_owned).into(),
    };
    vec![folder, daemon]
}

#[cfg(test)]
mod tests {
    use flux_shared::agent_spec::AgentSpec;

    use super::*;
    use crate::facts::Facts;

    #[test]
    fn munged_is_planned_for_root_when_program_and_key_exist() {
        let spec = "name='mc'\n[view]\nenabled=false\n[runner.user]\nname='flux'\nuid=1000\n";
        let spec = AgentSpec::from_toml(spec).unwrap();
        let planned = |paths: &[&str], uid: u32| {
            let mut facts = Facts {
                uid,
                ..Facts::default()
            };
            facts.present.extend(paths.iter().map(|path| (*path).to_owned()));
            steps(&Resolved::new(&spec, &facts).unwrap()).len()
        };
        assert_eq!(planned(&[MUNGE, MUNGE_KEY], 0), 2);
        assert_eq!(
            (
                planned(&[MUNGE], 0),
                planned(&[MUNGE_KEY], 0),
                planned(&[MUNGE, MUNGE_KEY], 1000)
            ),
            (0, 0, 0)
        );
    }
}
