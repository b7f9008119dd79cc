//! Resumes a log after its connection broke, without repeating or losing lines. Pure.
//!
//! Each connection requests the lines from a certain second on, with their timestamps. Lines that an earlier
//! connection has sent are skipped.

use k8s_openapi::jiff::Timestamp;

/// How far a log has been read. `feed` takes the bytes of the log and removes the timestamps.
#[derive(Debug)]
pub struct Resume {
    /// The latest timestamp seen.
    latest: Option<Timestamp>,
    /// The earliest timestamp among the last line with the timestamp `latest` and the lines after it. The next
    /// connection requests the log from there.
    earliest: Option<Timestamp>,
    /// The last line that was read.
    last_line: Place,
    /// How many bytes of the last line were read.
    column: usize,
    /// The last line that this connection has repeated.
    repeated: Place,
    /// This connection has sent nothing new yet, only lines of earlier connections.
    is_behind: bool,
    /// This connection has repeated the last line.
    is_last_found: bool,
    /// No line of this log is known to have been read.
    is_new_log: bool,
    /// Lines are missing.
    has_gap: bool,
    /// The part of a line's timestamp that was read; None after the timestamp.
    head: Option<Vec<u8>>,
    /// How many more bytes of this line to skip; None: the whole line.
    skip: Option<usize>,
    /// The lines without a timestamp at the end of what this connection has sent.
    message: Option<Vec<u8>>,
}

/// The position of a line in a log. A timestamp is not enough: lines can have the same one, and lines of standard
/// output and standard error need not be in the order of their timestamps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    /// How many lines up to this one have the latest timestamp.
    at_latest: usize,
    /// How many lines have come after the last of these.
    after: usize,
}

impl Place {
    /// The position of the next line. `is_latest`: it has the latest timestamp.
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

/// Bytes in which the timestamp of a line must end; a timestamp has 35 at most.
const HEAD_MAX: usize = 64;
/// Most bytes of a message that are kept.
const MESSAGE_MAX: usize = 1024;

impl Default for Resume {
    fn default() -> Resume {
        Resume {
            latest: None,
            earliest: None,
            last_line: Place::default(),
            column: 0,
            repeated: Place::default(),
            is_behind: false,
            is_last_found: false,
            is_new_log: true,
            has_gap: false,
            head: None,
            skip: None,
            message: None,
        }
    }
}

impl Resume {
    /// Call this before the log of the pod's next container is read, and when a log that was read completely was
    /// rotated. The new log does not repeat the last line of the old one, which is no gap. The position is kept, since
    /// the last read may already have returned the first lines of the next container.
    pub fn begin_log(&mut self) {
        self.is_new_log = true;
    }

    /// Whether lines are missing, for example after a rotation of the log. Call this at the end of a connection.
    pub fn end(&mut self) -> bool {
        std::mem::take(&mut self.has_gap) || self.misses_last()
    }

    /// Whether this connection has not repeated the last line, although the log of the same container is read.
    fn misses_last(&self) -> bool {
        self.is_behind && !self.is_last_found && !self.is_new_log
    }

    /// The message of the kubelet with which this connection ended: why it cannot read the log, or cannot follow it. The
    /// kubelet appends it to the lines, but without a timestamp.
    pub fn message(&self) -> Option<String> {
        let text = String::from_utf8_lossy(self.message.as_ref()?).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// Begins a new connection. Returns the time from which to request the log; None: from its beginning. The time is
    /// rounded down to a second: kube itself rounds to the nearest second, which may skip half a second of lines.
    pub fn connect(&mut self) -> Option<Timestamp> {
        (self.head, self.repeated, self.message) = (Some(Vec::new()), Place::default(), None);
        (self.is_behind, self.is_last_found) = (self.latest.is_some(), false);
        self.earliest
            .and_then(|earliest| Timestamp::from_second(earliest.as_second()).ok())
    }

    /// Takes the next bytes of this connection. Returns those that are new, without timestamps.
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

    /// Called at the end of a line's timestamp. `byte`: the first byte after the timestamp.
    fn begin_line(&mut self, byte: u8, new: &mut Vec<u8>) {
        let head = self.head.take().unwrap_or_default();
        let time: Option<Timestamp> = std::str::from_utf8(&head).ok().and_then(|text| text.parse().ok());
        match time {
            Some(time) => {
                self.message = None;
                self.locate_line(time);
            }
            None => {
                // A message of the kubelet; or, if lines follow, the rest of a line whose first part is older than the
                // requested time.
                self.message.get_or_insert_default();
                self.skip = None;
                head.iter().for_each(|&byte| self.within_line(byte, new));
                self.within_line(byte, new);
                return;
            }
        }
        // A blank after the timestamp is not part of the line.
        if byte == b'\n' {
            self.within_line(byte, new);
        }
    }

    /// Decides from a line's timestamp whether the line is new, and so how much of it to skip.
    fn locate_line(&mut self, time: Timestamp) {
        let is_repeated = self.is_behind && self.latest.is_some_and(|latest| time <= latest);
        if is_repeated {
            self.repeated = self.repeated.next(self.latest == Some(time));
            let is_last = self.repeated == self.last_line;
            self.is_last_found |= is_last;
            self.skip = is_last.then_some(self.column);
            return;
        }
        // If a new line comes before the last one was repeated, the lines between them are missing.
        self.has_gap |= self.misses_last();
        (self.is_behind, self.is_new_log) = (false, false);
        if self.latest.is_none_or(|latest| time > latest) {
            (self.latest, self.last_line) = (Some(time), Place::default());
        }
        let is_latest = self.latest == Some(time);
        self.last_line = self.last_line.next(is_latest);
        let earliest = self.earliest.filter(|earliest| !is_latest && *earliest < time);
        self.earliest = earliest.or(Some(time));
        (self.column, self.skip) = (0, Some(0));
    }

    /// Handles a byte after the timestamp: skips it or appends it to `new`.
    fn within_line(&mut self, byte: u8, new: &mut Vec<u8>) {
        match &mut self.skip {
            None => {
                if let Some(message) = self.message.as_mut().filter(|text| text.len() < MESSAGE_MAX) {
                    message.push(byte);
                }
            }
            Some(0) => {
                new.push(byte);
                self.column += 1;
            }
            Some(remaining) => *remaining -= 1,
        }
        if byte == b'\n' {
            self.head = Some(Vec::new());
            // This was new, or the rest of the last line, so the next line is new, even with the same timestamp.
            if self.skip.is_some() {
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
                "a whole second, so that kube rounds nothing"
            );
            // The kubelet leaves out each line that is older than `since`, wherever it is in the log.
            let is_old = |line: &str| {
                let time = line.split(' ').next().and_then(|time| time.parse().ok());
                time.zip(since)
                    .is_some_and(|(time, second): (Timestamp, _)| time < second)
            };
            let mut begin = 0;
            for line in log.split_inclusive('\n') {
                if !is_old(line) {
                    let count = cut.saturating_sub(begin).min(line.len());
                    printed.extend(resume.feed(&line.as_bytes()[..count]));
                }
                begin += line.len();
            }
        }
        assert!(!resume.end(), "{cuts:?}");
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
    fn resume_reports_lines_that_were_rotated_away() {
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
        resume.begin_log();
        resume.connect();
        assert_eq!(resume.feed(b"2026-01-01T00:00:00.3Z c\n"), b"c\n");
        assert!(!resume.end());
        resume.begin_log();
        resume.connect();
        assert_eq!(resume.feed(b"2026-01-01T00:00:00.3Z c\n"), b"", "it came before");
        assert!(!resume.end());
    }

    /// containerd takes the time of a line before it waits for the other stream's lines.
    #[test]
    fn lines_out_of_order_are_printed_once() {
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
        assert_eq!(resume.message(), None);
    }

    #[test]
    fn message_of_the_kubelet_is_no_line_of_the_log() {
        let mut resume = Resume::default();
        for lines in ["", "2026-01-01T00:00:00.1Z a\n", "2026-01-01T00:00:00.1Z a\n"] {
            resume.connect();
            let text = format!("{lines}failed to watch: too many open files");
            let is_new = resume.latest.is_none() && !lines.is_empty();
            assert_eq!(
                resume.feed(text.as_bytes()),
                if is_new { "a\n" } else { "" }.as_bytes()
            );
            assert_eq!(resume.message().unwrap(), "failed to watch: too many open files");
            assert!(!resume.end());
        }
        resume.connect();
        assert_eq!(resume.feed(b"failed to open the log\n"), b"");
        assert_eq!(resume.message().unwrap(), "failed to open the log");
        resume.connect();
        resume.feed(&[b'x'; 2 * MESSAGE_MAX]);
        assert_eq!(resume.message().unwrap().len(), MESSAGE_MAX);
    }
}
