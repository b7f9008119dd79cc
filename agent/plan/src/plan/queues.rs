//! The script that starts the named queues, which Flux creates stopped. Without it, their jobs would wait forever.
//!
//! The lead's broker runs it when it starts (rc1), before the program. All releases of Flux run such scripts. A user
//! may have stopped a queue before the state was saved. Flux restores that, so the script then starts nothing.

use super::{Content, EnvChange, Mode, PlanError, Resolved, Step, broker};

/// The variable with more folders of rc1 scripts.
const RC_VARIABLE: &str = "FLUX_RC_EXTRA";
/// The script, after its `#!` line. The brokers of an instance inside this one may inherit the variable.
const START: &str = "\
# Starts the named queues, unless Flux has restored the state of named queues.
[ \"$(flux getattr instance-level)\" = 0 ] || exit 0
case $(flux kvs get checkpoint.job-manager 2>/dev/null) in
*'\"name\"'*) ;;
*) exec flux queue start --quiet --all ;;
esac
";

/// Whether this pod's broker is the lead, and its configuration has named queues.
fn is_needed(resolved: &Resolved) -> bool {
    let has_queues = |table: toml::Table| {
        let queues = table.get("queues").and_then(toml::Value::as_table);
        queues.is_some_and(|queues| !queues.is_empty())
    };
    resolved.is_lead() && broker::users_tables(resolved).any(has_queues)
}

/// The variable that makes the lead's broker run the script.
pub fn variable(resolved: &Resolved) -> Option<EnvChange> {
    is_needed(resolved).then(|| EnvChange::Append {
        name: RC_VARIABLE.into(),
        separator: ':',
        value: resolved.paths.rc_dir(),
    })
}

/// The script and its folder. Empty if it is not needed.
pub fn steps(resolved: &Resolved) -> Result<Vec<Step>, PlanError> {
    if !is_needed(resolved) {
        return Ok(Vec::new());
    }
    let owner = resolved.agent_owner();
    let (folder, mode) = (resolved.paths.rc1_dir(), Mode(0o755));
    let text = resolved.shebang("the script that starts the queues")? + START;
    Ok(vec![
        Step::Directory {
            path: folder.clone(),
            mode,
            owner,
        },
        Step::File {
            path: format!("{folder}/flux-agent-queues"),
            mode,
            owner,
            content: Content::Text(text),
        },
    ])
}

#[cfg(test)]
mod tests {
    use flux_shared::agent_spec::AgentSpec;

    use super::*;
    use crate::facts::Facts;

    #[test]
    fn lead_with_named_queues_starts_them() {
        let of = |flux: &str, index| {
            let spec = AgentSpec::from_toml(&format!("name = 'mc'\nsize = 2\n[flux{flux}\n")).unwrap();
            let facts = Facts {
                index: Some(index),
                ..Facts::default()
            };
            let resolved = Resolved::new(&spec, &facts).unwrap();
            (steps(&resolved).unwrap().len(), variable(&resolved).is_some())
        };
        for queues in [
            ".configs]\na = '[policy]'\nb = '[queues.debug]'",
            "]\nbroker_config = '[queues.debug]'",
        ] {
            assert_eq!(
                (of(queues, 0), of(queues, 1)),
                ((2, true), (0, false)),
                "{queues}"
            );
        }
        for other in ["]", ".configs]\na = '[queues]'", "]\nbroker_config = '[policy]'"] {
            assert_eq!(of(other, 0), (0, false), "{other}");
        }
    }
}
