//! Runs a follower's broker, and restarts it until the instance has ended, the lead is known to be gone, the pod is
//! stopped, or no restart is left.
//!
//! ```text
//! broker ends ─ judge ─┬─► exit code 0 ─┬─ the lead does not go on ─► the instance has ended
//!                      │                └─ the lead goes on ──────────────┐
//!                      └─► it failed, or its parent was lost ─────────────┴─► wait for the parent ─► restart
//! ```
//!
//! A broker ends with 0 if its parent dismisses it, and also if somebody sends it SIGTERM. In a tree, a
//! broker that ends dismisses the brokers below it. So exit code 0 means that the instance has ended only if
//! the lead does not go on.

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

/// The first and the longest pause between two starts of a follower's broker.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long a follower waits until a parent or lead that may be shutting down has closed its port. After
/// this, an open port counts as that of a broker that stays up, or of the next attempt.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// A follower that got a stop waits for the lead's end at most until this time before it would be killed. A lead that
/// is not known to be gone then counts as one that goes on.
const DECIDE_BEFORE_KILL: Duration = Duration::from_secs(1);
/// Interval between checks whether a broker is down.
const CHECK_DOWN_EVERY: Duration = Duration::from_millis(200);
/// Interval between checks of a lead that is not the parent.
const CHECK_LEAD_EVERY: Duration = Duration::from_secs(5);
/// If a broker has run for this long, earlier failures no longer count.
const GOOD_RUN: Duration = Duration::from_secs(60);

/// What follows the end of a follower's broker.
#[derive(Debug, PartialEq, Eq)]
enum AfterBroker {
    /// The container ends with this code, unless it stays for the lead's next attempt.
    Done(u8),
    /// The broker is restarted, for this reason.
    Restart(String),
}

/// The brokers above this one in the tree.
struct Above {
    /// None: only the user's own broker.toml names it.
    parent: Option<ParentProbe>,
    /// The lead, if the parent is another broker.
    lead: Option<ParentProbe>,
}

impl Executor<'_> {
    /// Runs a follower's broker until the instance has ended; returns the container's exit code. `limit`: how
    /// often in a row the broker is restarted. None (`completeWorkers`): instead of a restart the container ends,
    /// with 0 if the broker had joined, otherwise with a failure. `can_lead_restart`: the lead may start again in
    /// its pod, so this pod waits for it. Then a broker that had joined is restarted also without a `limit`.
    pub(super) async fn launch_follower(
        &mut self,
        launch: &Launch,
        limit: Option<u32>,
        can_lead_restart: bool,
    ) -> Result<u8, Failure> {
        let probe =
            |broker: &Option<plan::BrokerAddress>| broker.as_ref().map(|broker| self.parent_probe(broker));
        let mut above = Above {
            parent: probe(&launch.parent),
            lead: probe(&launch.lead),
        };
        let mut failures = 0;
        let mut has_joined = false;
        loop {
            let earlier = EarlierProcesses::now();
            let ended = match self.launch_once(launch, above.parent.as_mut()).await? {
                Launched::NotStarted(code) => return Ok(code),
                Launched::Ended(ended) => ended,
            };
            self.kill_orphans(&earlier).await?;
            has_joined |= ended.has_joined;
            let why = match self.after_broker(&ended, &mut above).await? {
                AfterBroker::Done(code) if !can_lead_restart => {
                    self.has_instance_ended = ended.stopped.is_none();
                    return Ok(code);
                }
                // The lead may start again, and its next attempt needs another pod of this index. After exit code 0,
                // the Job would create none. (If the lead has succeeded, the Job replaces nobody.)
                AfterBroker::Done(_) if self.supervisor.received_stop().is_some() => return Ok(REPLACE),
                AfterBroker::Done(_) => match self.await_next_attempt(above.parent.as_mut()).await? {
                    Interrupted::Stopped(_) => return Ok(REPLACE),
                    Interrupted::Done(()) => {
                        failures = 0;
                        continue;
                    }
                },
                AfterBroker::Restart(why) => why,
            };
            if self.supervisor.received_stop().is_some() {
                return Ok(REPLACE);
            }
            if ended.lasted >= GOOD_RUN {
                failures = 0;
            }
            failures += 1;
            let pause = backoff::after(failures, FIRST_PAUSE, LONGEST_PAUSE);
            match limit {
                None if !has_joined => return Err(never_joined(&why)),
                // The lead's next attempt needs this index. After exit code 0, the Job would not recreate it.
                None if can_lead_restart => {
                    let pause = pause.as_secs();
                    tracing::warn!(stage = "broker", "{why}; restarting it in {pause} s");
                }
                None => return Ok(0),
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
            if let Some(code) = self
                .await_parent_return(&mut above, ended.parent_silent_since)
                .await?
            {
                return Ok(code);
            }
        }
    }

    /// What follows the broker's end: [`judge`]'s verdict, unless the broker ended as at the end of the
    /// instance. Then the lead decides. If the lead goes on and only the parent has left, waits until the
    /// parent is down.
    async fn after_broker(&mut self, ended: &LaunchEnd, above: &mut Above) -> Result<AfterBroker, Failure> {
        let after = judge(ended);
        if after != AfterBroker::Done(0) {
            return Ok(after);
        }
        let Above { parent, lead } = above;
        // In a flat tree the parent is the lead.
        let is_parent_the_lead = lead.is_none();
        let Some(lead) = lead.as_mut().or(parent.as_mut()) else {
            return Ok(after);
        };
        // A lead that ends stays up until the brokers below it have left. In a tree that may take long, so a pod that got a
        // stop does not wait for it. The lead then counts as one that goes on, and this pod ends with REPLACE. That does no
        // harm if the lead was ending: a Job that is over replaces nobody.
        let probe_time = if ended.stopped.is_some() && !is_parent_the_lead {
            Duration::ZERO
        } else {
            SHUTDOWN_TIMEOUT
        };
        if !self.lead_goes_on(lead, ended, probe_time).await? {
            return Ok(after);
        }
        // A parent that is the lead goes on, and its port stays open.
        if ended.stopped.is_none()
            && !is_parent_the_lead
            && let Some(parent) = parent.as_mut()
        {
            // A stop that comes meanwhile is handled before the broker is restarted.
            self.supervisor
                .unless_stopped(until_down(parent))
                .await
                .map_err(wait_failed)?;
        }
        Ok(left_behind(ended, is_parent_the_lead))
    }

    /// Whether the lead goes on. If the broker has not learned this during its shutdown, the lead is probed for
    /// `probe_time`, since a lead that ends still answers for a while.
    async fn lead_goes_on(
        &mut self,
        lead: &mut ParentProbe,
        ended: &LaunchEnd,
        probe_time: Duration,
    ) -> Result<bool, Failure> {
        if let Some(goes_on) = ended.lead_goes_on {
            return Ok(goes_on);
        }
        // `probe_time` limits when another probe may begin. The timeout also limits the last probe, which may wait for DNS
        // or a connection.
        let gone = tokio::time::timeout(SHUTDOWN_TIMEOUT, is_gone_within(lead, probe_time));
        tokio::pin!(gone);
        if let Interrupted::Done(gone) = self
            .supervisor
            .unless_stopped(&mut gone)
            .await
            .map_err(wait_failed)?
        {
            // A lead that is not known to be gone goes on.
            return Ok(gone != Ok(true));
        }
        // This pod got a stop, as all pods do when the lead has succeeded. So the stop does not show that the
        // lead goes on, and the probe continues.
        let decide_at = self
            .supervisor
            .kill_deadline()
            .map(|kill_at| kill_at - DECIDE_BEFORE_KILL);
        tokio::select! {
            gone = self.supervisor.even_if_stopped(gone) => Ok(gone.map_err(wait_failed)? != Ok(true)),
            () = until(decide_at) => Ok(true),
        }
    }

    async fn pause(&mut self, pause: Duration) -> Result<Interrupted<()>, Failure> {
        self.supervisor
            .unless_stopped(tokio::time::sleep(pause))
            .await
            .map_err(wait_failed)
    }

    /// Kills what the broker has left running. `earlier`: the processes that ran before the broker, which stay.
    pub(super) async fn kill_orphans(&mut self, earlier: &EarlierProcesses) -> Result<(), Failure> {
        let count = orphans::kill(self.supervisor, earlier)
            .await
            .map_err(wait_failed)?;
        if count > 0 {
            tracing::info!(
                stage = "broker",
                "killed processes that the broker left behind: {count}"
            );
        }
        Ok(())
    }

    /// Waits until the parent answers again, before the broker is restarted. Returns the container's exit code if a
    /// stop comes, or if the lead has ended.
    ///
    /// DNS has no name for a lead that has ended for good, since a headless Service drops an ended pod. The
    /// name of a lead that restarts exists, but the lead refuses connections; or the name is missing until
    /// the Job has created a new pod. So a missing name counts as the lead's end after `lead_gone`, if the
    /// plan has this limit. A lead that does not answer is a failure after `lead_silent`, if the user has set
    /// this limit. A parent that is not the lead may be missing for any time while the lead answers.
    /// `silent_since`: since when the parent has been silent.
    async fn await_parent_return(
        &mut self,
        above: &mut Above,
        silent_since: Option<Instant>,
    ) -> Result<Option<u8>, Failure> {
        let Above {
            parent: Some(parent),
            lead,
        } = above
        else {
            return Ok(None);
        };
        let gone_limit = self.waits.lead_gone.map(Duration::from_secs);
        let silence_limit = self.waits.lead_silent.map(Duration::from_secs);
        let absence = Absence {
            // The silence of a parent that is not the lead does not count.
            silent_since: if lead.is_none() { silent_since } else { None },
            ..Absence::default()
        };
        let waited = until_parent_answers(parent, lead.as_mut(), absence, gone_limit, silence_limit);
        let waited = self.supervisor.unless_stopped(waited).await;
        match waited.map_err(wait_failed)? {
            Interrupted::Stopped(_) => Ok(Some(REPLACE)),
            Interrupted::Done(Ok(())) => Ok(None),
            Interrupted::Done(Err(LeadAbsent::Gone)) => {
                tracing::info!(
                    stage = "stop",
                    "the lead is gone: its DNS name no longer resolves"
                );
                self.has_instance_ended = true;
                Ok(Some(0))
            }
            Interrupted::Done(Err(LeadAbsent::Silent(missing))) => Err(match lead {
                Some(lead) => unreachable("lead", &lead.host, &missing),
                None => unreachable_parent(&parent.host, &missing),
            }),
        }
    }

    /// After the end of an instance whose lead may start again: waits until the parent answers again (has an address
    /// again, if it is `only_looked_up`), or for a stop. After a stop the Job has to replace this pod, since the lead's
    /// next attempt needs its index. (If the lead has succeeded, the Job is over, and replaces nobody.)
    async fn await_next_attempt(
        &mut self,
        parent: Option<&mut ParentProbe>,
    ) -> Result<Interrupted<()>, Failure> {
        tracing::info!(
            stage = "stop",
            "the instance has ended; this pod stays for the lead's next attempt"
        );
        let Some(parent) = parent else {
            // There is no port to wait for: the next broker starts after a short pause.
            return self.pause(FIRST_PAUSE).await;
        };
        let waited = async {
            until_down(parent).await;
            // Without a deadline, this wait does not fail.
            let _ = parent.wait(None).await;
        };
        self.supervisor.unless_stopped(waited).await.map_err(wait_failed)
    }
}

/// What the end of a follower's broker means.
fn judge(ended: &LaunchEnd) -> AfterBroker {
    match (ended.end, &ended.lost, ended.stopped) {
        // Its parent has dismissed it, or somebody else has stopped it: `after_broker` asks the lead.
        (ChildEnd::Exited(0), None, _) if !ended.was_passed_on => AfterBroker::Done(0),
        // The parent was lost and this pod got a stop, as when all pods are stopped.
        (_, Some(_), Some(_)) => AfterBroker::Done(0),
        // As far as is known, only this pod is removed, and the instance goes on: the pod's index has not succeeded.
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

/// What follows if a broker ended as at the end of the instance, although the lead is still up.
fn left_behind(ended: &LaunchEnd, is_parent_the_lead: bool) -> AfterBroker {
    match (ended.stopped, is_parent_the_lead) {
        (Some(_), _) => AfterBroker::Done(REPLACE),
        (None, false) => AfterBroker::Restart("the parent broker has left, and the lead is still up".into()),
        (None, true) => {
            AfterBroker::Restart("the broker was stopped by somebody else, and the lead is still up".into())
        }
    }
}

/// Waits until the parent no longer answers, for about `SHUTDOWN_TIMEOUT` at most. A parent that is shutting down may
/// still answer, but rejects new children.
async fn until_down(parent: &mut ParentProbe) {
    let begin = Instant::now();
    while begin.elapsed() < SHUTDOWN_TIMEOUT && parent.probe_port().await.is_ok() {
        tokio::time::sleep(CHECK_DOWN_EVERY).await;
    }
}

/// Probes the lead until it is gone. Returns false if that is not known within `probe_time`.
async fn is_gone_within(lead: &mut ParentProbe, probe_time: Duration) -> bool {
    let begin = Instant::now();
    loop {
        match lead.probe_known().await {
            // The lead's host refuses the connection: the broker's port is closed.
            Err(Missing::Port(_)) => return true,
            // `probe_known` may have used an address of an earlier look-up, so the name is looked up now.
            Err(missing) if missing.is_name_gone() || lead.is_name_gone().await => return true,
            _ if begin.elapsed() >= probe_time => return false,
            _ => tokio::time::sleep(CHECK_DOWN_EVERY).await,
        }
    }
}

/// Waits until the parent answers again. Fails if the lead's DNS name has been missing for `gone_limit`, or the
/// lead has not answered for `silence_limit`. Without these limits, waits without end. `lead`: none if the parent
/// is the lead. `absence`: what is known of the lead from before.
async fn until_parent_answers(
    parent: &mut ParentProbe,
    mut lead: Option<&mut ParentProbe>,
    mut absence: Absence,
    gone_limit: Option<Duration>,
    silence_limit: Option<Duration>,
) -> Result<(), LeadAbsent> {
    let begin = Instant::now();
    let mut backoff = Backoff::default();
    let mut next_lead_check = begin;
    let mut report = Reporter::new(begin);
    loop {
        let missing = match parent.probe_port().await {
            Ok(()) => return Ok(()),
            Err(missing) => missing,
        };
        match &mut lead {
            None => absence.note(Some(missing.clone())),
            Some(lead) if Instant::now() >= next_lead_check => {
                absence.note(lead.probe_port().await.err());
                next_lead_check = Instant::now() + CHECK_LEAD_EVERY;
            }
            Some(_) => {}
        }
        absence.within(gone_limit, silence_limit)?;
        report.tick(&parent.host, &missing.to_string());
        // `longest_pause` is short early in a wait, since the quorum may wait for this pod. Here the longest pause is a
        // second at least, since attempts may ask the cluster's DNS.
        backoff
            .pause(
                parent
                    .longest_pause(&missing, begin.elapsed())
                    .max(wait::LONGEST_PAUSE),
            )
            .await;
    }
}

/// Why a follower no longer waits for its lead.
#[derive(Debug, PartialEq, Eq)]
enum LeadAbsent {
    /// Its DNS name has been missing for the limit, so its pod is gone.
    Gone,
    /// It has not answered for the limit; what was missing at the last check.
    Silent(Missing),
}

/// How long the lead has been absent, by the checks so far.
#[derive(Debug, Default)]
struct Absence {
    /// Since when every check has failed; none: the last check succeeded.
    silent_since: Option<Instant>,
    /// What was missing at the last check.
    missing: Option<Missing>,
    /// Since when every check has found that the DNS name is gone; none: the last check has not found that.
    name_gone_since: Option<Instant>,
}

impl Absence {
    /// Records a check: what was missing, or none if the lead answered.
    fn note(&mut self, missing: Option<Missing>) {
        let now = Instant::now();
        let is_name_gone = missing.as_ref().is_some_and(Missing::is_name_gone);
        self.name_gone_since = is_name_gone.then(|| self.name_gone_since.unwrap_or(now));
        self.silent_since = missing.is_some().then(|| self.silent_since.unwrap_or(now));
        self.missing = missing;
    }

    /// Fails if the lead has been absent for one of the limits. A limit of None is never reached.
    fn within(
        &self,
        gone_limit: Option<Duration>,
        silence_limit: Option<Duration>,
    ) -> Result<(), LeadAbsent> {
        let has_passed =
            |since: Instant, limit: Option<Duration>| limit.is_some_and(|limit| since.elapsed() >= limit);
        if let Some(since) = self.name_gone_since {
            if has_passed(since, gone_limit) {
                return Err(LeadAbsent::Gone);
            }
            // If a name that is gone is to end this pod earlier than a silence would, the silence does not count
            // meanwhile. A new wait may begin with a silence, but not with a name that is gone.
            if gone_limit.is_some_and(|gone| silence_limit.is_none_or(|silence| gone <= silence)) {
                return Ok(());
            }
        }
        match (self.silent_since, &self.missing) {
            (Some(since), Some(missing)) if has_passed(since, silence_limit) => {
                Err(LeadAbsent::Silent(missing.clone()))
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

/// The failure of a wait for a parent that does not answer. `host`: its name or address.
pub(super) fn unreachable_parent(host: &str, missing: &Missing) -> Failure {
    unreachable("parent", host, missing)
}

/// The failure of a wait for a broker that does not answer. `relation`: what it is to this one.
fn unreachable(relation: &str, host: &str, missing: &Missing) -> Failure {
    let remedy = match missing {
        Missing::Name(_) if missing.is_name_gone() => {
            "does its pod run, and does the headless Service exist?"
        }
        Missing::Name(_) => "does the cluster's DNS run, and does /etc/resolv.conf name it?",
        Missing::Route { .. } => "look for a network policy or a firewall between the pods",
        Missing::Port(_) => "see the log of its pod",
    };
    let cause = format!(
        "failed to reach the {relation} broker {}: {missing}",
        // Without the trailing dot of an absolute DNS name.
        host.trim_end_matches('.')
    );
    Failure::new(Category::ParentUnreachable, cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::Stop;
    use crate::testing::block_on;
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
            parent_silent_since: None,
            has_joined: joined,
            has_come_up: came_up,
            shutdown_began: None,
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
            "dismissed after a stop"
        );
        assert_eq!(
            judge(&ended(Exited(0), true, true, true)),
            done(0),
            "all pods stop, and the lead ended first"
        );
        assert_eq!(
            judge(&ended(Exited(0), true, true, false)),
            done(REPLACE),
            "only this pod stops"
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
            "all pods stop, except the lead"
        );
    }

    #[test]
    fn unreachable_broker_is_named_as_parent_or_lead() {
        let missing = Missing::Port(([10, 9, 0, 1], 8050).into());
        let parent = unreachable_parent("mc-0.flux.", &missing).cause;
        let lead = unreachable("lead", "mc-0.flux.", &missing).cause;
        assert!(parent.starts_with("failed to reach the parent broker mc-0.flux: "));
        assert!(lead.starts_with("failed to reach the lead broker mc-0.flux: "));
    }

    fn broker(host: &str, port: u16) -> ParentProbe {
        ParentProbe::new(host, port, "/nonexistent".as_ref())
    }

    /// A listener, a probe of its port, and a probe of a port where nobody listens. The addresses are this module's
    /// own, so tests of other modules do not open the second port.
    fn open_and_closed_port() -> (std::net::TcpListener, ParentProbe, ParentProbe) {
        let listen = |host: &str| std::net::TcpListener::bind((host, 0)).unwrap();
        let (open, closed) = (listen("127.0.78.1"), listen("127.0.78.2"));
        let port = |listener: &std::net::TcpListener| listener.local_addr().unwrap().port();
        let (open_port, closed_port) = (port(&open), port(&closed));
        drop(closed);
        (
            open,
            broker("127.0.78.1", open_port),
            broker("127.0.78.2", closed_port),
        )
    }

    #[test]
    fn lead_is_gone_when_it_refuses_or_has_no_name() {
        let (listener, mut there, mut gone) = open_and_closed_port();
        let probe_time = Duration::from_millis(300);
        block_on(async {
            assert!(!is_gone_within(&mut there, probe_time).await);
            assert!(is_gone_within(&mut gone, Duration::ZERO).await);
            assert!(
                !is_gone_within(&mut broker("mc-0.flux.", 1), Duration::ZERO).await,
                "without a DNS server, the name is not known to be gone"
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
        let (listener, mut there, mut gone) = open_and_closed_port();
        let bound = Some(Duration::ZERO);
        block_on(async {
            let soon = Duration::from_millis(500);
            let waits = until_parent_answers(&mut gone, Some(&mut there), Absence::default(), bound, bound);
            assert!(tokio::time::timeout(soon, waits).await.is_err());
            assert!(matches!(
                until_parent_answers(&mut gone, None, Absence::default(), bound, bound).await,
                Err(LeadAbsent::Silent(Missing::Port(_)))
            ));
            drop(listener);
            let waited =
                until_parent_answers(&mut gone, Some(&mut there), Absence::default(), bound, bound).await;
            let Err(LeadAbsent::Silent(Missing::Port(address))) = waited else {
                panic!("{waited:?}")
            };
            assert_eq!(
                address.ip().to_string(),
                "127.0.78.1",
                "the missing broker is the lead"
            );
        });
    }

    /// While the broker ran, the agent has waited for the whole limit already.
    #[test]
    fn silence_before_the_brokers_end_counts() {
        let (_listener, mut there, mut gone) = open_and_closed_port();
        let limit = Duration::from_secs(60);
        let silent = || Absence {
            silent_since: Some(Instant::now().checked_sub(limit).unwrap()),
            ..Absence::default()
        };
        block_on(async {
            let waits = until_parent_answers(&mut gone, None, silent(), None, Some(limit));
            let waited = tokio::time::timeout(Duration::from_secs(20), waits).await;
            assert!(
                matches!(waited, Ok(Err(LeadAbsent::Silent(Missing::Port(_))))),
                "{waited:?}"
            );
            let waited = until_parent_answers(&mut there, None, silent(), None, Some(limit)).await;
            assert_eq!(waited, Ok(()), "the lead is back");
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
        assert_eq!(absence.within(at_once, None), Ok(()), "the name exists");
        assert_eq!(
            absence.within(None, at_once),
            Err(LeadAbsent::Silent(port.clone()))
        );
        absence.note(Some(no_name.clone()));
        assert_eq!(absence.within(at_once, None), Err(LeadAbsent::Gone));
        // Without a limit for the name, as for a lead that gets a new pod, its silence is a failure.
        assert_eq!(absence.within(None, at_once), Err(LeadAbsent::Silent(no_name)));
        absence.note(Some(port));
        assert_eq!(absence.within(at_once, None), Ok(()));
        absence.note(None);
        assert_eq!(absence.within(at_once, at_once), Ok(()));
    }

    #[test]
    fn gone_name_outweighs_a_silence_from_before_the_wait() {
        let no_name = Missing::Name(NameError::NoSuchName([127, 0, 0, 53].into()));
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let mut absence = Absence {
            silent_since: Instant::now().checked_sub(Duration::from_secs(300)),
            ..Absence::default()
        };
        absence.note(Some(no_name.clone()));
        assert_eq!(absence.within(seconds(60), seconds(200)), Ok(()));
        let silent = Err(LeadAbsent::Silent(no_name));
        assert_eq!(absence.within(seconds(250), seconds(200)), silent);
        assert_eq!(absence.within(None, seconds(200)), silent);
    }
}
