//! With hostNetwork, a pod has its node's host name. Flux finds ranks by host name, so the broker gets the
//! pod's own name as well: by an attribute, and for Flux before 0.82 by a variable. Flux ignores the one that it
//! does not know.
//!
//! Only the broker gets the variable. A Flux instance inside a job would take it for its own host name.
//!
//! Flux also compares the node's host name with those in R, so it must not check R (`super::broker`).

use super::{EnvChange, Resolved, set};

const ATTRIBUTE: &str = "hostname";
const HOSTNAME_VARIABLE: &str = "FLUX_FAKE_HOSTNAME";

/// The pod's name in the hostlist, for the broker. None without hostNetwork: the host has this name.
fn name<'a>(resolved: &'a Resolved) -> Option<&'a str> {
    resolved
        .spec
        .network
        .host_network
        .then_some(resolved.hostname.as_str())
}

/// The attribute's name and value.
pub fn attribute(resolved: &Resolved) -> Option<(&'static str, String)> {
    name(resolved).map(|name| (ATTRIBUTE, name.to_owned()))
}

/// The variable for the broker.
pub fn variable(resolved: &Resolved) -> Option<EnvChange> {
    name(resolved).map(|name| set(HOSTNAME_VARIABLE, name))
}

/// The option that keeps the variable from the lead's program, and so from every job that it submits. It is an option
/// of `flux-agent program`, which runs the lead's program.
pub fn kept_from_program(resolved: &Resolved) -> Option<String> {
    name(resolved).map(|_| format!("--without={HOSTNAME_VARIABLE}"))
}

/// A notice about the names: with hostNetwork, jobs see the node's host name.
pub fn notice(resolved: &Resolved) -> Option<String> {
    name(resolved)
        .map(|name| format!("the pod has its node's network and host name: its name in Flux is {name}"))
}

#[cfg(test)]
mod tests {
    use flux_shared::agent_spec::AgentSpec;

    use super::*;
    use crate::facts::Facts;
    use crate::plan::{Content, Plan, PodContainer, Step, build, shell_quote};

    const JOB: &str = "[runner.program]\nmode = 'submit'\nwords = ['hostname']\n";

    fn planned(spec: &str, index: u32) -> Plan {
        let spec = AgentSpec::from_toml(&format!("name = 'mc'\nsize = 2\n{spec}")).unwrap();
        let facts = Facts {
            hostname: "node-7".into(),
            index: Some(index),
            ..Facts::default()
        };
        build(&spec, &facts, &PodContainer::Runner).unwrap()
    }

    /// The broker's command line, and the changes of `HOSTNAME_VARIABLE` in its environment.
    fn started(plan: &Plan) -> (String, Vec<EnvChange>) {
        let launch = plan.steps.iter().find_map(|step| match step {
            Step::Launch(launch) => Some(launch),
            _ => None,
        });
        let launch = launch.unwrap();
        let is_name =
            |change: &&EnvChange| matches!(change, EnvChange::Set { name, .. } if name == HOSTNAME_VARIABLE);
        let changes = launch.environment.iter().filter(is_name).cloned().collect();
        (
            launch
                .argv
                .iter()
                .map(shell_quote::word)
                .collect::<Vec<_>>()
                .join(" "),
            changes,
        )
    }

    #[test]
    fn fake_hostname_reaches_brokers_and_not_programs() {
        for (index, role) in [(0, "lead"), (1, "follower")] {
            let plan = planned(&format!("[network]\nhost_network = true\n{JOB}"), index);
            let (words, changes) = started(&plan);
            assert!(words.contains(&format!(" -Shostname=mc-{index} ")), "{words}");
            assert_eq!(changes, [set("FLUX_FAKE_HOSTNAME", &format!("mc-{index}"))]);
            assert_eq!(
                words.contains("--without=FLUX_FAKE_HOSTNAME -- "),
                role == "lead",
                "{words}"
            );
            assert_eq!(
                (plan.hostname.as_str(), plan.rank),
                (format!("mc-{index}").as_str(), Some(index))
            );
            let notice =
                format!("the pod has its node's network and host name: its name in Flux is mc-{index}");
            assert!(plan.notices.contains(&notice), "{:?}", plan.notices);
        }
    }

    #[test]
    fn resource_xml_on_host_network_has_the_pod_name() {
        let plan = planned("[network]\nhost_network = true", 1);
        let texts = plan.steps.iter().filter_map(|step| match step {
            Step::File {
                content: Content::Text(text),
                ..
            } => Some(text.as_str()),
            _ => None,
        });
        let found: Vec<&str> = texts.filter(|text| text.contains("HostName")).collect();
        assert!(
            found.len() == 1 && found[0].contains("value=\"mc-1\""),
            "{found:?}"
        );
    }

    #[test]
    fn pod_without_host_network_keeps_its_own_hostname() {
        let spec = AgentSpec::from_toml(&format!("name = 'mc'\nsize = 2\n{JOB}")).unwrap();
        let facts = Facts {
            hostname: "mc-1".into(),
            index: Some(1),
            ..Facts::default()
        };
        let (words, changes) = started(&build(&spec, &facts, &PodContainer::Runner).unwrap());
        assert!(!words.contains("hostname") && changes.is_empty(), "{words}");
    }
}
