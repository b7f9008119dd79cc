//! The phases of a MiniCluster, the values of `status.phase`.

use std::fmt;

/// The phase of a MiniCluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// A field of its spec cannot be used.
    Invalid,
    /// None of its pods is scheduled.
    Pending,
    /// Pods are scheduled, and its brokers are not ready yet.
    Starting,
    /// Its brokers are ready, or were, or the lead has ended.
    Running,
    /// Its Job is suspended: its pods are deleted.
    Suspended,
    Completed,
    Failed,
    /// The MiniCluster is being deleted.
    Terminating,
}

impl Phase {
    pub const ALL: [Phase; 8] = [
        Phase::Invalid,
        Phase::Pending,
        Phase::Starting,
        Phase::Running,
        Phase::Suspended,
        Phase::Completed,
        Phase::Failed,
        Phase::Terminating,
    ];

    /// Parses `status.phase`. None: this version does not know the word.
    pub fn parse(text: &str) -> Option<Phase> {
        Phase::ALL.into_iter().find(|phase| phase.as_str() == text)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Invalid => "Invalid",
            Phase::Pending => "Pending",
            Phase::Starting => "Starting",
            Phase::Running => "Running",
            Phase::Suspended => "Suspended",
            Phase::Completed => "Completed",
            Phase::Failed => "Failed",
            Phase::Terminating => "Terminating",
        }
    }

    /// Whether the MiniCluster has ended, with success or not.
    pub fn is_finished(self) -> bool {
        matches!(self, Phase::Completed | Phase::Failed)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
