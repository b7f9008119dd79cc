//! The only place that waits for children.
//!
//! ```text
//! signalfd ─► Event::Signal ─► policy ─► the child, or its process group
//!      └─ SIGCHLD ─► reap all ─► Event::Child ─► ours: its end; an adopted orphan: forgotten
//! ```
//!
//! Every signal is blocked and read as an event: none is lost, also as PID 1, and none ends the agent by itself.
//! A child leads a process group of its own and has the terminal, where there is one, as long as it runs.
#![expect(clippy::disallowed_methods, reason = "act: starts and ends processes; with all below it")]

pub mod orphans;
pub mod output;
pub mod program;
pub mod terminal;

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::departure::Departure;
use crate::flux_rpc::jobs;
use crate::flux_rpc::lead_presence::{LeadPresence, lead_stays};
use crate::system::raw::{self, Status};
use crate::system::signals::{Received, Signals};
use crate::wait::connection::Watch;
use crate::wait::{Missing, Parent};
use program::Child;

/// A second stop signal within this time is the same wish told twice (to a process and to its group).
const SAME_WISH: Duration = Duration::from_millis(200);
/// How long a broker that lost its parent has to end by itself.
const LOST_GRACE: Duration = Duration::from_secs(5);
/// How long a program may take to tell how jobs that were killed have ended.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The process that runs a job's tasks on a node.
const JOB_SHELL: &str = "flux-shell";
/// Distance of looks at the parent while a stop is held back.
const HOLD_LOOK: Duration = Duration::from_millis(500);
/// Pods that are to stop together are told within this time.
const ALONE_AFTER: Duration = Duration::from_secs(5);

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Signal(Received),
    Child(i32, Status),
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Exited(u8),
    Signaled(i32),
}

impl End {
    /// The exit code, as a shell says it.
    pub fn code(self) -> u8 {
        match self {
            End::Exited(code) => code,
            End::Signaled(signal) => flux_shared::exit::of_signal(signal),
        }
    }
}

/// Whom a stop signal reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The process alone: a broker, which ends its own in order.
    Process,
    /// Everything that it started.
    Group,
}

/// A follower's terms: a stop is held back as long as the parent may still end the instance in order.
#[derive(Debug)]
pub struct Hold<'a> {
    pub parent: &'a mut Parent,
    pub bound: Duration,
    /// By which the lead says whether it stays, and how this node goes if it does. None: nobody can ask.
    pub going: Option<Going<'a>>,
}

/// A node that goes while the lead stays.
#[derive(Debug)]
pub struct Going<'a> {
    pub broker: &'a Broker,
    /// None: it goes at once.
    pub departure: Option<Departure>,
}

impl Going<'_> {
    fn has_begun(&self) -> bool {
        self.departure.as_ref().is_some_and(Departure::has_begun)
    }

    /// Whether the broker may go now: the lead stays, and no job is on this node.
    async fn may_go(&mut self, begin: Instant, bound: Duration) -> bool {
        let had_begun = self.has_begun();
        if !had_begun && !lead_stays(self.broker).await {
            return false;
        }
        let Some(departure) = &mut self.departure else { return true };
        let may_go = departure.may_go(self.broker).await;
        if self.has_begun() && !had_begun {
            let left = bound.saturating_sub(begin.elapsed()).as_secs();
            tracing::info!(
                stage = "stop",
                "only this pod is to go: no more jobs come, and those that are here have {left} s"
            );
        }
        may_go
    }
}

/// What signals do to a child.
#[derive(Debug)]
pub struct Policy<'a> {
    pub target: Target,
    /// After the stop was passed on: SIGKILL to the group. None: never by time.
    pub kill_after: Option<Duration>,
    /// A second stop signal is SIGKILL to the group.
    pub second_kills: bool,
    pub hold: Option<Hold<'a>>,
    /// What the lead says to the others until it is told to stop.
    pub staying: Option<&'a LeadPresence>,
    /// A stop is a wish for an end, with time to tidy up.
    pub gently: Option<Gently<'a>>,
}

/// How the program inside an instance is told to stop: whatever signal came, by SIGTERM.
#[derive(Debug, Clone, Copy)]
pub struct Gently<'a> {
    /// What runs on the instance is told, and the child ends when it has ended: the broker's socket.
    pub jobs: Option<&'a str>,
    /// Its time; what is left then is killed.
    pub within: Duration,
}

impl Policy<'_> {
    /// Of a short helper program: signals reach all that it started, and nothing ends it by time.
    pub fn of_group() -> Self {
        Policy { target: Target::Group, kill_after: None, second_kills: true, hold: None, staying: None, gently: None }
    }
}

/// A child's end, and what led to it.
#[derive(Debug)]
pub struct Ended {
    pub end: End,
    pub at: Instant,
    /// The first stop signal that the agent was sent, and when.
    pub stopped: Option<(i32, Instant)>,
    /// The stop signal had to be passed on: nobody else ended the child in time.
    pub passed_on: bool,
    /// The parent broker was lost, so the agent ended the child.
    pub lost: Option<Missing>,
    /// It was connected to its parent, as far as is known.
    pub joined: bool,
    pub first_output: Option<Instant>,
}

/// The signals and children of this process.
#[derive(Debug)]
pub struct Supervisor {
    signals: Signals,
    events: VecDeque<Event>,
    first_stop: Option<Instant>,
    terminal: bool,
}

/// SIGTERM, SIGINT, SIGHUP: somebody wants an end.
pub fn is_stop(signal: i32) -> bool {
    matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGHUP)
}

impl Supervisor {
    /// Needs [`signals::block`] before, and a runtime around it. Also adopts orphans where the agent is not PID 1.
    pub fn new() -> io::Result<Supervisor> {
        if std::process::id() != 1 {
            nix::sys::prctl::set_child_subreaper(true)?;
        }
        let (signals, events) = (Signals::new()?, VecDeque::new());
        Ok(Supervisor { signals, events, first_stop: None, terminal: terminal::is_ours() })
    }

    /// When this process was told to stop for the first time.
    pub fn first_stop(&self) -> Option<Instant> {
        self.first_stop
    }

    /// Children may be given the terminal.
    pub fn has_terminal(&self) -> bool {
        self.terminal
    }

    /// The next event. Safe to drop and call again.
    pub async fn event(&mut self) -> io::Result<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let received = self.signals.next().await?;
            if let Some(event) = self.sort(received) {
                return Ok(event);
            }
        }
    }

    fn sort(&mut self, received: Received) -> Option<Event> {
        match received.number {
            libc::SIGCHLD => {
                while let Some((pid, status)) = raw::reap() {
                    self.events.push_back(Event::Child(pid, status));
                }
                None
            }
            // Ours: a write to a closed pipe. The kernel's: a background read or write, which is blocked anyway.
            libc::SIGPIPE if received.by_self => None,
            libc::SIGTTIN | libc::SIGTTOU if received.by_kernel => None,
            number => {
                if is_stop(number) {
                    self.first_stop.get_or_insert_with(Instant::now);
                }
                Some(Event::Signal(received))
            }
        }
    }

    /// A stop signal that has come meanwhile, without waiting.
    pub fn stop_wanted(&mut self) -> Option<i32> {
        while let Some(received) = self.signals.try_next() {
            let event = self.sort(received);
            self.events.extend(event);
        }
        let wanted = self.events.iter().position(|event| matches!(event, Event::Signal(r) if is_stop(r.number)))?;
        match self.events.remove(wanted) {
            Some(Event::Signal(received)) => Some(received.number),
            _ => None,
        }
    }

    /// Lets `work` go on until it is done or a stop signal comes, which is then the error.
    pub async fn unless_stopped<T>(&mut self, work: impl Future<Output = T>) -> io::Result<Result<T, i32>> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(Ok(done)),
                event = self.event() => match event? {
                    Event::Signal(received) if is_stop(received.number) => return Ok(Err(received.number)),
                    _ => {}
                }
            }
        }
    }

    /// Supervises `child` to its end.
    pub async fn run(&mut self, mut child: Child, mut policy: Policy<'_>) -> io::Result<Ended> {
        let copier = child.copier.take();
        let mut stopping = Stopping::default();
        let mut watch = Watch::new();
        let end = loop {
            let hold = policy.hold.as_mut();
            tokio::select! {
                biased;
                event = self.event() => match event? {
                    Event::Child(pid, status) if pid == child.pid => match status {
                        Status::Exited(code) => break End::Exited(code),
                        Status::Signaled(signal) => break End::Signaled(signal),
                        Status::Stopped(_) => {
                            stopping.suspended = true;
                            self.stop_too();
                        }
                    },
                    Event::Child(..) => {}
                    Event::Signal(received) => self.pass_on(received, &child, &policy, &mut stopping),
                },
                () = until(stopping.deadline) => self.bound_reached(&child, &policy, &mut stopping),
                reason = reason_to_go(&mut watch, hold, &stopping) => match reason {
                    Reason::Lost(missing) => self.parent_lost(missing, &child, &policy, &mut stopping),
                    Reason::Alone => {
                        self.alone("the lead stays, only this pod is to go", &child, &policy, &mut stopping);
                    }
                },
            }
        };
        let at = Instant::now();
        if self.terminal {
            terminal::take_back();
        }
        let first_output = copier.as_ref().and_then(output::Copier::first_output);
        if let Some(copier) = copier {
            self.drain(copier).await?;
        }
        Ok(Ended {
            end,
            at,
            stopped: stopping.since,
            passed_on: stopping.passed_on,
            lost: stopping.lost,
            joined: watch.was_connected(),
            first_output,
        })
    }

    fn pass_on(&mut self, received: Received, child: &Child, policy: &Policy<'_>, stopping: &mut Stopping) {
        let signal = received.number;
        if !is_stop(signal) {
            // Stop and continue are for all of the child's processes; what else a broker is sent is for its jobs.
            let group = matches!(signal, libc::SIGTSTP | libc::SIGCONT);
            if signal == libc::SIGCONT {
                stopping.suspended = false;
                if self.terminal {
                    terminal::give_to(child.pid);
                }
            }
            return send(child, if group { Target::Group } else { policy.target }, signal);
        }
        match stopping.since {
            None => {
                stopping.since = Some((signal, Instant::now()));
                if let Some(staying) = policy.staying {
                    staying.end();
                }
                match &policy.hold {
                    Some(hold) => {
                        let bound = hold.bound;
                        tracing::info!(
                            stage = "stop",
                            "told to stop; {} s for the lead to end the instance first",
                            bound.as_secs()
                        );
                        stopping.deadline = Some(Instant::now() + bound);
                    }
                    None => self.stop(signal, child, policy, stopping),
                }
            }
            Some(_) if policy.gently.is_some() => {}
            Some((_, since)) if policy.second_kills && since.elapsed() < SAME_WISH => {}
            Some(_) if !stopping.passed_on => self.stop(signal, child, policy, stopping),
            Some(_) if policy.second_kills => {
                tracing::info!(stage = "stop", "told to stop again: killing what is left");
                send(child, Target::Group, libc::SIGKILL);
            }
            Some(_) => send(child, policy.target, signal),
        }
    }

    fn stop(&mut self, signal: i32, child: &Child, policy: &Policy<'_>, stopping: &mut Stopping) {
        stopping.passed_on = true;
        if let Some(gently) = policy.gently {
            stopping.deadline = Some(Instant::now() + gently.within);
            if gently.jobs.is_none_or(|socket| !jobs::stop(socket)) {
                send(child, policy.target, libc::SIGTERM);
            }
            return;
        }
        // The kubelet counts from the first signal: what was held back has so much less time.
        let begin = stopping.since.map_or_else(Instant::now, |(_, since)| since);
        stopping.deadline = policy.kill_after.map(|after| begin + after);
        send(child, policy.target, signal);
        if stopping.suspended {
            send(child, Target::Group, libc::SIGCONT); // a stopped process could not heed it
        }
    }

    fn bound_reached(&mut self, child: &Child, policy: &Policy<'_>, stopping: &mut Stopping) {
        if stopping.passed_on {
            stopping.deadline = None;
            if let Some(socket) = policy.gently.and_then(|gently| gently.jobs).filter(|_| !stopping.killed) {
                // The child tells the jobs' end, if it comes to that.
                stopping.killed = true;
                jobs::kill(socket);
                stopping.deadline = Some(Instant::now() + LAST_WORDS);
                return;
            }
            tracing::info!(stage = "stop", "it did not end in time: killing what is left");
            return send(child, Target::Group, libc::SIGKILL);
        }
        let going = policy.hold.as_ref().and_then(|hold| hold.going.as_ref());
        if going.is_some_and(Going::has_begun) {
            return self.alone("the time for jobs on this node is over", child, policy, stopping);
        }
        tracing::info!(stage = "stop", "the lead did not end the instance in time: stopping this broker");
        self.stop(libc::SIGTERM, child, policy, stopping);
    }

    fn alone(&mut self, why: &str, child: &Child, policy: &Policy<'_>, stopping: &mut Stopping) {
        // A broker that leaves in order while a job is on it keeps that job from its end for half a minute; one that is
        // gone is a node failure, and told at once.
        let (signal, how) = match orphans::has_descendant(child.pid, JOB_SHELL) {
            true => (libc::SIGKILL, "killing this broker, on which a job runs"),
            false => (libc::SIGTERM, "stopping this broker"),
        };
        tracing::info!(stage = "stop", "{why}: {how}");
        self.stop(signal, child, policy, stopping);
    }

    fn parent_lost(&mut self, missing: Missing, child: &Child, policy: &Policy<'_>, stopping: &mut Stopping) {
        tracing::info!(stage = "stop", "the parent broker is gone ({missing}): stopping this broker");
        stopping.lost = Some(missing);
        self.stop(libc::SIGTERM, child, policy, stopping);
        let soon = Instant::now() + LOST_GRACE;
        stopping.deadline = Some(stopping.deadline.map_or(soon, |deadline| deadline.min(soon)));
    }

    /// The child was stopped from the terminal: stop as well, so that the shell above gets its terminal back.
    fn stop_too(&self) {
        if self.terminal && std::process::id() != 1 {
            terminal::take_back();
            let _ = raw::send(std::process::id().cast_signed(), libc::SIGSTOP);
        }
    }

    /// Until all output of a child that has ended is copied; a stop signal ends the wait.
    async fn drain(&mut self, copier: output::Copier) -> io::Result<()> {
        let done = raw::watch(copier.finish())?;
        let copied = async {
            let _ = done.readable().await;
        };
        self.unless_stopped(copied).await.map(|_| ())
    }
}

#[derive(Debug, Default)]
struct Stopping {
    since: Option<(i32, Instant)>,
    passed_on: bool,
    /// The jobs were killed.
    killed: bool,
    /// The child was stopped (SIGTSTP, SIGSTOP) and not continued by us.
    suspended: bool,
    deadline: Option<Instant>,
    lost: Option<Missing>,
}

fn send(child: &Child, target: Target, signal: i32) {
    let result = match target {
        Target::Process => raw::send(child.pid, signal),
        Target::Group => raw::send(-child.pid, signal),
    };
    // No such process: it has just ended, which is the next event.
    let _ = result;
}

/// For ever without a deadline.
pub async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Why a follower's broker has to go before its time.
enum Reason {
    /// Its parent is gone.
    Lost(Missing),
    /// The lead stays: there is nothing to wait for.
    Alone,
}

/// Until there is one: found out slowly while all is well, quickly while a stop is held back.
async fn reason_to_go(watch: &mut Watch, hold: Option<&mut Hold<'_>>, stopping: &Stopping) -> Reason {
    let Some(hold) = hold.filter(|_| !stopping.passed_on) else { return std::future::pending().await };
    let Some((_, told)) = stopping.since else { return Reason::Lost(watch.lost(hold.parent).await) };
    loop {
        // The name goes with the first objects that a delete takes: while the brokers are connected it says nothing.
        if let Some(missing) = watch.is_gone(hold.parent, HOLD_LOOK).await {
            return Reason::Lost(missing);
        }
        if told.elapsed() >= ALONE_AFTER
            && let Some(going) = &mut hold.going
            && going.may_go(told, hold.bound).await
        {
            return Reason::Alone;
        }
        tokio::time::sleep(HOLD_LOOK).await;
    }
}
