//! Whether Flux binds tasks to cores. It does so only if the container has exclusive cores.
//!
//! R (Flux's resource set) names cores 0 to n-1 in every pod, and Flux's job shell binds tasks to the cores in R. If
//! the pods of a node share its CPUs, the tasks of all pods would run on the same few cores.

use flux_shared::agent_spec::Runner;
use serde::Serialize;

use crate::facts::Facts;

/// Whether tasks are bound to cores by default, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Binding {
    pub on: bool,
    /// The reason, for people.
    pub why: String,
}

impl Binding {
    /// Decides whether tasks are bound.
    pub fn of(runner: &Runner, facts: &Facts) -> Binding {
        let (on, why) = match (runner.declared_cores(), facts.cpuset) {
            (Some(cores), _) if cores > facts.cores => (
                false,
                format!(
                    "{cores} cores are declared, but there are {}: tasks share them",
                    facts.cores
                ),
            ),
            (_, Some(cpus)) if is_exclusive(cpus, runner, facts) => {
                (true, format!("the cpuset of {} is exclusive", cpu_count(cpus)))
            }
            (_, Some(cpus)) => (
                false,
                format!("other pods share the cpuset of {}; {REMEDY}", cpu_count(cpus)),
            ),
            (_, None) => (false, format!("the node's pods share its CPUs; {REMEDY}")),
        };
        Binding { on, why }
    }

    /// One line for people, with the option by which a job changes the default.
    pub fn line(&self) -> String {
        let (state, opposite) = if self.on {
            ("on", "off")
        } else {
            ("off", "per-task")
        };
        format!("{state}: {} (a job can set -o cpu-affinity={opposite})", self.why)
    }
}

/// How a container gets exclusive CPUs: the end of messages.
const REMEDY: &str = "a Guaranteed pod gets exclusive CPUs from the kubelet's static CPU manager";

fn cpu_count(cpus: u32) -> String {
    if cpus == 1 {
        "1 CPU".into()
    } else {
        format!("{cpus} CPUs")
    }
}

/// Whether the container has its cpuset exclusively. The kubelet's static CPU manager gives exclusive CPUs to a
/// Guaranteed pod with a whole number of them. All other pods share the remaining CPUs, so their cpuset is smaller than
/// the machine, too. If such a pod is not Guaranteed, its oom_score_adj is above 0. If it is, its limit has a fraction of
/// a CPU. So only the limit of exclusive CPUs is their number.
fn is_exclusive(cpus: u32, runner: &Runner, facts: &Facts) -> bool {
    let limit = facts.cpu_limit(runner);
    facts.oom_score <= 0 && limit.is_none_or(|limit| limit == f64::from(cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(declared: Option<u32>, facts: Facts) -> Binding {
        let runner = Runner {
            cores: declared,
            ..Runner::default()
        };
        Binding::of(&runner, &facts)
    }

    /// The kubelet sets no quota with `cpuCFSQuota: false`, nor for exclusive CPUs since Kubernetes 1.33.
    #[test]
    fn limit_of_the_spec_tells_exclusive_cpus_without_a_quota() {
        let is_on = |cpu_limit, cpu_quota| {
            let runner = Runner {
                cpu_limit,
                ..Runner::default()
            };
            let facts = Facts {
                cores: 6,
                cpuset: Some(6),
                oom_score: -997,
                cpu_quota,
                ..Facts::default()
            };
            Binding::of(&runner, &facts).on
        };
        assert!(!is_on(Some(3.5), None) && is_on(Some(6.0), None));
        assert!(is_on(Some(3.5), Some(6.0)), "the pod was resized");
    }

    #[test]
    fn tasks_are_bound_only_where_the_cores_are_the_pods_own() {
        let pinned = |oom_score, cpu_quota| Facts {
            cpuset: Some(2),
            cores: 2,
            oom_score,
            cpu_quota,
            ..Facts::default()
        };
        assert!(!of(None, Facts::default()).on, "all CPUs of the machine");
        assert!(
            !of(
                None,
                Facts {
                    cpu_quota: Some(4.0),
                    oom_score: -997,
                    ..Facts::default()
                }
            )
            .on,
            "a limit alone"
        );
        assert!(
            of(None, pinned(-997, Some(2.0))).on,
            "the static CPU manager's, with a quota"
        );
        assert!(
            of(None, pinned(-997, None)).on,
            "the same since Kubernetes 1.33, without a quota"
        );
        assert!(
            of(None, pinned(0, None)).on,
            "no kubelet: docker run --cpuset-cpus"
        );
        assert!(
            !of(None, pinned(-997, Some(1.5))).on,
            "Guaranteed, but with a fraction of a CPU: the shared CPUs"
        );
        assert!(
            !of(None, pinned(-997, Some(2.5))).on,
            "Guaranteed, with a fraction more than the shared CPUs"
        );
        assert!(
            !of(None, pinned(2, None)).on && !of(None, pinned(1000, None)).on,
            "Burstable, BestEffort"
        );
        assert!(
            !of(Some(3), pinned(-997, Some(2.0))).on,
            "more cores are declared than there are"
        );
        assert!(of(Some(1), pinned(-997, Some(2.0))).on);
    }

    #[test]
    fn binding_line_names_choice_reason_and_option_to_change_it() {
        let off = of(
            Some(3),
            Facts {
                cores: 2,
                ..Facts::default()
            },
        )
        .line();
        assert!(
            off.starts_with("off: 3 cores are declared, but there are 2") && off.contains("=per-task"),
            "{off}"
        );
        let on = of(
            None,
            Facts {
                cpuset: Some(1),
                ..Facts::default()
            },
        )
        .line();
        assert!(
            on.starts_with("on: the cpuset of 1 CPU is exclusive") && on.contains("=off"),
            "{on}"
        );
    }
}
