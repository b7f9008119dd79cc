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
