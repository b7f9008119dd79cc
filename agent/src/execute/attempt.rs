//! One start of a launched program: started, supervised to its end, recorded in the timeline.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use flux_agent_plan::plan::{InstancePart, Launch, Stdout};
use flux_shared::exit::{Category, of_stop_before_program};

use super::broker_options;
use super::broker_policy::{BrokerPolicy, LaunchEnd, terms};
use super::executor::Executor;
use super::retry::Start;
use super::session::Session;
use crate::execute::timing::flux_time;
use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::lead_presence::LeadPresence;
use crate::flux_rpc::states::{StateActions, StateLog, StateWatcher};
use crate::metrics::MetricsServer;
use crate::report::failure::Failure;
use crate::report::log;
use crate::supervise::program::{ChildProgram, Output, StartError};
use crate::supervise::{ChildEnd, Stop};
use crate::system::identity::Credentials;
use crate::system::raw::ChildSetup;
use crate::wait::ParentProbe;

/// States of a broker that has joined.
const JOINED: [&str; 4] = ["config-sync", "init", "quorum", "run"];
/// A broker whose states are unknown has joined if it lived for this long.
const JOINED_AFTER: Duration = Duration::from_secs(60);

/// What became of one start.
pub(super) enum Launched {
    Ended(LaunchEnd),
    /// It could not be started, or a stop came before: the container's exit code.
    NotStarted(u8),
}

impl Executor<'_> {
    /// Starts the program once and supervises it to its end.
    pub(super) async fn launch_once(
        &mut self,
        launch: &Launch,
        parent: Option<&mut ParentProbe>,
    ) -> Result<Launched, Failure> {
        if let Some(stop) = self.supervisor.stop() {
            return Ok(stopped_before(launch, stop));
        }
        let mut session = self.session.of_flux(launch.run_as.as_ref());
        launch.environment.iter().for_each(|change| session.apply(change));
        let argv = broker_options::argv_after_snippets(launch, &session);
        if launch.part != InstancePart::Command {
            for name in session.leave_out_bytes() {
                tracing::warn!(
                    stage = "broker",
                    "the variable {name} is not UTF-8, which Flux cannot take: it is left out"
                );
            }
            if let Some(word) = argv.iter().find(|word| word.to_str().is_none()) {
                let word = word.to_string_lossy();
                let why = format!(
                    "a word of the command is not UTF-8, which Flux cannot take: {word}. Pass it in a file"
                );
                return Ok(Launched::NotStarted(self.report_no_instance(why)));
            }
        }
        if let Some(record) = &launch.record {
            self.record_start(record)?;
        }
        let program = self.program(launch, &argv, &session)?;
        let (child, begin) = match self.attempts().start(&program, self.supervisor).await? {
            Start::Started { child, begin } => (child, begin),
            Start::Failed(error) => {
                return Ok(Launched::NotStarted(self.report_start_failure(launch, &error)));
            }
            Start::Stopped(stop) => return Ok(stopped_before(launch, stop)),
        };
        let owner = launch.run_as.as_ref().map(|user| user.owner.uid);
        let broker = launch.socket.as_ref().map(|path| Broker {
            socket: self.files.at(path),
            owner,
        });
        let staying = (launch.part == InstancePart::Lead).then(LeadPresence::default);
        let actions = StateActions {
            presence: staying.clone(),
            asks_lead: launch.part == InstancePart::Follower,
        };
        let states = broker.clone().map(|broker| StateWatcher::watch(broker, actions));
        let served = match (&launch.metrics, &broker) {
            (Some(metrics), Some(broker)) => {
                MetricsServer::start(metrics.port, &metrics.cluster, broker.clone())
            }
            _ => None,
        };
        let silent = self.waits.lead_silent.map(Duration::from_secs);
        let mut policy = BrokerPolicy::new(launch, parent, broker.as_ref(), staying.as_ref(), silent);
        let ended = self.supervisor.run(child, terms(launch), &mut policy).await;
        let ended = ended
            .map_err(|error| Failure::internal(format!("failed to supervise {}: {error}", called(launch))))?;
        let mut ended = policy.ended(ended);
        drop(served);
        let StateLog { states, lead_goes_on } = states.map(StateWatcher::end).unwrap_or_default();
        ended.lead_goes_on = lead_goes_on;
        ended.lasted = ended.at.duration_since(begin);
        ended.has_joined = if states.is_empty() {
            ended.lasted >= JOINED_AFTER
        } else {
            states.iter().any(|(name, _)| JOINED.contains(&name.as_str()))
        };
        if !launch.program.is_empty() {
            self.ending.program = Some((ended.end.code(), shutdown_began(&states).unwrap_or(ended.at)));
        }
        ended.has_come_up = states.iter().any(|(state, _)| state == "run");
        for (stage, from, to) in stages(begin, &states, &ended) {
            self.timeline.record_until(stage, from, to);
        }
        self.log_end(launch, begin, &ended);
        Ok(Launched::Ended(ended))
    }

    fn program<'a>(
        &self,
        launch: &Launch,
        argv: &'a [OsString],
        session: &'a Session,
    ) -> Result<ChildProgram<'a>, Failure> {
        let identity = launch
            .run_as
            .as_ref()
            .map(|user| Credentials::of(user.owner, &self.options.root))
            .transpose()?;
        Ok(ChildProgram {
            argv,
            environment: &session.environment,
            directory: &session.directory,
            output: match launch.stdout {
                Stdout::Inherit => Output::Inherit,
                Stdout::LineBuffered => Output::LineBuffered,
                Stdout::Discard => Output::Discard,
            },
            setup: ChildSetup {
                is_foreground: self.supervisor.has_terminal(),
                umask: Some(session.umask),
                limits: session.limits(),
                identity: identity.flatten(),
                ..ChildSetup::default()
            },
        })
    }

    /// Reports why the program did not start; returns the container's exit code.
    fn report_start_failure(&mut self, launch: &Launch, error: &StartError) -> u8 {
        if launch.part != InstancePart::Command {
            return self.report_no_instance(error.to_string());
        }
        log::plain("broker", &format!("flux-agent: {error}"));
        self.ending.note(error.to_string());
        error.code
    }

    /// Reports why there is no instance; returns the container's exit code.
    pub(super) fn report_no_instance(&mut self, why: String) -> u8 {
        log::plain("broker", &format!("flux-agent: {why}"));
        self.ending.note(why);
        self.ending.has_no_instance = true;
        Category::BrokerFailed.code()
    }

    fn log_end(&mut self, launch: &Launch, begin: Instant, ended: &LaunchEnd) {
        if self.timed && !log::is_quiet() {
            log::plain("time", &flux_time(launch.label, ended.at.duration_since(begin)));
        }
        if let ChildEnd::Signaled(signal) = ended.end {
            tracing::info!(
                stage = "broker",
                "{} was ended by signal {signal}",
                called(launch)
            );
        }
    }
}

/// A stop before the program has started. The launch says who follows, not the role: a plan may differ.
fn stopped_before(launch: &Launch, stop: Stop) -> Launched {
    Launched::NotStarted(of_stop_before_program(
        stop.signal,
        launch.part == InstancePart::Follower,
    ))
}

/// The stages of a broker's life: `broker` until it is up, `quorum` until enough others are, `submit` until
/// the job's first output (seen on the lead only), `job` until it begins to shut down, `stop`. Without the
/// broker's states, only the first output and a stop are known.
fn stages(
    begin: Instant,
    states: &[(String, Instant)],
    ended: &LaunchEnd,
) -> Vec<(&'static str, Instant, Instant)> {
    let at = |names: &[&str]| {
        states
            .iter()
            .find(|(name, _)| names.contains(&name.as_str()))
            .map(|(_, at)| *at)
    };
    let run = at(&["run"]);
    let down = shutdown_began(states);
    let stop_received_at = ended.stopped.map(|stop| stop.at);
    let stop = [down, stop_received_at].into_iter().flatten().min();
    let last = stop.unwrap_or(ended.at);
    let marks = [
        ("broker", Some(begin)),
        ("quorum", at(&["quorum"]).or(run)),
        ("submit", ended.first_output.and(run)),
        ("job", ended.first_output.or(run)),
        ("stop", stop),
    ];
    let marks: Vec<(&str, Instant)> = marks
        .into_iter()
        .filter_map(|(name, at)| Some((name, at?)))
        .filter(|(_, at)| *at <= last)
        .collect();
    let ends = marks.iter().skip(1).map(|(_, at)| *at).chain([ended.at]);
    marks
        .iter()
        .zip(ends)
        .map(|((name, from), to)| (*name, *from, to.max(*from)))
        .collect()
}

/// When the broker began to shut down.
fn shutdown_began(states: &[(String, Instant)]) -> Option<Instant> {
    let names = ["cleanup", "shutdown", "finalize", "goodbye"];
    states
        .iter()
        .find(|(name, _)| names.contains(&name.as_str()))
        .map(|(_, at)| *at)
}

/// What a launched program is called in messages.
fn called(launch: &Launch) -> &'static str {
    if launch.part == InstancePart::Command {
        "the command"
    } else {
        "the broker"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::Stop;

    #[test]
    fn a_brokers_life_has_stages_as_far_as_they_are_known() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let stages_of = |states: &[(&str, u64)], first: Option<u64>, stopped: Option<u64>| {
            let states: Vec<_> = states
                .iter()
                .map(|(name, seconds)| ((*name).to_owned(), at(*seconds)))
                .collect();
            let ended = LaunchEnd {
                end: ChildEnd::Exited(0),
                at: at(10),
                lasted: Duration::from_secs(10),
                stopped: stopped.map(|seconds| Stop {
                    signal: 15,
                    at: at(seconds),
                }),
                was_passed_on: false,
                lost: None,
                has_joined: true,
                has_come_up: false,
                lead_goes_on: None,
                first_output: first.map(at),
            };
            let seconds = |moment: Instant| moment.duration_since(begin).as_secs();
            let stages = stages(begin, &states, &ended).into_iter();
            stages
                .map(|(name, from, to)| format!("{name} {}-{}", seconds(from), seconds(to)))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let all = [
            ("init", 1),
            ("quorum", 2),
            ("run", 4),
            ("cleanup", 8),
            ("shutdown", 9),
        ];
        assert_eq!(
            stages_of(&all, Some(5), None),
            "broker 0-2 quorum 2-4 submit 4-5 job 5-8 stop 8-10"
        );
        assert_eq!(
            stages_of(&all[..4], None, None),
            "broker 0-2 quorum 2-4 job 4-8 stop 8-10"
        );
        assert_eq!(
            stages_of(&all, Some(5), Some(7)),
            "broker 0-2 quorum 2-4 submit 4-5 job 5-7 stop 7-10"
        );
        assert_eq!(stages_of(&all[..1], None, Some(3)), "broker 0-3 stop 3-10");
        assert_eq!(stages_of(&[], Some(5), None), "broker 0-5 job 5-10");
        assert_eq!(stages_of(&[], None, None), "broker 0-10");
    }
}
