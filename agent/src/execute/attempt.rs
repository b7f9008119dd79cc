//! Starts a program once, supervises it to its end, and records its stages in the timeline.

use std::ffi::{OsStr, OsString};
use std::time::{Duration, Instant};

use flux_agent_plan::known_paths::FLUX;
use flux_agent_plan::plan::{self, FluxLookup, InstancePart, Launch, PlanError, Stdout};
use flux_shared::exit::{Category, of_stop_before_program};

use super::broker_options;
use super::broker_policy::{BrokerPolicy, LaunchEnd, ShutdownSigns, terms};
use super::executor::Executor;
use super::retry::Start;
use super::session::Session;
use crate::execute::timing::flux_time;
use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::lead_presence::LeadPresence;
use crate::flux_rpc::states::{StateActions, StateLog, StateWatcher};
use crate::metrics::MetricsServer;
use crate::report::failure::{Failure, refused};
use crate::report::log;
use crate::supervise::program::{ChildProgram, Lookup, Output, StartError, find};
use crate::supervise::{ChildEnd, Stop};
use crate::system::identity::Credentials;
use crate::system::raw::ChildSetup;
use crate::wait::ParentProbe;

/// A broker that was in one of these states has connected to its parent.
const JOINED: [&str; 4] = ["config-sync", "init", "quorum", "run"];
/// If the states of a broker are unknown, it counts as connected to its parent when it has run for this long.
const JOINED_AFTER: Duration = Duration::from_secs(60);

/// The result of one start.
pub(super) enum Launched {
    /// The program was started and has ended.
    Ended(LaunchEnd),
    /// The program could not be started, or a stop came before its start. This is the container's exit code.
    NotStarted(u8),
}

impl Executor<'_> {
    /// Starts the program once and supervises it to its end. `parent`: the parent broker, if the launch has one.
    pub(super) async fn launch_once(
        &mut self,
        launch: &Launch,
        parent: Option<&mut ParentProbe>,
    ) -> Result<Launched, Failure> {
        if let Some(stop) = self.supervisor.received_stop() {
            return Ok(stopped_before(launch, stop));
        }
        let mut session = self.session.of_flux(launch.run_as.as_ref());
        let given_options = self
            .planned_shell
            .as_ref()
            .and_then(|shell| shell.variables.get(plan::BROKER_OPTIONS));
        let mut argv = broker_options::argv_after_snippets(
            launch,
            &session,
            given_options.map_or("", String::as_str),
            self.restore.as_deref(),
        );
        if let Some(lookup) = &launch.flux {
            self.find_flux(lookup, &session, &mut argv)?;
        }
        // After the words of the command are resolved: they have the user's values, not those for Flux.
        launch.environment.iter().for_each(|change| session.apply(change));
        // A sidecar's command is not given to Flux, so it may have any bytes.
        if launch.part != InstancePart::Command {
            for name in session.remove_non_utf8() {
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
                return Ok(Launched::NotStarted(
                    self.report_no_instance(Category::BrokerFailed, why),
                ));
            }
        }
        if let Some(record) = &launch.record {
            self.record_start(record)?;
        }
        let program = self.child_program(launch, &argv, &session)?;
        let (child, begin) = match self.attempts().start(&program, self.supervisor).await? {
            Start::Started { child, begin } => (child, begin),
            Start::Failed(error) => {
                return Ok(Launched::NotStarted(self.report_start_failure(launch, &error)));
            }
            Start::Stopped(stop) => return Ok(stopped_before(launch, stop)),
        };
        let broker_owner = launch.run_as.as_ref().map(|user| user.owner.uid);
        let broker = launch.socket.as_ref().map(|path| Broker {
            socket: self.files.at(path),
            owner: broker_owner,
        });
        // By the lead's membership in a group of the instance, the followers see whether the lead stays.
        let staying = (launch.part == InstancePart::Lead).then(LeadPresence::default);
        let actions = StateActions {
            presence: staying.clone(),
            asks_lead: launch.part == InstancePart::Follower,
        };
        let states = broker.clone().map(|broker| StateWatcher::watch(broker, actions));
        let metrics_server = match (&launch.metrics, &broker) {
            (Some(metrics), Some(broker)) => {
                MetricsServer::start(metrics.port, &metrics.cluster, broker.clone())
            }
            _ => None,
        };
        // While the broker runs, this limits the silence of its parent, also of one that is not the lead.
        let silence_limit = self.waits.lead_silent.map(Duration::from_secs);
        let shutdown = ShutdownSigns {
            states: states.as_ref(),
            note: launch.result.as_ref().map(|path| self.files.at(path)),
        };
        let mut policy = BrokerPolicy::new(
            launch,
            parent,
            broker.as_ref(),
            staying.as_ref(),
            silence_limit,
            shutdown,
            self.record.as_ref(),
        );
        let supervised = self.supervisor.run(child, terms(launch), &mut policy).await;
        let ended_child = supervised.map_err(|error| {
            Failure::internal(format!("failed to supervise {}: {error}", display_name(launch)))
        })?;
        let mut ended = policy.into_launch_end(ended_child);
        // Ends the server.
        drop(metrics_server);
        let StateLog { states, lead_goes_on } = states.map(StateWatcher::end).unwrap_or_default();
        ended.lead_goes_on = lead_goes_on;
        ended.lasted = ended.at.duration_since(begin);
        ended.has_joined = if states.is_empty() {
            ended.lasted >= JOINED_AFTER
        } else {
            states.iter().any(|(name, _)| JOINED.contains(&name.as_str()))
        };
        ended.shutdown_began = shutdown_began(&states);
        ended.has_come_up = states
            .iter()
            .any(|(state, _)| ["run", "cleanup"].contains(&state.as_str()));
        for (stage, from, to) in stages(begin, &states, &ended) {
            self.timeline.record_until(stage, from, to);
        }
        self.log_end(launch, begin, &ended);
        Ok(Launched::Ended(ended))
    }

    /// Puts the path of the `flux` on the PATH, or else of the planned word, into `argv`, and makes the link to it.
    fn find_flux(
        &self,
        lookup: &FluxLookup,
        session: &Session,
        argv: &mut [OsString],
    ) -> Result<(), Failure> {
        let Some(word) = argv.get_mut(lookup.word) else {
            return Err(Failure::internal("the command line has no `flux`"));
        };
        let found = [OsStr::new(FLUX), word.as_os_str()].into_iter().find_map(|name| {
            match find(name, &session.environment, &session.directory) {
                Lookup::Program(path) => Some(path),
                _ => None,
            }
        });
        let flux = found.ok_or_else(|| refused(&PlanError::flux_not_on_path()))?;
        if let Some(flux) = flux.to_str() {
            self.files.ensure_link(&lookup.link, flux)?;
        }
        *word = flux.into();
        Ok(())
    }

    /// The child to start: `argv` with the state of `session` and the rights of the launch's user.
    fn child_program<'a>(
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
            return self.report_no_instance(Category::BrokerFailed, error.to_string());
        }
        log::fatal("broker", &error.to_string());
        self.ending.note(error.to_string());
        error.code
    }

    /// Reports why there is no instance; returns the container's exit code.
    pub(super) fn report_no_instance(&mut self, category: Category, why: String) -> u8 {
        log::fatal("broker", &why);
        self.ending.note(why);
        self.ending.no_instance = Some(category);
        category.code()
    }

    fn log_end(&mut self, launch: &Launch, begin: Instant, ended: &LaunchEnd) {
        if self.timed && !log::is_quiet() {
            log::plain("time", &flux_time(launch.label, ended.at.duration_since(begin)));
        }
        if let ChildEnd::Signaled(signal) = ended.end {
            tracing::info!(
                stage = "broker",
                "{} was ended by signal {signal}",
                display_name(launch)
            );
        }
    }
}

/// The result of a stop before the program has started. Whether this is a follower is taken from the launch:
/// after `Step::Replan`, the launch is from a newer plan than `Executor::role`.
fn stopped_before(launch: &Launch, stop: Stop) -> Launched {
    Launched::NotStarted(of_stop_before_program(
        stop.signal,
        launch.part == InstancePart::Follower,
    ))
}

/// The stages of a broker, each with its begin and end: `broker` until it is up, `quorum` until enough others are up,
/// `submit` until the job's first output (seen on the lead only), `job` until the broker begins to shut down, `stop`
/// until its end. Without the broker's states, only the first output and a stop are known.
fn stages(
    begin: Instant,
    states: &[(String, Instant)],
    ended: &LaunchEnd,
) -> Vec<(&'static str, Instant, Instant)> {
    let state_began = |state: &str| states.iter().find(|(name, _)| name == state).map(|(_, at)| *at);
    let run_began = state_began("run");
    let stop_received_at = ended.stopped.map(|stop| stop.at);
    let stop_began = [shutdown_began(states), stop_received_at]
        .into_iter()
        .flatten()
        .min();
    let latest_begin = stop_began.unwrap_or(ended.at);
    let marks = [
        ("broker", Some(begin)),
        ("quorum", state_began("quorum").or(run_began)),
        ("submit", ended.first_output.and(run_began)),
        ("job", ended.first_output.or(run_began)),
        ("stop", stop_began),
    ];
    // Each stage ends when the next one begins. After the stop, no other stage begins.
    let marks: Vec<(&str, Instant)> = marks
        .into_iter()
        .filter_map(|(name, at)| Some((name, at?)))
        .filter(|(_, at)| *at <= latest_begin)
        .collect();
    let ends = marks.iter().skip(1).map(|(_, at)| *at).chain([ended.at]);
    // No stage ends before it begins, even if the first output came before the state `run` was seen.
    marks
        .iter()
        .zip(ends)
        .map(|((name, from), to)| (*name, *from, to.max(*from)))
        .collect()
}

/// When the broker began to shut down; none: that was not seen.
fn shutdown_began(states: &[(String, Instant)]) -> Option<Instant> {
    let names = ["cleanup", "shutdown", "finalize", "goodbye"];
    states
        .iter()
        .find(|(name, _)| names.contains(&name.as_str()))
        .map(|(_, at)| *at)
}

/// What a launched program is called in messages.
fn display_name(launch: &Launch) -> &'static str {
    if launch.part == InstancePart::Command {
        "the command"
    } else {
        "the broker"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                parent_silent_since: None,
                has_joined: true,
                has_come_up: false,
                shutdown_began: None,
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
