//! A follower's broker: started again until the instance has ended, or the lead is known to be gone.
//!
//! ```text
//! it ends ─ judge ─► with 0 ─ the lead does not go on ─► the instance has ended
//!              │          └─ the lead goes on ─────────────────┐
//!              └─► it failed, or its parent was lost ──────────┴─► parent returns ─► again
//! ```
//!
//! A broker ends with 0 when it is dismissed, and when somebody sends it SIGTERM. In a tree a broker
//! dismisses those below it whenever it goes. Either is the instance's end only if the lead says so.

use std::time::{Duration, Instant};

use flux_agent_plan::plan::{self, Launch};
use flux_shared::backoff;
use flux_shared::exit::{Category, REPLACE};

use super::attempt::Launched;
use super::broker_policy::LaunchEnd;
use super::executor::{Executor, wait_failed};
use crate::report::failure::Failure;
use crate::supervise::orphans::{self, EarlierProcesses};
use crate::supervise::{ChildEnd, Interrupted, until};
use crate::wait::{self, Backoff, Missing, ParentProbe, Reporter};

/// Pauses between two starts of a follower's broker.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Time a follower waits for the lead's port to close. If it stays open, that counts as the next attempt.
const WAY_DOWN: Duration = Duration::from_secs(5);
/// Time before the end of the grace period when a follower takes a lead that still answers for one that goes
/// on.
const LAST_LOOK: Duration = Duration::from_secs(1);
/// Interval between checks whether a broker is down.
const LOOK_WHETHER_DOWN: Duration = Duration::from_millis(200);
/// Interval between checks of a lead that is not the parent.
const LOOK_AT_LEAD: Duration = Duration::from_secs(5);
/// A broker that was up for this long had a good start: earlier failures no longer count.
const GOOD_RUN: Duration = Duration::from_secs(60);

/// What follows the end of a follower's broker.
#[derive(Debug, PartialEq, Eq)]
enum AfterBroker {
    /// The container ends with this code.
    Done(u8),
    /// The broker is restarted, for this reason.
    Restart(String),
}

/// The brokers above this one.
struct Above {
    parent: Option<ParentProbe>,
    /// The lead, if the parent is another broker.
    lead: Option<ParentProbe>,
}

impl Executor<'_> {
    /// Runs a follower's broker until the instance has ended, with up to `limit` restarts in a row. Without a
    /// limit none is restarted: the container ends with 0 if the broker had joined, and otherwise fails.
    /// `can_lead_restart`: the lead may start again in its pod, so this pod waits for it.
    pub(super) async fn launch_follower(
        &mut self,
        launch: &Launch,
        limit: Option<u32>,
        can_lead_restart: bool,
    ) -> Result<u8, Failure> {
        let above = |broker: &Option<plan::Parent>| broker.as_ref().map(|broker| self.parent(broker));
        let mut above = Above {
            parent: above(&launch.parent),
            lead: above(&launch.lead),
        };
        let mut failures = 0;
        loop {
            let earlier = EarlierProcesses::now();
            let ended = match self.launch_once(launch, above.parent.as_mut()).await? {
                Launched::NotStarted(code) => return Ok(code),
                Launched::Ended(ended) => ended,
            };
            self.kill_orphans(&earlier).await?;
            let why = match self.after_broker(&ended, &mut above).await? {
                AfterBroker::Done(code) if !can_lead_restart || self.supervisor.stop().is_some() => {
                    return Ok(code);
                }
                AfterBroker::Done(_) => match self.await_next_attempt(above.parent.as_mut()).await? {
                    Some(code) => return Ok(code),
                    None => {
                        failures = 0;
                        continue;
                    }
                },
                AfterBroker::Restart(why) => why,
            };
            if self.supervisor.stop().is_some() {
                return Ok(REPLACE);
            }
            if ended.lasted >= GOOD_RUN {
                failures = 0;
            }
            failures += 1;
            let pause = backoff::after(failures, FIRST_PAUSE, LONGEST_PAUSE);
            match limit {
                None if ended.has_joined => return Ok(0),
                None => return Err(never_joined(&why)),
                Some(limit) if failures > limit => return Err(kept_failing(failures, ended.end.code())),
                Some(limit) => {
                    let pause = pause.as_secs();
                    tracing::warn!(
                        stage = "broker",
                        "{why}; restarting it in {pause} s ({failures} of {limit})"
                    );
                }
            }
            if let Interrupted::Stopped(_) = self.pause(pause).await? {
                return Ok(REPLACE);
            }
            if let Some(code) = self.await_parent_return(&mut above).await? {
                return Ok(code);
            }
        }
    }

    /// What a broker's end means, with what is known of the brokers above. If only the parent has left, waits
    /// until it is down.
    async fn after_broker(&mut self, ended: &LaunchEnd, above: &mut Above) -> Result<AfterBroker, Failure> {
        let after = judge(ended);
        if after != AfterBroker::Done(0) {
            return Ok(after);
        }
        let Above { parent, lead } = above;
        // In a flat tree the parent is the lead: it dismisses nobody while it goes on.
        let is_parent_the_lead = lead.is_none();
        let Some(lead) = lead.as_mut().or(parent.as_mut()) else {
            return Ok(after);
        };
        // It waits until those below it have left.
        let patience = if ended.stopped.is_some() && !is_parent_the_lead {
            Duration::ZERO
        } else {
            WAY_DOWN
        };
        if !self.lead_goes_on(lead, ended, patience).await? {
            return Ok(after);
        }
        if ended.stopped.is_none()
            && !is_parent_the_lead
            && let Some(parent) = parent.as_mut()
        {
            // A stop in the meantime is found before the broker is restarted.
            self.supervisor
                .unless_stopped(until_down(parent))
                .await
                .map_err(wait_failed)?;
        }
        Ok(left_behind(ended, is_parent_the_lead))
    }

    /// Whether the lead goes on: as the broker learned while it shut down, else by probing the lead. A lead
    /// that ends is still there for a while; in a tree, a pod that is told to stop has no time to wait for
    /// that.
    async fn lead_goes_on(
        &mut self,
        lead: &mut ParentProbe,
        ended: &LaunchEnd,
        patience: Duration,
    ) -> Result<bool, Failure> {
        if let Some(goes_on) = ended.lead_goes_on {
            return Ok(goes_on);
        }
        let gone = tokio::time::timeout(WAY_DOWN, is_gone_within(lead, patience));
        tokio::pin!(gone);
        if let Interrupted::Done(gone) = self
            .supervisor
            .unless_stopped(&mut gone)
            .await
            .map_err(wait_failed)?
        {
            return Ok(gone != Ok(true));
        }
        // Pods are stopped when their lead has succeeded: this is no reason to take it for one that goes on.
        let last = self.supervisor.kill_deadline().map(|at| at - LAST_LOOK);
        tokio::select! {
            gone = self.supervisor.even_if_stopped(gone) => Ok(gone.map_err(wait_failed)? != Ok(true)),
            () = until(last) => Ok(true),
        }
    }

    async fn pause(&mut self, pause: Duration) -> Result<Interrupted<()>, Failure> {
        self.supervisor
            .unless_stopped(tokio::time::sleep(pause))
            .await
            .map_err(wait_failed)
    }

    /// Kills what a killed broker has left running, before the next broker starts.
    async fn kill_orphans(&mut self, earlier: &EarlierProcesses) -> Result<(), Failure> {
        let count = orphans::kill(self.supervisor, earlier)
            .await
            .map_err(wait_failed)?;
        if count > 0 {
            tracing::info!(
                stage = "broker",
                "killed {count} processes that the broker left behind"
            );
        }
        Ok(())
    }

    /// Waits for the parent of a broker that failed. Returns an exit code if there is nothing to wait for any
    /// more.
    ///
    /// A lead that ended for good leaves DNS (a headless Service forgets a pod that has ended); one that
    /// restarts is in DNS and refuses, or is away for as long as the Job needs for a new pod. So a missing
    /// name counts as the end after a while, where the plan says so; a refusal only where a bound was asked
    /// for. A parent that is not the lead may be away as long as the lead is not.
    async fn await_parent_return(&mut self, above: &mut Above) -> Result<Option<u8>, Failure> {
        let Above {
            parent: Some(parent),
            lead,
        } = above
        else {
            return Ok(None);
        };
        let bound = |seconds: Option<u64>| seconds.map(Duration::from_secs);
        let (gone, silent) = (bound(self.waits.lead_gone), bound(self.waits.lead_silent));
        let waited = until_parent_answers(parent, lead.as_mut(), gone, silent);
        let waited = self.supervisor.unless_stopped(waited).await;
        match waited.map_err(wait_failed)? {
            Interrupted::Stopped(_) => Ok(Some(REPLACE)),
            Interrupted::Done(Ok(())) => Ok(None),
            Interrupted::Done(Err(missing)) if missing.is_name_gone() => {
                tracing::info!(
                    stage = "stop",
                    "the lead is gone: its DNS name no longer resolves"
                );
                Ok(Some(0))
            }
            Interrupted::Done(Err(missing)) => Err(unreachable_parent(
                &lead.as_ref().unwrap_or(parent).host,
                &missing,
            )),
        }
    }

    /// After the end of an instance whose lead may start again: waits for the lead. Returns an exit code if
    /// told to stop.
    async fn await_next_attempt(&mut self, parent: Option<&mut ParentProbe>) -> Result<Option<u8>, Failure> {
        tracing::info!(
            stage = "stop",
            "the instance has ended; this pod stays for the lead's next attempt"
        );
        let Some(parent) = parent else {
            return Ok(matches!(self.pause(FIRST_PAUSE).await?, Interrupted::Stopped(_)).then_some(0));
        };
        let waited = async {
            until_down(parent).await;
            let _ = parent.wait(None).await;
        };
        let waited = self
            .supervisor
            .unless_stopped(waited)
            .await
            .map_err(wait_failed)?;
        Ok(matches!(waited, Interrupted::Stopped(_)).then_some(0))
    }
}

/// What the end of a follower's broker means.
fn judge(ended: &LaunchEnd) -> AfterBroker {
    match (ended.end, &ended.lost, ended.stopped) {
        // Dismissed by its parent; or the parent was lost while this pod was told to stop as well.
        (ChildEnd::Exited(0), None, _) if !ended.was_passed_on => AfterBroker::Done(0),
        (_, Some(_), Some(_)) => AfterBroker::Done(0),
        // Only this pod is to go, and the instance goes on: that is no success of its index.
        (_, None, Some(_)) => AfterBroker::Done(REPLACE),
        (_, Some(missing), None) => AfterBroker::Restart(format!("the parent broker was lost ({missing})")),
        (ChildEnd::Exited(code), None, None) => {
            AfterBroker::Restart(format!("the broker ended with code {code}"))
        }
        (ChildEnd::Signaled(signal), None, None) => {
            AfterBroker::Restart(format!("the broker was ended by signal {signal}"))
        }
    }
}

/// What follows if a broker ended as at the instance's end, while the lead is still up.
fn left_behind(ended: &LaunchEnd, is_parent_the_lead: bool) -> AfterBroker {
    match (ended.stopped, is_parent_the_lead) {
        (Some(_), _) => AfterBroker::Done(REPLACE),
        (None, false) => AfterBroker::Restart("the parent broker has left, and the lead is still up".into()),
        (None, true) => {
            AfterBroker::Restart("the broker was stopped by somebody else, and the lead is still up".into())
        }
    }
}

/// Waits until the parent's port is closed: a parent that is shutting down may still answer, but rejects new
/// children.
async fn until_down(parent: &mut ParentProbe) {
    let begin = Instant::now();
    while begin.elapsed() < WAY_DOWN && parent.probe_port().await.is_ok() {
        tokio::time::sleep(LOOK_WHETHER_DOWN).await;
    }
}

/// Whether the lead is known to be gone within `patience`; false if that cannot be told.
async fn is_gone_within(lead: &mut ParentProbe, patience: Duration) -> bool {
    let begin = Instant::now();
    loop {
        match lead.probe_known().await {
            Err(Missing::Port(_)) => return true,
            Err(missing) if missing.is_name_gone() || lead.is_name_gone().await => return true,
            _ if begin.elapsed() >= patience => return false,
            _ => tokio::time::sleep(LOOK_WHETHER_DOWN).await,
        }
    }
}

/// Waits until the parent answers again. The error is what is missing once the lead's DNS name has been
/// `gone`, or the lead `silent`, for that long. No `lead`: the parent is the lead.
async fn until_parent_answers(
    parent: &mut ParentProbe,
    mut lead: Option<&mut ParentProbe>,
    gone: Option<Duration>,
    silent: Option<Duration>,
) -> Result<(), Missing> {
    let begin = Instant::now();
    let mut backoff = Backoff::default();
    let mut next_look = begin;
    let mut report = Reporter::new(begin);
    let mut absence = Absence::default();
    loop {
        let missing = match parent.probe_port().await {
            Ok(()) => return Ok(()),
            Err(missing) => missing,
        };
        match &mut lead {
            None => absence.note(Some(missing.clone())),
            Some(lead) if Instant::now() >= next_look => {
                absence.note(lead.probe_port().await.err());
                next_look = Instant::now() + LOOK_AT_LEAD;
            }
            Some(_) => {}
        }
        absence.within(gone, silent)?;
        report.tick(&parent.host, &missing.to_string());
        backoff
            .pause(
                parent
                    .longest_pause(&missing, begin.elapsed())
                    .max(wait::LONGEST_PAUSE),
            )
            .await;
    }
}

/// Since when the lead cannot be reached, and what was missing at the last look.
#[derive(Debug, Default)]
struct Absence {
    silent: Option<(Instant, Missing)>,
    gone: Option<Instant>,
}

impl Absence {
    fn note(&mut self, missing: Option<Missing>) {
        let now = Instant::now();
        let is_gone = missing.as_ref().is_some_and(Missing::is_name_gone);
        self.gone = is_gone.then(|| self.gone.unwrap_or(now));
        self.silent = missing.map(|missing| (self.silent.as_ref().map_or(now, |(since, _)| *since), missing));
    }

    /// Fails with what is missing if it has been missing for too long.
    fn within(&self, gone: Option<Duration>, silent: Option<Duration>) -> Result<(), Missing> {
        let is_longer =
            |since: Instant, bound: Option<Duration>| bound.is_some_and(|bound| since.elapsed() >= bound);
        match &self.silent {
            Some((since, missing))
                if is_longer(*since, silent) || self.gone.is_some_and(|at| is_longer(at, gone)) =>
            {
                Err(missing.clone())
            }
            _ => Ok(()),
        }
    }
}

fn never_joined(why: &str) -> Failure {
    let cause = format!("{why} before it had joined its lead");
    Failure::new(
        Category::BrokerFailed,
        cause,
        "see the broker's messages in the log",
    )
}

fn kept_failing(failures: u32, code: u8) -> Failure {
    let cause = format!("the broker failed {failures} times in a row, last with exit code {code}");
    Failure::new(
        Category::BrokerFailed,
        cause,
        "see the broker's messages in the log",
    )
}

/// The failure of a parent that never answered.
pub(super) fn unreachable_parent(host: &str, missing: &Missing) -> Failure {
    let remedy = match missing {
        Missing::Name(_) if missing.is_name_gone() => {
            "does the lead's pod run, and does the headless Service exist?"
        }
        Missing::Name(_) => "does the cluster's DNS run, and does /etc/resolv.conf name it?",
        Missing::Route { .. } => "look for a network policy or a firewall between the pods",
        Missing::Port(_) => "see the lead's log",
    };
    let cause = format!(
        "failed to reach the parent broker {}: {missing}",
        host.trim_end_matches('.')
    );
    Failure::new(Category::ParentUnreachable, cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::Stop;
    use crate::wait::resolve::NameError;

    fn ended(end: ChildEnd, stopped: bool, passed_on: bool, lost: bool) -> LaunchEnd {
        let at = Instant::now();
        let lost = lost.then(|| Missing::Port(([127, 0, 0, 1], 8050).into()));
        let stopped = stopped.then_some(Stop { signal: 15, at });
        let (joined, came_up, lead_goes_on, first_output) = (true, false, None, None);
        LaunchEnd {
            end,
            at,
            lasted: Duration::ZERO,
            stopped,
            was_passed_on: passed_on,
            lost,
            has_joined: joined,
            has_come_up: came_up,
            lead_goes_on,
            first_output,
        }
    }

    #[test]
    fn follower_succeeds_only_when_lead_dismissed_it_or_is_gone() {
        use ChildEnd::{Exited, Signaled};
        let done = |code| AfterBroker::Done(code);
        assert_eq!(
            judge(&ended(Exited(0), false, false, false)),
            done(0),
            "dismissed"
        );
        assert_eq!(
            judge(&ended(Exited(0), true, false, false)),
            done(0),
            "dismissed while told to stop"
        );
        assert_eq!(
            judge(&ended(Exited(0), true, true, true)),
            done(0),
            "all go, the lead went first"
        );
        assert_eq!(
            judge(&ended(Exited(0), true, true, false)),
            done(REPLACE),
            "this pod alone goes"
        );
        assert_eq!(judge(&ended(Signaled(9), true, true, false)), done(REPLACE));
        for ended in [
            ended(Exited(1), false, false, false),
            ended(Signaled(9), false, false, false),
            ended(Exited(0), false, true, true),
        ] {
            assert!(matches!(judge(&ended), AfterBroker::Restart(_)), "{ended:?}");
        }
    }

    #[test]
    fn follower_left_behind_by_parent_rejoins_or_is_replaced() {
        let end = ChildEnd::Exited(0);
        assert!(matches!(
            left_behind(&ended(end, false, false, false), false),
            AfterBroker::Restart(_)
        ));
        assert!(matches!(
            left_behind(&ended(end, false, false, false), true),
            AfterBroker::Restart(_)
        ));
        assert_eq!(
            left_behind(&ended(end, true, false, false), true),
            AfterBroker::Done(REPLACE)
        );
        assert_eq!(
            left_behind(&ended(end, true, true, true), false),
            AfterBroker::Done(REPLACE),
            "all go, but the lead"
        );
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(future)
    }

    fn broker(host: &str, port: u16) -> ParentProbe {
        ParentProbe::new(host, port, "/nonexistent".as_ref())
    }

    /// A listener and its port, at an address that nobody else takes ports of; and another one's, where
    /// nobody listens.
    fn there_and_not_there() -> (std::net::TcpListener, ParentProbe, ParentProbe) {
        let listen = |host: &str| std::net::TcpListener::bind((host, 0)).unwrap();
        let (there, gone) = (listen("127.0.78.1"), listen("127.0.78.2"));
        let port = |listener: &std::net::TcpListener| listener.local_addr().unwrap().port();
        let brokers = (
            broker("127.0.78.1", port(&there)),
            broker("127.0.78.2", port(&gone)),
        );
        (there, brokers.0, brokers.1)
    }

    #[test]
    fn lead_is_gone_when_it_refuses_or_has_no_name() {
        let (listener, mut there, mut gone) = there_and_not_there();
        let patience = Duration::from_millis(300);
        block_on(async {
            assert!(!is_gone_within(&mut there, patience).await);
            assert!(is_gone_within(&mut gone, Duration::ZERO).await);
            assert!(
                !is_gone_within(&mut broker("mc-0.flux.", 1), Duration::ZERO).await,
                "no server of names is no answer"
            );
            let closing = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                drop(listener);
            });
            assert!(is_gone_within(&mut there, Duration::from_secs(60)).await);
            closing.join().unwrap();
        });
    }

    #[test]
    fn follower_waits_for_parent_while_lead_answers() {
        let (listener, mut there, mut gone) = there_and_not_there();
        let bound = Some(Duration::ZERO);
        block_on(async {
            let soon = Duration::from_millis(500);
            let waits = until_parent_answers(&mut gone, Some(&mut there), bound, bound);
            assert!(tokio::time::timeout(soon, waits).await.is_err());
            assert!(matches!(
                until_parent_answers(&mut gone, None, bound, bound).await,
                Err(Missing::Port(_))
            ));
            drop(listener);
            let waited = until_parent_answers(&mut gone, Some(&mut there), bound, bound).await;
            let Err(Missing::Port(address)) = waited else {
                panic!("{waited:?}")
            };
            assert_eq!(
                address.ip().to_string(),
                "127.0.78.1",
                "it is the lead that is missed"
            );
        });
    }

    #[test]
    fn absence_of_the_lead_counts_only_without_a_break() {
        let no_name = Missing::Name(NameError::NoSuchName([127, 0, 0, 53].into()));
        let port = Missing::Port(([127, 0, 0, 1], 1).into());
        let at_once = Some(Duration::ZERO);
        let mut absence = Absence::default();
        assert_eq!(absence.within(at_once, at_once), Ok(()));
        absence.note(Some(port.clone()));
        assert_eq!(absence.within(at_once, None), Ok(()), "a name that is there");
        assert_eq!(absence.within(None, at_once), Err(port.clone()));
        absence.note(Some(no_name.clone()));
        assert_eq!(absence.within(at_once, None), Err(no_name));
        absence.note(Some(port));
        assert_eq!(absence.within(at_once, None), Ok(()));
        absence.note(None);
        assert_eq!(absence.within(at_once, at_once), Ok(()));
    }
}
