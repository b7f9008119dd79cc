//! The only place that waits for children.
//!
//! ```text
//! signalfd ─► Event::Signal ─► terms, policy ─► the child, or its process group
//!      └─ SIGCHLD ─► reap all ─► Event::Child ─► ours: its end; an adopted orphan: forgotten
//! ```
//!
//! Every signal is blocked and read as an event: none is lost, also as PID 1, and none ends the agent by itself.
//! A child leads a process group of its own and has the terminal, where there is one, as long as it runs.
#![expect(clippy::disallowed_methods, reason = "act: starts and ends processes; with all below it")]

pub mod orphans;
pub mod output;
pub mod policy;
pub mod program;
pub mod terminal;

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use crate::system::raw::{self, Status};
use crate::system::signals::{Received, Signals};
use policy::{AtStop, Order, Policy, Request, SecondStop, Target, Terms};
use program::Child;

/// A second stop signal within this time is the first one sent twice (to a process and to its group).
const SAME_WISH: Duration = Duration::from_millis(200);
/// How long a program may take to report how the processes that it waited for ended, once these were killed.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A signal, or a child that ended or stopped.
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
    /// The exit code, as a shell gives it: 128 + n for signal n.
    pub fn code(self) -> u8 {
        match self {
            End::Exited(code) => code,
            End::Signaled(signal) => flux_shared::exit::of_signal(signal),
        }
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

/// Whether a signal is a stop: SIGTERM, SIGINT, SIGHUP.
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

    /// When the first stop signal came.
    pub fn first_stop(&self) -> Option<Instant> {
        self.first_stop
    }

    /// Whether there is a terminal to give to children.
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
            if let Some(event) = self.classify(received) {
                return Ok(event);
            }
        }
    }

    fn classify(&mut self, received: Received) -> Option<Event> {
        match received.number {
            libc::SIGCHLD => {
                while let Some((pid, status)) = raw::reap() {
                    self.events.push_back(Event::Child(pid, status));
                }
                None
            }
            // From the agent's own write to a closed pipe, or use of the terminal in the background: blocking them is
            // enough.
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

    /// Takes a stop signal that has come meanwhile, without waiting.
    pub fn take_stop_signal(&mut self) -> Option<i32> {
        while let Some(received) = self.signals.try_next() {
            let event = self.classify(received);
            self.events.extend(event);
        }
        let wanted = self.events.iter().position(|event| matches!(event, Event::Signal(r) if is_stop(r.number)))?;
        match self.events.remove(wanted) {
            Some(Event::Signal(received)) => Some(received.number),
            _ => None,
        }
    }

    /// Awaits `work` until it is done or a stop signal comes, which is then the error.
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
    pub async fn run(&mut self, mut child: Child, terms: Terms, policy: &mut dyn Policy) -> io::Result<Ended> {
        let copier = child.copier.take();
        let mut stopping = Stopping::default();
        let end = loop {
            let held = stopping.since.map(|(_, at)| at);
            tokio::select! {
                biased;
                event = self.event() => match event? {
                    Event::Child(pid, status) if pid == child.pid => match status {
                        Status::Exited(code) => break End::Exited(code),
                        Status::Signaled(signal) => break End::Signaled(signal),
                        Status::Stopped(_) => {
                            stopping.suspended = true;
                            self.suspend_self();
                        }
                    },
                    Event::Child(..) => {}
                    Event::Signal(received) => self.handle_signal(received, &child, terms, policy, &mut stopping),
                },
                () = until(stopping.deadline) => stopping.handle_deadline(&child, terms, policy),
                useful = answer(&mut stopping.asked) => stopping.handle_answer(useful, &child, terms),
                order = policy.reason(child.pid, held), if !stopping.passed_on => {
                    stopping.pass_on(order, &child, terms, policy);
                }
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
        // A pending request (to the broker) concerns more than this child: its answer is awaited.
        if let Some(asked) = stopping.asked {
            asked.request.await;
        }
        Ok(Ended { end, at, stopped: stopping.since, passed_on: stopping.passed_on, first_output })
    }

    fn handle_signal(
        &mut self,
        received: Received,
        child: &Child,
        terms: Terms,
        policy: &mut dyn Policy,
        stopping: &mut Stopping,
    ) {
        let signal = received.number;
        if !is_stop(signal) {
            // Suspend and continue are for all of the child's processes; other signals are for the target of the terms.
            let group = matches!(signal, libc::SIGTSTP | libc::SIGCONT);
            if signal == libc::SIGCONT {
                stopping.suspended = false;
                if self.terminal {
                    terminal::give_to(child.pid);
                }
            }
            return send(child, if group { Target::Group } else { terms.target }, signal);
        }
        match (stopping.since, terms.second_stop) {
            (None, _) => {
                stopping.since = Some((signal, Instant::now()));
                match policy.at_stop(signal) {
                    AtStop::PassOn(order) => stopping.pass_on(order, child, terms, policy),
                    AtStop::Hold(bound) => stopping.deadline = Some(Instant::now() + bound),
                }
            }
            (Some(_), SecondStop::IsIgnored) => {}
            (Some((_, since)), SecondStop::Kills) if since.elapsed() < SAME_WISH => {}
            (Some(_), _) if !stopping.passed_on => stopping.pass_on(Order::signal(signal), child, terms, policy),
            (Some(_), SecondStop::Kills) => {
                tracing::info!(stage = "stop", "second stop signal: killing what is left");
                send(child, Target::Group, libc::SIGKILL);
            }
            (Some(_), SecondStop::IsPassedOn) => send(child, terms.target, signal),
        }
    }

    /// After the child was stopped from the terminal: stops this process, so that the shell above gets its terminal back.
    fn suspend_self(&self) {
        if self.terminal && std::process::id() != 1 {
            terminal::take_back();
            let _ = raw::send(std::process::id().cast_signed(), libc::SIGSTOP);
        }
    }

    /// Waits until all output of an ended child is copied; a stop signal ends the wait.
    async fn drain(&mut self, copier: output::Copier) -> io::Result<()> {
        let done = raw::watch(copier.finish())?;
        let copied = async {
            let _ = done.readable().await;
        };
        self.unless_stopped(copied).await.map(|_| ())
    }
}

/// Progress of stopping a child.
#[derive(Default)]
struct Stopping {
    since: Option<(i32, Instant)>,
    passed_on: bool,
    /// The child was stopped (SIGTSTP, SIGSTOP) and not continued by us.
    suspended: bool,
    deadline: Option<Instant>,
    asked: Option<Asked>,
}

/// A request that is not answered yet.
struct Asked {
    request: Request,
    purpose: Purpose,
}

#[derive(Clone, Copy)]
enum Purpose {
    /// Takes the place of this signal.
    Stop(i32),
    /// Kills the processes that the child waits for.
    Kill,
}

impl Stopping {
    fn pass_on(&mut self, order: Order, child: &Child, terms: Terms, policy: &mut dyn Policy) {
        self.passed_on = true;
        // The kubelet counts from the first signal: what was held back has so much less time.
        let begin = self.since.map_or_else(Instant::now, |(_, since)| since);
        let bounds = [terms.kill_after.map(|after| begin + after), order.within.map(|within| Instant::now() + within)];
        self.deadline = bounds.into_iter().flatten().min();
        match policy.in_place_of_signal() {
            Some(request) => self.asked = Some(Asked { request, purpose: Purpose::Stop(order.signal) }),
            None => self.send_stop(order.signal, child, terms),
        }
    }

    fn send_stop(&self, signal: i32, child: &Child, terms: Terms) {
        send(child, terms.target, signal);
        if self.suspended {
            send(child, Target::Group, libc::SIGCONT); // a stopped process could not heed it
        }
    }

    fn handle_deadline(&mut self, child: &Child, terms: Terms, policy: &mut dyn Policy) {
        if !self.passed_on {
            let order = policy.at_hold_timeout(child.pid);
            return self.pass_on(order, child, terms, policy);
        }
        self.deadline = None;
        if let Some(request) = policy.kill_first() {
            self.asked = Some(Asked { request, purpose: Purpose::Kill });
            return;
        }
        tracing::info!(stage = "stop", "not ended in time: killing what is left");
        send(child, Target::Group, libc::SIGKILL);
    }

    fn handle_answer(&mut self, useful: bool, child: &Child, terms: Terms) {
        match self.asked.take().map(|asked| asked.purpose) {
            Some(Purpose::Stop(signal)) if !useful => self.send_stop(signal, child, terms),
            // Gives the child time to report the end of what it waited for.
            Some(Purpose::Kill) => self.deadline = Some(Instant::now() + LAST_WORDS),
            Some(Purpose::Stop(_)) | None => {}
        }
    }
}

/// Never resolves if no request is pending.
async fn answer(asked: &mut Option<Asked>) -> bool {
    match asked {
        Some(asked) => asked.request.as_mut().await,
        None => std::future::pending().await,
    }
}

fn send(child: &Child, target: Target, signal: i32) {
    let result = match target {
        Target::Process => raw::send(child.pid, signal),
        Target::Group => raw::send(-child.pid, signal),
    };
    // No such process: it has just ended, which is the next event.
    let _ = result;
}

/// Never resolves if `deadline` is None.
pub async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
