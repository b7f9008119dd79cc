//! A follower's broker: started again until the instance has ended, or the lead is known to be gone.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use flux_shared::exit::{Category, REPLACE};
use flux_shared::pauses;

use super::{Executor, wait_failed};
use crate::plan::Launch;
use crate::report::failure::Failure;
use crate::supervise::{End, Ended, orphans};
use crate::wait::{Missing, Parent, Reporter};

/// Pauses between two starts of a follower's broker.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long a lead may take to be down before a follower that stays takes its port for that of the next attempt: one that
/// comes back between two looks is not seen to be away. A broker that comes too early is turned away, and tries again.
const WAY_DOWN: Duration = Duration::from_secs(5);
const LOOK_WHETHER_DOWN: Duration = Duration::from_millis(200);
/// How long the name of a lead that was there must be gone to count as its end, where nobody says otherwise.
const LEAD_GONE: Duration = Duration::from_secs(30);
/// A broker that was up for this long had a good start: earlier failures no longer count.
const GOOD_RUN: Duration = Duration::from_secs(60);

/// What a program's end means.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Done(u8),
    Again(String),
}

impl Executor<'_> {
    /// A follower's broker until the instance has ended. Without a limit one that has joined is never started again.
    /// `again`: the lead may start again in its pod, and so this one waits for it.
    pub(super) async fn launch_follower(
        &mut self,
        launch: &Launch,
        limit: Option<u32>,
        again: bool,
    ) -> Result<u8, Failure> {
        let mut parent = launch.parent.as_ref().map(|parent| self.parent(parent));
        let mut failures = 0;
        loop {
            let begin = Instant::now();
            let others = orphans::children();
            let ended = match self.launch_once(launch, parent.as_mut()).await? {
                Err(code) => return Ok(code),
                Ok(ended) => ended,
            };
            self.end_orphans(&others).await?;
            let why = match judge(&ended) {
                Verdict::Done(code) if !again || self.supervisor.first_stop().is_some() => return Ok(code),
                Verdict::Done(_) => match self.next_attempt(parent.as_mut()).await? {
                    Some(code) => return Ok(code),
                    None => {
                        failures = 0;
                        continue;
                    }
                },
                Verdict::Again(why) => why,
            };
            if self.supervisor.first_stop().is_some() {
                return Ok(REPLACE);
            }
            if begin.elapsed() >= GOOD_RUN {
                failures = 0;
            }
            failures += 1;
            let pause = pauses::after(failures, FIRST_PAUSE, LONGEST_PAUSE);
            match limit {
                None if ended.joined => return Ok(0),
                None => return Err(never_joined(&why)),
                Some(limit) if failures > limit => return Err(kept_failing(failures, ended.end.code())),
                Some(limit) => {
                    let pause = pause.as_secs();
                    tracing::info!(stage = "broker", "{why}; starting it again in {pause} s ({failures} of {limit})");
                }
            }
            if self.pause(pause).await?.is_err() {
                return Ok(REPLACE);
            }
            if let Some(code) = self.parent_again(parent.as_mut(), again).await? {
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
            tracing::info!(stage = "broker", "killed {count} processes that the broker had left");
        }
        Ok(())
    }

    /// Waits for the parent of a broker that failed. Some code: there is nothing to wait for any more.
    ///
    /// A lead that ended for good leaves DNS (a headless Service forgets a pod that has ended); one that restarts is in
    /// DNS and refuses, or is away for as long as the Job needs for a new pod. So a missing name counts as the end
    /// after a while, unless the lead may start `again`; a refusal only where a bound was asked for.
    async fn parent_again(&mut self, parent: Option<&mut Parent>, again: bool) -> Result<Option<u8>, Failure> {
        let Some(parent) = parent else { return Ok(None) };
        let gone = (!again).then(|| self.waits.lead_gone.map_or(LEAD_GONE, Duration::from_secs));
        let waited = await_return(parent, gone, self.waits.lead_silent.map(Duration::from_secs));
        let waited = self.supervisor.unless_stopped(waited).await;
        match waited.map_err(wait_failed)? {
            Err(_) => Ok(Some(REPLACE)),
            Ok(Ok(())) => Ok(None),
            Ok(Err(missing)) if missing.is_name_gone() => {
                tracing::info!(stage = "stop", "the lead has ended: its name is gone");
                Ok(Some(0))
            }
            Ok(Err(missing)) => Err(unreachable_parent(&parent.host, &missing)),
        }
    }

    /// After the end of an instance whose lead may start again: until it is there. Some code: told to stop meanwhile.
    async fn next_attempt(&mut self, parent: Option<&mut Parent>) -> Result<Option<u8>, Failure> {
        tracing::info!(stage = "stop", "the instance has ended; this pod stays for the lead's next attempt");
        let Some(parent) = parent else {
            return Ok(self.pause(FIRST_PAUSE).await?.is_err().then_some(0));
        };
        let waited = async {
            // The lead of old may still be on its way down, and would turn a new follower away.
            let begin = Instant::now();
            while begin.elapsed() < WAY_DOWN && parent.probe_port().await.is_ok() {
                tokio::time::sleep(LOOK_WHETHER_DOWN).await;
            }
            let _ = parent.wait(None).await;
        };
        let waited = self.supervisor.unless_stopped(waited).await.map_err(wait_failed)?;
        Ok(waited.is_err().then_some(0))
    }
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
async fn await_return(parent: &mut Parent, gone: Option<Duration>, silent: Option<Duration>) -> Result<(), Missing> {
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
        report.tick(&parent.host, &missing.to_string());
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
