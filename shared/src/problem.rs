//! What is wrong with a MiniCluster, and where.

/// A problem, and the field that it is about.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// Path from the object's root, such as `spec.containers[0].image`. Empty: the whole object or text.
    pub field: String,
    /// What is wrong, and the remedy.
    pub message: String,
}

impl Problem {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem {
            field: field.into(),
            message: message.into(),
        }
    }

    /// Whether the problem is about the field `path` or a part of it.
    pub(crate) fn is_within(&self, path: &str) -> bool {
        let is_part = |rest: &str| path.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']);
        self.field.strip_prefix(path).is_some_and(is_part)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.field.is_empty() {
            write!(formatter, "{}", self.message)
        } else {
            write!(formatter, "{}: {}", self.field, self.message)
        }
    }
}

/// A message about a valid field that may not have the effect that its user expects.
pub type Notice = Problem;
