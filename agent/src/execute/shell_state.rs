//! The report of a shell's state. The shell runs `flux-agent snippet-state`, which inherits the state and writes the
//! report.
//!
//! A report is a list of records that end in NUL: `status=0`, `umask=0022`, `directory=/x`, `as-flux=…`, `bash=…`,
//! `broker-options=…`, `limit=nofile:1024:4096` for each limit, `environment`, every exported variable
//! (`NAME=value`), `end`.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::session::{Session, current_limits, current_umask, is_shell_name, parse_limit};
use crate::supervise::program::Environment;
use crate::system::raw::Limit;

/// Prefix of the agent's own variables in the shell. They are not carried over.
pub const AGENT_PREFIX: &str = "flux_agent_";
/// The lists of folders that `DRIVER` (`shell.rs`) sets to an empty text if they are not set. In them, an empty element means
/// the current directory, such as in `/opt/lib:`, which `/opt/lib:$LD_LIBRARY_PATH` then becomes. (PATH is always set, so an
/// empty element there is the user's own.)
const FOLDER_LISTS: [&str; 2] = ["LD_LIBRARY_PATH", "PYTHONPATH"];
/// Variables that shells set for themselves. A snippet's changes of them are ignored.
const SHELL_VARIABLES: [&str; 3] = ["_", "SHLVL", "OLDPWD"];
/// Begins the report of a shell whose `command` or `.` the user has replaced or disabled. The agent's script in the
/// shell (`DRIVER` in `shell.rs`) then cannot read the agent's next command: it reports this instead, and ends. The
/// snippet did not run.
const UNHEARD: &[u8] = b"status=unheard\0";
/// The last record of a report.
const LAST: &[u8] = b"\0end\0";

/// What a shell reported after a snippet.
#[derive(Debug, PartialEq)]
pub struct ShellState {
    /// The snippet's exit status.
    pub status: u8,
    pub umask: u32,
    pub directory: PathBuf,
    /// The value of `$asFlux`.
    pub as_flux: String,
    /// The value of `$brokerOptions`; none: the report does not have it.
    pub broker_options: Option<String>,
    /// Whether the shell is bash, so that the environment has its exported functions.
    pub exports_functions: bool,
    pub limits: Vec<Limit>,
    pub environment: Environment,
}

/// The part of its state that the shell passes as arguments. The process that it starts inherits the rest.
#[derive(Debug, clap::Args)]
pub struct StateReport {
    output: PathBuf,
    status: String,
    #[arg(allow_hyphen_values = true)]
    as_flux: OsString,
    #[arg(allow_hyphen_values = true)]
    broker_options: OsString,
    /// Empty: it is another shell, which knows no exported functions.
    bash_version: OsString,
}

/// Writes the state of this process, which it has inherited from the shell that runs it.
pub fn report(report: &StateReport) -> io::Result<()> {
    let StateReport {
        output,
        status,
        as_flux,
        broker_options,
        bash_version,
    } = report;
    let mut text = format!("status={status}\0umask={:04o}\0directory=", current_umask()).into_bytes();
    text.extend_from_slice(std::env::current_dir().unwrap_or_default().as_os_str().as_bytes());
    text.extend_from_slice(b"\0as-flux=");
    text.extend_from_slice(as_flux.as_bytes());
    text.extend_from_slice(b"\0bash=");
    text.extend_from_slice(bash_version.as_bytes());
    text.extend_from_slice(b"\0broker-options=");
    text.extend_from_slice(broker_options.as_bytes());
    for limit in current_limits() {
        let record = format!("\0limit={}:{}:{}", limit.name, limit.soft, limit.hard);
        text.extend_from_slice(record.as_bytes());
    }
    text.extend_from_slice(b"\0environment");
    for (name, value) in std::env::vars_os() {
        text.push(0);
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        text.extend_from_slice(value.as_bytes());
    }
    text.extend_from_slice(LAST);
    std::fs::OpenOptions::new()
        .write(true)
        .open(output)?
        .write_all(&text)
}

/// Whether these bytes are the whole report of a shell that cannot read the agent's commands.
pub fn is_unheard(bytes: &[u8]) -> bool {
    bytes.starts_with(UNHEARD) && bytes.ends_with(LAST)
}

/// The environment without the variables that a shell sets for itself.
pub fn without_shells_own(environment: &Environment) -> Environment {
    environment
        .iter()
        .filter(|(name, _)| !is_shells_own(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Whether shells set this variable for themselves. PWD is not in `SHELL_VARIABLES`, since a change of it is
/// carried over if the environment had it before.
fn is_shells_own(name: &OsStr) -> bool {
    SHELL_VARIABLES.iter().any(|own| name == *own) || name == "PWD"
}

/// The first report in `bytes`. None: it is not complete yet. (After a snippet that has replaced `.`, the report
/// [`UNHEARD`] comes right after that of the snippet.)
pub fn parse(bytes: &[u8]) -> Option<ShellState> {
    let end = bytes.windows(LAST.len()).position(|part| part == LAST)?;
    let body = &bytes[..end];
    let mut records = body.split(|byte| *byte == 0);
    let mut state = ShellState {
        status: 0,
        umask: 0o022,
        directory: PathBuf::new(),
        as_flux: String::new(),
        broker_options: None,
        exports_functions: false,
        limits: Vec::new(),
        environment: Environment::new(),
    };
    for record in records.by_ref().take_while(|record| *record != b"environment") {
        let (name, value) = split(record)?;
        let text = String::from_utf8_lossy(value);
        match name {
            b"status" => state.status = text.parse().ok()?,
            b"umask" => state.umask = u32::from_str_radix(&text, 8).ok()?,
            b"directory" => state.directory = OsString::from_vec(value.to_vec()).into(),
            b"as-flux" => state.as_flux = text.into_owned(),
            b"bash" => state.exports_functions = !text.is_empty(),
            b"broker-options" => state.broker_options = Some(text.into_owned()),
            b"limit" => state.limits.extend(parse_limit(&text)),
            _ => {}
        }
    }
    for record in records {
        let (name, value) = split(record)?;
        state.environment.insert(
            OsString::from_vec(name.to_vec()),
            OsString::from_vec(value.to_vec()),
        );
    }
    Some(state)
}

fn split(record: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..at], &record[at + 1..]))
}

impl ShellState {
    /// Carries the state over into `session`. `agent_limits`: the agent's own limits, which are no changes.
    pub fn carry_over(&self, session: &mut Session, agent_limits: &[Limit]) {
        let old = std::mem::take(&mut session.environment);
        let mut new = self.environment.clone();
        new.retain(|name, _| !name.as_bytes().starts_with(AGENT_PREFIX.as_bytes()));
        new.retain(|name, _| !is_shells_own(name) || old.contains_key(name));
        for (name, value) in old {
            // The shell changes these variables, not the user: they keep their old values.
            if SHELL_VARIABLES.iter().any(|own| name == *own) {
                new.insert(name, value);
            } else if !(is_shell_name(&name) || (self.exports_functions && is_function(&name))) {
                // A shell drops a variable if its name is not valid in a shell. The variable is kept. But if
                // bash does not report a function, a snippet has unset it.
                new.entry(name).or_insert(value);
            }
        }
        // The current directory may belong to the job's user, and the next snippet may run as root.
        for name in FOLDER_LISTS {
            if let Some(value) = new.get_mut(OsStr::new(name)) {
                *value = without_empty_elements(value);
            }
        }
        session.as_flux = as_flux_variables(&self.as_flux);
        session.broker_options.clone_from(&self.broker_options);
        session.environment = new;
        if self.directory.is_dir() {
            session.directory.clone_from(&self.directory);
        }
        session.umask = self.umask;
        for limit in &self.limits {
            if agent_limits.contains(limit) {
                session.limits.remove(limit.name);
            } else {
                session.limits.insert(limit.name, *limit);
            }
        }
    }
}

fn without_empty_elements(list: &OsStr) -> OsString {
    let elements: Vec<&[u8]> = list
        .as_bytes()
        .split(|byte| *byte == b':')
        .filter(|element| !element.is_empty())
        .collect();
    OsString::from_vec(elements.join(&b':'))
}

/// Whether a variable holds a function that bash has exported.
fn is_function(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"BASH_FUNC_")
}

/// The variables that a snippet gives to Flux by its own `$asFlux`, such as `sudo -u flux -E PATH=/x -E HOME=/y`: the
/// `NAME=VALUE` words after the first `-E`.
fn as_flux_variables(text: &str) -> Environment {
    let words = flux_shared::command_words::split_leniently(text);
    let preserved = words.iter().skip_while(|word| *word != "-E");
    preserved
        .filter_map(|word| word.split_once('='))
        .filter(|(name, _)| is_shell_name(OsStr::new(name)))
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn list_of_folders_has_no_empty_element() {
        for (list, kept) in [
            ("/x:", "/x"),
            (":/x", "/x"),
            ("/a::/b", "/a:/b"),
            ("", ""),
            ("/a:.", "/a:."),
        ] {
            assert_eq!(without_empty_elements(OsStr::new(list)), OsStr::new(kept));
        }
    }

    fn environment(variables: &[(&str, &str)]) -> Environment {
        variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    #[test]
    fn a_state_is_read_back_only_when_it_is_complete() {
        let text =
            b"status=3\0umask=0077\0directory=/tmp\0as-flux=x\0limit=nofile:10:20\0environment\0A=1\0B=x=\n\0end\0";
        for end in 0..text.len() {
            assert_eq!(parse(&text[..end]), None);
        }
        let state = parse(text).unwrap();
        assert_eq!(
            (state.status, state.umask, state.directory.as_path()),
            (3, 0o077, Path::new("/tmp"))
        );
        assert_eq!(state.limits, [parse_limit("nofile:10:20").unwrap()]);
        assert_eq!(state.environment, environment(&[("A", "1"), ("B", "x=\n")]));
        let unheard = [UNHEARD, b"umask=0022\0environment\0A=2", LAST].concat();
        assert_eq!(
            parse(&[text.as_slice(), &unheard].concat()),
            Some(state),
            "the first report counts"
        );
    }

    #[test]
    fn shell_state_omits_shell_variables_and_keeps_odd_names() {
        let own = environment(&[("A", "1"), ("MY-VAR", "kept"), ("SHLVL", "0")]);
        let mut session = Session::new(own, "/".into());
        let reported = [
            ("B", "2"),
            ("SHLVL", "1"),
            ("PWD", "/tmp"),
            ("OLDPWD", "/"),
            ("_", "x"),
            ("flux_agent_ask", "y"),
        ];
        let state = ShellState {
            status: 0,
            umask: 0o077,
            directory: "/tmp".into(),
            exports_functions: false,
            broker_options: None,
            as_flux: "sudo -u flux -E HOME=/home/x -E \"P=a b\"".into(),
            limits: ["nofile:5:6", "core:1:1"]
                .map(|text| parse_limit(text).unwrap())
                .into(),
            environment: environment(&reported),
        };
        state.carry_over(&mut session, &[parse_limit("core:1:1").unwrap()]);
        let want = [("B", "2"), ("MY-VAR", "kept"), ("SHLVL", "0")];
        assert_eq!(session.environment, environment(&want));
        assert_eq!(session.as_flux, environment(&[("HOME", "/home/x"), ("P", "a b")]));
        assert_eq!(
            (session.umask, session.directory.as_path()),
            (0o077, Path::new("/tmp"))
        );
        assert_eq!(session.limits(), [parse_limit("nofile:5:6").unwrap()]);
    }
}
