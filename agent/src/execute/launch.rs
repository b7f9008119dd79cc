//! Runs the program of a launch, with its restarts, and derives the container's exit code from its end.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use flux_agent_plan::known_paths::DEFAULT_PATH;
use flux_agent_plan::plan::{AtEnd, InstancePart, Launch};
use flux_shared::exit::{Category, NOT_EXECUTABLE, NOT_FOUND, of_signal};

use super::attempt::Launched;
use super::broker_end::BrokerEnd;
use super::broker_policy::LaunchEnd;
use super::executor::Executor;
use crate::execute::program_note::read_note;
use crate::facts::bash_trouble;
use crate::facts::host::HostFiles;
use crate::report::failure::Failure;
use crate::report::log;
use crate::supervise::ChildEnd;
use crate::supervise::orphans::EarlierProcesses;
use crate::supervise::program::{Lookup, find};
use crate::system::glibc::Libc;

/// If the program ended at least this long before its broker, the broker's end does not count as the cause.
const BEFORE_BROKER: Duration = Duration::from_secs(1);
/// How much earlier than its event a file's time may be: the kernel takes the time of its last tick.
const CLOCK_TICK: Duration = Duration::from_millis(10);
/// The end of a broker whose initial program was ended by SIGHUP.
const HUNG_UP: ChildEnd = ChildEnd::Exited(128 + libc::SIGHUP as u8);

impl Executor<'_> {
    /// Runs the program to its end, with all restarts; returns the container's exit code.
    pub(super) async fn launch(&mut self, launch: &Launch) -> Result<u8, Failure> {
        match launch.at_end {
            AtEnd::Exit | AtEnd::ExitUnlessStopped => {
                let mut parent = launch.parent.as_ref().map(|parent| self.parent_probe(parent));
                let earlier = EarlierProcesses::now();
                let ended = match self.launch_once(launch, parent.as_mut()).await? {
                    Launched::NotStarted(code) => return Ok(code),
                    Launched::Ended(ended) => ended,
                };
                if self.may_have_left_program(launch, &ended) {
                    self.kill_orphans(&earlier).await?;
                }
                Ok(self.finish_program(launch, &ended))
            }
            AtEnd::RestartFollower {
                limit,
                lead_can_restart,
            } => self.launch_follower(launch, Some(limit), lead_can_restart).await,
            AtEnd::Complete { lead_can_restart } => {
                self.launch_follower(launch, None, lead_can_restart).await
            }
        }
    }

    /// Whether the lead's broker may have ended before the program. The program must not run beside the snippet `post`
    /// or the next start, nor succeed after it has counted as failed.
    fn may_have_left_program(&self, launch: &Launch, ended: &LaunchEnd) -> bool {
        if launch.part != InstancePart::Lead {
            return false;
        }
        let is_unfinished =
            |path: &String| read_note(&self.files.at(path)).is_none_or(|note| note.code.is_none());
        matches!(ended.end, ChildEnd::Signaled(_)) || launch.result.as_ref().is_some_and(is_unfinished)
    }

    /// Records how the program ended, and returns the container's exit code: the program's, even if the broker failed
    /// after it.
    fn finish_program(&mut self, launch: &Launch, ended: &LaunchEnd) -> u8 {
        let note = launch
            .result
            .as_ref()
            .and_then(|path| read_note(&self.files.at(path)));
        let came_up = ended.has_come_up || note.is_some();
        // Without a program, Flux runs a shell if the container has a terminal. `flux shutdown` ends that shell by
        // SIGHUP, which is no failure.
        let is_hung_up =
            launch.at_end == AtEnd::ExitUnlessStopped && launch.program.is_empty() && ended.end == HUNG_UP;
        // Without a program, the job is over once the broker shuts down. If the dump then fails, the broker exits
        // with 1 instead of 0. That is no failure of the job.
        let has_only_dump_failed = launch.program.is_empty()
            && ended.end == ChildEnd::Exited(1)
            && ended.has_come_up
            && ended.shutdown_began.is_some()
            && self.has_failed_dump();
        let broker_end = if is_hung_up || has_only_dump_failed {
            ChildEnd::Exited(0)
        } else {
            ended.end
        };
        let since_note = note.and_then(|note| SystemTime::now().duration_since(note.at).ok());
        let has_program_ended_first =
            since_note.is_some_and(|since| since >= ended.at.elapsed() + BEFORE_BROKER);
        let program = note.and_then(|note| note.code);
        let broker = BrokerEnd {
            end: broker_end,
            came_up,
            program,
            has_program_ended_first,
            is_aborted: note.is_some_and(|note| note.is_aborted),
        };
        self.ending.is_node_failure = note.is_some_and(|note| note.node_failure);
        // The dump is judged by the broker's own code: the shell's end by SIGHUP hides a later failure of the dump.
        self.broker_end = Some(BrokerEnd {
            end: ended.end,
            came_up: came_up || is_hung_up,
            ..broker
        });
        let job_end = broker.job_end();
        // Without a file for the program's note, the instance counts as begun unless the broker failed first.
        let has_begun = match launch.result {
            Some(_) => note.is_some(),
            None => came_up || broker_end == ChildEnd::Exited(0),
        };
        if launch.needs_instance && !has_begun {
            return self.report_no_program(launch, ended);
        }
        // The earliest sign counts. The broker begins to shut down only when the note is on the disk, which may take
        // seconds. Without the broker's states, only the note says when the program ended.
        let noted_at = program
            .and(since_note)
            .and_then(|since| Instant::now().checked_sub(since))
            .map(|at| at + CLOCK_TICK);
        let ended_at = [ended.shutdown_began, noted_at]
            .into_iter()
            .flatten()
            .fold(ended.at, Instant::min);
        let end = match (job_end, ended.stopped) {
            // A stop does not complete an instance that stays up for people.
            (ChildEnd::Exited(0), Some(stop))
                if launch.at_end == AtEnd::ExitUnlessStopped && stop.at < ended_at =>
            {
                ChildEnd::Signaled(stop.signal)
            }
            (end, _) => end,
        };
        if !launch.program.is_empty() {
            // Flux also tells the program to end if the pod is stopped.
            let is_stopped = ended.stopped.is_some_and(|stop| stop.at < ended_at);
            let has_ended_it = broker.is_aborted && !is_stopped;
            let is_shut_down = has_ended_it || note.is_some_and(|note| note.is_shut_down);
            self.ending.is_shut_down = is_shut_down && end.code() != 0;
            self.ending.program = Some((end.code(), ended_at));
            self.record_end(end.code());
        }
        if job_end != broker_end {
            let code = ended.end.code();
            let job = job_end.code();
            tracing::info!(
                stage = "broker",
                "the job ended with code {job}; the broker then ended with code {code}"
            );
        }
        if came_up {
            // The image is not the cause of any failure.
            return end.code();
        }
        self.report_end(launch, end)
    }

    /// Reports that the instance ended before its program began, and returns the container's exit code. It is
    /// never 0, even if the broker's is.
    fn report_no_program(&mut self, launch: &Launch, ended: &LaunchEnd) -> u8 {
        if let Some(stop) = ended.stopped {
            return of_signal(stop.signal);
        }
        // Flux accepts `flux shutdown` a moment before it starts the program.
        if ended.end == HUNG_UP && ended.has_come_up {
            let code = HUNG_UP.code();
            self.ending.is_shut_down = true;
            self.ending.program = Some((code, ended.at));
            self.record_end(code);
            return code;
        }
        // The broker ends with the code of `flux-agent program`, which starts no program if it cannot write its note.
        if let Some(result) = &launch.result
            && ended.end == ChildEnd::Exited(Category::WriteFailed.code())
        {
            let why =
                format!("the program was not started: failed to write {result}. See the message in the log");
            return self.report_no_instance(Category::WriteFailed, why);
        }
        let unusable = self.why_unusable(launch, ended.end);
        let why = unusable.unwrap_or_else(|| self.log_hint());
        let why = format!(
            "the instance did not come up (the broker ended with code {}): {why}",
            ended.end.code()
        );
        self.report_no_instance(Category::BrokerFailed, why)
    }

    /// Says where to look for the cause. If Flux finds no bash, says so: its own messages do not say what to do.
    fn log_hint(&self) -> String {
        let log = "see its messages in the log";
        let path = self.session.lookup("PATH");
        let host = HostFiles::new(Path::new("/"));
        match bash_trouble(&host, path.as_deref().unwrap_or(DEFAULT_PATH)) {
            None => log.into(),
            Some(trouble) => format!("{log}; {trouble}"),
        }
    }

    /// The program's exit code, unchanged; reports why if the image cannot run Flux.
    fn report_end(&mut self, launch: &Launch, end: ChildEnd) -> u8 {
        let code = end.code();
        if let Some(why) = self.why_unusable(launch, end) {
            let line = format!("the program ended with code {code}: {why}");
            log::fatal("broker", &line);
            self.ending.note(line);
        }
        code
    }

    /// Why the image cannot run Flux, if that is known. The image is examined only if the broker ended as after a
    /// failure of the dynamic loader (1 or 127), or of a shell that got a program for another architecture (2 or 126).
    /// None for a sidecar's command, which is no broker.
    fn why_unusable(&self, launch: &Launch, end: ChildEnd) -> Option<String> {
        let may_be_unusable = matches!(end, ChildEnd::Exited(1 | 2 | NOT_EXECUTABLE | NOT_FOUND));
        if launch.part == InstancePart::Command || !may_be_unusable {
            return None;
        }
        let name = self.session.resolve(launch.argv.first()?);
        let path = match find(&name, &self.session.environment, &self.session.directory) {
            Lookup::Program(path) => path,
            _ => return None,
        };
        Libc::of(&path, Path::new("/"))?.trouble()
    }
}
