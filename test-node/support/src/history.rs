//! The history that a program records, and its checks: how often the program started, and whether two starts
//! ran at once.
//!
//! Each task of the program appends lines to one file: the time in seconds, what happened, and where.
//!
//! ```text
//! 1764120000.123 START pod=mc-0-abcde host=mc-0 rank=0
//! 1764120001.130 tick pod=mc-0-abcde host=mc-0 rank=0
//! 1764120002.140 END pod=mc-0-abcde host=mc-0 rank=0
//! ```
//!
//! `pod` is the lead's pod, also in lines of tasks that run on a follower: it identifies the start. `host` is
//! the host name of the task's own pod.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The time between two ticks of a task.
pub const TICK: f64 = 1.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Start,
    Tick,
    /// The task got a stop signal.
    Term,
    /// The task ended by itself.
    End,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub at: f64,
    pub what: What,
    pub pod: String,
    pub host: String,
    pub rank: u32,
}

/// One start of the program: all its tasks, from the first line of one to the last of any.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub pod: String,
    pub hosts: BTreeSet<String>,
    pub from: f64,
    pub to: f64,
    /// How many tasks ended by themselves.
    pub ended: usize,
    /// How many tasks got a stop signal.
    pub told_to_stop: usize,
    /// The longest time without a line of the task with rank 0.
    pub longest_gap: f64,
}

/// Two starts that ran at once.
#[derive(Debug, Clone, PartialEq)]
pub struct Overlap {
    pub earlier: String,
    pub later: String,
    pub seconds: f64,
}

/// The history of one MiniCluster's program.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// Sorted by time.
    pub lines: Vec<Line>,
}

impl History {
    /// Panics at a line that the program cannot have written. Ignores the last line if it is incomplete.
    pub fn parse(text: &str) -> History {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let parse =
            |line: &str| parse_line(line).unwrap_or_else(|| panic!("not a line of a program: {line:?}"));
        let mut lines: Vec<Line> = whole.lines().map(parse).collect();
        lines.sort_by(|one, other| one.at.total_cmp(&other.at));
        History { lines }
    }

    /// Each start, sorted by time. A task that starts twice in one pod is two starts.
    pub fn runs(&self) -> Vec<Run> {
        let mut starts_of_task: BTreeMap<(&str, u32), usize> = BTreeMap::new();
        let mut lines_of_run: Vec<((&str, usize), Vec<&Line>)> = Vec::new();
        for line in &self.lines {
            let starts = starts_of_task.entry((&line.pod, line.rank)).or_default();
            if line.what == What::Start {
                *starts += 1;
            }
            let run = (line.pod.as_str(), *starts);
            match lines_of_run.iter_mut().find(|(other, _)| *other == run) {
                Some((_, lines)) => lines.push(line),
                None => lines_of_run.push((run, vec![line])),
            }
        }
        lines_of_run
            .iter()
            .map(|((pod, _), lines)| run_of(pod, lines))
            .collect()
    }

    pub fn starts(&self) -> usize {
        self.runs().len()
    }

    /// Every pair of starts that overlap in time.
    pub fn overlaps(&self) -> Vec<Overlap> {
        let runs = self.runs();
        let mut overlaps = Vec::new();
        for (index, earlier) in runs.iter().enumerate() {
            for later in &runs[index + 1..] {
                if later.from < earlier.to {
                    let seconds = earlier.to.min(later.to) - later.from;
                    overlaps.push(Overlap {
                        earlier: earlier.pod.clone(),
                        later: later.pod.clone(),
                        seconds,
                    });
                }
            }
        }
        overlaps
    }

    /// Panics unless the program started `starts` times, and never while an earlier start was running.
    #[track_caller]
    pub fn assert_starts(&self, starts: usize) {
        assert_eq!(self.overlaps(), [], "two starts ran at once\n{self}");
        assert_eq!(self.starts(), starts, "starts of the program\n{self}");
    }
}

fn parse_line(line: &str) -> Option<Line> {
    let mut words = line.split(' ');
    let at = words.next()?.parse().ok()?;
    let what = match words.next()? {
        "START" => What::Start,
        "tick" => What::Tick,
        "TERM" => What::Term,
        "END" => What::End,
        _ => return None,
    };
    let mut value_of = |name: &str| {
        words
            .next()?
            .strip_prefix(name)?
            .strip_prefix('=')
            .map(str::to_owned)
    };
    let (pod, host, rank) = (value_of("pod")?, value_of("host")?, value_of("rank")?);
    Some(Line {
        at,
        what,
        pod,
        host,
        rank: rank.parse().ok()?,
    })
}

fn run_of(pod: &str, lines: &[&Line]) -> Run {
    let count = |what| lines.iter().filter(|line| line.what == what).count();
    let of_first_task: Vec<f64> = lines
        .iter()
        .filter(|line| line.rank == 0)
        .map(|line| line.at)
        .collect();
    Run {
        pod: pod.to_owned(),
        hosts: lines.iter().map(|line| line.host.clone()).collect(),
        from: lines.first().map_or(0.0, |line| line.at),
        to: lines.last().map_or(0.0, |line| line.at),
        ended: count(What::End),
        told_to_stop: count(What::Term),
        longest_gap: of_first_task
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .fold(0.0, f64::max),
    }
}

/// One line for each start, for failure messages.
impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Run {
            pod,
            hosts,
            from,
            to,
            ended,
            told_to_stop,
            longest_gap,
        } in self.runs()
        {
            writeln!(
                f,
                "{pod} on {hosts:?} from {from:.1} to {to:.1}, {ended} tasks ended, {told_to_stop} were told to stop, \
                 longest gap {longest_gap:.1} s"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From words such as `0 START a 0`: time, what, pod and rank.
    fn history(lines: &[&str]) -> History {
        let line = |line: &&str| {
            let [at, what, pod, rank] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            format!("{at} {what} pod={pod} host=of-{pod} rank={rank}\n")
        };
        History::parse(&lines.iter().map(line).collect::<String>())
    }

    #[test]
    fn program_that_never_ran_has_no_start() {
        let nothing = History::parse("");
        nothing.assert_starts(0);
        assert_eq!(nothing.runs(), []);
    }

    #[test]
    fn tasks_of_one_lead_are_one_start() {
        let history = history(&[
            "0 START a 0",
            "0.5 START a 1",
            "1 tick a 0",
            "4 END a 1",
            "5 END a 0",
        ]);
        history.assert_starts(1);
        let runs = history.runs();
        assert_eq!(
            (runs[0].from, runs[0].to, runs[0].ended, runs[0].told_to_stop),
            (0.0, 5.0, 2, 0)
        );
        assert_eq!(runs[0].longest_gap, 4.0);
    }

    #[test]
    fn another_lead_is_another_start() {
        let history = history(&["0 START a 0", "3 TERM a 0", "9 START b 0", "12 END b 0"]);
        history.assert_starts(2);
        let stop_signals: Vec<usize> = history.runs().iter().map(|run| run.told_to_stop).collect();
        assert_eq!(stop_signals, [1, 0]);
    }

    #[test]
    fn second_start_in_the_same_pod_counts() {
        let history = history(&[
            "0 START a 0",
            "0 START a 1",
            "2 END a 0",
            "2 END a 1",
            "5 START a 0",
            "5 START a 1",
        ]);
        history.assert_starts(2);
    }

    #[test]
    fn start_is_counted_when_only_a_follower_wrote() {
        history(&["0 START a 0", "2 tick a 0", "8 START b 1"]).assert_starts(2);
    }

    #[test]
    fn tick_after_the_next_start_is_an_overlap() {
        let overlaps = history(&["0 START a 0", "10 START b 0", "12.5 tick a 0", "20 END b 0"]).overlaps();
        assert_eq!(
            overlaps,
            [Overlap {
                earlier: "a".into(),
                later: "b".into(),
                seconds: 2.5
            }]
        );
    }

    #[test]
    fn task_of_a_follower_that_outlives_its_lead_overlaps_too() {
        let history = history(&[
            "0 START a 0",
            "0 START a 1",
            "5 TERM a 0",
            "6 START b 0",
            "7 tick a 1",
            "9 END b 0",
        ]);
        assert_eq!(history.overlaps().len(), 1);
    }

    #[test]
    fn two_starts_in_the_same_pod_overlap_when_their_tasks_do() {
        let history = history(&["0 START a 0", "0 START a 1", "5 START a 0", "6 tick a 1"]);
        assert_eq!(history.overlaps().len(), 1);
    }

    #[test]
    fn start_inside_another_is_an_overlap() {
        let overlaps = history(&["0 START a 0", "3 START b 0", "4 END b 0", "9 END a 0"]).overlaps();
        assert_eq!(overlaps[0].seconds, 1.0);
    }

    #[test]
    #[should_panic(expected = "two starts ran at once")]
    fn overlap_fails_the_check_although_the_number_is_right() {
        history(&["0 START a 0", "3 START b 0", "4 END b 0", "9 END a 0"]).assert_starts(2);
    }

    #[test]
    #[should_panic(expected = "starts of the program")]
    fn wrong_number_of_starts_fails_the_check() {
        history(&["0 START a 0", "3 START b 0"]).assert_starts(1);
    }

    #[test]
    fn lines_are_put_in_order_and_a_half_written_one_is_left_out() {
        let text = "2 tick pod=a host=n rank=0\n1 START pod=a host=n rank=0\n3 ti";
        let times: Vec<f64> = History::parse(text).lines.iter().map(|line| line.at).collect();
        assert_eq!(times, [1.0, 2.0]);
    }

    #[test]
    #[should_panic(expected = "not a line of a program")]
    fn foreign_line_is_refused() {
        History::parse("hello\n");
    }
}
