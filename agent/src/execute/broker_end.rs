//! What the end of the lead's broker means for the job's result, and whether the broker's dump can be trusted.

use crate::supervise::ChildEnd;

/// How the lead's broker ended.
#[derive(Debug, Clone, Copy)]
pub struct BrokerEnd {
    pub end: ChildEnd,
    /// Whether the instance is known to have come up: its program has started, or the broker said so.
    pub came_up: bool,
    /// The program's exit code; none: there is no program, or the code is not known.
    pub program: Option<u8>,
    /// Whether the program ended before the broker, so that the broker's end is not the cause of the program's code.
    pub has_program_ended_first: bool,
    /// Whether Flux told the program to end.
    pub is_aborted: bool,
}

impl BrokerEnd {
    /// Why the broker's dump cannot be trusted, by how the broker ended; none: there is no such reason. The dump may
    /// then still lack its end (`archive::tail`).
    pub fn trouble(self) -> Option<String> {
        match (self.end, self.program) {
            (ChildEnd::Signaled(signal), _) => Some(format!("the broker was ended by signal {signal}")),
            (ChildEnd::Exited(code), _) if !self.came_up && code != 0 => Some(format!(
                "the instance did not come up (the broker ended with code {code})"
            )),
            // The broker exits with 1 if a program that Flux told to end exits with 0. The dump may still be whole.
            (ChildEnd::Exited(1), Some(0)) if self.is_aborted => None,
            (ChildEnd::Exited(code @ 1..), Some(0)) => {
                Some(format!("the broker failed at its end, with code {code}"))
            }
            (ChildEnd::Exited(_), _) => None,
        }
    }

    /// How the job ended. A failure of the broker after the job does not change this.
    pub fn job_end(self) -> ChildEnd {
        match (self.end, self.program) {
            (_, Some(0)) => ChildEnd::Exited(0),
            (ChildEnd::Signaled(_), Some(code)) if self.has_program_ended_first => ChildEnd::Exited(code),
            // The broker exits with the job's code.
            _ => self.end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broker_end_says_if_dump_is_trusted_and_how_job_ended() {
        let end = |end, came_up, program| BrokerEnd {
            end,
            came_up,
            program,
            has_program_ended_first: false,
            is_aborted: false,
        };
        let aborted = |broker| BrokerEnd {
            is_aborted: true,
            ..broker
        };
        use ChildEnd::{Exited, Signaled};
        for (broker, is_trusted, job) in [
            (end(Exited(0), true, Some(0)), true, Exited(0)),
            (end(Exited(7), true, Some(7)), true, Exited(7)),
            (end(Exited(129), true, None), true, Exited(129)),
            (end(Exited(0), false, None), true, Exited(0)),
            (end(Exited(1), false, None), false, Exited(1)),
            (end(Exited(1), true, Some(0)), false, Exited(0)),
            (aborted(end(Exited(1), true, Some(0))), true, Exited(0)),
            (aborted(end(Exited(2), true, Some(0))), false, Exited(0)),
            (aborted(end(Signaled(9), true, Some(0))), false, Exited(0)),
            (end(Signaled(9), true, Some(0)), false, Exited(0)),
            (end(Signaled(9), true, Some(3)), false, Signaled(9)),
            (end(Signaled(9), true, None), false, Signaled(9)),
        ] {
            assert_eq!(
                (broker.trouble().is_none(), broker.job_end()),
                (is_trusted, job),
                "{broker:?}"
            );
        }
        let killed_later = BrokerEnd {
            has_program_ended_first: true,
            ..end(Signaled(9), true, Some(3))
        };
        assert!(killed_later.trouble().is_some());
        assert_eq!(killed_later.job_end(), Exited(3));
    }
}
