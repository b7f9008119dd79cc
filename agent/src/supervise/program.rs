//! Starts a program as a shell would: looked up on the given PATH, with exactly the given environment.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flux_agent_plan::known_paths::DEFAULT_PATH;
use flux_shared::exit::{NOT_EXECUTABLE, NOT_FOUND};

use super::output::{self, OutputCopier};
use crate::report::failure::{is_passing, plain};
use crate::system::glibc::Libc;
use crate::system::raw::{self, ChildSetup};

/// Environment variables by name.
pub type Environment = BTreeMap<OsString, OsString>;

/// Where standard output goes.
#[derive(Debug)]
pub enum Output {
    Inherit,
    /// To pseudo-terminals that the agent copies, together with standard error.
    LineBuffered,
    Discard,
    To(OwnedFd),
}

/// A program to start.
#[derive(Debug)]
pub struct ChildProgram<'a> {
    pub argv: &'a [OsString],
    pub environment: &'a Environment,
    pub directory: &'a Path,
    pub output: Output,
    pub setup: ChildSetup,
}

/// A started program, which leads its own process group.
#[derive(Debug)]
pub struct Child {
    pub pid: i32,
    pub copier: Option<OutputCopier>,
}

/// Why a program did not start, with the exit code that a shell would give.
#[derive(Debug, thiserror::Error)]
#[error("failed to start {name}: {why}")]
pub struct StartError {
    pub name: String,
    pub why: String,
    pub code: u8,
    /// Whether a later attempt may succeed: for example, the limit of processes was reached.
    pub is_passing: bool,
}

impl ChildProgram<'_> {
    /// Starts the program. Only the supervisor calls this: it must know every child.
    pub(super) fn start(&self) -> Result<Child, StartError> {
        let name = self
            .argv
            .first()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let fail = |code, why: &str| StartError {
            name: name.clone(),
            why: why.into(),
            code,
            is_passing: false,
        };
        let path = match find(
            self.argv.first().map_or(OsStr::new(""), OsString::as_os_str),
            self.environment,
            self.directory,
        ) {
            Lookup::Program(path) => path,
            Lookup::NotExecutable(path) => {
                return Err(fail(
                    NOT_EXECUTABLE,
                    &format!("{} is not executable", path.display()),
                ));
            }
            Lookup::NotFound => return Err(fail(NOT_FOUND, "not found")),
        };
        // `argv` has a first word: without one, `find` has found nothing.
        self.spawn(&path).map_err(|error| {
            if is_passing(&error) {
                StartError {
                    is_passing: true,
                    ..fail(NOT_EXECUTABLE, &plain(&error))
                }
            } else if !self.directory.is_dir() {
                let directory = self.directory.display();
                fail(
                    NOT_EXECUTABLE,
                    &format!("its working directory {directory} does not exist"),
                )
            } else if error.kind() == std::io::ErrorKind::NotFound {
                // The file exists, so its loader or its interpreter is missing, or /bin/sh for a file whose format the
                // kernel does not know.
                let missing_interpreter = || {
                    interpreter(&path).map(|interpreter| {
                        if interpreter.ends_with('\r') {
                            "it has Windows line ends (CR LF): save it with LF".to_owned()
                        } else {
                            format!("its interpreter {interpreter} is not in this image")
                        }
                    })
                };
                let cause = Libc::of(&path, Path::new("/"))
                    .and_then(|libc| libc.trouble())
                    .or_else(missing_interpreter);
                fail(NOT_FOUND, cause.as_deref().unwrap_or("not found"))
            } else {
                fail(NOT_EXECUTABLE, &plain(&error))
            }
        })
    }

    /// The C library runs a file whose format the kernel does not know in /bin/sh, as every shell does: a script
    /// without a `#!` line.
    fn spawn(&self, path: &Path) -> std::io::Result<Child> {
        let mut command = Command::new(path);
        command
            // As the caller wrote it.
            .arg0(&self.argv[0])
            .args(&self.argv[1..])
            .env_clear()
            .envs(self.environment)
            .current_dir(self.directory);
        let mut copier = None;
        match &self.output {
            Output::Inherit => {}
            Output::To(fd) => {
                command.stdout(Stdio::from(fd.try_clone()?));
            }
            Output::Discard => {
                command.stdout(Stdio::null());
            }
            // Without a pseudo-terminal, output is inherited: it may be delayed, but it is not lost.
            Output::LineBuffered => {
                if let (Ok(stdout), Ok(stderr)) = (output::open(), output::open()) {
                    // Started before the child, since nothing may fail once the child runs.
                    copier = Some(OutputCopier::start(stdout.0, stderr.0)?);
                    command
                        .stdout(Stdio::from(stdout.1))
                        .stderr(Stdio::from(stderr.1));
                }
            }
        }
        raw::prepare(&mut command, self.setup.clone());
        let pid = command.spawn()?.id().cast_signed();
        drop(command); // our copies of the child's sides of the pseudo-terminals
        Ok(Child { pid, copier })
    }
}

/// The interpreter that a script's first line names, as the kernel reads it: a carriage return belongs to the name.
fn interpreter(script: &Path) -> Option<String> {
    let mut head = Vec::new();
    std::fs::File::open(script)
        .ok()?
        .take(256) // as much as the kernel reads
        .read_to_end(&mut head)
        .ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.split([' ', '\t']).filter(|word| !word.is_empty());
    Some(words.next()?.to_owned())
}

/// The result of looking up a program.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup {
    Program(PathBuf),
    NotExecutable(PathBuf),
    NotFound,
}

/// Looks `name` up as a shell does: with a slash as it is, else along the PATH. Relative paths begin at `directory`.
pub fn find(name: &OsStr, environment: &Environment, directory: &Path) -> Lookup {
    if name.is_empty() {
        return Lookup::NotFound;
    }
    let path = environment
        .get(OsStr::new("PATH"))
        .map_or(OsStr::new(DEFAULT_PATH), OsString::as_os_str);
    if let Ok(program) = which::which_in(name, Some(path), directory) {
        return Lookup::Program(program);
    }
    // `which` does not distinguish a file that is not executable from a missing one. A shell's exit codes do.
    let folders = if name.as_bytes().contains(&b'/') {
        vec![PathBuf::new()]
    } else {
        std::env::split_paths(path).collect()
    };
    let not_executable = folders
        .into_iter()
        .map(|folder| directory.join(folder).join(name))
        .find(|file| file.exists());
    not_executable.map_or(Lookup::NotFound, Lookup::NotExecutable)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn error_of(program: &Path, directory: &Path) -> String {
        let argv = [program.into()];
        let (output, setup) = (Output::Inherit, ChildSetup::default());
        let program = ChildProgram {
            argv: &argv,
            environment: &Environment::new(),
            directory,
            output,
            setup,
        };
        program.start().unwrap_err().to_string()
    }

    #[test]
    fn missing_interpreter_or_windows_line_ends_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("run.sh");
        let windows = "it has Windows line ends (CR LF): save it with LF";
        for (text, why) in [
            (
                "#! /opt/missing/python -u\nprint(1)\n",
                "its interpreter /opt/missing/python is not in this image",
            ),
            ("#!/bin/sh\r\necho a\r\n", windows),
            ("#! /bin/sh\r\n", windows),
        ] {
            std::fs::write(&script, text).unwrap();
            std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
            let wanted = format!("failed to start {}: {why}", script.display());
            assert_eq!(error_of(&script, folder.path()), wanted);
        }
    }

    #[test]
    fn missing_working_directory_is_named() {
        let error = error_of(Path::new("/bin/true"), Path::new("/nonexistent/run"));
        assert_eq!(
            error,
            "failed to start /bin/true: its working directory /nonexistent/run does not exist"
        );
    }

    #[test]
    fn program_is_looked_up_as_by_a_shell() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (name, mode) in [("a/tool", 0o644), ("b/tool", 0o755), ("a/plain", 0o644)] {
            std::fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            std::fs::write(at(name), "").unwrap();
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = format!("{}:{}:", at("a").display(), at("b").display());
        let environment = Environment::from([("PATH".into(), path.into())]);
        let look = |name: &str| find(OsStr::new(name), &environment, folder.path());
        assert_eq!(look("tool"), Lookup::Program(at("b/tool")));
        assert_eq!(look("plain"), Lookup::NotExecutable(at("a/plain")));
        assert_eq!(look("nothing"), Lookup::NotFound);
        assert_eq!(look("b/tool"), Lookup::Program(at("b/tool")));
        assert_eq!(
            look("b"),
            Lookup::NotExecutable(at("b")),
            "the empty entry of the PATH is the working directory"
        );
        assert_eq!(look(""), Lookup::NotFound);
    }
}
