//! The stages of a container's run, for traces. If the MiniCluster is traced, the second line of the container's
//! termination message has them, and the operator turns them into spans.
//!
//! The kubelet truncates long messages at the end. So the first line, which has the result, stays complete.

use serde::{Deserialize, Serialize};

/// Version of the line; lines of other versions are not read.
pub const VERSION: u32 = 1;
/// Lower bound of a stage's length in JSON (`["",0,0]`), in bytes.
const SHORTEST_STAGE: usize = 8;

/// The stages of one run of a container, with its host and role. Times are in microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodTimeline {
    /// [`VERSION`] of the program that wrote the line. (The agent's log has another line with the key `timeline`. That
    /// line has a format and a version of its own.)
    #[serde(rename = "timeline")]
    pub version: u32,
    /// The pod's host name, as Flux knows it.
    pub host: String,
    /// `lead` or `follower`.
    pub role: String,
    /// When the agent started, since the Unix epoch.
    pub started: u64,
    /// How long the run lasted.
    pub lasted: u64,
    pub stages: Vec<Stage>,
}

/// A stage; in JSON, a list of its name, its start and how long it lasted. Times are in microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(String, i64, u64)", into = "(String, i64, u64)")]
pub struct Stage {
    pub name: String,
    /// Since the agent started; negative for stages of init containers, which run before.
    pub start: i64,
    pub lasted: u64,
}

impl From<(String, i64, u64)> for Stage {
    fn from((name, start, lasted): (String, i64, u64)) -> Stage {
        Stage { name, start, lasted }
    }
}

impl From<Stage> for (String, i64, u64) {
    fn from(stage: Stage) -> (String, i64, u64) {
        (stage.name, stage.start, stage.lasted)
    }
}

impl PodTimeline {
    /// One line of JSON of at most `room` bytes, without the last stages if not all fit. None: not even the line
    /// without stages fits.
    pub fn encode(&self, room: usize) -> Option<String> {
        let mut short = self.clone();
        // More stages than this cannot fit. The loop removes the others that do not.
        short.stages.truncate(room / SHORTEST_STAGE);
        loop {
            let line = serde_json::to_string(&short).ok()?;
            if line.len() <= room {
                return Some(line);
            }
            short.stages.pop()?;
        }
    }

    /// The timeline in a termination message. None: the message has no timeline of this version, or was truncated.
    pub fn decode(message: &str) -> Option<PodTimeline> {
        let found: PodTimeline = serde_json::from_str(message.trim().lines().nth(1)?).ok()?;
        (found.version == VERSION).then_some(found)
    }
}
