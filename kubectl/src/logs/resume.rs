//! Resumes a log where its connection broke: no line twice, none left out. Pure.
//!
//! The API server is asked for lines with their times, from a given second on. Lines that were seen are
//! skipped.

use k8s_openapi::jiff::Timestamp;

/// How far a log has been read. Bytes with timestamps go in, bytes without come out.
#[derive(Debug)]
pub struct Resume {
    /// The latest timestamp seen.
    latest: Option<Timestamp>,
    /// The earliest timestamp of the last line with the latest one and of those after it.
    earliest: Option<Timestamp>,
    /// The last line, and how many bytes of it have come.
    place: Place,
    column: usize,
    /// In this connection: the last line that has come again.
    passed: Place,
    is_behind: bool,
    is_last_found: bool,
    /// Nothing of this container's log has been read.
    is_new_log: bool,
    has_gap: bool,
    /// The beginning of a line's timestamp, as far as it has come; None within a line.
    head: Option<Vec<u8>>,
    /// How many bytes of this line are still to be skipped; None to skip the whole line.
    skip: Option<usize>,
}

/// Where a line is in a log: two streams' lines need not be in the order of their timestamps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    /// How many lines up to it have the latest timestamp.
    at_latest: usize,
    /// How many lines have come after the last of these.
    after: usize,
}

impl Place {
    fn next(self, is_latest: bool) -> Place {
        if is_latest {
            Place {
                at_latest: self.at_latest + 1,
                after: 0,
            }
        } else {
            Place {
                after: self.after + 1,
                ..self
            }
        }
    }
}

/// Longest timestamp of a line.
const HEAD_MAX: usize = 64;

impl Default for Resume {
    fn default() -> Resume {
        Resume {
            latest: None,
            earliest: None,
            place: Place::default(),
            column: 0,
            passed: Place::default(),
            is_behind: false,
            is_last_found: false,
            is_new_log: true,
            has_gap: false,
            head: None,
            skip: None,
        }
    }
}

impl Resume {
    /// From now on the log of the pod's next container is read: the lines before are not in it.
    pub fn begin_container(&mut self) {
        self.is_new_log = true;
    }

    /// After a connection whose end the API server has told: whether lines are missing, as after a rotation.
    pub fn end(&mut self) -> bool {
        std::mem::take(&mut self.has_gap) || self.misses_last()
    }

    /// Whether the last line has not come again, in whose log it was.
    fn misses_last(&self) -> bool {
        self.is_behind && !self.is_last_found && !self.is_new_log
    }

    /// Begins a new connection; returns the second from which on to ask for the log. (kube rounds to whole
    /// seconds: given the exact time, it left out half a second of lines.)
    pub fn connect(&mut self) -> Option<Timestamp> {
        (self.head, self.passed) = (Some(Vec::new()), Place::default());
        (self.is_behind, self.is_last_found) = (self.latest.is_some(), false);
        self.earliest
            .and_then(|earliest| Timestamp::from_second(earliest.as_second()).ok())
    }

    /// The new bytes, without timestamps.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut new = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            match &mut self.head {
                Some(head) if byte != b' ' && byte != b'\n' && head.len() < HEAD_MAX => head.push(byte),
                Some(_) => self.begin_line(byte, &mut new),
                None => self.within_line(byte, &mut new),
            }
        }
        new
    }

    fn begin_line(&mut self, byte: u8, new: &mut Vec<u8>) {
        let head = self.head.take().unwrap_or_default();
        let time: Option<Timestamp> = std::str::from_utf8(&head).ok().and_then(|text| text.parse().ok());
        match time {
            Some(time) => self.at(time),
            None => {
                if self.is_behind && !self.is_new_log {
                    // The rest of a line, whose first part was too old to be sent. The kubelet's words look the
                    // same, but then the last line does not come again.
                    self.skip = None;
                } else {
                    // The kubelet's own words, that it cannot read the log.
                    self.has_gap = true;
                    self.skip = Some(0);
                }
                head.iter().for_each(|&byte| self.within_line(byte, new));
                self.within_line(byte, new);
                return;
            }
        }
        if byte == b'\n' {
            self.within_line(byte, new);
        }
    }

    fn at(&mut self, time: Timestamp) {
        let is_again = self.is_behind && self.latest.is_some_and(|latest| time <= latest);
        if is_again {
            self.passed = self.passed.next(self.latest == Some(time));
            let is_last = self.passed == self.place;
            self.is_last_found |= is_last;
            self.skip = is_last.then_some(self.column);
            return;
        }
        self.has_gap |= self.misses_last();
        (self.is_behind, self.is_new_log) = (false, false);
        if self.latest.is_none_or(|latest| time > latest) {
            (self.latest, self.place) = (Some(time), Place::default());
        }
        let is_latest = self.latest == Some(time);
        self.place = self.place.next(is_latest);
        let earliest = self.earliest.filter(|earliest| !is_latest && *earliest < time);
        self.earliest = earliest.or(Some(time));
        (self.column, self.skip) = (0, Some(0));
    }

    fn within_line(&mut self, byte: u8, new: &mut Vec<u8>) {
        match &mut self.skip {
            None => {}
            Some(0) => {
                new.push(byte);
                self.column += 1;
            }
            Some(left) => *left -= 1,
        }
        if byte == b'\n' {
            self.head = Some(Vec::new());
            // The next line of this time is a new one.
            if self.skip.is_some() && self.is_behind {
                self.is_behind = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is printed of `log` if the connection breaks after each of `cuts` bytes.
    fn read(log: &str, cuts: &[usize]) -> String {
        let mut resume = Resume::default();
        let mut printed = Vec::new();
        for cut in cuts.iter().copied().chain([log.len()]) {
            let since = resume.connect();
            assert!(
                since.is_none_or(|second| second.subsec_nanosecond() == 0),
                "nothing is rounded on its way"
            );
            // Each line by itself is left out if it is older: they need not be in the order of their times.
            let is_old = |line: &str| {
                let time = line.split(' ').next().and_then(|time| time.parse().ok());
                time.zip(since)
                    .is_some_and(|(time, second): (Timestamp, _)| time < second)
            };
            let mut place = 0;
            for line in log.split_inclusive('\n') {
                if !is_old(line) {
                    let count = cut.saturating_sub(place).min(line.len());
                    printed.extend(resume.feed(&line.as_bytes()[..count]));
                }
                place += line.len();
            }
        }
        assert_eq!(resume.end(), log.starts_with("failed"), "{cuts:?}");
        String::from_utf8(printed).unwrap()
    }

    const LOG: &str = "2026-01-01T00:00:00.100000000Z a\n2026-01-01T00:00:00.100000000Z b\n2026-01-01T00:00:00.100000000Z b\n\
        2026-01-01T00:00:00.2Z \n2026-01-01T00:00:01.000000001Z c d  e\n2026-01-01T00:00:01.5Z 50 %\r100 %\n2026-01-01T00:00:03Z end";
    const TEXT: &str = "a\nb\nb\n\nc d  e\n50 %\r100 %\nend";

    #[test]
    fn a_log_is_printed_without_its_times() {
        assert_eq!(read(LOG, &[]), TEXT);
    }

    #[test]
    fn log_has_each_byte_once_wherever_the_connection_breaks() {
        for first in 0..=LOG.len() {
            assert_eq!(read(LOG, &[first]), TEXT, "broken after {first}");
            for second in (first..=LOG.len()).step_by(3) {
                assert_eq!(
                    read(LOG, &[first, second, second]),
                    TEXT,
                    "broken after {first} and {second}"
                );
            }
        }
    }

    #[test]
    fn lines_that_were_rotated_away_are_missed() {
        let mut resume = Resume::default();
        resume.connect();
        resume.feed(b"2026-01-01T00:00:00.1Z a\n");
        assert!(!resume.end());
        resume.connect();
        assert_eq!(resume.feed(b"2026-01-01T00:00:00.3Z c\n"), b"c\n");
        assert!(resume.end(), "b was between them");
        resume.connect();
        assert!(resume.end(), "the last line has not come again");
    }

    #[test]
    fn next_container_has_no_line_of_the_one_before() {
        let mut resume = Resume::default();
        resume.connect();
        resume.feed(b"2026-01-01T00:00:00.1Z a\n");
        resume.begin_container();
        resume.connect();
        assert_eq!(resume.feed(b"2026-01-01T00:00:00.3Z c\n"), b"c\n");
        assert!(!resume.end());
        resume.begin_container();
        resume.connect();
        assert_eq!(resume.feed(b"2026-01-01T00:00:00.3Z c\n"), b"", "it came before");
        assert!(!resume.end());
    }

    /// containerd takes the time of a line before it waits for the other stream's lines.
    #[test]
    fn lines_out_of_order_come_once() {
        let tenths = [3, 1, 2, 3, 3, 1, 4, 2].iter().enumerate();
        let lines = tenths.map(|(line, tenth)| format!("2026-01-01T00:00:02.{tenth}Z {line}\n"));
        let log = "2026-01-01T00:00:01Z a\n".to_owned() + &lines.collect::<String>();
        let text = "a\n0\n1\n2\n3\n4\n5\n6\n7\n";
        for first in 0..=log.len() {
            for second in (first..=log.len()).step_by(7) {
                assert_eq!(
                    read(&log, &[first, second]),
                    text,
                    "broken after {first} and {second}"
                );
            }
        }
        let log = "2026-01-01T00:00:02Z a\n2026-01-01T00:00:01Z b\n";
        assert_eq!(read(log, &[log.len()]), "a\nb\n");
    }

    /// The kubelet leaves out the first part of a split line, and sends the rest without a time.
    #[test]
    fn rest_of_a_line_whose_beginning_is_older_is_no_gap() {
        let mut resume = Resume::default();
        resume.connect();
        resume.feed(b"2026-01-01T00:00:12.9Z long line\n2026-01-01T00:00:13.2Z b\n");
        resume.connect();
        let again = b"line\n2026-01-01T00:00:13.2Z b\n2026-01-01T00:00:13.3Z c\n";
        assert_eq!(resume.feed(again), b"c\n");
        assert!(!resume.end());
        resume.connect();
        assert_eq!(resume.feed(b"failed to open the log\n"), b"");
        assert!(resume.end());
    }

    #[test]
    fn a_line_without_a_time_is_printed_as_it_is() {
        assert_eq!(
            read("failed to open the log\nx", &[]),
            "failed to open the log\nx".trim_end_matches("\nx").to_owned() + "\n"
        );
    }
}
