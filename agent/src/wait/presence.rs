//! Checks whether the parent broker is still up. The agent checks this in two cases: while it holds back a stop
//! signal because the parent may end the instance, and if the user limits how long the parent may be silent.
//! Otherwise Flux's own `heartbeat.timeout` ends a broker whose parent is gone.

use std::time::{Duration, Instant};

use super::parent::{Missing, ParentProbe};

/// The parent counts as gone only after this time. A parent that shuts down dismisses this broker, which gets this time
/// to disconnect and end by itself.
const SURE_AFTER: Duration = Duration::from_millis(500);
/// The time in place of `SURE_AFTER` if the parent's host does not answer, but its name still exists, or its name
/// cannot be looked up: a busy node loses packets.
const SURE_WITHOUT_ANSWER: Duration = Duration::from_secs(10);
/// Longest time between two checks of a parent whose silence is limited.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The results of checks of one parent.
#[derive(Debug)]
pub struct Presence {
    /// Since when every check has failed. None: the last one succeeded.
    pub missing_since: Option<Instant>,
    next_check: Instant,
}

impl Presence {
    pub fn new() -> Presence {
        Presence {
            missing_since: None,
            next_check: Instant::now(),
        }
    }

    /// Checks once. Returns what is missing if it has been missing for long enough to be sure.
    pub async fn check_gone(&mut self, parent: &mut ParentProbe) -> Option<Missing> {
        // At its known addresses: the name may be gone before the parent.
        let missing = parent.probe_known().await.err();
        self.record(missing.is_some());
        let sure_after = match &missing {
            // A name server that fails says nothing about the parent.
            Some(name @ Missing::Name(_)) if !name.is_name_gone() => SURE_WITHOUT_ANSWER,
            Some(Missing::Route { .. }) if !parent.is_name_gone().await => SURE_WITHOUT_ANSWER,
            _ => SURE_AFTER,
        };
        if self.is_missing_for(sure_after) {
            missing
        } else {
            None
        }
    }

    /// Waits until the parent has been silent for `bound`; returns what is missing. Cancel-safe.
    pub async fn until_silent(&mut self, parent: &mut ParentProbe, bound: Duration) -> Missing {
        loop {
            tokio::time::sleep_until(self.next_check.into()).await;
            // By its name: a parent that was replaced may have another address.
            let missing = parent.probe_port().await.err();
            self.record(missing.is_some());
            // `bound / 2`: a short bound has at least two checks in it. `SURE_AFTER` is also the shortest interval.
            self.next_check = Instant::now() + CHECK_INTERVAL.min(bound / 2).max(SURE_AFTER);
            if self.is_missing_for(bound)
                && let Some(missing) = missing
            {
                return missing;
            }
        }
    }

    fn record(&mut self, is_missing: bool) {
        self.missing_since = is_missing.then(|| self.missing_since.unwrap_or_else(Instant::now));
    }

    fn is_missing_for(&self, time: Duration) -> bool {
        self.missing_since.is_some_and(|since| since.elapsed() >= time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::block_on;
    use std::net::TcpListener;
    use std::path::Path;

    /// A parent at a loopback address of this module's own, so that nothing else takes its port.
    fn parent() -> (TcpListener, ParentProbe) {
        let listener = TcpListener::bind("127.0.77.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        (
            listener,
            ParentProbe::new("127.0.77.1", port, Path::new("/nonexistent")),
        )
    }

    #[test]
    fn refusing_parent_is_gone_at_the_second_check() {
        block_on(async {
            let (listener, mut parent) = parent();
            let mut presence = Presence::new();
            assert_eq!(presence.check_gone(&mut parent).await, None);
            drop(listener);
            assert_eq!(presence.check_gone(&mut parent).await, None);
            std::thread::sleep(SURE_AFTER);
            assert!(matches!(
                presence.check_gone(&mut parent).await,
                Some(Missing::Port(_))
            ));
            let _back = TcpListener::bind(("127.0.77.1", parent.port)).unwrap();
            assert_eq!(presence.check_gone(&mut parent).await, None);
        });
    }

    #[test]
    fn failing_name_server_does_not_make_the_parent_gone_at_once() {
        block_on(async {
            // The root has no /etc/resolv.conf, so no name server answers.
            let mut parent = ParentProbe::new("mc-0.flux.", 1, Path::new("/nonexistent"));
            let mut presence = Presence::new();
            assert_eq!(presence.check_gone(&mut parent).await, None);
            std::thread::sleep(SURE_AFTER);
            assert_eq!(presence.check_gone(&mut parent).await, None);
        });
    }

    #[test]
    fn silent_parent_is_reported_after_its_bound() {
        block_on(async {
            let (listener, mut parent) = parent();
            let mut presence = Presence::new();
            let bound = Duration::from_secs(1);
            let soon = Duration::from_secs(3);
            assert!(
                tokio::time::timeout(soon, presence.until_silent(&mut parent, bound))
                    .await
                    .is_err()
            );
            drop(listener);
            let missing =
                tokio::time::timeout(Duration::from_secs(10), presence.until_silent(&mut parent, bound))
                    .await;
            assert!(matches!(missing, Ok(Missing::Port(_))), "{missing:?}");
        });
    }
}
