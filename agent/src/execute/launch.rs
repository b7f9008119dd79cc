//! The program of a plan, through all its starts, and what its end means for the container.

use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use flux_agent_plan::plan::{AtEnd, InstancePart, Launch};
use flux_shared::exit::{NOT_FOUND, of_signal};

use super::attempt::Launched;
use super::broker_end::BrokerEnd;
use super::broker_policy::LaunchEnd;
use super::executor::Executor;
use crate::execute::program_note::noted;
use crate::report::failure::Failure;
use crate::report::log;
use crate::supervise::ChildEnd;
use crate::supervise::program::{Lookup, find};
use crate::system::glibc::Libc;

/// A program that ended so long before its broker did not end because of that.
const BEFORE_BROKER: Duration = Duration::from_secs(1);
/// The end of a broker whose initial program was ended by SIGHUP.
const HUNG_UP: ChildEnd = ChildEnd::Exited(128 + libc::SIGHUP as u8);

impl Executor<'_> {
    /// Runs the program to its end, with all restarts; returns the container's exit code.
    pub(super) async fn launch(&mut self, launch: &Launch) -> Result<u8, Failure> {
        match launch.at_end {
            AtEnd::Exit | AtEnd::ExitUnlessStopped => {
                let mut parent = launch.parent.as_ref().map(|parent| self.parent(parent));
                match self.launch_once(launch, parent.as_mut()).await? {
                    Launched::NotStarted(code) => Ok(code),
                    Launched::Ended(ended) => Ok(self.finish_program(launch, &ended)),
                }
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

    /// Records the program's end and returns the job's exit code, which the broker's own end cannot change.
    fn finish_program(&mut self, launch: &Launch, ended: &LaunchEnd) -> u8 {
        let noted = launch
            .result
            .as_ref()
            .and_then(|path| noted(&self.files.at(path)));
        let came_up = ended.has_come_up || noted.is_some();
        let is_hung_up = launch.at_end == AtEnd::ExitUnlessStopped && ended.end == HUNG_UP;
        // The container has a terminal, where Flux runs a shell. `flux shutdown` ends it by SIGHUP.
        let own_end = if is_hung_up {
            ChildEnd::Exited(0)
        } else {
            ended.end
        };
        let since_note = noted.and_then(|noted| SystemTime::now().duration_since(noted.at).ok());
        let is_programs_own = since_note.is_some_and(|since| since >= ended.at.elapsed() + BEFORE_BROKER);
        let program = noted.and_then(|noted| noted.code);
        let broker = BrokerEnd {
            end: own_end,
            came_up,
            program,
            is_programs_own,
        };
        self.ending.is_node_failure = noted.is_some_and(|noted| noted.node_failure);
        self.broker_end = Some(broker);
        let end = broker.of_the_job();
        let began = match launch.result {
            Some(_) => noted.is_some(),
            None => came_up || own_end == ChildEnd::Exited(0),
        };
        if launch.needs_instance && !began {
            return self.report_no_program(launch, ended);
        }
        if let Some((code, _)) = &mut self.ending.program {
            *code = end.code();
            self.record_end(end.code());
        }
        if end != own_end {
            let code = ended.end.code();
            let job = end.code();
            tracing::info!(
                stage = "broker",
                "the job ended with code {job}; the broker then ended with code {code}"
            );
        }
        match (end, ended.stopped) {
            (ChildEnd::Exited(0), Some(stop)) if launch.at_end == AtEnd::ExitUnlessStopped => {
                of_signal(stop.signal)
            }
            // An image in which the instance has come up can run Flux.
            (end, _) if came_up => end.code(),
            (end, _) => self.report_end(launch, end),
        }
    }

    /// Reports that the instance ended before its program began: no success, whatever the broker's exit code
    /// says, and no code of the program's.
    fn report_no_program(&mut self, launch: &Launch, ended: &LaunchEnd) -> u8 {
        self.ending.program = None;
        if let Some(stop) = ended.stopped {
            return of_signal(stop.signal);
        }
        let unusable = self.why_unusable(launch, ended.end);
        let why = unusable.unwrap_or_else(|| self.log_hint());
        self.report_no_instance(format!(
            "the instance did not come up (the broker ended with code {}): {why}",
            ended.end.code()
        ))
    }

    /// Where the cause is. An image without bash is named, since Flux 0.88 starts by bash scripts, and its own
    /// messages do not say what to do. (Other versions may do without, so this is no verdict.)
    fn log_hint(&self) -> String {
        let log = "see its messages in the log";
        match find(
            OsStr::new("bash"),
            &self.session.environment,
            &self.session.directory,
        ) {
            Lookup::Program(_) => log.into(),
            _ => format!("{log}. The image has no bash, with which Flux 0.88 starts: use an image with bash"),
        }
    }

    /// The program's exit code, unchanged; reports why if the image cannot run Flux.
    fn report_end(&mut self, launch: &Launch, end: ChildEnd) -> u8 {
        let code = end.code();
        if let Some(why) = self.why_unusable(launch, end) {
            let line = format!("the program ended with code {code}: {why}");
            log::plain("broker", &format!("flux-agent: {line}"));
            self.ending.note(line);
        }
        code
    }

    /// Why the image cannot run Flux, asked only if the program ended with a code that its dynamic loader
    /// ends with.
    fn why_unusable(&self, launch: &Launch, end: ChildEnd) -> Option<String> {
        if launch.part == InstancePart::Command || !matches!(end, ChildEnd::Exited(1 | NOT_FOUND)) {
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
