//! Starts the program of a plan, supervises it, and says what its end means for the container.

use std::ffi::OsString;
use std::path::Path;
use std::time::Instant;

use flux_shared::exit::{Category, NOT_FOUND, REPLACE, of_signal};

use super::Executor;
use super::archive::BrokerEnd;
use super::broker_policy::{BrokerPolicy, Ended, terms};
use super::session::{LIMITS, Session};
use crate::execute::program_note::noted;
use crate::execute::timing::flux_time;
use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::lead_presence::LeadPresence;
use crate::flux_rpc::states::{Beside, Seen, States};
use crate::metrics::Server;
use crate::plan::{AtEnd, Launch, Owner, Part, Stdout};
use crate::report::failure::Failure;
use crate::report::log;
use crate::supervise::End;
use crate::supervise::policy::{Plain, Terms};
use crate::supervise::program::{Found, Output, Program, StartError, find};
use crate::system::glibc::Libc;
use crate::system::identity::Identity;
use crate::system::raw::ChildSetup;
use crate::wait::Parent;

/// States of a broker that has joined.
const JOINED: [&str; 4] = ["config-sync", "init", "quorum", "run"];
impl Executor<'_> {
    /// The program to its end, with all restarts; the container's exit code.
    pub(super) async fn launch(&mut self, launch: &Launch) -> Result<u8, Failure> {
        match launch.at_end {
            AtEnd::Exit | AtEnd::ExitUnlessStopped => {
                let mut parent = launch.parent.as_ref().map(|parent| self.parent(parent));
                match self.launch_once(launch, parent.as_mut()).await? {
                    Err(code) => Ok(code),
                    Ok(ended) => Ok(self.program_ended(launch, &ended)),
                }
            }
            AtEnd::RestartFollower { limit, again } => self.launch_follower(launch, Some(limit), again).await,
            AtEnd::Complete { again } => self.launch_follower(launch, None, again).await,
        }
    }

    /// The job's code, which what the broker did after it cannot change.
    fn program_ended(&mut self, launch: &Launch, ended: &Ended) -> u8 {
        let noted = launch.result.as_ref().and_then(|path| noted(&self.files.at(path)));
        let came_up = self.came_up || noted.is_some();
        let broker = BrokerEnd { end: ended.end, came_up, program: noted.and_then(|noted| noted.code) };
        self.ending.node_failure = noted.is_some_and(|noted| noted.node_failure);
        self.broker_end = Some(broker);
        let end = broker.of_the_job();
        let is_broker = launch.part != Part::Command;
        let never_began = match launch.result {
            Some(_) => noted.is_none(),
            None => is_broker && ended.end != End::Exited(0) && !came_up && launch.socket.is_some(),
        };
        if never_began {
            return self.never_began(launch, ended);
        }
        if let Some((code, _)) = &mut self.ending.program {
            *code = end.code();
            self.note_end(end.code());
        }
        if end != ended.end {
            let code = ended.end.code();
            tracing::info!(stage = "broker", "the job succeeded; the broker then ended with code {code}");
        }
        match (end, ended.stopped) {
            (End::Exited(0), Some((signal, _))) if launch.at_end == AtEnd::ExitUnlessStopped => of_signal(signal),
            (end, _) => self.tell_end(launch, end),
        }
    }

    /// The instance ended before its program began: whatever the broker says, that is no success, and no code of the program.
    fn never_began(&mut self, launch: &Launch, ended: &Ended) -> u8 {
        self.ending.program = None;
        if let Some((signal, _)) = ended.stopped {
            return of_signal(signal);
        }
        let unfit = self.unfit(launch, ended.end);
        let why = unfit.unwrap_or_else(|| "see its messages in the log".into());
        self.no_instance(format!(
            "the instance did not come up (the broker ended with code {}): {why}",
            ended.end.code()
        ))
    }

    fn no_instance(&mut self, why: String) -> u8 {
        log::plain("broker", &format!("flux-agent: {why}"));
        self.ending.note(why);
        self.ending.no_instance = true;
        Category::BrokerFailed.code()
    }

    /// Starts the program once. The inner error is an exit code: it did not start, or must not any more.
    pub(super) async fn launch_once(
        &mut self,
        launch: &Launch,
        parent: Option<&mut Parent>,
    ) -> Result<Result<Ended, u8>, Failure> {
        if let Some(signal) = self.supervisor.stop_wanted() {
            return Ok(Err(if launch.part == Part::Follower { REPLACE } else { of_signal(signal) }));
        }
        let mut session = self.session.of_flux(launch.run_as.as_ref());
        launch.environment.iter().for_each(|change| session.apply(change));
        let argv: Vec<OsString> = launch.argv.iter().map(|word| session.resolve(word)).collect();
        if let Some(record) = &launch.record {
            self.note_start(record)?;
        }
        let begin = Instant::now();
        let child = match self.program(launch, &argv, &session)?.start() {
            Ok(child) => child,
            Err(error) => return Ok(Err(self.did_not_start(launch, &error))),
        };
        let owner = launch.run_as.as_ref().map(|user| user.owner.uid);
        let broker = launch.socket.as_ref().map(|path| Broker { socket: self.files.at(path), owner });
        let staying = (launch.part == Part::Lead).then(LeadPresence::default);
        let beside = Beside { staying: staying.clone(), back: launch.drain, asks_lead: launch.lead.is_some() };
        let states = broker.clone().map(|broker| States::watch(broker, beside));
        let served = match (&launch.metrics, &broker) {
            (Some(metrics), Some(broker)) => Server::start(metrics.port, &metrics.cluster, broker.clone()),
            _ => None,
        };
        let mut policy = BrokerPolicy::new(launch, parent, broker.as_ref(), staying.as_ref());
        let ended = self.supervisor.run(child, terms(launch), &mut policy).await;
        let ended =
            ended.map_err(|error| Failure::internal(format!("failed to supervise {}: {error}", called(launch))))?;
        let mut ended = policy.ended(ended);
        drop(served);
        let Seen { states, lead_goes_on } = states.map(States::end).unwrap_or_default();
        ended.lead_goes_on = lead_goes_on;
        if !states.is_empty() {
            ended.joined = states.iter().any(|(name, _)| JOINED.contains(&name.as_str()));
        }
        if !launch.program.is_empty() {
            self.ending.program = Some((ended.end.code(), down(&states).unwrap_or(ended.at)));
        }
        self.came_up |= states.iter().any(|(state, _)| state == "run");
        for (stage, from, to) in stages(begin, &states, &ended) {
            self.timeline.record_until(stage, from, to);
        }
        self.note(launch, begin, &ended);
        Ok(Ok(ended))
    }

    /// A volume's owner and group are for its users to decide: who cannot write to it is told, before anything has run.
    pub(super) async fn tell_unless_writable(&mut self, path: &str, owner: Owner) -> Result<(), Failure> {
        let Some(identity) = Identity::of(owner, &self.options.root)? else {
            self.tell_not_writable(path, owner);
            return Ok(());
        };
        let real = self.files.at(path);
        let words = ["/proc/self/exe".into(), "may-write".into(), real.into_os_string()];
        let setup = ChildSetup { identity: Some(identity), ..ChildSetup::default() };
        let program = Program {
            argv: &words,
            environment: &self.session.environment,
            directory: Path::new("/"),
            output: Output::Inherit,
            setup,
        };
        let failed = |why: String| Failure::internal(format!("failed to check whether {path} is writable: {why}"));
        let child = program.start().map_err(|error| failed(error.to_string()))?;
        let ended = self.supervisor.run(child, Terms::of_group(), &mut Plain).await;
        let ended = ended.map_err(|error| failed(error.to_string()))?;
        if ended.end != End::Exited(0) {
            self.tell_not_writable(path, owner);
        }
        Ok(())
    }

    fn tell_not_writable(&self, path: &str, owner: Owner) {
        let Owner { uid, gid } = owner;
        let remedy = "make it group-writable and add the group to pod.securityContext.supplementalGroups or fsGroup, or set fluxUser to its owner";
        let line = format!("uid {uid}, gid {gid} cannot write to {path}, a folder or volume: {remedy}");
        tracing::warn!(stage = "user", "{line}");
    }

    /// Starts a program and waits until it has gone to the background.
    pub(super) async fn daemon(&mut self, argv: &[String]) -> Result<(), Failure> {
        let words: Vec<OsString> = argv.iter().map(OsString::from).collect();
        let program = Program {
            argv: &words,
            environment: &self.session.environment,
            directory: &self.session.directory,
            output: Output::Inherit,
            setup: ChildSetup::default(),
        };
        let name = argv.first().map_or("", String::as_str);
        let child = match program.start() {
            Ok(child) => child,
            Err(error) => {
                tracing::warn!(stage = "daemon", "failed to start {name}: {error}; continuing");
                return Ok(());
            }
        };
        let ended = self.supervisor.run(child, Terms::of_group(), &mut Plain).await;
        let ended = ended.map_err(|error| Failure::internal(format!("failed to supervise {name}: {error}")))?;
        match ended.end.code() {
            0 => tracing::info!(stage = "daemon", "started {name}"),
            code => tracing::warn!(stage = "daemon", "{name} failed with exit code {code}; continuing"),
        }
        Ok(())
    }

    fn program<'a>(&self, launch: &Launch, argv: &'a [OsString], session: &'a Session) -> Result<Program<'a>, Failure> {
        let limits = session.limits.iter().filter_map(|(name, (soft, hard))| {
            LIMITS.into_iter().find(|(known, _)| known == name).map(|(_, resource)| (resource, *soft, *hard))
        });
        let identity = launch.run_as.as_ref().map(|user| Identity::of(user.owner, &self.options.root)).transpose()?;
        Ok(Program {
            argv,
            environment: &session.environment,
            directory: &session.directory,
            output: match launch.stdout {
                Stdout::Inherit => Output::Inherit,
                Stdout::LineBuffered => Output::LineBuffered,
                Stdout::Discard => Output::Discard,
            },
            setup: ChildSetup {
                foreground: self.supervisor.has_terminal(),
                umask: Some(session.umask),
                limits: limits.collect(),
                identity: identity.flatten(),
                ..ChildSetup::default()
            },
        })
    }

    /// A program's code is passed on as it is.
    fn tell_end(&mut self, launch: &Launch, end: End) -> u8 {
        let code = end.code();
        if let Some(why) = self.unfit(launch, end) {
            let line = format!("the program ended with code {code}: {why}");
            log::plain("broker", &format!("flux-agent: {line}"));
            self.ending.note(line);
        }
        code
    }

    /// Why the image cannot run Flux: its loader ends with one of these codes.
    fn unfit(&self, launch: &Launch, end: End) -> Option<String> {
        if launch.part == Part::Command || !matches!(end, End::Exited(1 | NOT_FOUND)) {
            return None;
        }
        let name = self.session.resolve(launch.argv.first()?);
        let path = match find(&name, &self.session.environment, &self.session.directory) {
            Found::Program(path) => path,
            _ => return None,
        };
        Libc::of(&path, Path::new("/"))?.trouble()
    }

    fn did_not_start(&mut self, launch: &Launch, error: &StartError) -> u8 {
        if launch.part != Part::Command {
            return self.no_instance(error.to_string());
        }
        log::plain("broker", &format!("flux-agent: {error}"));
        self.ending.note(error.to_string());
        error.code
    }

    fn note(&mut self, launch: &Launch, begin: Instant, ended: &Ended) {
        if self.timed && !log::is_quiet() {
            log::plain("time", &flux_time(launch.label, ended.at.duration_since(begin)));
        }
        if let End::Signaled(signal) = ended.end {
            tracing::info!(stage = "broker", "{} was ended by signal {signal}", called(launch));
        }
    }
}

/// The stages of a broker's life: `broker` until it is up, `quorum` until enough others are, `submit` until the job's
/// first output (seen on the lead only), `job` until the way down begins, `stop`. Of a broker that tells nothing, the
/// first output and a stop are what is known.
fn stages(begin: Instant, states: &[(String, Instant)], ended: &Ended) -> Vec<(&'static str, Instant, Instant)> {
    let at = |names: &[&str]| states.iter().find(|(name, _)| names.contains(&name.as_str())).map(|(_, at)| *at);
    let run = at(&["run"]);
    let down = down(states);
    let told = ended.stopped.map(|(_, at)| at);
    let stop = [down, told].into_iter().flatten().min();
    let last = stop.unwrap_or(ended.at);
    let marks = [
        ("broker", Some(begin)),
        ("quorum", at(&["quorum"]).or(run)),
        ("submit", run.filter(|_| ended.first_output.is_some())),
        ("job", ended.first_output.or(run)),
        ("stop", stop),
    ];
    let marks: Vec<(&str, Instant)> =
        marks.into_iter().filter_map(|(name, at)| Some((name, at?))).filter(|(_, at)| *at <= last).collect();
    let ends = marks.iter().skip(1).map(|(_, at)| *at).chain([ended.at]);
    marks.iter().zip(ends).map(|((name, from), to)| (*name, *from, to.max(*from))).collect()
}

/// When a broker's way down began.
fn down(states: &[(String, Instant)]) -> Option<Instant> {
    let names = ["cleanup", "shutdown", "finalize", "goodbye"];
    states.iter().find(|(name, _)| names.contains(&name.as_str())).map(|(_, at)| *at)
}

/// What a launched program is called in messages.
fn called(launch: &Launch) -> &'static str {
    if launch.part == Part::Command { "the command" } else { "the broker" }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_brokers_life_has_stages_as_far_as_they_are_known() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let told = |states: &[(&str, u64)], first: Option<u64>, stopped: Option<u64>| {
            let states: Vec<_> = states.iter().map(|(name, seconds)| ((*name).to_owned(), at(*seconds))).collect();
            let ended = Ended {
                end: End::Exited(0),
                at: at(10),
                stopped: stopped.map(|seconds| (15, at(seconds))),
                passed_on: false,
                lost: None,
                joined: true,
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
        let all = [("init", 1), ("quorum", 2), ("run", 4), ("cleanup", 8), ("shutdown", 9)];
        assert_eq!(told(&all, Some(5), None), "broker 0-2 quorum 2-4 submit 4-5 job 5-8 stop 8-10");
        assert_eq!(told(&all[..4], None, None), "broker 0-2 quorum 2-4 job 4-8 stop 8-10");
        assert_eq!(told(&all, Some(5), Some(7)), "broker 0-2 quorum 2-4 submit 4-5 job 5-7 stop 7-10");
        assert_eq!(told(&all[..1], None, Some(3)), "broker 0-3 stop 3-10");
        assert_eq!(told(&[], Some(5), None), "broker 0-5 job 5-10");
        assert_eq!(told(&[], None, None), "broker 0-10");
    }
}
