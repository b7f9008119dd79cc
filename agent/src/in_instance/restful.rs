//! `flux-agent restful`: fetches the Flux RESTful API, installs it, and runs it. The lead's program
//! where a cluster has no other.
//!
//! ```text
//! git clone ─► pip install (into a folder of its own) ─► database, users ─► uvicorn
//! ```
//!
//! It runs as the user that Flux runs as, inside the instance: signals, logs and exit codes are those of any
//! program. A second run finds what the first one finished.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use flux_shared::exit::NOT_FOUND;
use flux_shared::paths::{RESTFUL_SECRET_KEY, RESTFUL_TOKEN, RESTFUL_USERNAME};

use super::command_runner::CommandRunner;
use crate::report::failure::{Failure, plain};
use crate::report::log;
use crate::supervise::program::Output;

/// Marker file: everything in the folder is complete, with the database.
const INSTALLED: &str = ".flux-agent-installed";
/// Python modules that the server needs, apart from the image's own.
const PACKAGES: &str = ".packages";
/// Constraints for pip, since newer releases break the API: passlib, without a release since 2020, reads a
/// name that bcrypt lacks since 4.1, and fails with 5; its pages call starlette as before 1.0, and are errors
/// with 1.10.
const CONSTRAINTS: &str = "bcrypt<4.1\nstarlette<1\n";
const CONSTRAINTS_FILE: &str = ".flux-agent-constraints";
/// How uvicorn logs: all on standard error. Standard output is the API's own prints, with tokens and
/// passwords in clear.
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

/// Calls the API's own script to add a user, with the password from a file: all of the pod can see a command
/// line.
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
    /// Number of nodes to report to users
    #[arg(long)]
    nodes: u32,
    /// Default options of jobs
    #[arg(long, default_value = "")]
    option_flags: String,
    /// A user of the server, whose password is in the folder `users`
    #[arg(long = "user")]
    users: Vec<String>,
}

/// Why the server does not come up: one line, and the exit code of what failed.
struct Stopped {
    code: u8,
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

/// Serves; returns the exit code.
pub fn run(args: &RestfulArgs) -> Result<u8, Failure> {
    crate::system::runtime::block_on(Box::pin(async {
        let mut server = RestfulServer {
            runner: CommandRunner::new()?,
            args,
            code: args.directory.join("api"),
        };
        let served = match server.prepare().await {
            Ok(()) => server.serve().await,
            Err(stopped) => Err(stopped),
        };
        Ok(served.unwrap_or_else(|Stopped { code, line }| {
            if !line.is_empty() {
                log::plain("restful", &format!("flux-agent: {line}"));
            }
            code
        }))
    }))
}

struct RestfulServer<'a> {
    runner: CommandRunner,
    args: &'a RestfulArgs,
    /// The folder of the checkout.
    code: PathBuf,
}

impl RestfulServer<'_> {
    async fn prepare(&mut self) -> Result<(), Stopped> {
        if self.code.join(INSTALLED).exists() {
            return self.enter();
        }
        // A half-done installation of an earlier run is removed with its folder.
        tracing::info!(
            stage = "restful",
            "fetching {} ({})",
            self.args.repository,
            self.args.branch
        );
        self.fetch().await?;
        tracing::info!(stage = "restful", "installing its Python dependencies with pip");
        self.install().await?;
        self.enter()?;
        self.database().await?;
        self.write(LOGGING_FILE, LOGGING)?;
        self.write(INSTALLED, "").map(drop)
    }

    async fn fetch(&mut self) -> Result<(), Stopped> {
        let (repository, branch) = (&self.args.repository, &self.args.branch);
        if self.code.exists() {
            fs::remove_dir_all(&self.code).map_err(|error| failed("remove", &self.code, &error))?;
        }
        // Else git would wait for somebody to type a user name.
        self.runner
            .session
            .environment
            .insert("GIT_TERMINAL_PROMPT".into(), "0".into());
        match self.clone_code().await? {
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

    /// Gets the code; git's exit code.
    async fn clone_code(&mut self) -> Result<u8, Stopped> {
        let (repository, code) = (self.args.repository.as_str(), self.code.clone().into_os_string());
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
            return self.run(clone.into_iter().chain([code])).await;
        };
        let inside = |what: &[&str]| [words(&["git", "-C"]), vec![code.clone()], words(what)].concat();
        let init = [words(&["git", "init", "--quiet", "--"]), vec![code.clone()]].concat();
        let fetch = inside(&["fetch", "--quiet", "--depth=1", "--", repository, commit]);
        let checkout = inside(&["checkout", "--quiet", "--detach", "FETCH_HEAD"]);
        for step in [init, fetch, checkout] {
            let ended = self.run(step).await?;
            if ended != 0 {
                return Ok(ended);
            }
        }
        Ok(0)
    }

    async fn install(&mut self) -> Result<(), Stopped> {
        let python = "the Flux RESTful API needs python3 with pip, which this image lacks: add them, or give the cluster a command, or interactive: true";
        if self
            .run(["python3", "-m", "pip", "--version"].map(OsString::from))
            .await?
            != 0
        {
            return Err(Stopped::new(NOT_FOUND, python));
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
        let (target, list) = (self.code.join(PACKAGES), self.code.join("requirements.txt"));
        let constraints = self.write(CONSTRAINTS_FILE, CONSTRAINTS)?;
        let argv = words.into_iter().map(OsString::from);
        let argv = argv.chain([
            "--target".into(),
            target.into(),
            "-r".into(),
            list.into(),
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

    /// Writes a file of ours into the checkout; its path.
    fn write(&self, name: &str, text: &str) -> Result<PathBuf, Stopped> {
        let path = self.code.join(name);
        fs::write(&path, text).map_err(|error| failed("write", &path, &error))?;
        Ok(path)
    }

    /// Sets the server's working directory and environment.
    fn enter(&mut self) -> Result<(), Stopped> {
        let key = |name: &str| self.text(name);
        let changes = [
            ("FLUX_SECRET_KEY", key(RESTFUL_SECRET_KEY)?),
            ("FLUX_USER", key(RESTFUL_USERNAME)?),
            ("FLUX_TOKEN", key(RESTFUL_TOKEN)?),
            ("FLUX_REQUIRE_AUTH", "true".into()),
            ("FLUX_NUMBER_NODES", self.args.nodes.to_string()),
        ];
        let environment = &mut self.runner.session.environment;
        for (name, value) in changes {
            environment.insert(name.into(), value.into());
        }
        if !self.args.option_flags.is_empty() {
            // What the image says comes first, so that ours wins.
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
        let mut modules = OsString::from(self.code.join(PACKAGES));
        modules.push(":");
        modules.push(&self.code);
        if let Some(path) = environment
            .get("PYTHONPATH".as_ref() as &std::ffi::OsStr)
            .filter(|path| !path.is_empty())
        {
            modules.push(":");
            modules.push(path);
        }
        environment.insert("PYTHONPATH".into(), modules);
        self.runner.session.directory = self.code.clone();
        Ok(())
    }

    fn text(&self, name: &str) -> Result<String, Stopped> {
        let path = self.args.directory.join(name);
        fs::read_to_string(&path).map_err(|error| failed("read", &path, &error))
    }

    async fn database(&mut self) -> Result<(), Stopped> {
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
                self.code.join(DATABASE_SCRIPT),
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
        for (what, words) in steps {
            let code = self.run(["python3".into()].into_iter().chain(words)).await?;
            if code != 0 {
                return Err(Stopped::new(
                    code,
                    format!("failed to create the database of the Flux RESTful API: {what}"),
                ));
            }
        }
        Ok(())
    }

    /// Runs a command; returns its exit code. A stop in the meantime is an error that ends everything.
    async fn run(&mut self, argv: impl IntoIterator<Item = OsString>) -> Result<u8, Stopped> {
        let code = self.run_with(argv, Output::Inherit).await?;
        self.runner
            .stop_code()
            .map_or(Ok(code), |code| Err(Stopped::new(code, "")))
    }

    async fn run_with(
        &mut self,
        argv: impl IntoIterator<Item = OsString>,
        output: Output,
    ) -> Result<u8, Stopped> {
        let argv: Vec<OsString> = argv.into_iter().collect();
        let code = self.runner.run(&argv, output).await;
        code.map_err(|failure| Stopped::new(failure.category.code(), failure.to_string()))
    }

    async fn serve(&mut self) -> Result<u8, Stopped> {
        let logging = self.code.join(LOGGING_FILE);
        let options = [
            // No address means all of them, of both families if the kernel has both; any named one would be
            // of one family.
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

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Stopped {
    Stopped::new(
        1,
        format!("failed to {what} {}: {}", path.display(), plain(error)),
    )
}
