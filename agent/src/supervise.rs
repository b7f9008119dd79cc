//! Receives signals, and supervises child processes.
//!
//! ```text
//! signalfd ─► first stop ─► Supervisor::stop, which keeps it ─► policy ─► the child, the broker below it, or its group
//!      ├─ other signals ─► terms ─► the same
//!      └─ SIGCHLD ─► reap all ─► a child: its end is stored until it is asked for; an adopted orphan: forgotten
//! ```
//!
//! A stop and a child's end are kept as states: code that asks for them later learns of them, whatever was waiting when
//! they came. Every signal is blocked and read as an event: no stop is lost, also as PID 1, and no signal ends the
//! agent by itself. A child leads a process group of its own. If there is a terminal, an `is_foreground` child gets it.

mod hold;
pub mod orphans;
pub mod output;
pub mod policy;
pub mod program;
pub mod terminal;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use flux_agent_plan::plan::SignalTarget;

use crate::report::failure::plain;
use crate::system::raw::{self, Status};
pub use crate::system::signals::is_stop;
use crate::system::signals::{Received, Signals};
use hold::Hold;
use policy::{AtStop, Order, Policy, PolicyRequest, SecondStop, Terms};
use program::{Child, ChildProgram, StartError};

/// A second stop signal within this time is the first one sent twice (to a process and its group): few people are as
/// quick.
const DUPLICATE_STOP_WITHIN: Duration = Duration::from_millis(200);
/// After the processes that a program waited for were killed: time for the program to report how they ended.
const REPORT_WITHIN: Duration = Duration::from_secs(1);

/// An event for the supervisor's user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A child or an adopted orphan ended, was suspended or continued. [`Supervisor::take_end`] says whether a given
    /// child has ended.
    Child,
    /// The first stop signal: [`Supervisor::stop`] has it from now on.
    Stop,
    /// Any other signal, also a stop signal after the first.
    Signal(Received),
}

/// The first stop signal. After it, this process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    pub signal: i32,
    pub at: Instant,
}

/// The result of work that a stop interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupted<T> {
    Done(T),
    Stopped(Stop),
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEnd {
    Exited(u8),
    Signaled(i32),
}

impl ChildEnd {
    /// The exit code, as a shell gives it: 128 + n for signal n.
    pub fn code(self) -> u8 {
        match self {
            ChildEnd::Exited(code) => code,
            ChildEnd::Signaled(signal) => flux_shared::exit::of_signal(signal),
        }
    }
}

/// How a child ended, and what happened before.
#[derive(Debug)]
pub struct EndedChild {
    pub end: ChildEnd,
    pub at: Instant,
    /// The stop, if it came before the child's end.
    pub stopped: Option<Stop>,
    /// Whether an order to end was passed on to the child before its end. (One without a signal leaves it alone.)
    pub was_passed_on: bool,
    /// When it first wrote to standard output, if its output is copied.
    pub first_output: Option<Instant>,
}

/// The signals and children of this process.
#[derive(Debug)]
pub struct Supervisor {
    signals: Signals,
    stop: Option<Stop>,
    /// When the first stop signal came that this process did not send. Later than `stop` if it stopped itself before.
    sent_stop_at: Option<Instant>,
    /// Whether this process is the entrypoint of a container, which its runtime stops by the image's own signal.
    is_entrypoint: bool,
    /// A sidecar's rule by which a stop is held back after the end of Flux; none: a stop counts at once. (A [`Policy`]
    /// may then still hold it back from its child.)
    hold: Option<Hold>,
    /// Time from the stop until SIGKILL for the processes that still run.
    kill_after: Option<Duration>,
    /// The children that were started here, until somebody has asked for their end.
    children: BTreeMap<i32, ChildState>,
    /// Whether there is a terminal to give to children.
    has_terminal: bool,
}

#[derive(Debug, Default)]
struct ChildState {
    end: Option<ChildEnd>,
    is_suspended: bool,
    /// Whether a process sent SIGTSTP to this one, which is for the child, and no SIGCONT came since then.
    should_suspend: bool,
}

impl Supervisor {
    /// Call [`block`](crate::system::signals::block) before, and call this in a runtime. Makes this process adopt
    /// orphans if it is not PID 1.
    pub fn new() -> io::Result<Supervisor> {
        if std::process::id() != 1 {
            nix::sys::prctl::set_child_subreaper(true)?;
        }
        let (signals, has_terminal) = (Signals::new()?, terminal::is_ours());
        Ok(Supervisor {
            signals,
            stop: None,
            sent_stop_at: None,
            is_entrypoint: false,
            hold: None,
            kill_after: None,
            children: BTreeMap::new(),
            has_terminal,
        })
    }

    /// From now on, the container's runtime may stop this process by any signal: see [`Received::of_container`].
    pub fn be_entrypoint(&mut self) {
        self.is_entrypoint = true;
    }

    /// Sets the time from the stop to SIGKILL for whatever runs then; none: there is no time limit.
    pub fn set_kill_after(&mut self, kill_after: Option<Duration>) {
        self.kill_after = kill_after;
    }

    /// From now on, a stop that comes within `longest` after the file `note` was written is held back until that time
    /// is over. A second signal ends the hold.
    pub fn hold_stop_after(&mut self, note: PathBuf, longest: Duration) {
        self.hold = Some(Hold::new(note, longest));
    }

    /// Holds back no stop from now on. A stop that is held back counts at once.
    pub fn hold_no_stop(&mut self) {
        self.release();
        self.hold = None;
    }

    /// A stop that is held back counts from now on.
    fn release(&mut self) {
        if let Some(stop) = self.hold.as_mut().and_then(Hold::take) {
            self.stop = Some(stop);
        }
    }

    /// When a stop that is held back counts.
    fn held_until(&self) -> Option<Instant> {
        self.hold.as_ref()?.until()
    }

    /// The first stop signal, if it has come and is not held back. Does not wait. Later calls return it again.
    pub fn received_stop(&mut self) -> Option<Stop> {
        self.read_signals();
        if self.held_until().is_some_and(|until| until <= Instant::now()) {
            self.release();
        }
        self.stop
    }

    /// The stop of an [`Event::Stop`]. Unlike `received_stop`, reads (and drops) no signal.
    pub fn noted_stop(&self) -> Option<Stop> {
        self.stop
    }

    /// When what still runs is killed; none: there was no stop, or there is no time limit.
    pub fn kill_deadline(&self) -> Option<Instant> {
        Some(self.stop?.at + self.kill_after?)
    }

    /// Whether a stop signal that comes now is the first one sent twice.
    pub fn is_duplicate_stop(&self) -> bool {
        self.sent_stop_at
            .is_some_and(|at| at.elapsed() < DUPLICATE_STOP_WITHIN)
    }

    /// Whether there is a terminal to give to children.
    pub fn has_terminal(&self) -> bool {
        self.has_terminal
    }

    /// Starts a program, whose end is remembered until somebody asks for it.
    pub fn start(&mut self, program: &ChildProgram) -> Result<Child, StartError> {
        let child = program.start()?;
        self.remember(child.pid);
        Ok(child)
    }

    /// Remembers the end of this child, which has just been started.
    pub fn remember(&mut self, pid: i32) {
        self.children.insert(pid, ChildState::default());
    }

    /// How this child ended, as far as signals have been read; it is then forgotten.
    pub fn take_end(&mut self, pid: i32) -> Option<ChildEnd> {
        let end = self.children.get(&pid)?.end?;
        self.children.remove(&pid);
        Some(end)
    }

    /// Whether this child was suspended since the last call.
    fn take_suspended(&mut self, pid: i32) -> bool {
        self.children
            .get_mut(&pid)
            .is_some_and(|child| std::mem::take(&mut child.is_suspended))
    }

    /// The next event. Safe to drop and call again.
    pub async fn event(&mut self) -> io::Result<Event> {
        loop {
            let held_until = self.held_until();
            let received = tokio::select! {
                biased;
                received = self.signals.next() => received?,
                () = until(held_until) => {
                    self.release();
                    return Ok(Event::Stop);
                }
            };
            if let Some(event) = self.classify(received) {
                return Ok(event);
            }
        }
    }

    /// Reads the signals that have come, without waiting. Signals that would only be forwarded are dropped: callers ask
    /// while no child runs that should get them.
    fn read_signals(&mut self) {
        while let Some(received) = self.signals.try_next() {
            self.classify(received);
        }
    }

    /// Handles a signal. Returns the event, unless the signal is ignored or held back.
    fn classify(&mut self, received: Received) -> Option<Event> {
        let received = if self.is_entrypoint {
            received.of_container()
        } else {
            received
        };
        match received.number {
            libc::SIGCHLD => {
                while let Some((pid, status)) = raw::reap() {
                    self.note(pid, status);
                }
                Some(Event::Child)
            }
            // From the agent's own write to a closed pipe, or use of the terminal in the background: blocking
            // them is enough.
            libc::SIGPIPE if received.by_self => None,
            libc::SIGTTIN | libc::SIGTTOU if received.by_kernel => None,
            signal if is_stop(signal) => self.classify_stop(received),
            signal @ (libc::SIGTSTP | libc::SIGCONT) => {
                // SIGTSTP from the kernel is a Ctrl-Z: no process has asked to suspend the child.
                let should_suspend = signal == libc::SIGTSTP && !received.by_kernel;
                for child in self.children.values_mut() {
                    child.should_suspend = should_suspend;
                }
                Some(Event::Signal(received))
            }
            _ => Some(Event::Signal(received)),
        }
    }

    /// Handles a stop signal. This process may also stop itself (`wait::end`): a stop by the kubelet is then not a
    /// second one, in whichever order they come.
    fn classify_stop(&mut self, received: Received) -> Option<Event> {
        let now = Instant::now();
        let is_first_sent = !received.by_self && self.sent_stop_at.is_none();
        if is_first_sent {
            self.sent_stop_at = Some(now);
        }
        if self.stop.is_none() {
            return self.note_stop(Stop {
                signal: received.number,
                at: now,
            });
        }
        let is_second = !received.by_self && !is_first_sent;
        is_second.then_some(Event::Signal(received))
    }

    /// Notes a stop, unless it is held back.
    fn note_stop(&mut self, stop: Stop) -> Option<Event> {
        self.stop = Some(match &mut self.hold {
            Some(hold) => hold.receive(stop)?,
            None => stop,
        });
        Some(Event::Stop)
    }

    /// Notes what became of a child. An adopted orphan is not known, and forgotten.
    fn note(&mut self, pid: i32, status: Status) {
        let Some(child) = self.children.get_mut(&pid) else {
            return;
        };
        match status {
            Status::Exited(code) => child.end = Some(ChildEnd::Exited(code)),
            Status::Signaled(signal) => child.end = Some(ChildEnd::Signaled(signal)),
            Status::Stopped(libc::SIGTSTP)
                if self.has_terminal && !child.should_suspend && !terminal::has_shell_above() =>
            {
                tracing::info!(
                    stage = "terminal",
                    "Ctrl-Z has no effect: no shell could continue the program"
                );
                let _ = raw::send(-pid, libc::SIGCONT);
            }
            Status::Stopped(_) => child.is_suspended = true,
        }
    }

    /// Awaits `work` until it is done or there is a stop. After a stop it does not begin.
    pub async fn unless_stopped<T>(&mut self, work: impl Future<Output = T>) -> io::Result<Interrupted<T>> {
        tokio::pin!(work);
        loop {
            if let Some(stop) = self.received_stop() {
                return Ok(Interrupted::Stopped(stop));
            }
            tokio::select! {
                done = &mut work => return Ok(Interrupted::Done(done)),
                event = self.event() => event.map(drop)?,
            }
        }
    }

    /// Waits for a stop.
    pub async fn until_stopped(&mut self) -> io::Result<Stop> {
        let Interrupted::Stopped(stop) = self.unless_stopped(pending::<Infallible>()).await?;
        Ok(stop)
    }

    /// Awaits `work` to its end, also after a stop.
    pub async fn even_if_stopped<T>(&mut self, work: impl Future<Output = T>) -> io::Result<T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                event = self.event() => event.map(drop)?,
            }
        }
    }

    /// Supervises `child` to its end.
    pub async fn run(
        &mut self,
        mut child: Child,
        terms: Terms,
        policy: &mut dyn Policy,
    ) -> io::Result<EndedChild> {
        let copier = child.copier.take();
        let mut stopping = Stopping::default();
        let end = loop {
            if let Some(end) = self.take_end(child.pid) {
                break end;
            }
            if self.take_suspended(child.pid) {
                stopping.is_suspended = true;
                self.suspend_self();
            }
            if let (Some(stop), None) = (self.stop, stopping.stop) {
                stopping.begin(stop, self.kill_deadline(), &child, terms, policy);
            }
            // When the stop came that the policy holds back, if it holds one back.
            let held = stopping.stop.map(|stop| stop.at);
            tokio::select! {
                biased;
                event = self.event() => match event? {
                    Event::Child | Event::Stop => {}
                    Event::Signal(received) => self.handle_signal(received, &child, terms, policy, &mut stopping),
                },
                () = until(stopping.deadline) => stopping.handle_deadline(self.kill_deadline(), &child, terms, policy),
                useful = answer(&mut stopping.asked) => stopping.handle_answer(useful, &child, terms),
                order = policy.reason(child.pid, held), if stopping.passed_on.is_none() => {
                    stopping.pass_on(order, self.kill_deadline(), &child, terms, policy);
                }
            }
        };
        let at = Instant::now();
        if self.has_terminal {
            terminal::reclaim();
        }
        let first_output = copier.as_ref().and_then(output::OutputCopier::first_output);
        if let Some(copier) = copier {
            self.drain(copier).await?;
        }
        // A pending request (to the broker) concerns more than this child: its answer is awaited.
        if let Some(asked) = stopping.asked {
            asked.request.await;
        }
        Ok(EndedChild {
            end,
            at,
            stopped: stopping.stop,
            was_passed_on: stopping.passed_on.is_some_and(|signal| signal != 0),
            first_output,
        })
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
            // Suspend and continue are for all of the child's processes; other signals are for the target of
            // the terms.
            let is_for_group = matches!(signal, libc::SIGTSTP | libc::SIGCONT);
            if signal == libc::SIGCONT {
                stopping.is_suspended = false;
                if self.has_terminal {
                    terminal::give_to(child.pid);
                }
            }
            return send(
                child,
                if is_for_group {
                    SignalTarget::Group
                } else {
                    terms.target
                },
                signal,
            );
        }
        match terms.second_stop {
            SecondStop::IsIgnored => {}
            SecondStop::Kills if self.is_duplicate_stop() => {}
            // The policy holds the first stop back: the second one ends the hold.
            _ if stopping.passed_on.is_none() => {
                stopping.pass_on(Order::signal(signal), self.kill_deadline(), child, terms, policy);
            }
            SecondStop::Kills => {
                tracing::info!(stage = "stop", "second stop signal: killing what is left");
                send(child, SignalTarget::Group, libc::SIGKILL);
            }
            SecondStop::IsPassedOn => send(child, terms.target, signal),
        }
    }

    /// After the child was suspended from the terminal: suspends this process, so that the shell above gets its
    /// terminal back.
    fn suspend_self(&self) {
        if self.has_terminal && terminal::has_shell_above() {
            terminal::reclaim();
            let _ = raw::send(std::process::id().cast_signed(), libc::SIGSTOP);
        }
    }

    /// Waits until all output of an ended child is copied. After a stop, the wait lasts until the deadline at most. If
    /// no deadline is set, a stop that comes during the wait ends it. A second stop signal always ends it.
    async fn drain(&mut self, copier: output::OutputCopier) -> io::Result<()> {
        let done = raw::watch(copier.finish())?;
        let copied = done.readable();
        tokio::pin!(copied);
        loop {
            tokio::select! {
                _ = &mut copied => return Ok(()),
                () = until(self.kill_deadline()) => return Ok(()),
                event = self.event() => match event? {
                    Event::Stop if self.kill_after.is_none() => return Ok(()),
                    Event::Signal(received) if is_stop(received.number) && !self.is_duplicate_stop() => return Ok(()),
                    _ => {}
                },
            }
        }
    }
}

/// Progress of stopping a child.
#[derive(Default)]
struct Stopping {
    /// The stop, once this child is being stopped for it.
    stop: Option<Stop>,
    /// The signal of the order that was passed on to the child, if one was. 0: the child is left alone until the
    /// deadline.
    passed_on: Option<i32>,
    /// Whether the child was suspended (SIGTSTP, SIGSTOP), and the agent has not continued it.
    is_suspended: bool,
    /// Until the order is passed on: the end of the policy's hold ([`AtStop::Hold`]). After that: when remaining
    /// processes are killed.
    deadline: Option<Instant>,
    /// A pending request of the policy.
    asked: Option<Asked>,
}

/// A request that is not answered yet.
struct Asked {
    request: PolicyRequest,
    purpose: Purpose,
}

/// What a request is for.
#[derive(Clone, Copy)]
enum Purpose {
    /// The request is made in place of this signal.
    Stop(i32),
    /// The request kills the processes that the child waits for.
    Kill,
}

impl Stopping {
    /// Begins to stop this child. `kill_at`: when remaining processes are killed.
    fn begin(
        &mut self,
        stop: Stop,
        kill_at: Option<Instant>,
        child: &Child,
        terms: Terms,
        policy: &mut dyn Policy,
    ) {
        self.stop = Some(stop);
        match policy.at_stop(stop.signal) {
            AtStop::PassOn(order) => self.pass_on(order, kill_at, child, terms, policy),
            AtStop::Hold(bound) => self.deadline = Some(Instant::now() + bound),
        }
    }

    /// Sends the order's signal, or makes the policy's request in its place. Remaining processes are killed at
    /// `kill_at`, or when the order's time is over. The kubelet counts from the first signal: a hold leaves less time.
    fn pass_on(
        &mut self,
        order: Order,
        kill_at: Option<Instant>,
        child: &Child,
        terms: Terms,
        policy: &mut dyn Policy,
    ) {
        self.passed_on = Some(order.signal);
        let bounds = [kill_at, order.within.map(|within| Instant::now() + within)];
        self.deadline = bounds.into_iter().flatten().min();
        match policy.in_place_of_signal() {
            Some(request) => {
                self.asked = Some(Asked {
                    request,
                    purpose: Purpose::Stop(order.signal),
                })
            }
            None => self.send_stop(order.signal, child, terms),
        }
    }

    fn send_stop(&self, signal: i32, child: &Child, terms: Terms) {
        send(child, terms.target, signal);
        if self.is_suspended {
            send(child, SignalTarget::Group, libc::SIGCONT); // a suspended process does not handle signals
        }
    }

    /// The policy's hold has lasted its longest time, or it is time to kill what is left.
    fn handle_deadline(
        &mut self,
        kill_at: Option<Instant>,
        child: &Child,
        terms: Terms,
        policy: &mut dyn Policy,
    ) {
        if self.passed_on.is_none() {
            let order = policy.at_hold_timeout(child.pid);
            return self.pass_on(order, kill_at, child, terms, policy);
        }
        self.deadline = None;
        if let Some(request) = policy.kill_first() {
            self.asked = Some(Asked {
                request,
                purpose: Purpose::Kill,
            });
            return;
        }
        tracing::info!(stage = "stop", "not ended in time: killing what is left");
        send(child, SignalTarget::Group, libc::SIGKILL);
    }

    /// Handles the answer to the pending request. `useful`: whether the request helped.
    fn handle_answer(&mut self, useful: bool, child: &Child, terms: Terms) {
        match self.asked.take().map(|asked| asked.purpose) {
            Some(Purpose::Stop(signal)) if !useful => self.send_stop(signal, child, terms),
            // Gives the child time to report the end of what it waited for.
            Some(Purpose::Kill) => self.deadline = Some(Instant::now() + REPORT_WITHIN),
            Some(Purpose::Stop(_)) | None => {}
        }
    }
}

/// Waits for the answer to the pending request: whether it helped. Never resolves if no request is pending.
async fn answer(asked: &mut Option<Asked>) -> bool {
    match asked {
        Some(asked) => asked.request.as_mut().await,
        None => pending().await,
    }
}

fn send(child: &Child, target: SignalTarget, signal: i32) {
    let result = match target {
        SignalTarget::Process => raw::send(child.pid, signal),
        SignalTarget::Broker => match orphans::broker(child.pid).map(|pid| raw::send(pid, signal)) {
            // The broker is another user's (`sudo`): its wrapper may pass the signal on.
            Some(Err(error)) if error.raw_os_error() == Some(libc::EPERM) => raw::send(-child.pid, signal),
            Some(sent) => sent,
            None => raw::send(-child.pid, signal),
        },
        SignalTarget::Group => raw::send(-child.pid, signal),
    };
    // No such process: it has just ended, which is the next event.
    if let Err(error) = result
        && error.raw_os_error() != Some(libc::ESRCH)
    {
        tracing::warn!(
            stage = "stop",
            "failed to send signal {signal}: {}",
            plain(&error)
        );
    }
}

/// Waits until `deadline`. Never resolves if `deadline` is None.
pub async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
