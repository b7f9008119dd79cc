//! The agent's exit codes. Others rely on them, so they must not change.
//!
//! The lead's container exits with the code of the user's program or failed snippet (0 to 255; 128 + n for signal n). If
//! the agent itself fails, it exits with one of the codes below, but a program may exit with the same code. So a code of
//! the runner's container does not tell what ended the container: the termination message does
//! ([`crate::termination`]). For the same reason the Job retries none of these codes, except [`RETRIED`] of a
//! follower. The operator's init containers run no program of the user's, so the Job may retry their codes.

use serde::{Deserialize, Serialize};

/// Why the agent itself failed. Events, metric labels and the termination message use these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Category {
    /// The spec file is missing or cannot be read.
    SpecUnreadable,
    /// The spec is invalid (TOML, a field, a value, its version), or does not fit this pod, or a snippet's R is invalid.
    SpecInvalid,
    /// The view, `flux` or the Fluxion that the spec names was not found, or files of an image cannot be read.
    ViewMissing,
    /// The parent broker did not answer within the deadline.
    ParentUnreachable,
    /// A user could not be created or given its password, or the agent could not act as it.
    UserFailed,
    /// A file, directory or link could not be written (disk full, read-only, no permission), or reading the view's image
    /// failed in a way that may pass.
    WriteFailed,
    /// The curve certificate, or the seed of one, cannot be read or is malformed.
    CurveUnreadable,
    /// A snippet or script needs a shell, and the image has none, or one that does not run.
    ShellMissing,
    /// The lead's broker ended before the program began, or a follower's broker kept failing.
    BrokerFailed,
    /// Any other failure of the agent, which is a bug in a pod.
    Internal,
    /// This pod replaces a lead whose program may have run: it must not run again in the same Job.
    LeadLost,
}

impl Category {
    /// Every category, in the order of the codes.
    pub const ALL: [Category; 11] = [
        Category::LeadLost,
        Category::SpecUnreadable,
        Category::SpecInvalid,
        Category::ViewMissing,
        Category::ParentUnreachable,
        Category::UserFailed,
        Category::WriteFailed,
        Category::CurveUnreadable,
        Category::ShellMissing,
        Category::BrokerFailed,
        Category::Internal,
    ];

    /// The exit code, 239 to 249.
    pub const fn code(self) -> u8 {
        match self {
            Category::SpecUnreadable => 240,
            Category::SpecInvalid => 241,
            Category::ViewMissing => 242,
            Category::ParentUnreachable => 243,
            Category::UserFailed => 244,
            Category::WriteFailed => 245,
            Category::CurveUnreadable => 246,
            Category::ShellMissing => 247,
            Category::BrokerFailed => 248,
            Category::Internal => 249,
            Category::LeadLost => 239,
        }
    }

    /// Whether a retry, later or on another node, may succeed. The operator's Job uses this for init containers
    /// only. The failure rules of a JobSet and a TrainJob (`examples/`) restart all pods after these codes.
    pub const fn is_retriable(self) -> bool {
        matches!(
            self,
            Category::SpecUnreadable
                | Category::ParentUnreachable
                | Category::WriteFailed
                | Category::BrokerFailed
        )
    }

    /// The category with this exit code. None: no category has it.
    pub fn from_code(code: i32) -> Option<Category> {
        Category::ALL
            .into_iter()
            .find(|category| i32::from(category.code()) == code)
    }

    /// The name in messages and labels, as serde writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Category::SpecUnreadable => "spec-unreadable",
            Category::SpecInvalid => "spec-invalid",
            Category::ViewMissing => "view-missing",
            Category::ParentUnreachable => "parent-unreachable",
            Category::UserFailed => "user-failed",
            Category::WriteFailed => "write-failed",
            Category::CurveUnreadable => "curve-unreadable",
            Category::ShellMissing => "shell-missing",
            Category::BrokerFailed => "broker-failed",
            Category::Internal => "internal",
            Category::LeadLost => "lead-lost",
        }
    }
}

/// Exit code of a follower whose pod alone was stopped, while the instance goes on: the Job may replace the pod.
/// (A lead that exits with this code still fails the Job: the failure policy has a rule for the lead.)
pub const REPLACE: u8 = 238;
/// The exit code that containerd and CRI-O report for a container whose end they did not see, for example after a
/// reboot of the node.
pub const UNSEEN: u8 = 255;
/// Exit codes of a follower that the Job's failure policy does not treat as a failure.
pub const RETRIED: [u8; 2] = [REPLACE, UNSEEN];
/// The shell's code for a command that was found but could not be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The shell's code for a command that was not found.
pub const NOT_FOUND: u8 = 127;

/// The exit code of a pod that is stopped before its program has run.
pub const fn of_stop_before_program(signal: i32, is_follower: bool) -> u8 {
    if is_follower { REPLACE } else { of_signal(signal) }
}

/// The exit code for a process that a signal ended, as shells have it.
pub const fn of_signal(signal: i32) -> u8 {
    ((128 + signal) & 0xff) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_category_has_its_own_code_and_name() {
        for category in Category::ALL {
            assert_eq!(Category::from_code(i32::from(category.code())), Some(category));
            assert_eq!(serde_json::to_value(category).unwrap(), category.name());
        }
        // The page of exit codes lists them in the order of `ALL`.
        assert!(Category::ALL.is_sorted_by_key(|category| category.code()));
    }

    #[test]
    fn user_codes_are_not_categories() {
        for code in (0..=238).chain(250..256) {
            assert_eq!(Category::from_code(code), None);
        }
    }
}
