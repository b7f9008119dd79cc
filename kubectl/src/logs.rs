//! Logs of a MiniCluster's pods, live; a log whose connection breaks is resumed.

mod resume;

use std::time::Duration;

use flux_shared::crd::v1alpha2::{MiniCluster, MiniClusterStatus};
use flux_shared::phase::Phase;
use futures::{AsyncBufReadExt, AsyncReadExt, StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::LogParams;
use tokio::time::Instant;

use crate::failure::{self, FAILED, Failure};
use crate::observed::{self, Obstacles, RunnerStart};
use crate::screen;
use crate::target::Target;
pub use resume::Resume;

/// Time without data after which a log is requested again. A job may print nothing for longer, but the connection
/// may also be dead.
const LONGEST_SILENCE: Duration = Duration::from_secs(120);
/// Time until a log that has ended is requested again, since its container still runs.
const PAUSE_AFTER_END: Duration = Duration::from_millis(250);
/// Time between two attempts after a failure.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Time between two checks of `--follow` whether the pod has started.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Why the rest of a log cannot be read.
const POD_GONE: &str = "its pod is gone";
/// Failures in a row after which the log of a container that has ended, or of a pod that should be gone, counts as
/// unreadable. While the API server is away, none counts.
const FAILURE_LIMIT: u32 = 5;
/// Rejections of the user's credentials (401) in a row after which they count as expired, a second apart. Fewer may pass:
/// an API server that has just started may not know how to check them yet.
const REJECTION_LIMIT: u32 = 30;
/// Time after the API server was away in which failures do not count either: it may have no connection to kubelets yet,
/// nor know all roles.
const SETTLING_TIME: Duration = Duration::from_secs(60);

/// Most logs that are read at once by `--all` without `--follow`. Each needs a connection.
const LOGS_AT_ONCE: usize = 64;

/// Failures in a row.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    /// The last time that the API server was away.
    away_at: Option<Instant>,
}

impl Failures {
    /// Notes a failure. `is_away`: the API server is away.
    fn note(&mut self, is_away: bool) {
        if is_away {
            self.away_at = Some(Instant::now());
        } else if self.away_at.is_none_or(|at| at.elapsed() >= SETTLING_TIME) {
            self.count += 1;
        }
    }
}

/// Arguments of `logs`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Name of the MiniCluster
    pub name: String,
    /// Index of the pod; 0 is the lead
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "all")]
    pub index: u32,
    /// Print the logs of all pods, with the index before each line
    #[arg(long)]
    pub all: bool,
    /// Wait for the pod to start, then follow its log until it ends
    #[arg(long, short)]
    pub follow: bool,
    /// Print the log of the container's previous run
    #[arg(long, short, conflicts_with = "follow")]
    pub previous: bool,
    /// Name of the container [default: the one that runs Flux]
    #[arg(long, short, value_name = "NAME")]
    pub container: Option<String>,
}

/// Prints the logs.
pub async fn run(target: &Target, args: &Args) -> Result<u8, Failure> {
    let name = &args.name;
    let none = |what: &str| {
        let why = target.access.command("why", name);
        Failure::Message(format!("{name} has {what}: {why} says why"))
    };
    if !args.all {
        let index = args.index;
        let pod = if args.follow {
            wait_for_start(target, args).await?
        } else {
            find(target, args).await?.1
        };
        let pod = pod.ok_or_else(|| none(&format!("no pod with index {index}")))?;
        return print_one(target, &pod, args).await.map(|()| 0);
    }
    let mut pods = target.pods_of(&target.cluster(name).await?).await?;
    if pods.is_empty() {
        return Err(none("no pods"));
    }
    pods.sort_by_key(|pod| (observed::index(pod), observed::created(pod)));
    let prints = pods
        .iter()
        .filter_map(|pod| Some(print_with_index(target, pod, observed::index(pod)?, args)));
    let at_once = if args.follow { pods.len() } else { LOGS_AT_ONCE };
    let mut each = stream::iter(prints).buffer_unordered(at_once);
    let mut code = 0;
    // A log that cannot be read does not hide the others. Its failure is printed while the others go on.
    while let Some(printed) = each.next().await {
        match printed {
            Ok(()) => {}
            // Nobody reads the standard output any more (`| head`).
            Err(Failure::Unread) => return Err(Failure::Unread),
            Err(failure) => {
                screen::tell(&failure.to_string());
                code = FAILED;
            }
        }
    }
    Ok(code)
}

/// Waits until the pod of `--index` has a log to follow, or the MiniCluster has finished without one. Returns the pod, if
/// there is one. Once the API server has answered, it may be away for any length of time.
async fn wait_for_start(target: &Target, args: &Args) -> Result<Option<Pod>, Failure> {
    let (mut obstacles, mut has_answered, mut is_away) = (Obstacles::default(), false, false);
    let mut failures = Failures::default();
    loop {
        let (cluster, pod) = match find(target, args).await {
            Ok(found) => found,
            Err(failure) => {
                failures.note(failure.may_pass());
                let is_refused = matches!(failure, Failure::Refused { .. });
                let can_pass = failure.may_pass() || is_refused && failures.count < FAILURE_LIMIT;
                if !has_answered || !can_pass {
                    return Err(failure);
                }
                if !std::mem::replace(&mut is_away, true) {
                    screen::tell(&format!("{failure}; retrying"));
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
                continue;
            }
        };
        (has_answered, is_away, failures.count) = (true, false, 0);
        if pod.as_ref().and_then(observed::started).is_some() {
            return Ok(pod);
        }
        let status = cluster.status;
        let phase = observed::phase_of(status.as_ref());
        let known_phase = status.as_ref().and_then(MiniClusterStatus::phase);
        if known_phase.is_some_and(|phase| phase.is_finished() || phase == Phase::Invalid) {
            return Ok(pod);
        }
        let why = match &status {
            None => observed::NO_OPERATOR,
            // If nothing is wrong, the status has no message: a pod that was scaled away, or never existed.
            Some(status) => status.message.as_deref().unwrap_or("there is no such pod now"),
        };
        if obstacles.is_new(phase, why) {
            screen::tell(&format!(
                "waiting for the pod with index {} ({phase}: {why})",
                args.index
            ));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// The MiniCluster, and the pod of `--index` if there is one.
async fn find(target: &Target, args: &Args) -> Result<(MiniCluster, Option<Pod>), Failure> {
    let cluster = target.cluster(&args.name).await?;
    let pod = target.pod_of_index(&cluster, args.index).await?;
    Ok((cluster, pod))
}

/// Name of the container of `--container`, else of the one that runs Flux.
fn container<'a>(pod: &'a Pod, args: &'a Args) -> &'a str {
    args.container
        .as_deref()
        .or(observed::runner(pod))
        .unwrap_or_default()
}

async fn print_one(target: &Target, pod: &Pod, args: &Args) -> Result<(), Failure> {
    // The function `follow` resumes after a broken connection, but only knows the starts of the container that runs
    // Flux.
    if args.follow
        && args.container.is_none()
        && let Some(start) = observed::started(pod)
    {
        // Nothing has to be done before something is printed: `|| ()`.
        return follow(&target.pods(), pod, &start, &mut Resume::default(), || ()).await;
    }
    print_lines(&target.pods(), pod, args, screen::put).await
}

async fn print_with_index(target: &Target, pod: &Pod, index: u32, args: &Args) -> Result<(), Failure> {
    let prefix = format!("{index}: ").into_bytes();
    print_lines(&target.pods(), pod, args, |line| {
        screen::put(&[prefix.as_slice(), line].concat())
    })
    .await
}

/// Passes a log to `put` line by line, without resuming it. Lines are bytes, since a program may print text that is
/// not UTF-8.
async fn print_lines(
    pods: &Api<Pod>,
    pod: &Pod,
    args: &Args,
    mut put: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (name, container) = (observed::name(pod), container(pod, args));
    let doing = || format!("read the log of {name}, container {container}");
    let parameters = LogParams {
        container: Some(container.to_owned()),
        follow: args.follow,
        previous: args.previous,
        ..LogParams::default()
    };
    let mut log = pods
        .log_stream(name, &parameters)
        .await
        .map_err(Failure::call(doing()))?;
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = log.read_until(b'\n', &mut line).await;
        let count = read.map_err(|error| Failure::Call {
            doing: doing(),
            why: error.to_string(),
            passes: false,
        })?;
        if count == 0 {
            return Ok(());
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        put(&line)?;
    }
}

/// Prints the log of one start of a pod's runner to its end, and reconnects if the connection breaks.
/// `resume` has the position after the pod's earlier starts, so that their lines are not printed again.
/// `before_print` is called each time before something is printed. Returns an error if a part of the log could not
/// be read.
pub async fn follow(
    pods: &Api<Pod>,
    pod: &Pod,
    start: &RunnerStart,
    resume: &mut Resume,
    before_print: impl Fn(),
) -> Result<(), Failure> {
    let (name, container) = (observed::name(pod), observed::runner(pod).unwrap_or_default());
    let unread = |why: &str| {
        Err(Failure::Call {
            doing: format!("read the whole log of {name}, container {container}"),
            why: why.to_owned(),
            passes: false,
        })
    };
    let mut pod = pod.clone();
    resume.begin_container();
    let (mut failures, mut was_complete, mut has_gap, mut has_read) =
        (Failures::default(), false, false, false);
    loop {
        let (restarts, is_over) = (
            observed::restarts(&pod) - start.restarts,
            observed::is_over(&pod, start),
        );
        // Otherwise failures are retried for any length of time, since the job goes on.
        let can_give_up = is_over || observed::is_overdue(&pod, Timestamp::now());
        // The kubelet keeps the log of one earlier container only.
        if restarts > 1 && !was_complete {
            return unread("its container has restarted twice meanwhile");
        }
        if restarts > 1 {
            break;
        }
        let since_time = resume.connect();
        let parameters = LogParams {
            container: Some(container.to_owned()),
            follow: !is_over,
            previous: restarts == 1,
            timestamps: true,
            since_time,
            ..LogParams::default()
        };
        let read = match pods.log_stream(name, &parameters).await {
            Ok(log) => copy(log, resume, &before_print).await?,
            // The user lacks a permission, so a retry does not help. (After a read that succeeded, 403 may pass: an API
            // server that has just started does not know all roles yet.)
            Err(error) if failure::is_code(&error, 403) && !has_read => {
                return unread(&failure::cause_of(&error));
            }
            Err(error) => {
                let why = failure::cause_of(&error);
                let end = if failure::is_code(&error, 404) {
                    // The pod is gone, or its kubelet was restarted and does not know it yet. The pod tells, below.
                    CopyEnd::Missing(why)
                } else if is_away(&error) {
                    CopyEnd::Away(why)
                } else {
                    CopyEnd::Broken(why)
                };
                LogRead {
                    end,
                    has_progressed: false,
                }
            }
        };
        let is_complete = matches!(read.end, CopyEnd::Complete);
        has_read |= is_complete || read.has_progressed;
        // `resume.end()`: lines are missing, since each read of a log repeats the last line of the read before, and
        // this one did not. But if the log had been read completely and has nothing new, it was only rotated.
        if is_complete && resume.end() && (read.has_progressed || !was_complete) {
            if was_complete && has_restarted(pods, name, start).await {
                // The log had been read completely, and these were the next container's lines.
                break;
            }
            has_gap = true;
        }
        if is_complete && is_over {
            // The container had ended before this read, so nothing else is missing.
            break;
        }
        let is_away = matches!(read.end, CopyEnd::Away(_));
        let is_missing = matches!(read.end, CopyEnd::Missing(_));
        let obstacle = match read.end {
            CopyEnd::Complete => None,
            // A running container may print nothing for any length of time.
            CopyEnd::Silent => {
                can_give_up.then(|| format!("no data came for {} s", LONGEST_SILENCE.as_secs()))
            }
            CopyEnd::Broken(why) | CopyEnd::Away(why) | CopyEnd::Missing(why) => Some(why),
        };
        let has_failed = obstacle.is_some();
        if read.has_progressed || !has_failed {
            failures.count = 0;
        } else {
            failures.note(is_away);
        }
        if let Some(why) = obstacle
            && failures.count >= FAILURE_LIMIT
            && can_give_up
        {
            return unread(&why);
        }
        let may_be_next_container = was_complete && !is_complete && read.has_progressed;
        was_complete = is_complete || (was_complete && is_missing);
        // The state of the pod decides which container's log is read next, so wait for an answer. Without the
        // permission to get pods (403), assume that nothing has changed, or that a pod without a log is gone.
        let mut rejections = 0;
        let current = loop {
            match pods.get_opt(name).await {
                Ok(current) => break current,
                Err(error) if failure::is_code(&error, 403) => break (!is_missing).then(|| pod.clone()),
                Err(error) => {
                    failures.note(self::is_away(&error));
                    let is_rejected = failure::is_code(&error, 401);
                    rejections = if is_rejected { rejections + 1 } else { 0 };
                    if (can_give_up && failures.count >= FAILURE_LIMIT) || rejections >= REJECTION_LIMIT {
                        return unread(&failure::cause_of(&error));
                    }
                    tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
                }
            }
        };
        pod = match current.filter(|pod| observed::is_pod_of(pod, start)) {
            Some(current) => current,
            None if was_complete => break,
            None => return unread(POD_GONE),
        };
        if may_be_next_container && observed::restarts(&pod) > start.restarts && resume.end() {
            // The log had been read completely, and these were the next container's lines.
            break;
        }
        if has_failed || failures.count > 0 {
            tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
        } else if !observed::is_over(&pod, start) {
            tokio::time::sleep(PAUSE_AFTER_END).await;
        }
    }
    if has_gap {
        return unread("the node does not have all lines any more");
    }
    Ok(())
}

/// Whether the runner was started again after this start. False if that is unknown.
async fn has_restarted(pods: &Api<Pod>, name: &str, start: &RunnerStart) -> bool {
    let pod = pods.get_opt(name).await.ok().flatten();
    pod.is_some_and(|pod| observed::restarts(&pod) > start.restarts)
}

/// Whether the API server is away: there was no answer, or a load balancer answered in its place. Such a failure does
/// not count against `FAILURE_LIMIT`. (If the kubelet is away, the API server answers 500.)
fn is_away(error: &kube::Error) -> bool {
    failure::may_pass(error) && !failure::is_code(error, 500)
}

/// How a read of a log ended.
#[derive(Debug)]
enum CopyEnd {
    /// The API server ended the log.
    Complete,
    /// No data came for `LONGEST_SILENCE`.
    Silent,
    /// The call or the connection failed: the cause.
    Broken(String),
    /// The API server is away: the cause.
    Away(String),
    /// There is no such log (404): the answer's words.
    Missing(String),
}

/// A read of a log: how it ended, and whether it had anything new. (Each read repeats the last line.)
#[derive(Debug)]
struct LogRead {
    end: CopyEnd,
    has_progressed: bool,
}

/// Reads a log until it ends, and prints what was not printed before.
async fn copy(
    mut log: impl futures::AsyncRead + Unpin,
    resume: &mut Resume,
    before_print: &impl Fn(),
) -> Result<LogRead, Failure> {
    let mut buffer = vec![0; 64 * 1024];
    let mut has_progressed = false;
    let end = loop {
        match tokio::time::timeout(LONGEST_SILENCE, log.read(&mut buffer)).await {
            Ok(Ok(0)) => break CopyEnd::Complete,
            Ok(Ok(count)) => {
                let new = buffer
                    .get(..count)
                    .map(|bytes| resume.feed(bytes))
                    .unwrap_or_default();
                if !new.is_empty() {
                    has_progressed = true;
                    before_print();
                    screen::put_beside(new).await?;
                }
            }
            Ok(Err(error)) => break CopyEnd::Broken(error.to_string()),
            Err(_) => break CopyEnd::Silent,
        }
    };
    Ok(LogRead { end, has_progressed })
}

#[cfg(test)]
mod tests;
