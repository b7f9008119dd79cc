//! Credential plugins: programs that a kubeconfig names, and that print the user's credentials.

use std::error::Error;
use std::io::ErrorKind;

use flux_shared::causes::causes;
use kube::client::AuthError;
use kube::config::AuthInfo;

/// Most characters of a plugin's standard error in a message. Its end has the cause.
const MAX_ERROR_TEXT: usize = 500;

/// The plugin of a user.
#[derive(Debug, Clone)]
pub struct CredentialPlugin {
    name: String,
    install_hint: Option<String>,
}

impl CredentialPlugin {
    /// The plugin of this user. Without one, its name is empty and never used.
    pub fn of(user: &AuthInfo) -> CredentialPlugin {
        let provider = user.auth_provider.as_ref();
        let provider = provider.and_then(|provider| provider.config.get("cmd-path").cloned());
        let exec = user.exec.as_ref();
        CredentialPlugin {
            name: provider.or_else(|| exec?.command.clone()).unwrap_or_default(),
            install_hint: exec.and_then(|exec| exec.install_hint.clone()),
        }
    }

    /// Why there are no credentials. None: neither the error nor one of its sources is about that. The texts of
    /// the errors named here are not used: they have the plugin's arguments, environment and output, which may contain
    /// secrets.
    pub fn failure(&self, error: &(dyn Error + 'static)) -> Option<String> {
        let name = &self.name;
        Some(match find::<AuthError>(error)? {
            AuthError::AuthExecRun { out, .. } => {
                let text = end_of(&out.stderr);
                let colon = if text.is_empty() { "" } else { ": " };
                let end = if text.ends_with('.') { "" } else { "." };
                format!(
                    "the credential plugin {name} failed ({}){colon}{text}{end} Log in again",
                    out.status
                )
            }
            AuthError::AuthExecStart(source) => {
                let hint = match &self.install_hint {
                    Some(hint) if source.kind() == ErrorKind::NotFound => format!(". {hint}"),
                    _ => String::new(),
                };
                format!("failed to run the credential plugin {name}: {source}{hint}")
            }
            AuthError::ExecPluginFailed | AuthError::AuthExecParse(_) | AuthError::ParseTokenKey(_) => {
                format!("the credential plugin {name} printed no credentials. Log in again")
            }
            // At the renewal of a token. kube accepts a certificate, or a token without expiry, only at the start.
            AuthError::UnrefreshableTokenResponse => {
                format!("the credential plugin {name} printed no new token with an expiry date. Start again")
            }
            // Their texts have no arguments, no environment, and of the output at most an expiry date.
            other => causes(other),
        })
    }
}

/// The error, or the first of its sources, that has this type.
pub fn find<'a, T: Error + 'static>(mut error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    loop {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        error = error.source()?;
    }
}

/// The end of what a plugin has printed, in one line.
fn end_of(printed: &[u8]) -> String {
    let text = String::from_utf8_lossy(printed);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let left_out = line.chars().count().saturating_sub(MAX_ERROR_TEXT);
    if left_out == 0 {
        return line;
    }
    let end: String = line.chars().skip(left_out).collect();
    format!("…{end}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{ExitStatus, Output};

    use kube::config::ExecConfig;

    use super::*;

    fn plugin() -> CredentialPlugin {
        CredentialPlugin::of(&AuthInfo {
            exec: Some(ExecConfig {
                command: Some("aws".into()),
                install_hint: Some("Install it".into()),
                ..ExecConfig::default()
            }),
            ..AuthInfo::default()
        })
    }

    fn failed(stderr: &str) -> kube::Error {
        let out = Output {
            status: ExitStatus::from_raw(255 << 8),
            stdout: b"secret".to_vec(),
            stderr: stderr.into(),
        };
        // As tower boxes it.
        kube::Error::Service(Box::new(AuthError::AuthExecRun {
            cmd: r#"KEY="secret" "aws" "secret""#.into(),
            out: Box::new(out),
        }))
    }

    #[test]
    fn failure_has_the_plugins_words_and_no_secrets() {
        let of = |error: &kube::Error| plugin().failure(error).unwrap();
        for (stderr, middle) in [("", ""), ("\nno session\n  left\n", ": no session left")] {
            assert_eq!(
                of(&failed(stderr)),
                format!("the credential plugin aws failed (exit status: 255){middle}. Log in again")
            );
        }
        let long = of(&failed(&format!("{}the cause.", "x ".repeat(9999))));
        assert!(long.chars().count() < MAX_ERROR_TEXT + 100, "{long}");
        assert!(long.ends_with("x the cause. Log in again"), "{long}");
        let missing = kube::Error::Auth(AuthError::AuthExecStart(ErrorKind::NotFound.into()));
        assert_eq!(
            of(&missing),
            "failed to run the credential plugin aws: entity not found. Install it"
        );
        let denied = kube::Error::Auth(AuthError::AuthExecStart(ErrorKind::PermissionDenied.into()));
        assert!(of(&denied).ends_with(": permission denied"), "{}", of(&denied));
    }

    #[test]
    fn renewal_without_expiring_token_is_told_from_no_credentials() {
        let of = |error| plugin().failure(&kube::Error::Auth(error)).unwrap();
        assert_eq!(
            of(AuthError::UnrefreshableTokenResponse),
            "the credential plugin aws printed no new token with an expiry date. Start again"
        );
        assert_eq!(
            of(AuthError::ExecPluginFailed),
            "the credential plugin aws printed no credentials. Log in again"
        );
    }

    #[test]
    fn error_of_another_kind_is_no_failure_of_the_plugin() {
        assert_eq!(plugin().failure(&kube::Error::Service("refused".into())), None);
    }
}
