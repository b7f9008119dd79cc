//! Collects what the checks of a manifest find: problems, which make it invalid, and notices.

use crate::problem::{Notice, Problem};

/// Problems and notices so far, each with the path of its field.
#[derive(Debug, Default)]
pub struct Report {
    pub problems: Vec<Problem>,
    pub notices: Vec<Notice>,
}

impl Report {
    pub fn problem(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem::new(field, message));
    }

    pub fn notice(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.notices.push(Problem::new(field, message));
    }

    /// The value. If it is an error, adds the error as a problem of `field`, and returns None.
    pub fn take<T>(&mut self, field: impl Into<String>, value: Result<T, String>) -> Option<T> {
        value.map_err(|message| self.problem(field, message)).ok()
    }
}
