//! Starts the program of a plan, supervises it, and says what its end means for the container.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use flux_shared::exit::{Category, NOT_FOUND, REPLACE, of_signal};
use flux_shared::words::Word;

use super::archive::BrokerEnd;
use super::session::{LIMITS, Session};
use super::{Executor, wait_failed};
use crate::execute::program_note::noted;
use crate::execute::timing::flux_time;
use crate::flux_rpc::lead_presence::LeadPresence;
use crate::flux_rpc::states::States;
use crate::plan::{AtEnd, COMMAND, Launch, Owner, Stdout};
use crate::report::failure::Failure;
use crate::report::log::Log;
use crate::supervise::program::{Found, Output, Program, StartError, find};
use crate::supervise::{End, Ended, Hold, Policy, Target, orphans};
use crate::system::glibc::Libc;
use crate::system::identity::Identity;
use crate::system::raw::ChildSetup;
use crate::wait::{Missing, Parent, Reporter};

/// Pauses between two starts of a follower's broker.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long a lead may take to be down before a follower that stays takes its port for that of the next attempt: one that
/// comes back between two looks is not seen to be away. A broker that comes too early is turned away, and tries again.
const WAY_DOWN: Duration = Duration::from_secs(5);
const LOOK_WHETHER_DOWN: Duration = Duration::from_millis(200);
/// States of a broker that has joined.
const JOINED: [&str; 4] = ["config-sync", "init", "quorum", "run"];
/// A broker that was up for this long had a good start: earlier failures no longer count.
const GOOD_RUN: Duration = Duration::from_secs(60);

/// What a program's end means.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Done(u8),
    Again(String),
}

impl Executor<'_> {
    /// The program to its end, with all restarts; the container's exit code.
    pub(super) async fn launch(&mut self, launch: &Launch) -> Result<u8, Failure> {
        match launch.at_end {
            AtEnd::Exit | AtEnd::ExitUnlessStopped => match self.launch_once(launch).await? {
                Err(code) => Ok(code),
                Ok(ended) => Ok(self.lead_ended(launch, &ended)),
            },
            AtEnd::RestartFollower { limit, again } => self.launch_follower(launch, Some(limit), again).await,
            AtEnd::Complete { again } => self.launch_follower(launch, None, again).await,
        }
    }

    /// The job's code, which what the broker did after it cannot change.
    fn lead_ended(&mut self, launch: &Launch, ended: &Ended) -> u8 {
        let noted = launch.result.as_ref().and_then(|path| noted(&self.files.at(path)));
        let came_up = self.came_up || noted.is_some();
        let broker = BrokerEnd { end: ended.end, came_up, program: noted.and_then(|noted| noted.code) };
        self.ending.node_failure = noted.is_some_and(|noted| noted.node_failure);
        self.broker_end = Some(broker);
        let end = broker.of_the_job();
        let is_watched =
            || launch.argv.iter().any(|word| matches!(word, Word::Literal(word) if word.starts_with(SOCKET)));
        let never_began = match launch.result {
            Some(_) => noted.is_none(),
            None => launch.label != COMMAND && ended.end != End::Exited(0) && !came_up && is_watched(),
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
            self.log.info("broker", &format!("the job has succeeded; the broker ended after it with code {code}"));
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
        let why = unfit.unwrap_or_else(|| "look at its own messages in the log".into());
        self.no_instance(format!(
            "the instance did not come up (the broker ended with code {}): {why}",
            ended.end.code()
        ))
    }

    fn no_instance(&mut self, why: String) -> u8 {
        self.log.plain("broker", &format!("flux-agent: {why}"));
        self.ending.note(why);
        self.ending.no_instance = true;
        Category::BrokerFailed.code()
    }

    /// A follower's broker until the instance has ended. Without a limit one that has joined is never started again.
    /// `again`: the lead may start again in its pod, and so this one waits for it.
    async fn launch_follower(&mut self, launch: &Launch, limit: Option<u32>, again: bool) -> Result<u8, Failure> {
        let (mut failures, mut pause) = (0, FIRST_PAUSE);
        loop {
            let begin = Instant::now();
            let others = orphans::children();
            let ended = match self.launch_once(launch).await? {
                Err(code) => return Ok(code),
                Ok(ended) => ended,
            };
            self.end_orphans(&others).await?;
            let why = match judge(&ended) {
                Verdict::Done(code) if !again || self.supervisor.first_stop().is_some() => return Ok(code),
                Verdict::Done(_) => match self.next_attempt().await? {
                    Some(code) => return Ok(code),
                    None => {
                        (failures, pause) = (0, FIRST_PAUSE);
                        continue;
                    }
                },
                Verdict::Again(why) => why,
            };
            if self.supervisor.first_stop().is_some() {
                return Ok(REPLACE);
            }
            if begin.elapsed() >= GOOD_RUN {
                (failures, pause) = (0, FIRST_PAUSE);
            }
            failures += 1;
            match limit {
                None if ended.joined => return Ok(0),
                None => return Err(never_joined(&why)),
                Some(limit) if failures > limit => return Err(kept_failing(failures, ended.end.code())),
                Some(limit) => {
                    let pause = pause.as_secs();
                    self.log.info("broker", &format!("{why}; starting it again in {pause} s ({failures} of {limit})"));
                }
            }
            if self.pause(pause).await?.is_err() {
                return Ok(REPLACE);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
            if let Some(code) = self.parent_again(again).await? {
                return Ok(code);
            }
        }
    }

    async fn pause(&mut self, pause: Duration) -> Result<Result<(), i32>, Failure> {
        self.supervisor.unless_stopped(tokio::time::sleep(pause)).await.map_err(wait_failed)
    }

    /// What a broker that was killed has left running must not run on beside the next one.
    async fn end_orphans(&mut self, others: &BTreeSet<i32>) -> Result<(), Failure> {
        let count = orphans::end(self.supervisor, others).await.map_err(wait_failed)?;
        if count > 0 {
            self.log.info("broker", &format!("killed {count} processes that the broker had left"));
        }
        Ok(())
    }

    /// Waits for the parent of a broker that failed. Some code: there is nothing to wait for any more.
    ///
    /// A lead that ended for good leaves DNS (a headless Service forgets a pod that has ended); one that restarts is in
    /// DNS and refuses, or is away for as long as the Job needs for a new pod. So a missing name counts as the end
    /// after a while, unless the lead may start `again`; a refusal only where a bound was asked for.
    async fn parent_again(&mut self, again: bool) -> Result<Option<u8>, Failure> {
        let Some(mut parent) = self.parent.take() else { return Ok(None) };
        let gone = (!again).then_some(self.options.lead_gone);
        let waited = await_return(&mut parent, gone, self.options.lead_silent, self.log);
        let waited = self.supervisor.unless_stopped(waited).await;
        let host = parent.host.clone();
        self.parent = Some(parent);
        match waited.map_err(wait_failed)? {
            Err(_) => Ok(Some(REPLACE)),
            Ok(Ok(())) => Ok(None),
            Ok(Err(missing)) if missing.is_name_gone() => {
                self.log.info("stop", "the lead has ended: its name is gone");
                Ok(Some(0))
            }
            Ok(Err(missing)) => Err(unreachable_parent(&host, &missing)),
        }
    }

    /// After the end of an instance whose lead may start again: until it is there. Some code: told to stop meanwhile.
    async fn next_attempt(&mut self) -> Result<Option<u8>, Failure> {
        self.log.info("stop", "the instance has ended; this pod stays for the lead's next attempt");
        let log = self.log;
        let Some(mut parent) = self.parent.take() else {
            return Ok(self.pause(FIRST_PAUSE).await?.is_err().then_some(0));
        };
        let waited = async {
            // The lead of old may still be on its way down, and would turn a new follower away.
            let begin = Instant::now();
            while begin.elapsed() < WAY_DOWN && parent.probe_port().await.is_ok() {
                tokio::time::sleep(LOOK_WHETHER_DOWN).await;
            }
            let _ = parent.wait(log, None).await;
        };
        let waited = self.supervisor.unless_stopped(waited).await.map_err(wait_failed)?;
        self.parent = Some(parent);
        Ok(waited.is_err().then_some(0))
    }

    /// Starts the program once. The inner error is an exit code: it did not start, or must not any more.
    async fn launch_once(&mut self, launch: &Launch) -> Result<Result<Ended, u8>, Failure> {
        let is_follower = !matches!(launch.at_end, AtEnd::Exit | AtEnd::ExitUnlessStopped);
        if let Some(signal) = self.supervisor.stop_wanted() {
            return Ok(Err(if is_follower { REPLACE } else { of_signal(signal) }));
        }
        let mut session = self.session.of_flux(launch.run_as.as_ref());
        launch.environment.iter().for_each(|change| session.apply(change));
        let argv: Vec<OsString> = launch.argv.iter().map(|word| session.resolve(word)).collect();
        if let Some(record) = self.record.as_ref().filter(|_| launch.at_end == AtEnd::Exit) {
            record.start()?;
        }
        let begin = Instant::now();
        let child = match self.program(launch, &argv, &session)?.start() {
            Ok(child) => child,
            Err(error) => return Ok(Err(self.did_not_start(launch, &error))),
        };
        let bound = self.options.hold();
        let socket = socket_of(&argv).map(|path| self.files.at(path));
        let staying = (!is_follower).then(LeadPresence::default);
        let states = socket.clone().map(|path| States::watch(path, staying.clone(), self.log));
        let socket = socket.as_deref();
        let hold = self.parent.as_mut().filter(|_| is_follower).map(|parent| Hold { parent, bound, socket });
        let target = if is_flux(&argv) { Target::Process } else { Target::Group };
        let policy = Policy {
            target,
            kill_after: self.options.kill_after(),
            second_kills: true,
            hold,
            staying: staying.as_ref(),
            gently: None,
        };
        let ended = self.supervisor.run(child, policy).await;
        let mut ended =
            ended.map_err(|error| Failure::internal(format!("failed to supervise {}: {error}", called(launch))))?;
        let states = states.map(States::end).unwrap_or_default();
        if !states.is_empty() {
            ended.joined = states.iter().any(|(name, _)| JOINED.contains(&name.as_str()));
        }
        if launch.at_end == AtEnd::Exit {
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
        let failed = |why: String| Failure::internal(format!("failed to ask about {path}: {why}"));
        let child = program.start().map_err(|error| failed(error.to_string()))?;
        let policy = Policy::of_group();
        let ended = self.supervisor.run(child, policy).await.map_err(|error| failed(error.to_string()))?;
        if ended.end != End::Exited(0) {
            self.tell_not_writable(path, owner);
        }
        Ok(())
    }

    fn tell_not_writable(&self, path: &str, owner: Owner) {
        let Owner { uid, gid } = owner;
        let remedy = "give its group the right to and name the group in pod.securityContext.supplementalGroups or fsGroup, or choose that user by fluxUser";
        let line = format!("{path} is a folder or volume to which uid {uid}, gid {gid} cannot write: {remedy}");
        self.log.error("user", &line);
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
                self.log.info("daemon", &format!("{name} does not start, and is passed over: {error}"));
                return Ok(());
            }
        };
        let policy = Policy::of_group();
        let ended = self.supervisor.run(child, policy).await;
        let ended = ended.map_err(|error| Failure::internal(format!("failed to supervise {name}: {error}")))?;
        match ended.end.code() {
            0 => self.log.info("daemon", &format!("started {name}")),
            code => self.log.info("daemon", &format!("{name} ended with code {code}, and is passed over")),
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
            self.log.plain("broker", &format!("flux-agent: {line}"));
            self.ending.note(line);
        }
        code
    }

    /// Why the image cannot run Flux: its loader ends with one of these codes.
    fn unfit(&self, launch: &Launch, end: End) -> Option<String> {
        let name = self.session.resolve(launch.argv.first()?);
        let path = match find(&name, &self.session.environment, &self.session.directory) {
            Found::Program(path) if matches!(end, End::Exited(1 | NOT_FOUND)) && is_flux(&[name]) => path,
            _ => return None,
        };
        Libc::of(&path, Path::new("/"))?.trouble()
    }

    fn did_not_start(&mut self, launch: &Launch, error: &StartError) -> u8 {
        if launch.label != COMMAND {
            return self.no_instance(error.to_string());
        }
        self.log.plain("broker", &format!("flux-agent: {error}"));
        self.ending.note(error.to_string());
        error.code
    }

    fn note(&mut self, launch: &Launch, begin: Instant, ended: &Ended) {
        if self.timed && !self.log.quiet {
            self.log.plain("time", &flux_time(launch.label, ended.at.duration_since(begin)));
        }
        if let End::Signaled(signal) = ended.end {
            self.log.info("broker", &format!("{} was ended by signal {signal}", called(launch)));
        }
    }
}

/// Before the path of the broker's socket.
const SOCKET: &str = "-Slocal-uri=local://";

/// Where a broker will listen, as its own words say.
fn socket_of(argv: &[OsString]) -> Option<&str> {
    argv.iter().find_map(|word| word.to_str()?.strip_prefix(SOCKET))
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
    if launch.label == COMMAND { "the command" } else { "the broker" }
}

/// What the end of a follower's broker means.
fn judge(ended: &Ended) -> Verdict {
    match (ended.end, &ended.lost, ended.stopped) {
        // The lead has dismissed it, or has gone while we were to stop as well.
        (End::Exited(0), None, _) if !ended.passed_on => Verdict::Done(0),
        (_, Some(_), Some(_)) => Verdict::Done(0),
        // This pod alone is to go, the instance goes on: not a success of its index.
        (_, None, Some(_)) => Verdict::Done(REPLACE),
        (_, Some(missing), None) => Verdict::Again(format!("the parent broker was lost ({missing})")),
        (End::Exited(code), None, None) => Verdict::Again(format!("the broker ended with code {code}")),
        (End::Signaled(signal), None, None) => Verdict::Again(format!("the broker was ended by signal {signal}")),
    }
}

/// Until the parent answers again; the error says that it won't: its name has been `gone` for so long, or it has been
/// `silent`.
async fn await_return(
    parent: &mut Parent,
    gone: Option<Duration>,
    silent: Option<Duration>,
    log: Log,
) -> Result<(), Missing> {
    let mut backoff = crate::wait::Backoff::default();
    let begin = Instant::now();
    let mut report = Reporter::new(begin);
    let mut gone_since = None;
    loop {
        let missing = match parent.probe_port().await {
            Ok(()) => return Ok(()),
            Err(missing) => missing,
        };
        let name_gone = missing.is_name_gone().then(|| *gone_since.get_or_insert_with(Instant::now));
        if name_gone.is_none() {
            gone_since = None;
        }
        let is_longer = |since: Instant, bound: Option<Duration>| bound.is_some_and(|bound| since.elapsed() >= bound);
        if name_gone.is_some_and(|since| is_longer(since, gone)) || is_longer(begin, silent) {
            return Err(missing);
        }
        report.tick(log, &parent.host, &missing.to_string());
        tokio::time::sleep(backoff.next(Duration::from_secs(1))).await;
    }
}

fn never_joined(why: &str) -> Failure {
    let cause = format!("{why} before it had joined its lead");
    Failure::new(Category::BrokerFailed, cause, "look at the broker's own messages in the log")
}

fn kept_failing(failures: u32, code: u8) -> Failure {
    let cause = format!("the broker failed {failures} times in a row, at last with code {code}");
    Failure::new(Category::BrokerFailed, cause, "look at the broker's own messages in the log")
}

/// The failure of a parent that never answered.
pub(super) fn unreachable_parent(host: &str, missing: &Missing) -> Failure {
    let remedy = match missing {
        Missing::Name(_) if missing.is_name_gone() => "does the lead's pod run, and does the headless Service exist?",
        Missing::Name(_) => "does the cluster's DNS run, and does /etc/resolv.conf name it?",
        Missing::Route { .. } => "look for a network policy or a firewall between the pods",
        Missing::Port(_) => "look at the lead's own log",
    };
    let cause = format!("failed to reach the parent broker {}: {missing}", host.trim_end_matches('.'));
    Failure::new(Category::ParentUnreachable, cause, remedy)
}

/// A broker ends its own processes in order; anything else gets its signals as a group.
fn is_flux(argv: &[OsString]) -> bool {
    argv.first().is_some_and(|name| Path::new(name).file_name().is_some_and(|name| name == "flux"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(end: End, stopped: bool, passed_on: bool, lost: bool) -> Ended {
        let at = Instant::now();
        let lost = lost.then(|| Missing::Port(([127, 0, 0, 1], 8050).into()));
        let stopped = stopped.then_some((15, at));
        Ended { end, at, stopped, passed_on, lost, joined: true, first_output: None }
    }

    #[test]
    fn a_brokers_life_has_stages_as_far_as_they_are_known() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let told = |states: &[(&str, u64)], first: Option<u64>, stopped: Option<u64>| {
            let states: Vec<_> = states.iter().map(|(name, seconds)| ((*name).to_owned(), at(*seconds))).collect();
            let ended = Ended {
                at: at(10),
                first_output: first.map(at),
                stopped: stopped.map(|seconds| (15, at(seconds))),
                ..ended(End::Exited(0), false, false, false)
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

    #[test]
    fn a_followers_end_is_a_success_only_if_the_lead_wished_it_or_is_gone() {
        use End::{Exited, Signaled};
        let done = |code| Verdict::Done(code);
        assert_eq!(judge(&ended(Exited(0), false, false, false)), done(0), "dismissed");
        assert_eq!(judge(&ended(Exited(0), true, false, false)), done(0), "dismissed while told to stop");
        assert_eq!(judge(&ended(Exited(0), true, true, true)), done(0), "all go, the lead went first");
        assert_eq!(judge(&ended(Exited(0), true, true, false)), done(REPLACE), "this pod alone goes");
        assert_eq!(judge(&ended(Signaled(9), true, true, false)), done(REPLACE));
        for again in [
            ended(Exited(1), false, false, false),
            ended(Signaled(9), false, false, false),
            ended(Exited(0), false, true, true),
        ] {
            assert!(matches!(judge(&again), Verdict::Again(_)), "{again:?}");
        }
    }
}
