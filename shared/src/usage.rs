//! The figures of a running instance: what `flux-agent usage` prints as JSON, and `kubectl minicluster top` shows.

use serde::{Deserialize, Serialize};

/// An instance at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Of the broker that was asked: `run` where jobs run.
    pub state: String,
    /// For how long.
    pub seconds: u64,
    pub brokers: Brokers,
    /// None: not known before all brokers have told what they have.
    pub resources: Option<Resources>,
    /// None: the instance is not so far yet, or does not answer.
    pub jobs: Option<Jobs>,
}

/// The brokers that are there, and those that are asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Brokers {
    /// Without those that the cluster may grow by.
    pub size: usize,
    /// None: not known.
    pub online: Option<usize>,
}

/// What the instance has for jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    pub nodes: Count,
    pub cores: Count,
    pub gpus: Count,
    /// Each node, by rank.
    pub hosts: Vec<Host>,
}

/// How much there is of something. What the cluster may grow by is no part of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Count {
    pub total: usize,
    /// Jobs have it.
    pub used: usize,
    /// A job could have it now.
    pub free: usize,
    /// On a node that is down or drained.
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

/// Whether jobs may come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HostState {
    Up,
    /// Up, and jobs are kept away.
    Drained,
    Down,
    /// Not there, and perhaps not asked for: the cluster may grow by it.
    Spare,
    /// Of a word that this program does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

impl HostState {
    /// As it is written.
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

/// Jobs by what they are at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Jobs {
    /// They wait: for other jobs, for a priority, for nodes.
    pub waiting: u64,
    pub running: u64,
    pub ended: u64,
    /// Of those that have ended; those that Flux has forgotten are in none of them.
    pub successful: u64,
    pub failed: u64,
    pub canceled: u64,
    pub timeout: u64,
}

impl Count {
    /// Counts what a node has, of which jobs have `used`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_version_says_is_read_as_far_as_it_is_known() {
        let newer = r#"{"state":"run","new":1,"resources":{"hosts":[{"rank":1,"name":"mc-1","state":"asleep"}]}}"#;
        let usage: Usage = serde_json::from_str(newer).unwrap();
        assert_eq!(usage.resources.unwrap().hosts[0].state, HostState::Unknown);
        for state in [HostState::Up, HostState::Drained, HostState::Down, HostState::Spare] {
            assert_eq!(serde_json::to_value(state).unwrap(), state.word());
        }
    }

    #[test]
    fn what_is_down_is_not_free_and_what_is_spare_does_not_count() {
        let mut count = Count::default();
        count.add(HostState::Up, 4, 1);
        count.add(HostState::Drained, 4, 2);
        count.add(HostState::Spare, 4, 0);
        assert_eq!(count, Count { total: 8, used: 3, free: 3, down: 4 });
    }
}
