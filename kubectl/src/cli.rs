//! The command line: its subcommands and options.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use flux_agent_plan::dry_run as plans;
use flux_operator_client::choices::Choices;
use flux_operator_client::on_server::{self, ValidateArgs};
use flux_operator_core::offline::{self, Judgement};
use flux_operator_core::render::Options;
use flux_shared::causes::causes;
use serde_json::{Value, json};

use crate::completion;
use crate::connect;
use crate::debug;
use crate::failure::{FAILED, Failure};
use crate::input::{self, read};
use crate::list;
use crate::logs;
use crate::output::Output;
use crate::run;
use crate::screen;
use crate::signals;
use crate::status;
use crate::stop;
use crate::target::{Access, Target};
use crate::timeline;
use crate::top;
use crate::wait;

#[derive(Debug, Parser)]
#[command(
    name = "kubectl-minicluster",
    bin_name = "kubectl minicluster",
    version,
    about = "Run Flux jobs on MiniClusters and see what they do"
)]
struct Cli {
    #[command(flatten)]
    access: Access,
    #[command(flatten)]
    output: Output,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program on a new MiniCluster: prints its output, exits with its code, then deletes the
    /// MiniCluster
    Run(Box<run::Args>),
    /// List MiniClusters with their status and exit code
    #[command(visible_alias = "ls")]
    List(list::Args),
    /// Show what a MiniCluster is doing or why it failed, and the remedy
    #[command(visible_alias = "why")]
    Status(status::Args),
    /// Print the log of the lead, or of other pods
    Logs(logs::Args),
    /// Wait until a MiniCluster has finished (exits with its job's code), is ready, or is deleted
    Wait(wait::Args),
    /// Stop a MiniCluster: its programs get SIGTERM and the grace period; status and logs are kept
    Stop(stop::Args),
    /// Change the number of pods
    Scale(wait::Scale),
    /// Open a shell in the instance, or run a command in it
    Connect(connect::ConnectArgs),
    /// Submit a job to a running instance
    Submit(connect::SubmitArgs),
    /// List the jobs of a running instance
    Jobs(connect::JobsArgs),
    /// Show nodes, cores, GPUs and jobs of a running instance; live on a terminal, until q or Ctrl-C
    Top(top::Args),
    /// Show how long each phase of the start and the job took
    Timeline(timeline::Args),
    /// Write a debug bundle (objects, events, logs; no secrets) into one file
    Debug(debug::Args),
    /// Check MiniClusters: list every problem with its field, and exit with 1 if there is one
    #[command(mut_arg("server", |server| {
        server.help("Also ask the API server, by a dry run with your own permissions; nothing is created")
    }))]
    Validate(ValidateArgs),
    /// Print the objects that the operator creates for a MiniCluster, as YAML (keys redacted)
    Render {
        /// A file with a MiniCluster, or - for standard input
        file: PathBuf,
        #[command(flatten)]
        choices: Choices,
    },
    /// Show what every pod of a MiniCluster would do, without a cluster
    DryRun(plans::Args),
    /// Enable completion in kubectl: creates the link that kubectl looks for
    Completion {
        /// Folder on the PATH for the link [default: this program's]
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
    /// Print the candidates for the last of the words so far
    #[command(name = "__complete", hide = true)]
    Complete {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

/// The command line, for completions.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

/// Parses the command line and runs the command; returns the program's exit code.
pub fn main(version: &'static str) -> ExitCode {
    let cli = match completer_words() {
        Some(words) => Cli {
            access: Access::default(),
            output: Output::default(),
            command: Command::Complete { words },
        },
        None => parse(version, std::env::args_os()).unwrap_or_else(|error| error.exit()),
    };
    ExitCode::from(dispatch(cli, version).unwrap_or_else(|failure| report(&failure)))
}

/// Parses the command line. If there is a tip for an error, adds it.
fn parse(version: &'static str, words: impl Iterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = Cli::command().version(version);
    let parsed = command
        .try_get_matches_from_mut(words)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|mut error| {
        if let Some(tip) = tip(&error) {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        }
        error
    })
}

/// What to type instead. None: the error has no tip.
fn tip(error: &clap::Error) -> Option<String> {
    let text = |kind| error.get(kind).map(ToString::to_string);
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let takes_command = text(ContextKind::Usage).is_some_and(|usage| usage.contains("-- <"));
            let word =
                text(ContextKind::InvalidArg).filter(|word| takes_command && !word.starts_with('-'))?;
            Some(format!("put the command after `--`: `-- {word}`"))
        }
        ErrorKind::InvalidSubcommand => match text(ContextKind::InvalidSubcommand)?.as_str() {
            "delete" => Some("`stop --now NAME` deletes a MiniCluster".to_owned()),
            "get" => Some("`list` lists MiniClusters, and `status NAME` shows one".to_owned()),
            _ => None,
        },
        _ => None,
    }
}

/// Prints the failure; returns the exit code.
fn report(failure: &Failure) -> u8 {
    // The reader of standard output is gone (`| head`): this is no news for the user.
    if !matches!(failure, Failure::Unread) {
        screen::tell(&causes(failure));
    }
    failure.code()
}

/// The words to complete, if kubectl called this program under the name `COMPLETER`.
fn completer_words() -> Option<Vec<String>> {
    let mut words = std::env::args_os();
    let name = PathBuf::from(words.next()?);
    let is_completer = name.file_name().is_some_and(|name| name == completion::COMPLETER);
    is_completer.then(|| words.map(|word| word.to_string_lossy().into_owned()).collect())
}

/// Runs `validate` without `--server`, `render`, `dry-run` and `completion`. The other commands get an async runtime.
fn dispatch(cli: Cli, version: &str) -> Result<u8, Failure> {
    let output = cli.output;
    match cli.command {
        Command::Validate(ValidateArgs { files, server: false }) => {
            let judgements = files
                .iter()
                .map(|file| Ok((file.as_path(), offline::judge(&read(file)?))));
            print_judgement(
                Judgement::of_files(judgements.collect::<Result<_, Failure>>()?),
                output,
            )
        }
        Command::Render { file, choices } => {
            let (text, choices) = (read(&file)?, choices.into());
            for notice in offline::text_notices(&text) {
                screen::tell(&format!("note: {notice}"));
            }
            match output.format {
                None => screen::print(&offline::render(&text, &choices)?),
                Some(format) => format.show_all(&offline::objects(&text, &choices)?),
            }
            .map(|()| 0)
        }
        Command::DryRun(args) => dry_run(&args, output),
        Command::Completion { folder } => {
            output.refuse("completion", "it makes a link for kubectl")?;
            screen::print(&completion::install(folder)?).map(|()| 0)
        }
        command => in_async_runtime(Cli { command, ..cli }, version),
    }
}

/// Prints what `validate` has found; returns 1 if there is a problem.
fn print_judgement(judgement: Judgement, output: Output) -> Result<u8, Failure> {
    let is_valid = judgement.problems.is_empty();
    match output.format {
        None => screen::print(&judgement.text()?)?,
        Some(format) => format.show(&judgement)?,
    }
    Ok(if is_valid { 0 } else { FAILED })
}

/// Prints the plans; `-o` overrides `--format`.
fn dry_run(args: &plans::Args, output: Output) -> Result<u8, Failure> {
    let Some(format) = output.format else {
        let text = plans::run(args, input::read_io)?;
        let is_painted = args.format == plans::Format::Text && screen::shows_colours();
        return screen::print(&if is_painted { plans::paint(&text) } else { text }).map(|()| 0);
    };
    let args = plans::Args {
        format: plans::Format::Json,
        ..args.clone()
    };
    let document: Value = serde_json::from_str(&plans::run(&args, input::read_io)?)
        .map_err(|source| plans::DryRunError::Json { source })?;
    format.show(&document).map(|()| 0)
}

/// Runs a command in an async runtime. One thread is enough, since it mostly waits for the API server and the user.
/// `shutdown_background` lets the program exit while a read of standard input or a write is pending.
fn in_async_runtime(cli: Cli, version: &str) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::on_this_machine("start"))?;
    let code = runtime.block_on(async {
        let code = run_async(cli, version)
            .await
            .unwrap_or_else(|failure| report(&failure));
        // Once a command has listened for signals, they do not end the program by themselves any more.
        let signalled = signals::until_signalled()?;
        tokio::select! {
            () = screen::errors_written() => {}
            _ = signalled => {}
        }
        Ok(code)
    });
    runtime.shutdown_background();
    code
}

/// Runs `__complete`. For the other commands, finds the target (cluster and namespace) first.
async fn run_async(cli: Cli, version: &str) -> Result<u8, Failure> {
    let Cli {
        access,
        output,
        command,
    } = cli;
    if let Command::Complete { words } = &command {
        let mut command = self::command();
        // Adds the global options, such as `--namespace`, to each subcommand.
        command.build();
        return screen::print(&completion::complete(&command, words).await).map(|()| 0);
    }
    let awaited = match &command {
        Command::Wait(args) => Some(args.clone()),
        _ => None,
    };
    let ended = async {
        let target = Target::find(access).await?;
        let server = target.server.clone();
        run_on_target(target, command, output, version)
            .await
            .map_err(|failure| failure.with_server(&server))
    };
    match awaited {
        Some(args) => wait::in_time(&args, ended).await,
        None => ended.await,
    }
}

/// Runs a command on the target.
async fn run_on_target(
    target: Target,
    command: Command,
    output: Output,
    version: &str,
) -> Result<u8, Failure> {
    match command {
        Command::Run(args) => run::create_and_follow(target, &args, output).await,
        Command::List(args) => list::run(&target, &args, output).await,
        Command::Status(args) => status::run(&target, &args, output).await,
        Command::Logs(args) => {
            output.refuse("logs", "it prints what the pods have printed")?;
            logs::run(&target, &args).await
        }
        Command::Wait(args) => {
            output.refuse("wait", "it prints nothing; its exit code is the answer")?;
            wait::run(&target, &args).await
        }
        Command::Stop(args) => {
            let way = stop::run(&target, &args).await?;
            let about = json!({ "name": args.name, "way": way });
            output
                .show(&about, || format!("{}\n", way.text(&args.name)))
                .map(|()| 0)
        }
        Command::Scale(args) => wait::scale(&target, &args, output).await,
        Command::Connect(args) => {
            output.refuse("connect", "it prints what the program in the instance prints")?;
            connect::open(&target, &args).await
        }
        Command::Submit(args) => connect::submit(&target, &args, output).await,
        Command::Jobs(args) => connect::jobs(&target, &args, output).await,
        Command::Debug(args) => debug::run(&target, &args, output, version).await,
        Command::Timeline(args) => timeline::run(&target, &args, output).await,
        Command::Top(args) => top::run(&target, &args, output).await,
        Command::Validate(ValidateArgs { files, .. }) => {
            let namespace = on_server::Target {
                namespace: &target.namespace,
                is_asked_for: target.access.namespace.is_some(),
            };
            let mut judgements = Vec::new();
            // The administrator's options are not known here, so the operator's defaults are used.
            for file in &files {
                let judgement =
                    on_server::judge(&target.client, namespace, &read(file)?, &Options::default()).await?;
                judgements.push((file.as_path(), judgement));
            }
            print_judgement(Judgement::of_files(judgements), output)
        }
        // `dispatch` and `run_async` have run these.
        Command::Render { .. }
        | Command::DryRun(_)
        | Command::Completion { .. }
        | Command::Complete { .. } => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_the_command_line_has_a_tip() {
        let error = |line: &str| {
            let words = std::iter::once("kubectl-minicluster").chain(line.split(' '));
            parse("1", words.map(OsString::from)).unwrap_err().to_string()
        };
        for (line, tip) in [
            ("run app:1 echo hello", "after `--`: `-- echo`"),
            ("submit mc hostname", "after `--`: `-- hostname`"),
            ("connect mc hostname", "after `--`: `-- hostname`"),
            ("delete mc", "`stop --now NAME`"),
            ("get mc", "`list`"),
        ] {
            assert!(error(line).contains(tip), "{line}: {}", error(line));
        }
        for line in ["run app:1 --sise 2", "wait mc other"] {
            assert!(!error(line).contains("after `--`"), "{line}: {}", error(line));
        }
    }

    #[test]
    fn every_command_can_be_parsed() {
        Cli::command().debug_assert();
    }
}
