//! `connect`, `submit` and `jobs`: run programs in a running instance. They exec the agent in a pod. The agent knows
//! the instance's Flux, user and environment.

mod terminal;

use std::pin::pin;
use std::time::Duration;

use flux_shared::paths::AGENT_FILE;
use futures::FutureExt;
use futures::future::OptionFuture;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::failure::{FAILED, Failure, is_code, with_remedy};
use crate::observed;
use crate::output::Output;
use crate::screen;
use crate::signals::until_signalled;
use crate::target::Target;

/// Bytes that are copied at a time.
const CHUNK: usize = 32 * 1024;
/// Time after a lost connection to copy what was received.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// Most bytes of an answer that are kept, for standard output and standard error each.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// Time limit of `report`. The agent's own requests end earlier. After it, the command in the pod may still run.
const REPORT_TIMEOUT: Duration = Duration::from_secs(15);

/// Arguments of `connect`.
#[derive(Debug, Clone, clap::Args)]
pub struct ConnectArgs {
    /// Name of the MiniCluster
    pub name: String,
    /// Index of the pod; 0 is the lead
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub index: u32,
    /// Command to run [default: a shell]
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// Arguments of `submit`.
#[derive(Debug, Clone, clap::Args)]
pub struct SubmitArgs {
    /// Name of the MiniCluster
    pub name: String,
    /// Print the job's output and exit with its code; an interrupt does not stop the job
    #[arg(long, short)]
    pub watch: bool,
    /// Options of flux submit, then the program and its arguments
    #[arg(last = true, required = true, value_name = "[OPTION]... CMD")]
    pub command: Vec<String>,
}

/// Arguments of `jobs`.
#[derive(Debug, Clone, clap::Args)]
pub struct JobsArgs {
    /// Name of the MiniCluster
    pub name: String,
    /// Include jobs that have ended
    #[arg(long, short)]
    pub all: bool,
}

/// Runs a shell or a command in the instance; returns its exit code.
pub async fn open(target: &Target, args: &ConnectArgs) -> Result<u8, Failure> {
    let pod = running_pod(target, &args.name, args.index).await?;
    let mut words = vec!["connect"];
    if !args.command.is_empty() {
        words.push("--");
        words.extend(args.command.iter().map(String::as_str));
    }
    let input = if screen::is_terminal() {
        Input::Terminal
    } else {
        Input::Passed
    };
    let mut attached = start(target, &pod, &words, input).await?;
    if input != Input::Terminal {
        return copy_all(attached).await;
    }
    // Without a handler, a signal would end this process and leave the terminal in raw mode.
    let signalled = until_signalled()?;
    let _raw = terminal::Raw::begin(attached.terminal_size())?;
    tokio::select! {
        code = copy_all(attached) => code,
        code = signalled => Ok(code),
    }
}

/// Submits a job; the exit code of the submission, or with `--watch` the job's.
pub async fn submit(target: &Target, args: &SubmitArgs, output: Output) -> Result<u8, Failure> {
    if args.watch {
        output.refuse(
            "submit --watch",
            "it prints the job's output. Without --watch it prints the job's id",
        )?;
    }
    let mut words = vec!["flux", "submit"];
    if args.watch {
        // Without `--quiet`, flux also prints the job's id to standard output.
        words.extend(["--watch", "--quiet"]);
    }
    words.extend(args.command.iter().map(String::as_str));
    let Some(format) = output.format else {
        let submission = in_lead(target, &args.name, &words);
        if !args.watch {
            return submission.await;
        }
        let signalled = until_signalled()?;
        return tokio::select! {
            code = submission => code,
            code = signalled => {
                let jobs = target.access.command("jobs", &args.name);
                screen::tell(&format!("a submitted job goes on; see {jobs}"));
                Ok(code)
            }
        };
    };
    let pod = running_pod(target, &args.name, 0).await?;
    let answer = ask(target, &pod, &connect_command(&words)).await?;
    match answer.code {
        // One job id per line.
        0 => {
            let printed = String::from_utf8_lossy(&answer.output);
            format.show(&json!({ "jobs": printed.lines().collect::<Vec<_>>() }))?;
        }
        // The ids of jobs that were submitted before the failure.
        _ => screen::put_error(&answer.output),
    }
    screen::put_error(&answer.errors);
    Ok(answer.code)
}

/// Lists the jobs; with `-o` as `flux jobs --json` does.
pub async fn jobs(target: &Target, args: &JobsArgs, output: Output) -> Result<u8, Failure> {
    let mut words = vec!["flux", "jobs"];
    words.extend(args.all.then_some("-a"));
    let Some(format) = output.format else {
        return in_lead(target, &args.name, &words).await;
    };
    words.push("--json");
    let pod = running_pod(target, &args.name, 0).await?;
    let answer = ask(target, &pod, &connect_command(&words)).await?;
    match serde_json::from_slice::<serde_json::Value>(&answer.output) {
        Ok(jobs) => format.show(&jobs)?,
        // No JSON: a failure.
        Err(_) => screen::put_error(&answer.output),
    }
    screen::put_error(&answer.errors);
    Ok(answer.code)
}

/// The agent's command that runs `words` in the instance.
fn connect_command<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&["connect", "--"], words].concat()
}

/// Runs a program in the lead's instance, without standard input and without a terminal; returns its exit code.
async fn in_lead(target: &Target, name: &str, words: &[&str]) -> Result<u8, Failure> {
    let pod = running_pod(target, name, 0).await?;
    // Standard input is not passed on: in a shell loop (`while read`), it is the input of the loop.
    let attached = start(target, &pod, &connect_command(words), Input::None).await?;
    copy_all(attached).await
}

/// The latest pod of this index, if its runner (the container that runs Flux) is running. Otherwise an error.
pub async fn running_pod(target: &Target, name: &str, index: u32) -> Result<Pod, Failure> {
    let cluster = target.cluster(name).await?;
    match target
        .pod_of_index(&cluster, index)
        .await?
        .filter(observed::is_running)
    {
        Some(pod) => Ok(pod),
        None => {
            let phase = cluster
                .status
                .and_then(|status| status.phase)
                .unwrap_or_else(|| "not begun".into());
            let which = if index == 0 {
                "lead".to_owned()
            } else {
                format!("pod of index {index}")
            };
            Err(Failure::Message(format!(
                "the {which} of {name} does not run (the MiniCluster is {phase}): {} says more",
                target.access.command("why", name)
            )))
        }
    }
}

/// The input of a program in a pod.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Input {
    None,
    /// This process's standard input.
    Passed,
    /// A terminal, which gets what the user types in this process's terminal.
    Terminal,
}

/// Starts the agent's command `words` in the pod's runner.
async fn start(target: &Target, pod: &Pod, words: &[&str], input: Input) -> Result<AttachedProcess, Failure> {
    let (name, runner) = (observed::name(pod), observed::runner(pod).unwrap_or_default());
    let parameters = AttachParams {
        container: Some(runner.to_owned()),
        stdin: input != Input::None,
        stdout: true,
        // With a terminal, standard output and standard error are one stream.
        stderr: input != Input::Terminal,
        tty: input == Input::Terminal,
        max_stdin_buf_size: Some(CHUNK),
        max_stdout_buf_size: Some(CHUNK),
        max_stderr_buf_size: Some(CHUNK),
    };
    let command: Vec<&str> = [&[AGENT_FILE], words].concat();
    target
        .pods()
        .exec(name, command, &parameters)
        .await
        .map_err(|error| {
            let is_forbidden = is_code(&error, 403);
            let failure = Failure::call(format!("run a program in pod {name}"))(error);
            if !is_forbidden {
                return failure;
            }
            Failure::NoExec(with_remedy(failure.to_string(), "`create` `pods/exec`"))
        })
}

/// What a program in a pod has answered.
struct Answer {
    code: u8,
    /// Standard output.
    output: Vec<u8>,
    /// Standard error.
    errors: Vec<u8>,
}

/// Runs the agent's command `words` in the pod, without standard input. Returns its exit code and standard output. If
/// the command failed and standard output is empty, returns standard error in its place.
async fn answer(target: &Target, pod: &Pod, words: &[&str]) -> Result<(u8, Vec<u8>), Failure> {
    let Answer { code, output, errors } = ask(target, pod, words).await?;
    let has_only_errors = code != 0 && output.is_empty();
    Ok((code, if has_only_errors { errors } else { output }))
}

/// The answer of the lead's agent to a command that ends soon (`status`, `usage`, `stop`), within a time limit: in a pod
/// whose volume is stuck, the agent may hang.
pub async fn report(target: &Target, lead: &Pod, words: &[&str]) -> Result<(u8, Vec<u8>), Failure> {
    tokio::time::timeout(REPORT_TIMEOUT, answer(target, lead, words))
        .await
        .unwrap_or(Err(Failure::SilentAgent(REPORT_TIMEOUT.as_secs())))
}

/// Runs the agent's command `words` in the pod, without standard input. It gets no terminal, so standard output and
/// standard error stay two streams.
async fn ask(target: &Target, pod: &Pod, words: &[&str]) -> Result<Answer, Failure> {
    let mut attached = start(target, pod, words, Input::None).await?;
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let (stdout, stderr) = (attached.stdout(), attached.stderr());
    let copied = futures::future::try_join(
        copy(stdout, async |bytes: &[u8]| append(&mut output, bytes)),
        copy(stderr, async |bytes: &[u8]| append(&mut errors, bytes)),
    );
    let code = until_end(attached, copied).await?;
    Ok(Answer { code, output, errors })
}

/// Adds a part of an answer. An error if there are more than `MAX_ANSWER` bytes: the pod's user can choose the program.
fn append(answer: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Failure> {
    if answer.len() + bytes.len() > MAX_ANSWER {
        return Err(Failure::Message(format!(
            "the program in the pod printed more than {} MiB",
            MAX_ANSWER >> 20
        )));
    }
    answer.extend_from_slice(bytes);
    Ok(())
}

/// Copies standard input (if the program has it), output and error until the program has ended; returns its exit code.
async fn copy_all(mut attached: AttachedProcess) -> Result<u8, Failure> {
    if let Some(stdin) = attached.stdin() {
        // The task ends with this process: a pending read of the keyboard does not keep it alive.
        tokio::spawn(copy_input(stdin));
    }
    let (stdout, stderr) = (attached.stdout(), attached.stderr());
    // If standard output is closed (`| head`), the copying ends, although standard error stays open.
    let copied = futures::future::try_join(
        copy(stdout, async |bytes: &[u8]| {
            screen::put_beside(bytes.to_vec()).await
        }),
        copy(stderr, async |bytes: &[u8]| {
            screen::put_error_beside(bytes).await;
            Ok(())
        }),
    );
    until_end(attached, copied).await
}

/// Waits until the program has ended and its output is copied; returns the exit code. Also ends if the connection is
/// lost: the client (kube) then drops the sender of the status, but does not close the streams that are copied.
async fn until_end<T>(
    mut attached: AttachedProcess,
    copied: impl Future<Output = Result<T, Failure>>,
) -> Result<u8, Failure> {
    let status = OptionFuture::from(attached.take_status()).map(Option::flatten);
    let (mut copied, mut status) = (pin!(copied), pin!(status));
    let status = tokio::select! {
        biased;
        done = &mut copied => {
            done?;
            status.await
        }
        status = &mut status => {
            if status.is_some() {
                copied.await?;
            } else if let Ok(done) = tokio::time::timeout(LAST_OUTPUT, copied).await {
                done?;
            }
            status
        }
    };
    code(status)
}

/// Copies standard input to the program. Closes the program's input at the end.
async fn copy_input(mut to: impl AsyncWrite + Unpin) {
    let mut from = tokio::io::stdin();
    let mut buffer = vec![0; CHUNK];
    while let Ok(count) = from.read(&mut buffer).await {
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        if to.write_all(bytes).await.and(to.flush().await).is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// Passes everything that `from` returns to `put`.
async fn copy(
    from: Option<impl AsyncRead + Unpin>,
    mut put: impl AsyncFnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(mut from) = from else {
        return Ok(());
    };
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = from
            .read(&mut buffer)
            .await
            .map_err(Failure::on_this_machine("read the program's output"))?;
        match buffer.get(..count) {
            Some(bytes) if !bytes.is_empty() => put(bytes).await?,
            _ => return Ok(()),
        }
    }
}

/// The exit code in the status of an exec.
fn code(status: Option<Status>) -> Result<u8, Failure> {
    let Some(status) = status else {
        return Err(Failure::Message(
            "the connection was lost before the program had ended".into(),
        ));
    };
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status
        .details
        .as_ref()
        .and_then(|details| details.causes.as_ref());
    let exit_code = causes.and_then(|all| {
        all.iter()
            .find(|cause| cause.reason.as_deref() == Some("ExitCode"))
    });
    match exit_code.and_then(|cause| cause.message.as_deref()?.parse::<i32>().ok()) {
        Some(code) => Ok(u8::try_from(code).unwrap_or(FAILED)),
        None => Err(Failure::Message(format!(
            "failed to run the program in the pod: {}",
            status.message.unwrap_or_default()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails};

    use super::*;
    use crate::testing::{self, answering, in_other};

    #[tokio::test]
    async fn only_the_pods_of_the_index_are_listed() {
        let (target, requests) = in_other(answering(|request| {
            testing::Answer::Json(
                200,
                if request.contains("/pods?") {
                    json!({ "metadata": {}, "items": [] })
                } else {
                    json!({ "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
                        "metadata": { "name": "mc" }, "spec": { "containers": [] } })
                },
            )
        }));
        let failure = running_pod(&target, "mc", 3).await.unwrap_err().to_string();
        assert!(failure.contains("why mc -n other`"), "{failure}");
        let mut requests = requests.lock().unwrap().clone();
        requests.retain(|request| request.contains("/pods?"));
        assert!(
            requests.len() == 1 && requests[0].contains("job-completion-index%3D3"),
            "{requests:?}"
        );
    }

    #[tokio::test]
    async fn endless_answer_is_an_error() {
        let mut answer = Vec::new();
        let endless = Some(tokio::io::repeat(b'x'));
        let copied = copy(endless, async |bytes: &[u8]| append(&mut answer, bytes)).await;
        assert!(copied.unwrap_err().to_string().contains("more than 16 MiB"));
        assert!(answer.len() <= MAX_ANSWER);
    }

    fn ended(code: &str) -> Option<Status> {
        let cause = StatusCause {
            reason: Some("ExitCode".into()),
            message: Some(code.into()),
            ..StatusCause::default()
        };
        let details = StatusDetails {
            causes: Some(vec![cause]),
            ..StatusDetails::default()
        };
        Some(Status {
            status: Some("Failure".into()),
            details: Some(details),
            ..Status::default()
        })
    }

    #[test]
    fn exit_code_in_the_status_is_returned_unchanged() {
        for wanted in 1..=255 {
            assert_eq!(code(ended(&wanted.to_string())).unwrap(), wanted);
        }
        assert_eq!(
            code(Some(Status {
                status: Some("Success".into()),
                ..Status::default()
            }))
            .unwrap(),
            0
        );
    }

    #[test]
    fn exec_without_a_reported_exit_code_is_no_success() {
        assert!(code(None).is_err());
        assert!(
            code(Some(Status {
                status: Some("Failure".into()),
                ..Status::default()
            }))
            .is_err()
        );
    }
}
