//! The usage of a running instance: what `flux-agent usage` prints as JSON, and `kubectl minicluster top`
//! shows.

use serde::{Deserialize, Serialize};

/// Usage of an instance at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// State of the broker that answered; jobs run in state `run`.
    pub state: String,
    /// Seconds in this state.
    pub seconds: u64,
    pub brokers: Brokers,
    /// None until all brokers have reported their resources.
    pub resources: Option<InstanceResources>,
    /// None: the job manager is not running yet, or does not answer.
    pub jobs: Option<Jobs>,
}

/// Number of brokers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Brokers {
    /// Brokers of the instance, without the spare ones (maxSize) that are not online.
    pub size: usize,
    /// Brokers that are online. None: not known.
    pub online: Option<usize>,
}

/// Resources of the instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceResources {
    pub nodes: Count,
    pub cores: Count,
    pub gpus: Count,
    /// Each node, by rank.
    pub hosts: Vec<Host>,
}

/// Amount of one resource, without spare nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Count {
    pub total: usize,
    /// In use by jobs. What they use on nodes that are drained or down counts in `down`, too.
    pub used: usize,
    /// Free for a job.
    pub free: usize,
    /// On nodes that are down or drained, or in a state that this version does not know.
    pub down: usize,
}

/// A node as the instance sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Host {
    pub rank: u32,
    pub name: String,
    pub state: HostState,
    pub cores: usize,
    pub cores_used: usize,
    pub gpus: usize,
    pub gpus_used: usize,
}

/// State of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HostState {
    Up,
    /// Up, but no new jobs are scheduled there.
    Drained,
    Down,
    /// Not online, and one of the nodes that the cluster may grow by (maxSize), so its pod may not exist.
    Spare,
    /// A state that this version does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

impl HostState {
    /// The name of the state in the JSON.
    pub fn word(self) -> &'static str {
        match self {
            HostState::Up => "up",
            HostState::Drained => "drained",
            HostState::Down => "down",
            HostState::Spare => "spare",
            HostState::Unknown => "unknown",
        }
    }
}

/// Number of jobs by what they do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Jobs {
    /// Waiting for other jobs, for a priority, or for resources.
    pub waiting: u64,
    pub running: u64,
    pub ended: u64,
    /// Ended jobs by result; jobs that Flux has purged count in none.
    pub successful: u64,
    pub failed: u64,
    pub canceled: u64,
    pub timeout: u64,
    /// All jobs by Flux's states (RFC 21).
    pub states: States,
}

/// Jobs by their state. Flux counts none in `new`, so it is always 0. It is here because flux-metrics-api has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct States {
    pub new: u64,
    pub depend: u64,
    pub priority: u64,
    pub sched: u64,
    pub run: u64,
    pub cleanup: u64,
    pub inactive: u64,
}

/// A metric for autoscalers. flux-metrics-api has those of nodes and of single states of jobs, with the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub help: &'static str,
    pub value: u64,
}

impl Count {
    /// Adds a node's amount of the resource, of which `used` is in use by jobs.
    pub fn add(&mut self, state: HostState, amount: usize, used: usize) {
        match state {
            HostState::Spare => return,
            HostState::Up => self.free += amount.saturating_sub(used),
            HostState::Drained | HostState::Down | HostState::Unknown => self.down += amount,
        }
        self.total += amount;
        self.used += used;
    }
}

impl Usage {
    /// The numbers of nodes and jobs that are known, as metrics.
    pub fn metrics(&self) -> Vec<Metric> {
        let metric = |name, help, value| Metric { name, help, value };
        let mut metrics = Vec::new();
        if let Some(resources) = &self.resources {
            let up = || resources.hosts.iter().filter(|host| host.state == HostState::Up);
            let free = |host: &Host| host.cores.saturating_sub(host.cores_used) as u64;
            let cores_up = up().map(|host| host.cores as u64).sum();
            metrics.extend([
                metric(
                    "node_up_count",
                    "Nodes available to jobs: neither down nor drained.",
                    up().count() as u64,
                ),
                metric(
                    "node_free_count",
                    "Available nodes with at least one free core.",
                    up().filter(|host| free(host) > 0).count() as u64,
                ),
                metric("node_cores_up_count", "Cores of the available nodes.", cores_up),
                metric(
                    "node_cores_free_count",
                    "Free cores of the available nodes.",
                    up().map(free).sum(),
                ),
            ]);
        }
        if let Some(Jobs { states, .. }) = self.jobs {
            let pending = states.depend + states.priority + states.sched;
            let running = states.run + states.cleanup;
            metrics.extend([
                metric(
                    "job_queue_state_new_count",
                    "Always 0: Flux counts a job from the state depend on.",
                    states.new,
                ),
                metric(
                    "job_queue_state_depend_count",
                    "Jobs that wait for other jobs or for a time.",
                    states.depend,
                ),
                metric(
                    "job_queue_state_priority_count",
                    "Jobs that wait for a priority.",
                    states.priority,
                ),
                metric(
                    "job_queue_state_sched_count",
                    "Jobs that wait for resources.",
                    states.sched,
                ),
                metric("job_queue_state_run_count", "Jobs that run.", states.run),
                metric(
                    "job_queue_state_cleanup_count",
                    "Jobs that have ended and release their resources.",
                    states.cleanup,
                ),
                metric(
                    "job_queue_state_inactive_count",
                    "Jobs that have ended.",
                    states.inactive,
                ),
                metric(
                    "job_queue_state_pending_count",
                    "Jobs in depend, priority or sched.",
                    pending,
                ),
                metric(
                    "job_queue_state_running_count",
                    "Jobs in run or cleanup.",
                    running,
                ),
                metric(
                    "job_queue_state_active_count",
                    "Jobs that have not ended: pending or running.",
                    pending + running,
                ),
            ]);
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_a_newer_version_is_read_as_far_as_known() {
        let newer =
            r#"{"state":"run","new":1,"resources":{"hosts":[{"rank":1,"name":"mc-1","state":"asleep"}]}}"#;
        let usage: Usage = serde_json::from_str(newer).unwrap();
        assert_eq!(usage.resources.unwrap().hosts[0].state, HostState::Unknown);
        for state in [
            HostState::Up,
            HostState::Drained,
            HostState::Down,
            HostState::Spare,
        ] {
            assert_eq!(serde_json::to_value(state).unwrap(), state.word());
        }
    }

    #[test]
    fn drained_nodes_are_not_free_and_spare_nodes_not_counted() {
        let mut count = Count::default();
        count.add(HostState::Up, 4, 1);
        count.add(HostState::Drained, 4, 2);
        count.add(HostState::Spare, 4, 0);
        assert_eq!(
            count,
            Count {
                total: 8,
                used: 3,
                free: 3,
                down: 4
            }
        );
    }

    #[test]
    fn metrics_omit_unknown_usage_and_drained_nodes_are_not_up() {
        assert_eq!(Usage::default().metrics(), []);
        let host = |state, cores, cores_used| Host {
            state,
            cores,
            cores_used,
            ..Host::default()
        };
        let hosts = vec![
            host(HostState::Up, 4, 1),
            host(HostState::Up, 4, 4),
            host(HostState::Drained, 4, 0),
            host(HostState::Spare, 4, 0),
        ];
        let states = States {
            depend: 1,
            sched: 20,
            run: 3,
            cleanup: 1,
            inactive: 7,
            ..States::default()
        };
        let usage = Usage {
            resources: Some(InstanceResources {
                hosts,
                ..InstanceResources::default()
            }),
            jobs: Some(Jobs {
                states,
                ..Jobs::default()
            }),
            ..Usage::default()
        };
        let value = |name: &str| {
            usage
                .metrics()
                .iter()
                .find(|metric| metric.name == name)
                .unwrap()
                .value
        };
        assert_eq!((value("node_up_count"), value("node_free_count")), (2, 1));
        assert_eq!(
            (value("node_cores_up_count"), value("node_cores_free_count")),
            (8, 3)
        );
        assert_eq!(
            (
                value("job_queue_state_sched_count"),
                value("job_queue_state_pending_count")
            ),
            (20, 21)
        );
        assert_eq!(
            (
                value("job_queue_state_running_count"),
                value("job_queue_state_active_count")
            ),
            (4, 25)
        );
    }
}
