//! The state that carries over from one step to the next: environment, working directory, umask and limits, with the
//! changes that snippets have made.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use flux_agent_plan::plan::{EnvChange, RunAs};
use flux_shared::command_words::{Word, WordPart};
use nix::sys::resource::{Resource, getrlimit};

use crate::facts::POD_VARIABLES;
use crate::supervise::program::Environment;
use crate::system::raw::Limit;

/// The state that one step leaves to the next.
#[derive(Debug, Clone)]
pub struct Session {
    pub environment: Environment,
    pub directory: PathBuf,
    pub umask: u32,
    /// Limits that a snippet has changed, by name.
    pub limits: BTreeMap<&'static str, Limit>,
    /// Variables for launched programs only. A snippet sets them by words `NAME=VALUE` after `-E` in `$asFlux`.
    pub as_flux: Environment,
    /// `$brokerOptions`, as the last snippet left it.
    pub broker_options: Option<String>,
    /// HOME, USER and LOGNAME before any step.
    initial_user: BTreeMap<&'static str, Option<OsString>>,
}

/// Variables that describe a user.
const USER_VARIABLES: [&str; 3] = ["HOME", "USER", "LOGNAME"];

/// The limits that carry over, by their names in a shell's report of its state (`shell_state`).
const LIMITS: [(&str, Resource); 13] = [
    ("as", Resource::RLIMIT_AS),
    ("core", Resource::RLIMIT_CORE),
    ("cpu", Resource::RLIMIT_CPU),
    ("data", Resource::RLIMIT_DATA),
    ("fsize", Resource::RLIMIT_FSIZE),
    ("locks", Resource::RLIMIT_LOCKS),
    ("memlock", Resource::RLIMIT_MEMLOCK),
    ("nice", Resource::RLIMIT_NICE),
    ("nofile", Resource::RLIMIT_NOFILE),
    ("nproc", Resource::RLIMIT_NPROC),
    ("rtprio", Resource::RLIMIT_RTPRIO),
    ("sigpending", Resource::RLIMIT_SIGPENDING),
    ("stack", Resource::RLIMIT_STACK),
];

impl Session {
    /// The state of this process, without the variables that only the agent uses.
    pub fn of_process() -> Session {
        let environment = std::env::vars_os()
            .filter(|(name, _)| !POD_VARIABLES.iter().any(|own| name == own))
            .collect();
        let directory = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        Session {
            umask: current_umask(),
            ..Session::new(environment, directory)
        }
    }

    /// A state with umask 0022 and unchanged limits.
    pub fn new(environment: Environment, directory: PathBuf) -> Session {
        let initial_user = USER_VARIABLES
            .map(|name| (name, environment.get(OsStr::new(name)).cloned()))
            .into();
        Session {
            environment,
            directory,
            umask: 0o022,
            limits: BTreeMap::new(),
            as_flux: Environment::new(),
            broker_options: None,
            initial_user,
        }
    }

    /// The state for a launched program, which runs as `user`, or as the agent's own user.
    pub fn of_flux(&self, user: Option<&RunAs>) -> Session {
        let mut session = self.clone();
        if let Some(RunAs { name: user, home, .. }) = user {
            for (name, value) in USER_VARIABLES.into_iter().zip([home, user, user]) {
                let current = self.environment.get(OsStr::new(name));
                let initial = self.initial_user.get(name).and_then(Option::as_ref);
                // If a snippet or the plan has changed the variable, the changed value is kept.
                if current == initial {
                    session.environment.insert(name.into(), value.into());
                }
            }
        }
        session.environment.extend(self.as_flux.clone());
        session
    }

    /// Removes the variables that are not UTF-8, and returns their names. Flux starts programs by JSON
    /// messages, which cannot hold them.
    pub fn remove_non_utf8(&mut self) -> Vec<String> {
        let is_text = |name: &OsString, value: &OsString| name.to_str().is_some() && value.to_str().is_some();
        let left_out = self
            .environment
            .extract_if(.., |name, value| !is_text(name, value));
        left_out
            .map(|(name, _)| name.to_string_lossy().into_owned())
            .collect()
    }

    /// The limits that a snippet has changed.
    pub fn limits(&self) -> Vec<Limit> {
        self.limits.values().copied().collect()
    }

    /// The value of a variable. Bytes that are not UTF-8 are replaced.
    pub fn lookup(&self, name: &str) -> Option<String> {
        self.environment
            .get(OsStr::new(name))
            .map(|value| value.to_string_lossy().into_owned())
    }

    /// A word with its variables replaced by their values. A variable that is not set counts as empty.
    pub fn resolve(&self, word: &Word) -> OsString {
        match word {
            Word::Literal(text) => text.into(),
            // Values are bytes: they need not be UTF-8.
            Word::Template(parts) => parts.iter().fold(OsString::new(), |mut word, part| {
                match part {
                    WordPart::Text(text) => word.push(text),
                    WordPart::Env(name) => {
                        word.push(self.environment.get(OsStr::new(name)).unwrap_or(&OsString::new()))
                    }
                }
                word
            }),
        }
    }

    /// Applies a change to the environment.
    pub fn apply(&mut self, change: &EnvChange) {
        match change {
            EnvChange::Set { name, value } => {
                let value = self.resolve(value);
                self.environment.insert(name.into(), value);
            }
            EnvChange::Append {
                name,
                separator,
                value,
            } => self.append(name, *separator, value),
            EnvChange::Withdraw {
                name,
                separator,
                value,
            } => self.withdraw(name, *separator, value),
            EnvChange::Default { name, value } => {
                self.environment
                    .entry(name.into())
                    .or_insert_with(|| value.into());
            }
            EnvChange::Remove { name } => {
                self.environment.remove(OsStr::new(name));
            }
        }
    }

    /// Undoes an append, even if a snippet has added other parts after it. Plans do this after `init` with Flux's
    /// folders, and append them again later, so that they come after what `init` has added.
    fn withdraw(&mut self, name: &str, separator: char, part: &str) {
        let Some(value) = self.environment.get_mut(OsStr::new(name)) else {
            return;
        };
        let Some(left) = without_last_part(value.as_bytes(), separator, part) else {
            return;
        };
        if left.is_empty() {
            self.environment.remove(OsStr::new(name));
        } else {
            *value = OsString::from_vec(left);
        }
    }

    /// Appends a part to a variable, unless the variable has it already.
    fn append(&mut self, name: &str, separator: char, value: &str) {
        let entry = self.environment.entry(name.into()).or_default();
        let mut bytes = std::mem::take(entry).into_vec();
        let mut separator_bytes = [0; 4];
        let separator = separator.encode_utf8(&mut separator_bytes).as_bytes();
        if bytes.is_empty() {
            bytes = value.into();
        } else if !contains_part(&bytes, separator, value.as_bytes()) {
            bytes.extend_from_slice(separator);
            bytes.extend_from_slice(value.as_bytes());
        }
        *entry = OsString::from_vec(bytes);
    }
}

/// `bytes`, parts with separators between them, without the last one that equals `part`; none if there is no
/// such part. A part at the beginning of a longer list stays, since a snippet may have put it there.
fn without_last_part(bytes: &[u8], separator: char, part: &str) -> Option<Vec<u8>> {
    let mut separator_bytes = [0; 4];
    let separator = separator.encode_utf8(&mut separator_bytes).as_bytes();
    let with_separator = [separator, part.as_bytes()].concat();
    if bytes == part.as_bytes() {
        return Some(Vec::new());
    }
    let is_end_of_part = |at: usize| bytes[at..].is_empty() || bytes[at..].starts_with(separator);
    let at = (0..bytes.len())
        .rev()
        .find(|at| bytes[*at..].starts_with(&with_separator) && is_end_of_part(at + with_separator.len()))?;
    Some([&bytes[..at], &bytes[at + with_separator.len()..]].concat())
}

fn contains_part(bytes: &[u8], separator: &[u8], part: &[u8]) -> bool {
    let mut rest = bytes;
    loop {
        let end = rest
            .windows(separator.len())
            .position(|window| window == separator);
        if &rest[..end.unwrap_or(rest.len())] == part {
            return true;
        }
        match end {
            Some(end) => rest = &rest[end + separator.len()..],
            None => return false,
        }
    }
}

/// The umask of this process. It cannot be read without setting it for a moment.
pub fn current_umask() -> u32 {
    let old = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    nix::sys::stat::umask(old);
    old.bits()
}

/// The limits of this process that carry over.
pub fn current_limits() -> impl Iterator<Item = Limit> {
    LIMITS.into_iter().filter_map(|(name, resource)| {
        let (soft, hard) = getrlimit(resource).ok()?;
        Some(Limit {
            name,
            resource,
            soft,
            hard,
        })
    })
}

/// Parses a limit of a shell's report: name, soft and hard limit, such as `nofile:1024:4096`.
pub fn parse_limit(text: &str) -> Option<Limit> {
    let mut parts = text.split(':');
    let name = parts.next()?;
    let (name, resource) = LIMITS.into_iter().find(|(known, _)| *known == name)?;
    Some(Limit {
        name,
        resource,
        soft: parts.next()?.parse().ok()?,
        hard: parts.next()?.parse().ok()?,
    })
}

/// Shell lines that change the environment `before` to `after`: `export NAME='value'`, `unset NAME`. Names that are
/// invalid in a shell are left out.
pub fn shell_changes(before: &Environment, after: &Environment) -> Vec<u8> {
    let mut text = Vec::new();
    for name in before
        .keys()
        .filter(|name| !after.contains_key(*name) && is_shell_name(name))
    {
        text.extend_from_slice(b"unset ");
        text.extend_from_slice(name.as_bytes());
        text.push(b'\n');
    }
    let changed = after
        .iter()
        .filter(|(name, value)| before.get(*name) != Some(value));
    text.extend(exports(
        changed.map(|(name, value)| (name.as_os_str(), value.as_os_str())),
    ));
    text
}

/// Shell lines `export NAME='value'`.
pub fn exports<'a>(variables: impl Iterator<Item = (&'a OsStr, &'a OsStr)>) -> Vec<u8> {
    lines(b"export ", variables)
}

/// Shell lines `NAME='value'`: variables that programs do not see.
pub fn assignments<'a>(variables: impl Iterator<Item = (&'a OsStr, &'a OsStr)>) -> Vec<u8> {
    lines(b"", variables)
}

fn lines<'a>(prefix: &[u8], variables: impl Iterator<Item = (&'a OsStr, &'a OsStr)>) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in variables.filter(|(name, _)| is_shell_name(name)) {
        text.extend_from_slice(prefix);
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b"='");
        for byte in value.as_bytes() {
            match byte {
                b'\'' => text.extend_from_slice(br"'\''"),
                byte => text.push(*byte),
            }
        }
        text.extend_from_slice(b"'\n");
    }
    text
}

/// Whether this is a valid name of a shell variable.
pub fn is_shell_name(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    bytes.first().is_some_and(|first| !first.is_ascii_digit())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(variables: &[(&str, &str)]) -> Session {
        let environment = variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        Session::new(environment, "/".into())
    }

    #[test]
    fn appending_keeps_what_is_there_and_happens_once() {
        let mut session = session(&[("PATH", "/bin:/usr/bin"), ("EMPTY", "")]);
        let mut append = |name: &str, value: &str| {
            session.apply(&EnvChange::Append {
                name: name.into(),
                separator: ':',
                value: value.into(),
            });
            session.lookup(name).unwrap()
        };
        assert_eq!(
            append("PATH", "/mnt/flux/view/bin"),
            "/bin:/usr/bin:/mnt/flux/view/bin"
        );
        assert_eq!(append("PATH", "/usr/bin"), "/bin:/usr/bin:/mnt/flux/view/bin");
        assert_eq!(append("PATH", "/usr"), "/bin:/usr/bin:/mnt/flux/view/bin:/usr");
        assert_eq!(append("EMPTY", "x"), "x");
        assert_eq!(append("NEW", "x"), "x");
    }

    #[test]
    fn withdraw_removes_appended_path_and_keeps_the_users_own() {
        let withdrawn = |path: &str| {
            let mut session = session(&[("PATH", path)]);
            session.apply(&EnvChange::Withdraw {
                name: "PATH".into(),
                separator: ':',
                value: "/view/bin".into(),
            });
            session.lookup("PATH")
        };
        assert_eq!(withdrawn("/bin:/view/bin").as_deref(), Some("/bin"));
        assert_eq!(
            withdrawn("/own:/bin:/view/bin:/late").as_deref(),
            Some("/own:/bin:/late")
        );
        assert_eq!(
            withdrawn("/view/bin:/bin:/view/bin").as_deref(),
            Some("/view/bin:/bin"),
            "put first by a snippet"
        );
        assert_eq!(
            withdrawn("/bin:/view/bin2:/view").as_deref(),
            Some("/bin:/view/bin2:/view")
        );
        assert_eq!(
            (withdrawn("/view/bin"), withdrawn("/view/bin:/x").as_deref()),
            (None, Some("/view/bin:/x"))
        );
    }

    #[test]
    fn values_keep_their_bytes_inside_of_a_word() {
        let latin = OsString::from_vec(b"a\xffb".to_vec());
        let session = Session::new([("P".into(), latin)].into(), "/".into());
        let word = flux_shared::command_words::split("\"x$P/$NONE\"")
            .unwrap()
            .words
            .remove(0);
        assert_eq!(session.resolve(&word).as_bytes(), b"xa\xffb/");
    }

    #[test]
    fn environment_changes_see_the_earlier_ones() {
        let mut session = session(&[("A", "1"), ("GONE", "x")]);
        let word = flux_shared::command_words::split("\"<$A$B>\"")
            .unwrap()
            .words
            .remove(0);
        session.apply(&EnvChange::Set {
            name: "C".into(),
            value: word,
        });
        session.apply(&EnvChange::Default {
            name: "A".into(),
            value: "2".into(),
        });
        session.apply(&EnvChange::Default {
            name: "D".into(),
            value: "4".into(),
        });
        session.apply(&EnvChange::Remove { name: "GONE".into() });
        let variables: Vec<String> = session
            .environment
            .iter()
            .map(|(n, v)| format!("{}={}", n.display(), v.display()))
            .collect();
        assert_eq!(variables, ["A=1", "C=<1>", "D=4"]);
    }

    #[test]
    fn home_of_user_is_for_its_programs_unless_snippet_sets_it() {
        let owner = flux_agent_plan::plan::Owner { uid: 1002, gid: 1002 };
        let ada = RunAs {
            owner,
            name: "ada".into(),
            home: "/home/ada".into(),
        };
        let mut session = session(&[("HOME", "/root"), ("USER", "root")]);
        let home = |session: &Session| session.of_flux(Some(&ada)).lookup("HOME").unwrap();
        assert_eq!(home(&session), "/home/ada");
        assert_eq!(
            session.of_flux(Some(&ada)).lookup("LOGNAME").as_deref(),
            Some("ada")
        );
        assert_eq!(
            session.lookup("HOME").as_deref(),
            Some("/root"),
            "root keeps its own"
        );
        assert_eq!(session.of_flux(None).lookup("HOME").as_deref(), Some("/root"));
        session.environment.insert("HOME".into(), "/data".into());
        assert_eq!(home(&session), "/data");
        session.as_flux.insert("HOME".into(), "/efa".into());
        assert_eq!(
            (home(&session).as_str(), session.lookup("HOME").as_deref()),
            ("/efa", Some("/data"))
        );
    }

    #[test]
    fn every_value_survives_a_real_shell() {
        let nasty = OsString::from_vec(b"it's \"$HOME\" `x` \\ \n two\ttabs ! * \xff end".to_vec());
        let before = Environment::from([("GONE".into(), "1".into()), ("SAME".into(), "1".into())]);
        let after = Environment::from([
            ("SAME".into(), "1".into()),
            ("NASTY".into(), nasty.clone()),
            ("no-shell.name".into(), "x".into()),
        ]);
        let mut script = shell_changes(&before, &after);
        assert!(!script.windows(4).any(|w| w == b"SAME" || w == b"no-s"));
        script.extend_from_slice(b"printf %s \"$NASTY${GONE-unset}\"");
        let output = std::process::Command::new("sh")
            .arg("-c")
            .arg(OsString::from_vec(script))
            .env("GONE", "1")
            .output();
        let mut want = nasty.into_vec();
        want.extend_from_slice(b"unset");
        assert_eq!(output.unwrap().stdout, want);
    }
}
