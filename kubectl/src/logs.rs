//! Logs of a MiniCluster's pods, live; a log whose connection breaks is resumed.

mod resume;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::Duration;

use flux_operator_client::credentials;
use flux_shared::causes::causes;
use flux_shared::crd::v1alpha2::{MiniCluster, MiniClusterStatus};
use flux_shared::phase::Phase;
use futures::stream::FuturesUnordered;
use futures::{AsyncBufReadExt, AsyncReadExt, Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::LogParams;
use tokio::time::Instant;

use crate::failure::{self, FAILED, Failure};
use crate::login::{NoCredentials, Silence};
use crate::observed::{self, ContainerStart, Obstacles, Snapshot};
use crate::screen;
use crate::target::Target;
pub use resume::Resume;

/// Time without data after which a followed log is requested again, and another one counts as unreadable. A job may
/// print nothing for longer, but the connection may also be dead.
const LONGEST_SILENCE: Duration = Duration::from_secs(120);
/// Time until a log that has ended is requested again, since its container still runs.
const PAUSE_AFTER_END: Duration = Duration::from_millis(250);
/// Number of ends in a row without new lines after which each end doubles the pause, to eight times as long. By then
/// (2 s), the status shows whether the container has ended.
const QUICK_ENDS: u32 = 8;
/// Time between two attempts after a failure.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Time between two checks of `--follow` whether pods have started. For a list of many pods it is longer.
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
    /// Wait for the pods to start, then follow their logs until they end
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
    let no_pods = |what: &str| no_pods(target, name, what);
    if args.all && args.follow {
        return follow_all(target, args).await;
    }
    if !args.all {
        let index = args.index;
        let pod = if args.follow {
            wait_for_start(target, args).await?
        } else {
            find(target, args).await?.1
        };
        let pod = pod.ok_or_else(|| no_pods(&format!("no pod with index {index}")))?;
        return print_one(target, &pod, args).await.map(|()| 0);
    }
    let mut pods = target.pods_of(&target.cluster(name).await?).await?;
    if pods.is_empty() {
        return Err(no_pods("no pods"));
    }
    pods.sort_by_key(|pod| (observed::index(pod), observed::created(pod)));
    let prints = pods
        .iter()
        .filter_map(|pod| Some(print_with_index(target, pod, observed::index(pod)?, args)));
    let mut each = stream::iter(prints).buffer_unordered(LOGS_AT_ONCE);
    let mut code = 0;
    while let Some(printed) = each.next().await {
        note_printed(printed, &mut code)?;
    }
    Ok(code)
}

/// The failure if the MiniCluster lacks the wanted pods. `what` completes "NAME has …".
fn no_pods(target: &Target, name: &str, what: &str) -> Failure {
    let why = target.access.command("why", name);
    Failure::Message(format!("{name} has {what}: {why} says why"))
}

/// Notes that one of several logs was printed. A log that cannot be read does not hide the others. Its failure is
/// printed while the others go on.
fn note_printed(printed: Result<(), Failure>, code: &mut u8) -> Result<(), Failure> {
    match printed {
        Ok(()) => Ok(()),
        // Nobody reads the standard output any more (`| head`).
        Err(Failure::Unread) => Err(Failure::Unread),
        Err(failure) => {
            screen::tell(&causes(&failure));
            *code = FAILED;
            Ok(())
        }
    }
}

/// Follows the log of each pod from its start to its end.
async fn follow_all(target: &Target, args: &Args) -> Result<u8, Failure> {
    let mut started = pin!(started_pods(target, args));
    let (mut begun, mut prints) = (BTreeSet::new(), FuturesUnordered::new());
    let (mut is_waiting, mut code) = (true, 0);
    while is_waiting || !prints.is_empty() {
        tokio::select! {
            pods = started.next(), if is_waiting => match pods {
                Some(Ok(pods)) => {
                    for pod in pods {
                        if let Some(index) = observed::index(&pod)
                            && begun.insert(pod.metadata.uid.clone())
                        {
                            prints.push(follow_with_index(target, pod, index, args));
                        }
                    }
                }
                Some(failed) => note_printed(failed.map(|_| ()), &mut code)?,
                None => is_waiting = false,
            },
            Some(printed) = prints.next() => note_printed(printed, &mut code)?,
        }
    }
    if begun.is_empty() && code == 0 {
        return Err(no_pods(target, &args.name, "no pods"));
    }
    Ok(code)
}

/// Lists the pods that have a log to follow, again and again, until the latest pod of each index has one or the
/// MiniCluster has finished. A finished MiniCluster's pods are all in the list, so that a missing log is reported.
fn started_pods(target: &Target, args: &Args) -> impl Stream<Item = Result<Vec<Pod>, Failure>> {
    stream::try_unfold(Some(Waiting::default()), move |waiting| async move {
        let Some(mut waiting) = waiting else {
            return Ok(None);
        };
        loop {
            if waiting.has_answered {
                tokio::time::sleep(LOOK_INTERVAL * (1 + waiting.listed / 100)).await;
            }
            let (cluster, pods) = match find_all(target, args).await {
                Ok(found) => found,
                Err(failure) => {
                    waiting.note_failure(failure)?;
                    continue;
                }
            };
            waiting.note_answer();
            waiting.listed = u32::try_from(pods.len()).unwrap_or(u32::MAX);
            if is_finished(&cluster) {
                return Ok(Some((pods, None)));
            }
            let snapshot = Snapshot {
                pods: pods
                    .into_iter()
                    .map(|pod| (observed::name(&pod).to_owned(), pod))
                    .collect(),
                cluster: Some(cluster),
            };
            let indices: BTreeMap<u32, bool> = snapshot
                .latest_pods()
                .filter_map(|pod| Some((observed::index(pod)?, can_follow(pod, args))))
                .collect();
            let size = u32::try_from(snapshot.size()).unwrap_or(0);
            let is_missing = |index: &u32| indices.get(index) != Some(&true);
            let missing = (0..size).filter(is_missing).count();
            if missing > 0 {
                let has_pods = (0..size).all(|index| indices.contains_key(&index));
                let status = snapshot.status();
                waiting.note_obstacle(status, &format!("{missing} of {size} pods"), has_pods);
            }
            let mut pods: Vec<Pod> = snapshot.pods.into_values().collect();
            pods.retain(|pod| can_follow(pod, args));
            return Ok(Some((pods, (missing > 0).then_some(waiting))));
        }
    })
}

/// Waits until the pod of `--index` has a log to follow, or the MiniCluster has finished without one. Returns the pod, if
/// there is one.
async fn wait_for_start(target: &Target, args: &Args) -> Result<Option<Pod>, Failure> {
    let mut waiting = Waiting::default();
    loop {
        match find(target, args).await {
            Err(failure) => waiting.note_failure(failure)?,
            Ok((cluster, pod)) => {
                waiting.note_answer();
                if is_finished(&cluster) || pod.as_ref().is_some_and(|pod| can_follow(pod, args)) {
                    return Ok(pod);
                }
                let what = format!("the pod with index {}", args.index);
                let what = match &args.container {
                    Some(container) => format!("container {container} of {what}"),
                    None => what,
                };
                waiting.note_obstacle(cluster.status.as_ref(), &what, pod.is_some());
            }
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// What is known while `--follow` waits for pods to start. Once the API server has answered, it may be away for any
/// length of time.
#[derive(Debug, Default)]
struct Waiting {
    obstacles: Obstacles,
    failures: Failures,
    has_answered: bool,
    /// The last look has failed.
    is_failing: bool,
    /// Number of pods in the last list.
    listed: u32,
}

impl Waiting {
    /// Notes that a look failed. Returns the failure if it will not pass, or if the API server has never answered.
    fn note_failure(&mut self, failure: Failure) -> Result<(), Failure> {
        self.failures.note(failure.may_pass());
        let is_refused = matches!(failure, Failure::Refused { .. });
        let can_pass = failure.may_pass() || is_refused && self.failures.count < FAILURE_LIMIT;
        if !self.has_answered || !can_pass {
            return Err(failure);
        }
        if !std::mem::replace(&mut self.is_failing, true) {
            screen::tell(&format!("{failure}; retrying"));
        }
        Ok(())
    }

    fn note_answer(&mut self) {
        (self.has_answered, self.is_failing, self.failures.count) = (true, false, 0);
    }

    /// Prints why `what` has no log yet, unless that was printed before. `has_pods`: its pods exist.
    fn note_obstacle(&mut self, status: Option<&MiniClusterStatus>, what: &str, has_pods: bool) {
        let phase = observed::phase_of(status);
        let why = match status {
            None => observed::NO_OPERATOR,
            // If nothing is wrong, the status has no message: a pod that was scaled away, or never existed.
            Some(status) => status.message.as_deref().unwrap_or(if has_pods {
                "not started yet"
            } else {
                "there is no such pod now"
            }),
        };
        if self.obstacles.is_new(phase, why) {
            screen::tell(&format!("waiting for {what} ({phase}: {why})"));
        }
    }
}

/// Whether no more pods of the MiniCluster start.
fn is_finished(cluster: &MiniCluster) -> bool {
    let phase = cluster.status.as_ref().and_then(MiniClusterStatus::phase);
    phase.is_some_and(|phase| phase.is_finished() || phase == Phase::Invalid)
}

/// Whether the pod's container has a log to follow. Also true if the pod has no such container: then the API server's
/// error is printed.
fn can_follow(pod: &Pod, args: &Args) -> bool {
    let container = container(pod, args);
    observed::started_container(pod, container).is_some() || !observed::has_container(pod, container)
}

/// The MiniCluster, and the pod of `--index` if there is one.
async fn find(target: &Target, args: &Args) -> Result<(MiniCluster, Option<Pod>), Failure> {
    let cluster = target.cluster(&args.name).await?;
    let pod = target.pod_of_index(&cluster, args.index).await?;
    Ok((cluster, pod))
}

/// The MiniCluster, and all its pods.
async fn find_all(target: &Target, args: &Args) -> Result<(MiniCluster, Vec<Pod>), Failure> {
    let cluster = target.cluster(&args.name).await?;
    let pods = target.pods_of(&cluster).await?;
    Ok((cluster, pods))
}

/// Name of the container of `--container`, else of the one that runs Flux.
fn container<'a>(pod: &'a Pod, args: &'a Args) -> &'a str {
    args.container
        .as_deref()
        .or(observed::runner(pod))
        .unwrap_or_default()
}

async fn print_one(target: &Target, pod: &Pod, args: &Args) -> Result<(), Failure> {
    if args.follow
        && let Some(start) = observed::started_container(pod, container(pod, args))
    {
        let (pods, mut resume) = (target.pods(), Resume::default());
        return follow(&pods, pod, &start, &mut resume, screen::put_beside, screen::tell).await;
    }
    print_lines(&target.pods(), pod, args, screen::put_beside).await
}

async fn follow_with_index(target: &Target, pod: Pod, index: u32, args: &Args) -> Result<(), Failure> {
    let Some(start) = observed::started_container(&pod, container(&pod, args)) else {
        return print_with_index(target, &pod, index, args).await;
    };
    let (pods, mut resume) = (target.pods(), Resume::default());
    let mut lines = IndexedLines::new(index);
    let put = async |bytes: Vec<u8>| screen::put_beside(lines.feed(&bytes)).await;
    let result = follow(&pods, &pod, &start, &mut resume, put, screen::tell).await;
    screen::put_beside(lines.end()).await?;
    result
}

/// Most bytes of a line that is held back until it is complete. (A progress bar may end its lines with `\r` alone.)
const LINE_MAX: usize = 64 * 1024;

/// Splits a log into lines, with the pod's index before each.
struct IndexedLines {
    prefix: String,
    /// A line that is not complete yet.
    line: Vec<u8>,
}

impl IndexedLines {
    fn new(index: u32) -> IndexedLines {
        IndexedLines {
            prefix: format!("{index}: "),
            line: Vec::new(),
        }
    }

    /// Takes a part of the log. Returns the lines that are complete, or longer than `LINE_MAX`.
    fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut lines = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() > LINE_MAX && !part.ends_with(b"\n") {
                self.line.push(b'\n');
            }
            if self.line.ends_with(b"\n") {
                lines.extend_from_slice(self.prefix.as_bytes());
                lines.append(&mut self.line);
            }
        }
        lines
    }

    /// The last line, if it is not complete.
    fn end(&mut self) -> Vec<u8> {
        if self.line.is_empty() {
            return Vec::new();
        }
        self.feed(b"\n")
    }
}

async fn print_with_index(target: &Target, pod: &Pod, index: u32, args: &Args) -> Result<(), Failure> {
    let prefix = format!("{index}: ").into_bytes();
    let put = async |line: Vec<u8>| screen::put_beside([prefix.clone(), line].concat()).await;
    print_lines(&target.pods(), pod, args, put).await
}

/// Passes what a log has now to `put` line by line. Lines are bytes, since a program may print text that is not UTF-8.
async fn print_lines(
    pods: &Api<Pod>,
    pod: &Pod,
    args: &Args,
    mut put: impl AsyncFnMut(Vec<u8>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (name, container) = (observed::name(pod), container(pod, args));
    let doing = || format!("read the log of {name}, container {container}");
    let parameters = LogParams {
        container: Some(container.to_owned()),
        previous: args.previous,
        ..LogParams::default()
    };
    let mut log = pods
        .log_stream(name, &parameters)
        .await
        .map_err(Failure::call(doing()))?;
    let mut line = Vec::new();
    loop {
        let read = tokio::time::timeout(LONGEST_SILENCE, log.read_until(b'\n', &mut line)).await;
        let count = read
            .map_err(|_| no_data())
            .and_then(|read| read.map_err(|error| causes(&error)))
            .map_err(|why| Failure::Call {
                doing: doing(),
                why,
                passes: false,
            })?;
        if count == 0 {
            return Ok(());
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        put(std::mem::take(&mut line)).await?;
    }
}

/// From about this length in bytes, with its times, the kubelet has rotated a log (by default at 10 MiB, and its file has 9
/// more bytes for each line). Whoever follows the log then misses what the kubelet had not sent before the rotation.
const ROTATED: usize = 8 * 1024 * 1024;

/// Passes the log of one start of a pod's container to `put`, to its end, and reconnects if the connection breaks.
/// `resume` has the position after the container's earlier starts, so that their lines are not printed again.
/// `say` prints once that the log of a running container cannot be read. Returns an error if a part of the log could
/// not be read.
pub async fn follow(
    pods: &Api<Pod>,
    pod: &Pod,
    start: &ContainerStart,
    resume: &mut Resume,
    mut put: impl AsyncFnMut(Vec<u8>) -> Result<(), Failure>,
    say: impl Fn(&str),
) -> Result<(), Failure> {
    let (name, container) = (observed::name(pod), start.container.as_str());
    let unread = |why: &str| {
        Err(Failure::Call {
            doing: format!("read the whole log of {name}, container {container}"),
            why: why.to_owned(),
            passes: false,
        })
    };
    let mut pod = pod.clone();
    resume.begin_log();
    let (mut failures, mut has_gap, mut has_read) = (Failures::default(), false, false);
    let (mut was_complete, mut was_silent) = (false, false);
    let (mut has_told_why, mut quiet_ends, mut received) = (false, 0_u32, 0);
    loop {
        let (restarts, is_over) = (
            observed::restarts(&pod, container) - start.restarts,
            observed::is_over(&pod, start),
        );
        // While the container runs, most failures are retried without a limit, since the job goes on.
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
            // After a silence, one read does not wait for new lines: it shows whether all lines had been read.
            follow: !is_over && !was_silent,
            previous: restarts == 1,
            timestamps: true,
            since_time,
            ..LogParams::default()
        };
        let read = match pods.log_stream(name, &parameters).await {
            Ok(log) => copy(log, resume, &mut put).await?,
            // The user lacks a permission, so a retry does not help. (After a read that succeeded, 403 may pass: an API
            // server that has just started does not know all roles yet.)
            Err(error) if failure::is_code(&error, 403) && !has_read => {
                return unread(&failure::cause_of(&error));
            }
            Err(error) => {
                let why = failure::cause_of(&error);
                let end = if failure::is_code(&error, 404) {
                    // The pod is gone, or its restarted kubelet does not know it yet. `get_opt` below tells which.
                    CopyEnd::Missing(why)
                } else if credentials::find::<Silence>(&error).is_some() {
                    // The answer begins with the first line, which may come at any time.
                    CopyEnd::Silent(why)
                } else if is_away(&error) {
                    CopyEnd::Away(why)
                } else {
                    CopyEnd::Broken(why)
                };
                LogRead {
                    end,
                    has_progressed: false,
                    received: 0,
                }
            }
        };
        received += read.received;
        let is_complete = matches!(read.end, CopyEnd::Complete);
        has_read |= is_complete || read.has_progressed;
        // `resume.end()`: lines are missing, since each read of a log repeats the last line of the read before, and
        // this one did not.
        if is_complete && resume.end() {
            if !read.has_progressed && (was_complete || was_silent) {
                // The log had been read completely, and has nothing new: it was only rotated.
                resume.begin_log();
            } else if was_complete && has_restarted(pods, name, start).await {
                // The log had been read completely, and these were the next container's lines.
                break;
            } else {
                has_gap = true;
            }
        }
        let is_refused = matches!(read.end, CopyEnd::Refused(_));
        // The log had been read completely, and the kubelet has removed it since, as it may once the container has ended.
        let had_all = was_complete && is_refused && !read.has_progressed;
        if is_over && (is_complete || had_all) {
            // The container had ended before this read, so nothing else is missing.
            break;
        }
        let is_away = matches!(read.end, CopyEnd::Away(_));
        let is_missing = matches!(read.end, CopyEnd::Missing(_));
        // A connection that works repeats the last line, if there is one. Without data, it may never have worked.
        was_silent = matches!(read.end, CopyEnd::Silent(_)) && read.received > 0;
        let obstacle = match read.end {
            CopyEnd::Complete => None,
            // A running container may print nothing for any length of time.
            CopyEnd::Silent(why) => can_give_up.then_some(why),
            CopyEnd::Broken(why) | CopyEnd::Away(why) | CopyEnd::Missing(why) | CopyEnd::Refused(why) => {
                Some(why)
            }
        };
        let has_failed = obstacle.is_some();
        if read.has_progressed || !has_failed {
            failures.count = 0;
        } else {
            failures.note(is_away);
        }
        if let Some(why) = obstacle
            && failures.count >= FAILURE_LIMIT
        {
            if can_give_up {
                return unread(&why);
            }
            if !std::mem::replace(&mut has_told_why, true) {
                say(&format!(
                    "failed to read the log of {name}, container {container}: {why}; retrying"
                ));
            }
        }
        quiet_ends = if read.has_progressed { 0 } else { quiet_ends + 1 };
        let may_be_next_container = was_complete && !is_complete && read.has_progressed;
        // A complete log stays complete if a later read brings no lines, and finds no log (404) or is refused.
        was_complete = is_complete || (was_complete && !read.has_progressed && (is_missing || is_refused));
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
                    let is_logged_out = NoCredentials::of(&error).is_some_and(|missing| !missing.passes);
                    if (can_give_up && failures.count >= FAILURE_LIMIT)
                        || rejections >= REJECTION_LIMIT
                        || is_logged_out
                    {
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
        if may_be_next_container && observed::restarts(&pod, container) > start.restarts && resume.end() {
            // The log had been read completely, and these were the next container's lines.
            break;
        }
        if has_failed || failures.count > 0 {
            tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
        } else if !observed::is_over(&pod, start) {
            tokio::time::sleep(PAUSE_AFTER_END * (1 << quiet_ends.saturating_sub(QUICK_ENDS).min(3))).await;
        }
    }
    if has_gap {
        return unread("the node does not have all lines any more");
    }
    if received >= ROTATED {
        say(&format!(
            "lines may be missing: the log of {name} is so long that its node has probably rotated it, and the kubelet may skip \
             lines then. The option --output=FILE in spec.flux.optionFlags writes all of the output to a file in the pods"
        ));
    }
    Ok(())
}

/// Whether the container was started again after this start. False if that is unknown.
async fn has_restarted(pods: &Api<Pod>, name: &str, start: &ContainerStart) -> bool {
    let pod = pods.get_opt(name).await.ok().flatten();
    pod.is_some_and(|pod| observed::restarts(&pod, &start.container) > start.restarts)
}

fn no_data() -> String {
    format!("no data came for {} s", LONGEST_SILENCE.as_secs())
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
    /// No answer began, or no data came for `LONGEST_SILENCE`: which of these.
    Silent(String),
    /// The call or the connection failed: the cause.
    Broken(String),
    /// The API server is away: the cause.
    Away(String),
    /// There is no such log (404): the answer's words.
    Missing(String),
    /// The kubelet cannot read the log, or cannot follow it after its last line: its message.
    Refused(String),
}

/// A read of a log: how it ended, whether it had anything new, and its bytes. (Each read repeats the last line.)
#[derive(Debug)]
struct LogRead {
    end: CopyEnd,
    has_progressed: bool,
    received: usize,
}

/// Reads a log until it ends, and passes what was not printed before to `put`.
async fn copy(
    mut log: impl futures::AsyncRead + Unpin,
    resume: &mut Resume,
    put: &mut impl AsyncFnMut(Vec<u8>) -> Result<(), Failure>,
) -> Result<LogRead, Failure> {
    let mut buffer = vec![0; 64 * 1024];
    let (mut has_progressed, mut received) = (false, 0);
    let end = loop {
        match tokio::time::timeout(LONGEST_SILENCE, log.read(&mut buffer)).await {
            Ok(Ok(0)) => break resume.message().map_or(CopyEnd::Complete, CopyEnd::Refused),
            Ok(Ok(count)) => {
                received += count;
                let new = buffer
                    .get(..count)
                    .map(|bytes| resume.feed(bytes))
                    .unwrap_or_default();
                if !new.is_empty() {
                    has_progressed = true;
                    put(new).await?;
                }
            }
            Ok(Err(error)) => break CopyEnd::Broken(causes(&error)),
            Err(_) => break CopyEnd::Silent(no_data()),
        }
    };
    Ok(LogRead {
        end,
        has_progressed,
        received,
    })
}

#[cfg(test)]
mod tests;
