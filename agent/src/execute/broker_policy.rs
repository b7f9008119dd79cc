//! Decides when a broker is stopped, and by which signal. Reasons are a stop of the pod, and a parent that is
//! silent for longer than the user allows. A follower holds back a stop, since the lead may end the instance
//! in order. A lead's broker that already shuts down gets no signal.
//!
//! ```text
//! stop ─► hold ─┬─ the parent is gone ─────────────────────► SIGTERM, a few seconds later SIGKILL
//!               ├─ the lead stays, no job uses this node ──► SIGTERM
//!               └─ the longest time of the hold is over ───► SIGTERM; SIGKILL if the lead stays and a job runs
//!                                                                     here or below in the tree
//! ```
//!
//! Until it is known that the lead stays, the agent does not drain this node, and does not kill the broker
//! because of a job: the lead may get its own stop a moment later.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use flux_agent_plan::plan::Launch;
use flux_shared::hostlist;

use super::program_note::read_note;
use super::start_record::Record;
use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::departure::{Departure, DrainProgress};
use crate::flux_rpc::lead_presence::{LeadPresence, lead_stays};
use crate::flux_rpc::states::StateWatcher;
use crate::supervise::policy::{AtStop, EndReason, Order, Policy, SecondStop, Terms};
use crate::supervise::{self, ChildEnd, Stop, orphans};
use crate::wait::{Missing, ParentProbe, Presence};

/// Time between SIGTERM and SIGKILL for a broker that has lost its parent.
const LOST_GRACE: Duration = Duration::from_secs(5);
/// Interval between checks of the parent while a stop is held back.
const CHECK_PARENT_EVERY: Duration = Duration::from_millis(500);
/// How long a stop is held back before the agent asks whether the lead stays. If all pods are stopped together, most
/// leads have ended the instance by then.
const ASK_LEAD_AFTER: Duration = Duration::from_secs(5);
/// Interval between checks after that. Each asks the lead and checks the parent.
const ASK_LEAD_EVERY: Duration = Duration::from_secs(2);

/// The policy of one launched program. For a sidecar's command, all fields are none.
#[derive(Debug)]
pub(super) struct BrokerPolicy<'a> {
    /// How a follower holds back a stop, and how long its parent may be silent. None: a stop is not held back.
    hold: Option<HeldStop<'a>>,
    /// For the lead: its membership in the group that shows followers that it stays. It ends with a stop.
    staying: Option<&'a LeadPresence>,
    /// Whether the broker shuts down already.
    shutdown: ShutdownSigns<'a>,
    /// The record of this start. It notes a stop that comes before the program has ended.
    record: Option<&'a Record>,
    /// What is missing, if the parent was lost.
    lost: Option<Missing>,
}

/// What shows that a broker shuts down already.
#[derive(Debug, Default)]
pub(super) struct ShutdownSigns<'a> {
    /// The broker's states; none: they are not watched.
    pub(super) states: Option<&'a StateWatcher>,
    /// The note on the end of the lead's program, after which the broker shuts down.
    pub(super) note: Option<PathBuf>,
}

impl ShutdownSigns<'_> {
    fn is_shutting_down(&self) -> bool {
        let has_program_ended = |path: &PathBuf| read_note(path).is_some_and(|note| note.code.is_some());
        self.states.is_some_and(StateWatcher::is_ending) || self.note.as_ref().is_some_and(has_program_ended)
    }
}

/// How a launched program ended, why, and what is known of its parent and its lead.
#[derive(Debug)]
pub(super) struct LaunchEnd {
    pub(super) end: ChildEnd,
    /// When it ended.
    pub(super) at: Instant,
    /// The time from its start to its end.
    pub(super) lasted: Duration,
    /// The stop, if it came before its end.
    pub(super) stopped: Option<Stop>,
    /// Whether an order to end, because of the stop or a lost parent, was passed on to it before its end.
    pub(super) was_passed_on: bool,
    /// What is missing, if the agent ended it because its parent broker was lost.
    pub(super) lost: Option<Missing>,
    /// Since when its parent has been silent, as far as this was checked; none: the last check, if any, succeeded.
    pub(super) parent_silent_since: Option<Instant>,
    /// Whether it has connected to its parent, as far as is known.
    pub(super) has_joined: bool,
    /// Whether the instance has been seen in the state `run`, or in `cleanup`, which comes only after `run`.
    pub(super) has_come_up: bool,
    /// When the broker began to shut down, which is the end of its program; none: that was not seen.
    pub(super) shutdown_began: Option<Instant>,
    /// For a follower's broker: whether the lead stayed up when the broker went down; none: unknown.
    pub(super) lead_goes_on: Option<bool>,
    /// When the first output came, if that was seen.
    pub(super) first_output: Option<Instant>,
}

/// How a follower holds back a stop: as long as its parent may still end the instance in order.
#[derive(Debug)]
struct HeldStop<'a> {
    parent: &'a mut ParentProbe,
    /// The results of the checks whether the parent is still up.
    presence: Presence,
    /// When the next check of a hold is due. A child's end interrupts the wait for it.
    next_check: Instant,
    /// The longest time of the hold.
    bound: Duration,
    /// How long the parent may be silent while no stop is held back; none: without a limit.
    silence_limit: Option<Duration>,
    /// The name of a process below the broker that shows that a job runs on this node.
    job_shell: Option<&'static str>,
    /// How this node leaves if the lead stays; none: the broker has no socket, so it cannot be asked.
    leaving: Option<Leaving<'a>>,
}

/// How a node leaves while the lead stays.
#[derive(Debug)]
struct Leaving<'a> {
    broker: &'a Broker,
    /// The drain before the node leaves. The plan gives one to every follower that has a parent and a socket.
    departure: Option<Departure>,
    /// Whether the lead is known to stay.
    lead_stays: bool,
}

/// Which processes get a signal, and what a second stop does.
pub(super) fn terms(launch: &Launch) -> Terms {
    Terms {
        target: launch.signals,
        second_stop: SecondStop::Kills,
    }
}

impl<'a> BrokerPolicy<'a> {
    /// The policy of a launch. `silence_limit`: how long the parent may be silent.
    pub(super) fn new(
        launch: &Launch,
        parent: Option<&'a mut ParentProbe>,
        broker: Option<&'a Broker>,
        staying: Option<&'a LeadPresence>,
        silence_limit: Option<Duration>,
        shutdown: ShutdownSigns<'a>,
        record: Option<&'a Record>,
    ) -> Self {
        let below = || {
            hostlist::idset(&launch.below)
                .unwrap_or_default()
                .into_iter()
                .collect()
        };
        let departure = launch.drain.map(|rank| Departure::of(rank, below()));
        let leaving = broker.map(|broker| Leaving {
            broker,
            departure,
            lead_stays: false,
        });
        let hold = parent.zip(launch.hold_stop).map(|(parent, bound)| {
            let bound = Duration::from_secs_f64(bound);
            HeldStop {
                parent,
                presence: Presence::new(),
                next_check: Instant::now(),
                bound,
                silence_limit,
                job_shell: launch.job_shell,
                leaving,
            }
        });
        BrokerPolicy {
            hold,
            staying,
            shutdown,
            record,
            lost: None,
        }
    }

    /// The end of the child, with what the policy knows of the parent. The caller replaces the values of `lasted`,
    /// `has_joined`, `has_come_up`, `shutdown_began` and `lead_goes_on`.
    pub(super) fn into_launch_end(self, ended: supervise::EndedChild) -> LaunchEnd {
        let supervise::EndedChild {
            end,
            at,
            stopped,
            was_passed_on,
            first_output,
        } = ended;
        let lost = self.lost;
        let parent_silent_since = self.hold.and_then(|hold| hold.presence.missing_since);
        LaunchEnd {
            end,
            at,
            lasted: Duration::ZERO,
            stopped,
            was_passed_on,
            lost,
            parent_silent_since,
            has_joined: false,
            has_come_up: false,
            shutdown_began: None,
            lead_goes_on: None,
            first_output,
        }
    }
}

impl Policy for BrokerPolicy<'_> {
    fn at_stop(&mut self, signal: i32) -> AtStop {
        if let Some(staying) = self.staying {
            staying.leave();
        }
        let Some(HeldStop { bound, .. }) = &self.hold else {
            // At a signal, Flux would abort its cleanup or rc3, and with that the archive's dump. 0: none is sent.
            if self.shutdown.is_shutting_down() {
                return AtStop::PassOn(Order::signal(0));
            }
            // Without this line in the record, the next start of the container would assume that somebody shut the
            // instance down, and would not run the program again.
            let _ = self.record.map(Record::add_stop);
            return AtStop::PassOn(Order::signal(signal));
        };
        tracing::info!(
            stage = "stop",
            "stopping: the lead has {} s to end the instance first",
            bound.as_secs()
        );
        AtStop::Hold(*bound)
    }

    fn reason(&mut self, child: i32, held: Option<Instant>) -> EndReason<'_> {
        Box::pin(async move {
            let BrokerPolicy {
                hold: Some(hold),
                lost,
                ..
            } = self
            else {
                return std::future::pending().await;
            };
            let missing = match held {
                None => hold.until_silent().await,
                Some(since) => match hold.until_hold_ends(child, since).await {
                    HoldEnd::Lost(missing) => missing,
                    HoldEnd::MayLeave => {
                        return hold.order_to_leave("the lead stays, only this pod is being removed", child);
                    }
                },
            };
            tracing::info!(
                stage = "stop",
                "the parent broker is gone ({missing}): stopping this broker"
            );
            *lost = Some(missing);
            Order {
                signal: libc::SIGTERM,
                within: Some(LOST_GRACE),
            }
        })
    }

    fn at_hold_timeout(&mut self, child: i32) -> Order {
        if let Some(hold) = &self.hold
            && hold.leaving.as_ref().is_some_and(|leaving| leaving.lead_stays)
        {
            return hold.order_to_leave("this node was not seen to become idle in time", child);
        }
        tracing::info!(
            stage = "stop",
            "the lead did not end the instance in time: stopping this broker"
        );
        Order::signal(libc::SIGTERM)
    }
}

/// Why a stop is no longer held back.
enum HoldEnd {
    /// The parent is gone.
    Lost(Missing),
    /// The lead stays, and no job used this node or those below it at the last check. (If a job has started since, the
    /// broker is killed, so that Flux sees the lost node at once.)
    MayLeave,
}

impl HeldStop<'_> {
    /// Waits until the parent has been silent for longer than the user allows. Without a limit, waits without end.
    async fn until_silent(&mut self) -> Missing {
        // For checks during a later hold: the name may then be gone before the parent.
        self.parent.note_addresses().await;
        match self.silence_limit {
            Some(bound) => self.presence.until_silent(self.parent, bound).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the stop need not be held back. `since`: when the hold began. May be dropped and called again.
    async fn until_hold_ends(&mut self, child: i32, since: Instant) -> HoldEnd {
        loop {
            tokio::time::sleep_until(self.next_check.into()).await;
            // Set before the check: an event that interrupts the check must not make it begin again at once.
            let should_ask_lead = since.elapsed() >= ASK_LEAD_AFTER;
            self.next_check = Instant::now()
                + if should_ask_lead {
                    ASK_LEAD_EVERY
                } else {
                    CHECK_PARENT_EVERY
                };
            if let Some(missing) = self.presence.check_gone(self.parent).await {
                return HoldEnd::Lost(missing);
            }
            if should_ask_lead
                && let Some(leaving) = &mut self.leaving
                && leaving.advance(since, self.bound).await
                && !self.has_job(child)
            {
                return HoldEnd::MayLeave;
            }
        }
    }

    /// Whether a job runs on this node. `child`: the broker's process id.
    fn has_job(&self, child: i32) -> bool {
        self.job_shell
            .is_some_and(|name| orphans::has_descendant(child, name))
    }

    /// How this broker is ended if it leaves while the lead stays: by SIGKILL if a job runs on it or below it in the
    /// tree. Flux takes a killed broker for a failed node, and ends the job at once. After an orderly shutdown, this
    /// would take half a minute. `why`: the reason, for the log.
    fn order_to_leave(&self, why: &str, child: i32) -> Order {
        let (signal, action) = if self.has_job(child) {
            (libc::SIGKILL, "killing this broker: a job runs on it")
        } else if self.leaving.as_ref().is_some_and(Leaving::takes_jobs_along) {
            (
                libc::SIGKILL,
                "killing this broker: a job runs on a broker below it in the tree",
            )
        } else {
            (libc::SIGTERM, "stopping this broker")
        };
        tracing::info!(stage = "stop", "{why}: {action}");
        Order::signal(signal)
    }
}

impl Leaving<'_> {
    /// Whether this node has been drained and the lead is known to stay.
    fn has_begun(&self) -> bool {
        self.lead_stays && self.departure.as_ref().is_some_and(Departure::has_begun)
    }

    /// Whether jobs run on brokers below this one in the tree. They would lose their nodes with it.
    fn takes_jobs_along(&self) -> bool {
        self.departure.as_ref().is_some_and(Departure::takes_jobs_along)
    }

    /// Takes the next step of leaving: asks whether the lead stays, and then drains this node. Returns
    /// whether the broker may leave: the lead stays, and the drain, if there is one, is over. If the lead
    /// gets a stop meanwhile, it ends the instance, and this node waits for that. `begin`: when the hold
    /// began. `bound`: its longest time.
    async fn advance(&mut self, begin: Instant, bound: Duration) -> bool {
        let had_begun = self.has_begun();
        match lead_stays(self.broker).await {
            Some(stays) => self.lead_stays = stays,
            // Without an answer, the last one counts.
            None if !self.lead_stays => return false,
            None => {}
        }
        if had_begun && !self.lead_stays {
            tracing::info!(
                stage = "stop",
                "the lead is being stopped as well: waiting for it to end the instance"
            );
        }
        if !self.lead_stays {
            return false;
        }
        let Some(departure) = &mut self.departure else {
            return true;
        };
        let progress = departure.advance(self.broker).await;
        if self.has_begun() && !had_begun {
            let left = bound.saturating_sub(begin.elapsed()).as_secs();
            tracing::info!(
                stage = "stop",
                "only this pod is being removed: node drained, its jobs have {left} s to finish"
            );
        }
        progress == DrainProgress::MayGo
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::process::{Command, Stdio};

    use test_support::waiting::eventually;

    use super::*;
    use crate::execute::tests::{launch, program};
    use crate::testing::block_on;

    #[test]
    fn broker_is_killed_only_if_the_planned_job_shell_runs_below() {
        let folder = tempfile::tempdir().unwrap();
        let job = program(folder.path(), "flux-shell", "#!/bin/sh\nread -r line\n");
        let mut broker = Command::new("/bin/sh")
            .args(["-c", "\"$0\"; :", &job])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = broker.id().cast_signed();
        eventually("the job runs", || {
            orphans::has_descendant(pid, "flux-shell").then_some(())
        });
        let order = |job_shell| {
            let mut parent = ParentProbe::new("127.0.0.1", 1, folder.path());
            let leaving = Launch {
                job_shell,
                hold_stop: Some(1.0),
                ..launch(&["/bin/true"])
            };
            let policy = BrokerPolicy::new(
                &leaving,
                Some(&mut parent),
                None,
                None,
                None,
                ShutdownSigns::default(),
                None,
            );
            policy.hold.unwrap().order_to_leave("the lead stays", pid).signal
        };
        assert_eq!(order(Some("flux-shell")), libc::SIGKILL);
        assert_eq!(order(Some("another")), libc::SIGTERM);
        assert_eq!(order(None), libc::SIGTERM, "without a job shell in the plan");
        broker.stdin.take().unwrap().write_all(b"\n").unwrap();
        broker.wait().unwrap();
    }

    /// Every event (the end of a child) drops the future and calls `reason` again.
    #[test]
    fn events_do_not_shorten_the_interval_between_checks_of_a_hold() {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut parent = ParentProbe::new("127.0.0.1", port, folder.path());
        let held = Launch {
            hold_stop: Some(60.0),
            ..launch(&["/bin/true"])
        };
        let shutdown = ShutdownSigns::default();
        let mut policy = BrokerPolicy::new(&held, Some(&mut parent), None, None, None, shutdown, None);
        let since = Instant::now();
        let mut events = 0;
        block_on(async {
            while since.elapsed() < CHECK_PARENT_EVERY.mul_f64(1.5) {
                let interrupted =
                    tokio::time::timeout(Duration::from_millis(20), policy.reason(0, Some(since)));
                assert!(interrupted.await.is_err());
                events += 1;
            }
        });
        let checks = std::iter::from_fn(|| listener.accept().ok()).count();
        assert!((1..=2).contains(&checks) && events > 5, "{checks} {events}");
    }
}
