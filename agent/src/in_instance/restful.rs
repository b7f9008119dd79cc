//! `flux-agent restful`: fetches the Flux RESTful API, installs it, and runs it. This is the lead's program if the
//! MiniCluster has no other and is not interactive.
//!
//! ```text
//! git clone ─► pip install (into a folder of its own) ─► database, users ─► uvicorn
//! ```
//!
//! The API runs as the user that Flux runs as, inside the instance: signals and exit codes work as for any program. A
//! later run uses the finished installation of an earlier one.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use flux_shared::exit::NOT_FOUND;
use flux_shared::paths::{RESTFUL_SECRET_KEY, RESTFUL_TOKEN, RESTFUL_USERNAME};

use super::command_runner::CommandRunner;
use crate::report::failure::{Failure, plain};
use crate::report::log;
use crate::supervise::program::Output;

/// Marker file, written last: the installation and the database are complete.
const INSTALLED: &str = ".flux-agent-installed";
/// Folder in the checkout for the Python modules that pip installs, apart from the image's own.
const PACKAGES: &str = ".packages";
/// Constraints for pip, since newer releases break the API. passlib, without a release since 2020, reads a name
/// that bcrypt removed in 4.1, and fails with bcrypt 5. The API's pages use starlette's interface from before 1.0, and
/// fail with 1.10.
const CONSTRAINTS: &str = "bcrypt<4.1\nstarlette<1\n";
const CONSTRAINTS_FILE: &str = ".flux-agent-constraints";
/// uvicorn's logging configuration: it logs to standard error only. Standard output is discarded, since the API
/// prints tokens and passwords there.
const LOGGING: &str = r#"{"version": 1, "disable_existing_loggers": false,
"formatters": {"default": {"()": "uvicorn.logging.DefaultFormatter", "fmt": "%(levelprefix)s %(message)s"},
"access": {"()": "uvicorn.logging.AccessFormatter",
"fmt": "%(levelprefix)s %(client_addr)s - \"%(request_line)s\" %(status_code)s"}},
"handlers": {"default": {"class": "logging.StreamHandler", "formatter": "default"},
"access": {"class": "logging.StreamHandler", "formatter": "access"}},
"loggers": {"uvicorn": {"handlers": ["default"], "level": "INFO", "propagate": false},
"uvicorn.access": {"handlers": ["access"], "level": "INFO", "propagate": false}}}
"#;
const LOGGING_FILE: &str = ".flux-agent-logging.json";

/// Calls the API's own script to add a user, with the password from a file: every process in the pod can read a
/// command line.
const ADD_USER: &str = "
import runpy, sys
script, user, file = sys.argv[1:]
sys.argv = [script, 'add-user', '--', user, open(file).read()]
runpy.run_path(script, run_name='__main__')
";
const DATABASE_SCRIPT: &str = "app/db/init_db.py";

/// What to serve, and how.
#[derive(Debug, clap::Args)]
pub struct RestfulArgs {
    /// Folder for the installation and the keys
    #[arg(long)]
    directory: PathBuf,
    /// Address of the repository
    #[arg(long)]
    repository: String,
    /// Branch or tag
    #[arg(long)]
    branch: String,
    /// Commit to run instead of the branch's newest one
    #[arg(long)]
    commit: Option<String>,
    #[arg(long)]
    port: u16,
    /// Number of nodes that a job may ask for: all hosts of the instance, also those that may join later
    #[arg(long)]
    nodes: u32,
    /// Default options of jobs
    #[arg(long, default_value = "")]
    option_flags: String,
    /// A user of the server, whose password is in the folder `users`
    #[arg(long = "user")]
    users: Vec<String>,
}

/// Why the server does not run: a step failed, or a stop signal arrived.
struct Stopped {
    /// The exit code of `flux-agent restful`.
    code: u8,
    /// A line for the log; empty after a stop signal.
    line: String,
}

impl Stopped {
    fn new(code: u8, line: impl Into<String>) -> Stopped {
        Stopped {
            code,
            line: line.into(),
        }
    }
}

/// Installs and runs the server; returns the exit code of the server, or of the step that failed.
pub fn run(args: &RestfulArgs) -> Result<u8, Failure> {
    crate::system::runtime::block_on(Box::pin(async {
        let mut server = RestfulServer {
            runner: CommandRunner::new()?,
            args,
            checkout_folder: args.directory.join("api"),
        };
        let served = match server.prepare().await {
            Ok(()) => server.serve().await,
            Err(stopped) => Err(stopped),
        };
        Ok(served.unwrap_or_else(|Stopped { code, line }| {
            if !line.is_empty() {
                log::fatal("restful", &line);
            }
            code
        }))
    }))
}

struct RestfulServer<'a> {
    runner: CommandRunner,
    args: &'a RestfulArgs,
    checkout_folder: PathBuf,
}

impl RestfulServer<'_> {
    /// Installs the server unless an earlier run did, and sets up its environment.
    async fn prepare(&mut self) -> Result<(), Stopped> {
        if self.checkout_folder.join(INSTALLED).exists() {
            return self.set_up_session();
        }
        // `fetch` removes the incomplete installation of an earlier run.
        tracing::info!(
            stage = "restful",
            "fetching {} ({})",
            self.args.repository,
            self.args.branch
        );
        self.fetch().await?;
        tracing::info!(stage = "restful", "installing its Python dependencies with pip");
        self.install().await?;
        // Only now, since it makes the checkout the working directory, and `fetch` creates the checkout.
        self.set_up_session()?;
        self.create_database().await?;
        self.write(LOGGING_FILE, LOGGING)?;
        self.write(INSTALLED, "").map(drop)
    }

    /// Removes an incomplete checkout, and fetches a new one.
    async fn fetch(&mut self) -> Result<(), Stopped> {
        let (repository, branch) = (&self.args.repository, &self.args.branch);
        if self.checkout_folder.exists() {
            fs::remove_dir_all(&self.checkout_folder)
                .map_err(|error| failed("remove", &self.checkout_folder, &error))?;
        }
        // Otherwise git would prompt for a user name, and wait.
        self.runner
            .session
            .environment
            .insert("GIT_TERMINAL_PROMPT".into(), "0".into());
        match self.clone_repository().await? {
            0 => Ok(()),
            NOT_FOUND => Err(Stopped::new(
                NOT_FOUND,
                "the Flux RESTful API needs git, which this image lacks: add it, or give the cluster a command, or interactive: true",
            )),
            code => {
                let wanted = self
                    .args
                    .commit
                    .as_ref()
                    .map_or_else(|| format!("branch {branch}"), |commit| format!("commit {commit}"));
                Err(Stopped::new(
                    code,
                    format!(
                        "failed to fetch {repository}: does it have {wanted}, and can the pod reach it? The operator's option --restful-repository names a mirror"
                    ),
                ))
            }
        }
    }

    /// Fetches the branch, or the commit, into the checkout folder; returns git's exit code.
    async fn clone_repository(&mut self) -> Result<u8, Stopped> {
        let (repository, folder) = (
            self.args.repository.as_str(),
            self.checkout_folder.clone().into_os_string(),
        );
        let words = |words: &[&str]| -> Vec<OsString> { words.iter().map(OsString::from).collect() };
        let Some(commit) = &self.args.commit else {
            let clone = words(&[
                "git",
                "clone",
                "--quiet",
                "--depth=1",
                "--branch",
                &self.args.branch,
                "--",
                repository,
            ]);
            return self.run(clone.into_iter().chain([folder])).await;
        };
        let git_in_folder =
            |arguments: &[&str]| [words(&["git", "-C"]), vec![folder.clone()], words(arguments)].concat();
        let init = [words(&["git", "init", "--quiet", "--"]), vec![folder.clone()]].concat();
        let fetch = git_in_folder(&["fetch", "--quiet", "--depth=1", "--", repository, commit]);
        let checkout = git_in_folder(&["checkout", "--quiet", "--detach", "FETCH_HEAD"]);
        for step in [init, fetch, checkout] {
            let exit_code = self.run(step).await?;
            if exit_code != 0 {
                return Ok(exit_code);
            }
        }
        Ok(0)
    }

    /// Installs the server's Python modules into `PACKAGES`.
    async fn install(&mut self) -> Result<(), Stopped> {
        let pip_missing = "the Flux RESTful API needs python3 with pip, which this image lacks: add them, or give the cluster a command, or interactive: true";
        if self
            .run(["python3", "-m", "pip", "--version"].map(OsString::from))
            .await?
            != 0
        {
            return Err(Stopped::new(NOT_FOUND, pip_missing));
        }
        let words = [
            "python3",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-input",
        ];
        let (target, requirements) = (
            self.checkout_folder.join(PACKAGES),
            self.checkout_folder.join("requirements.txt"),
        );
        let constraints = self.write(CONSTRAINTS_FILE, CONSTRAINTS)?;
        let argv = words.into_iter().map(OsString::from);
        let argv = argv.chain([
            "--target".into(),
            target.into(),
            "-r".into(),
            requirements.into(),
            "-c".into(),
            constraints.into(),
        ]);
        match self.run(argv).await? {
            0 => Ok(()),
            code => Err(Stopped::new(
                code,
                "failed to install what the Flux RESTful API needs: can the pod reach PyPI? pip takes a mirror from PIP_INDEX_URL in the container's environment",
            )),
        }
    }

    /// Writes a file into the checkout folder; returns its path.
    fn write(&self, name: &str, text: &str) -> Result<PathBuf, Stopped> {
        let path = self.checkout_folder.join(name);
        fs::write(&path, text).map_err(|error| failed("write", &path, &error))?;
        Ok(path)
    }

    /// Sets the server's working directory and environment.
    fn set_up_session(&mut self) -> Result<(), Stopped> {
        let changes = [
            ("FLUX_SECRET_KEY", self.read_text(RESTFUL_SECRET_KEY)?),
            ("FLUX_USER", self.read_text(RESTFUL_USERNAME)?),
            ("FLUX_TOKEN", self.read_text(RESTFUL_TOKEN)?),
            ("FLUX_REQUIRE_AUTH", "true".into()),
            ("FLUX_NUMBER_NODES", self.args.nodes.to_string()),
        ];
        let environment = &mut self.runner.session.environment;
        for (name, value) in changes {
            environment.insert(name.into(), value.into());
        }
        if !self.args.option_flags.is_empty() {
            // After the options of the container's environment: the last one wins.
            let mut flags = environment
                .get("FLUX_OPTION_FLAGS".as_ref() as &std::ffi::OsStr)
                .cloned()
                .unwrap_or_default();
            if !flags.is_empty() {
                flags.push(" ");
            }
            flags.push(&self.args.option_flags);
            environment.insert("FLUX_OPTION_FLAGS".into(), flags);
        }
        let mut modules = OsString::from(self.checkout_folder.join(PACKAGES));
        modules.push(":");
        modules.push(&self.checkout_folder);
        if let Some(path) = environment
            .get("PYTHONPATH".as_ref() as &std::ffi::OsStr)
            .filter(|path| !path.is_empty())
        {
            modules.push(":");
            modules.push(path);
        }
        environment.insert("PYTHONPATH".into(), modules);
        self.runner.session.directory = self.checkout_folder.clone();
        Ok(())
    }

    /// Reads a file of the folder with the keys.
    fn read_text(&self, name: &str) -> Result<String, Stopped> {
        let path = self.args.directory.join(name);
        fs::read_to_string(&path).map_err(|error| failed("read", &path, &error))
    }

    /// Creates the database's tables and its users, with the API's own scripts.
    async fn create_database(&mut self) -> Result<(), Stopped> {
        let init = format!("{DATABASE_SCRIPT} init");
        let steps = [
            "-m alembic revision --autogenerate -m tables",
            "-m alembic upgrade head",
            init.as_str(),
        ];
        let words = |step: &str| step.split(' ').map(OsString::from).collect();
        let mut steps: Vec<(String, Vec<OsString>)> = steps
            .into_iter()
            .map(|step| (step.to_owned(), words(step)))
            .collect();
        for user in &self.args.users {
            let (script, password) = (
                self.checkout_folder.join(DATABASE_SCRIPT),
                self.args.directory.join("users").join(user),
            );
            let argv = [
                "-c".into(),
                ADD_USER.into(),
                script.into(),
                user.into(),
                password.into(),
            ];
            steps.push((format!("{DATABASE_SCRIPT} add-user {user}"), argv.into()));
        }
        for (step, words) in steps {
            let code = self.run(["python3".into()].into_iter().chain(words)).await?;
            if code != 0 {
                return Err(Stopped::new(
                    code,
                    format!("failed to create the database of the Flux RESTful API: {step}"),
                ));
            }
        }
        Ok(())
    }

    /// Runs a command; returns its exit code or, after a stop signal, an error with an empty line.
    async fn run(&mut self, argv: impl IntoIterator<Item = OsString>) -> Result<u8, Stopped> {
        let code = self.run_with(argv, Output::Inherit).await?;
        self.runner
            .stop_code()
            .map_or(Ok(code), |code| Err(Stopped::new(code, "")))
    }

    /// Runs a command; returns its exit code, also if a stop signal has arrived.
    async fn run_with(
        &mut self,
        argv: impl IntoIterator<Item = OsString>,
        output: Output,
    ) -> Result<u8, Stopped> {
        let argv: Vec<OsString> = argv.into_iter().collect();
        let code = self.runner.run(&argv, output).await;
        code.map_err(|failure| Stopped::new(failure.category.code(), failure.to_string()))
    }

    /// Runs the server until it ends; returns its exit code.
    async fn serve(&mut self) -> Result<u8, Stopped> {
        let logging = self.checkout_folder.join(LOGGING_FILE);
        let options = [
            // An empty host listens on all addresses, IPv4 and IPv6. Any other value would be one family only.
            "--host=".to_owned(),
            format!("--port={}", self.args.port),
            format!("--log-config={}", logging.display()),
        ];
        let words = ["python3", "-m", "uvicorn", "app.main:app"].map(str::to_owned);
        self.run_with(
            words.into_iter().chain(options).map(OsString::from),
            Output::Discard,
        )
        .await
    }
}

fn failed(action: &str, path: &Path, error: &std::io::Error) -> Stopped {
    Stopped::new(
        1,
        format!("failed to {action} {}: {}", path.display(), plain(error)),
    )
}
