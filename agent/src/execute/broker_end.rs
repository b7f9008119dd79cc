//! What a broker's end says of its job, and of what it has dumped.

use crate::supervise::ChildEnd;

/// How the lead's broker ended.
#[derive(Debug, Clone, Copy)]
pub struct BrokerEnd {
    pub end: ChildEnd,
    /// Whether the instance is known to have come up: its program has started, or the broker said so.
    pub came_up: bool,
    /// The program's own code, if there is one and it is known.
    pub program: Option<u8>,
    /// The program had ended before the broker did: its code is no consequence of the broker's end.
    pub is_programs_own: bool,
}

impl BrokerEnd {
    /// Why what it has dumped cannot be trusted.
    pub fn trouble(self) -> Option<String> {
        match (self.end, self.program) {
            (ChildEnd::Signaled(signal), _) => Some(format!("the broker was ended by signal {signal}")),
            (ChildEnd::Exited(code), _) if !self.came_up && code != 0 => Some(format!(
                "the instance did not come up (the broker ended with code {code})"
            )),
            (ChildEnd::Exited(code @ 1..), Some(0)) => {
                Some(format!("the broker failed at its end, with code {code}"))
            }
            (ChildEnd::Exited(_), _) => None,
        }
    }

    /// The job's own end, whatever became of the instance after it.
    pub fn of_the_job(self) -> ChildEnd {
        match (self.end, self.program) {
            (_, Some(0)) => ChildEnd::Exited(0),
            (ChildEnd::Signaled(_), Some(code)) if self.is_programs_own => ChildEnd::Exited(code),
            _ => self.end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_broker_publishes_no_dump_and_keeps_the_jobs_end() {
        let end = |end, came_up, program| BrokerEnd {
            end,
            came_up,
            program,
            is_programs_own: false,
        };
        use ChildEnd::{Exited, Signaled};
        for (told, is_trusted, job) in [
            (end(Exited(0), true, Some(0)), true, Exited(0)),
            (end(Exited(7), true, Some(7)), true, Exited(7)),
            (end(Exited(129), true, None), true, Exited(129)),
            (end(Exited(0), false, None), true, Exited(0)),
            (end(Exited(1), false, None), false, Exited(1)),
            (end(Exited(1), true, Some(0)), false, Exited(0)),
            (end(Signaled(9), true, Some(0)), false, Exited(0)),
            (end(Signaled(9), true, Some(3)), false, Signaled(9)),
            (end(Signaled(9), true, None), false, Signaled(9)),
        ] {
            assert_eq!(
                (told.trouble().is_none(), told.of_the_job()),
                (is_trusted, job),
                "{told:?}"
            );
        }
        let killed_later = BrokerEnd {
            is_programs_own: true,
            ..end(Signaled(9), true, Some(3))
        };
        assert!(killed_later.trouble().is_some());
        assert_eq!(killed_later.of_the_job(), Exited(3));
    }
}
