//! Reads the spec file, and checks it by the rules of the AgentSpec.

use std::path::{Path, PathBuf};

use flux_shared::agent_spec::{AgentSpec, SpecError};
use flux_shared::exit::Category;

/// Why the spec cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("failed to read the spec {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("failed to understand the spec {}", path.display())]
    Invalid { path: PathBuf, source: SpecError },
}

impl ReadError {
    pub fn category(&self) -> Category {
        match self {
            ReadError::Unreadable { .. } => Category::SpecUnreadable,
            ReadError::Invalid { .. } => Category::SpecInvalid,
        }
    }

    /// Whether the error may be temporary: the spec's volume is mounted late, or its server does not answer.
    pub fn is_passing(&self) -> bool {
        match self {
            ReadError::Unreadable { source, .. } => {
                source.kind() == std::io::ErrorKind::NotFound || crate::report::failure::is_passing(source)
            }
            ReadError::Invalid { .. } => false,
        }
    }

    /// What a person can do about the error.
    pub fn hint(&self) -> &'static str {
        match self {
            ReadError::Unreadable { .. } => "is the ConfigMap `<cluster>-agent` mounted in this container?",
            ReadError::Invalid {
                source: SpecError::Version(_),
                ..
            } => "operator and agent must be of one release: renew the agent's image",
            ReadError::Invalid { .. } => "`flux-agent dry-run FILE` shows the problem on a laptop, too",
        }
    }
}

/// The spec in the file `path`, not yet checked.
pub fn read(path: &Path) -> Result<AgentSpec, ReadError> {
    let text = std::fs::read_to_string(path).map_err(|source| ReadError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    AgentSpec::unchecked(&text).map_err(|source| ReadError::Invalid {
        path: path.to_owned(),
        source,
    })
}

/// Checks a spec that was read from `path` and completed from the pod's environment.
pub fn check(spec: &AgentSpec, path: &Path) -> Result<(), ReadError> {
    spec.check().map_err(|source| ReadError::Invalid {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_a_wrong_and_a_good_spec_are_told_apart() {
        let read = |path: &Path| read(path).and_then(|spec| check(&spec, path).map(|()| spec));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        assert_eq!(read(&path).unwrap_err().category(), Category::SpecUnreadable);
        std::fs::write(&path, "name = 'mc'\nsice = 4\n").unwrap();
        let error = read(&path).unwrap_err();
        assert_eq!(error.category(), Category::SpecInvalid);
        assert!(
            std::error::Error::source(&error)
                .unwrap()
                .to_string()
                .contains("sice")
        );
        std::fs::write(&path, "name = 'mc'\nversion = 9\n").unwrap();
        assert!(read(&path).unwrap_err().hint().contains("release"));
        std::fs::write(&path, "name = 'mc'\nsize = 4\n").unwrap();
        assert_eq!(read(&path).unwrap().size, 4);
    }
}
