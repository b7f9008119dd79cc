//! When a broker is stopped: on a stop of the pod, if its parent is silent for longer than the user allows,
//! or if only this pod is removed while the lead stays.
//!
//! ```text
//! told to stop ─► held back ─┬─ the parent has gone ────────────────────► SIGTERM, and a few seconds
//!                            ├─ the lead stays ─ no job has this node ──► SIGTERM
//!                            └─ for as long as it may be ───────────────► SIGTERM; SIGKILL if the lead stays and a job
//!                                                                         still has this node
//! ```
//!
//! Until it is known that the lead stays, the jobs on this node are left alone: its own stop may be on its
//! way.

use std::time::{Duration, Instant};

use flux_agent_plan::plan::Launch;
use flux_shared::hostlist;

use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::departure::{Departure, DrainProgress};
use crate::flux_rpc::lead_presence::{LeadPresence, lead_stays};
use crate::supervise::policy::{AtStop, EndReason, Order, Policy, SecondStop, Terms};
use crate::supervise::{self, ChildEnd, Stop, orphans};
use crate::wait::{Missing, ParentProbe, Presence};

/// How long a broker that lost its parent has to end by itself.
const LOST_GRACE: Duration = Duration::from_secs(5);
/// Time between two looks at the parent while a stop is held back.
const HOLD_LOOK: Duration = Duration::from_millis(500);
/// The lead of pods that are stopped together is asked no sooner: most have ended the instance by then.
const ASK_LEAD_AFTER: Duration = Duration::from_secs(5);
/// Time between two looks after that, each of which asks rank 0.
const ASK_LEAD_EVERY: Duration = Duration::from_secs(2);

/// The policy of one launched program: a broker, or a command, which has none of these fields.
#[derive(Debug)]
pub(super) struct BrokerPolicy<'a> {
    hold: Option<HeldStop<'a>>,
    /// The lead's membership in the group that tells followers that it stays, until it is stopped.
    staying: Option<&'a LeadPresence>,
    lost: Option<Missing>,
}

/// How such a program ended, what led to it, and what was learned of the brokers around it.
#[derive(Debug)]
pub(super) struct LaunchEnd {
    pub(super) end: ChildEnd,
    pub(super) at: Instant,
    /// Time since its start.
    pub(super) lasted: Duration,
    /// The stop, if it came before its end.
    pub(super) stopped: Option<Stop>,
    /// The stop signal had to be passed on: nobody else ended it in time.
    pub(super) was_passed_on: bool,
    /// The parent broker was lost, so the agent ended this one.
    pub(super) lost: Option<Missing>,
    /// It was connected to its parent, as far as is known.
    pub(super) has_joined: bool,
    /// The instance has been seen in the state `run`.
    pub(super) has_come_up: bool,
    /// For a broker: whether the lead stayed up when the broker went down; none: unknown.
    pub(super) lead_goes_on: Option<bool>,
    pub(super) first_output: Option<Instant>,
}

/// A follower's terms: a stop is held back as long as the parent may still end the instance in order.
#[derive(Debug)]
struct HeldStop<'a> {
    parent: &'a mut ParentProbe,
    presence: Presence,
    bound: Duration,
    /// How long the parent may be silent.
    silent: Option<Duration>,
    /// The name of a process below the broker that means a job on this node.
    job_shell: Option<&'static str>,
    /// How this node leaves if the lead stays; none: there is no socket to ask the broker at.
    leaving: Option<Leaving<'a>>,
}

/// A node that leaves while the lead stays.
#[derive(Debug)]
struct Leaving<'a> {
    broker: &'a Broker,
    /// The drain before the node leaves; none: it leaves as soon as no job is on it.
    departure: Option<Departure>,
    /// Whether the lead is known to stay.
    lead_stays: bool,
}

/// The plan's terms for signals and time.
pub(super) fn terms(launch: &Launch) -> Terms {
    Terms {
        target: launch.signals,
        second_stop: SecondStop::Kills,
    }
}

impl<'a> BrokerPolicy<'a> {
    /// The policy of a launch: how a stop is handled.
    pub(super) fn new(
        launch: &Launch,
        parent: Option<&'a mut ParentProbe>,
        broker: Option<&'a Broker>,
        staying: Option<&'a LeadPresence>,
        silent: Option<Duration>,
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
                bound,
                silent,
                job_shell: launch.job_shell,
                leaving,
            }
        });
        BrokerPolicy {
            hold,
            staying,
            lost: None,
        }
    }

    /// The supervised end, with what is known of the parent.
    pub(super) fn ended(self, ended: supervise::EndedChild) -> LaunchEnd {
        let supervise::EndedChild {
            end,
            at,
            stopped,
            passed_on,
            first_output,
        } = ended;
        let lost = self.lost;
        LaunchEnd {
            end,
            at,
            lasted: Duration::ZERO,
            stopped,
            was_passed_on: passed_on,
            lost,
            has_joined: false,
            has_come_up: false,
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
                Some(since) => match hold.until_end(child, since).await {
                    HoldEnd::Lost(missing) => missing,
                    HoldEnd::Alone => {
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
            && hold.leaving.as_ref().is_some_and(Leaving::has_begun)
        {
            return hold.order_to_leave("jobs on this node have not ended in time", child);
        }
        tracing::info!(
            stage = "stop",
            "the lead did not end the instance in time: stopping this broker"
        );
        Order::signal(libc::SIGTERM)
    }
}

/// Why a stop is held back no longer.
enum HoldEnd {
    /// The parent is gone.
    Lost(Missing),
    /// The lead stays: there is nothing to wait for.
    Alone,
}

impl HeldStop<'_> {
    /// Waits until the parent has been silent for longer than the user allows, if there is such a bound.
    async fn until_silent(&mut self) -> Missing {
        self.parent.note_addresses().await;
        match self.silent {
            Some(bound) => self.presence.until_silent(self.parent, bound).await,
            None => std::future::pending().await,
        }
    }

    async fn until_end(&mut self, child: i32, since: Instant) -> HoldEnd {
        loop {
            if let Some(missing) = self.presence.check_gone(self.parent).await {
                return HoldEnd::Lost(missing);
            }
            let asks = since.elapsed() >= ASK_LEAD_AFTER;
            if asks
                && let Some(leaving) = &mut self.leaving
                && leaving.advance(since, self.bound).await
                && !self.has_job(child)
            {
                return HoldEnd::Alone;
            }
            tokio::time::sleep(if asks { ASK_LEAD_EVERY } else { HOLD_LOOK }).await;
        }
    }

    /// Whether a job runs on this node.
    fn has_job(&self, child: i32) -> bool {
        self.job_shell
            .is_some_and(|name| orphans::has_descendant(child, name))
    }

    /// How this broker ends: by SIGKILL if a job runs on it or below it. A broker that shuts down in order
    /// delays that job's end by half a minute; one that is killed is a node failure, which Flux reports at
    /// once.
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
    /// Whether this node leaves an instance that goes on.
    fn has_begun(&self) -> bool {
        self.lead_stays && self.departure.as_ref().is_some_and(Departure::has_begun)
    }

    /// Whether jobs on brokers below would lose their nodes with this one.
    fn takes_jobs_along(&self) -> bool {
        self.departure.as_ref().is_some_and(Departure::takes_jobs_along)
    }

    /// Takes the next step of leaving. True once the broker may go: the lead stays, and Flux knows of no job
    /// on this node or on one below it. A lead that is told to stop meanwhile ends the instance, and then
    /// nothing leaves alone.
    async fn advance(&mut self, begin: Instant, bound: Duration) -> bool {
        let had_begun = self.has_begun();
        match lead_stays(self.broker).await {
            Some(stays) => self.lead_stays = stays,
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
    use std::process::{Command, Stdio};

    use test_support::waiting::eventually;

    use super::*;
    use crate::execute::tests::{launch, program};

    #[test]
    fn the_process_that_means_a_job_on_this_node_is_the_plans_word() {
        let folder = tempfile::tempdir().unwrap();
        let (job, reason) = (
            program(folder.path(), "flux-shell", "#!/bin/sh\nread -r line\n"),
            "the lead stays",
        );
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
            let policy = BrokerPolicy::new(&leaving, Some(&mut parent), None, None, None);
            policy.hold.unwrap().order_to_leave(reason, pid).signal
        };
        assert_eq!(order(Some("flux-shell")), libc::SIGKILL);
        assert_eq!(order(Some("another")), libc::SIGTERM);
        assert_eq!(order(None), libc::SIGTERM, "whatever runs below it");
        broker.stdin.take().unwrap().write_all(b"\n").unwrap();
        broker.wait().unwrap();
    }
}
