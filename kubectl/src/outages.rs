//! Failures of watches, each reported once. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use kube::core::Status;
use kube::runtime::watcher::{self, Event};

use crate::failure::{NOT_LOGGED_IN, why_unanswered, with_remedy, words_of};
use crate::login::NoCredentials;

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watched {
    Cluster,
    Pods,
}

/// A failure that was not reported yet.
#[derive(Debug, PartialEq, Eq)]
pub enum Outage {
    /// The API server has answered that the user may not watch these objects.
    Refused { why: String },
    /// Any other failure, such as no answer from the API server.
    Lost { why: String },
}

/// The failures that were reported.
#[derive(Debug, Default)]
pub struct Outages {
    /// Watches that failed in another way than by a refusal, and had no event or refusal since.
    lost: BTreeSet<Watched>,
    /// Watches that were refused since their last event.
    refused: BTreeSet<Watched>,
    /// Whether the API server is reported as lost.
    is_lost: bool,
    /// How often in a row the API server has rejected the user's credentials (401), for each watch.
    rejections: BTreeMap<Watched, u32>,
    /// The failure of the credential plugin, if it has not succeeded since.
    plugin_failure: Option<NoCredentials>,
}

/// Rejections of a watch in a row after which the credentials count as expired: at least 24 s, with kube's pauses. Fewer
/// may pass: an API server that has just started may not know how to check them yet.
const REJECTION_LIMIT: u32 = 6;

impl Outages {
    /// Notes an event of a watch. Returns whether the API server was reported as lost and answers again. Only a watch
    /// that has failed can tell: otherwise, if only one watch fails, each event of the other would be such news.
    pub fn note_event<K>(&mut self, watched: Watched, event: &Event<K>) -> bool {
        // A watch reports `Init` before it asks the API server.
        if matches!(event, Event::Init) {
            return false;
        }
        self.rejections.clear();
        self.refused.remove(&watched);
        if !self.lost.remove(&watched) {
            return false;
        }
        self.plugin_failure = None;
        std::mem::take(&mut self.is_lost)
    }

    /// Notes a failure of a watch, and returns it if it is to be reported. If the credential plugin begins to fail during
    /// an outage, this is reported, too, since the user can do something about it.
    pub fn note_error(&mut self, watched: Watched, error: &watcher::Error) -> Option<Outage> {
        let earlier = self.plugin_failure.take();
        self.plugin_failure = NoCredentials::of(error).cloned();
        let has_begun = self.plugin_failure.is_some() && earlier.is_none();
        let answer = answer(error);
        if answer.is_some_and(|status| status.code == 401) {
            *self.rejections.entry(watched).or_default() += 1;
        } else {
            self.rejections.clear();
        }
        if let Some(status) = answer.filter(|status| status.code == 403) {
            // A refusal is an answer. If the other watch is still lost, its next event ends the outage.
            self.lost.remove(&watched);
            self.is_lost &= !self.lost.is_empty();
            let why = status.message.clone();
            return self.refused.insert(watched).then_some(Outage::Refused { why });
        }
        let is_news = self.lost.insert(watched) && !self.is_lost || has_begun;
        self.is_lost |= is_news;
        is_news.then(|| Outage::Lost {
            // The answer alone: as an error of the watch, it has the debug text of the whole object.
            why: answer.map_or_else(|| why_unanswered(error), words_of),
        })
    }

    /// Why the user's credentials count as expired; None: they do not. `login` has no others.
    pub fn logged_out(&self) -> Option<String> {
        if let Some(failure) = self.plugin_failure.as_ref().filter(|failure| !failure.passes) {
            return Some(failure.to_string());
        }
        let is_rejected = self.rejections.values().any(|count| *count >= REJECTION_LIMIT);
        is_rejected.then(|| NOT_LOGGED_IN.to_owned())
    }
}

/// The API server's answer, if there was one.
fn answer(error: &watcher::Error) -> Option<&Status> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status),
        _ => None,
    }
}

/// The message about a refused watch, for the MiniCluster `name`.
pub fn refusal_text(name: &str, watched: Watched, why: &str) -> String {
    let what = match watched {
        Watched::Cluster => format!("MiniCluster {name}"),
        Watched::Pods => format!("the pods of {name}"),
    };
    with_remedy(
        format!("failed to watch {what}: {why}"),
        &format!("`list` and `watch` `{watched}`"),
    )
}

/// The resource's name.
impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Watched::Cluster => "miniclusters",
            Watched::Pods => "pods",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Answer, failing_plugin};

    fn failed(code: u16) -> watcher::Error {
        let status = Status {
            code,
            message: "no".into(),
            ..Status::default()
        };
        watcher::Error::InitialListFailed(kube::Error::Api(status.boxed()))
    }

    const EVENT: Event<()> = Event::InitDone;

    #[test]
    fn refused_watch_is_reported_once_and_is_no_outage() {
        let mut outages = Outages::default();
        let refused = Outage::Refused { why: "no".into() };
        assert_eq!(outages.note_error(Watched::Pods, &failed(403)), Some(refused));
        for _ in 0..3 {
            assert!(!outages.note_event(Watched::Pods, &Event::<()>::Init));
            assert_eq!(outages.note_error(Watched::Pods, &failed(403)), None);
            assert!(!outages.note_event(Watched::Cluster, &EVENT));
        }
    }

    #[test]
    fn refusal_asks_for_permissions_only_if_one_is_missing() {
        let missing = r#"pods is forbidden: User "me" cannot list resource "pods" in API group """#;
        let text = refusal_text("mc", Watched::Pods, missing);
        let advice = ". You need permission to `list` and `watch` `pods` in this namespace";
        assert!(
            text.starts_with(&format!("failed to watch the pods of mc: {missing}{advice}")),
            "{text}"
        );
        for other in [
            r#"pods "mc-0" is forbidden: exceeded quota: few, requested: 1, used: 2, limited: 2"#,
            "ValidatingAdmissionPolicy 'labels' denied request: a label is missing",
            r#"miniclusters "mc" is forbidden: because namespace team is being terminated"#,
        ] {
            let text = refusal_text("mc", Watched::Cluster, other);
            assert_eq!(text, format!("failed to watch MiniCluster mc: {other}"));
        }
    }

    #[test]
    fn outage_has_only_the_message_of_the_servers_answer() {
        let why = |code| match Outages::default().note_error(Watched::Pods, &failed(code)) {
            Some(Outage::Lost { why }) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why(500), "no");
        assert!(why(401).ends_with("Log in again"));
    }

    #[test]
    fn failures_of_one_watch_are_reported_once() {
        let mut outages = Outages::default();
        assert!(outages.note_error(Watched::Pods, &failed(500)).is_some());
        for _ in 0..3 {
            assert!(!outages.note_event(Watched::Cluster, &EVENT));
            assert!(!outages.note_event(Watched::Pods, &Event::<()>::Init));
            assert_eq!(outages.note_error(Watched::Pods, &failed(500)), None);
        }
        assert!(outages.note_event(Watched::Pods, &EVENT));
    }

    #[test]
    fn refusal_of_one_watch_leaves_the_outage_of_the_other() {
        let mut outages = Outages::default();
        assert!(outages.note_error(Watched::Cluster, &failed(500)).is_some());
        assert_eq!(outages.note_error(Watched::Pods, &failed(500)), None);
        assert!(matches!(
            outages.note_error(Watched::Pods, &failed(403)),
            Some(Outage::Refused { .. })
        ));
        assert!(outages.note_event(Watched::Cluster, &EVENT));
    }

    #[test]
    fn user_is_logged_out_after_rejections_in_a_row() {
        let mut outages = Outages::default();
        let reject = |outages: &mut Outages, count| {
            for _ in 0..count {
                outages.note_error(Watched::Cluster, &failed(401));
            }
            outages.logged_out().is_some()
        };
        assert!(!reject(&mut outages, REJECTION_LIMIT - 1));
        outages.note_event(Watched::Pods, &EVENT);
        assert!(!reject(&mut outages, REJECTION_LIMIT - 1));
        outages.note_error(Watched::Pods, &failed(500));
        assert!(!reject(&mut outages, REJECTION_LIMIT - 1));
        assert!(reject(&mut outages, 1));
    }

    #[test]
    fn plugin_that_fails_during_an_outage_is_reported_once() {
        let Answer::Failed(cause) = failing_plugin()() else {
            panic!()
        };
        let error = watcher::Error::WatchStartFailed(kube::Error::Service(cause));
        let mut outages = Outages::default();
        assert!(outages.note_error(Watched::Pods, &failed(500)).is_some());
        let why = "the credential plugin aws printed no credentials. Log in again".to_owned();
        assert_eq!(
            outages.note_error(Watched::Cluster, &error),
            Some(Outage::Lost { why })
        );
        assert_eq!(outages.note_error(Watched::Pods, &error), None);
        assert_eq!(outages.logged_out(), None);
        assert!(outages.note_event(Watched::Pods, &EVENT));
    }

    #[test]
    fn each_outage_is_reported_with_its_end() {
        let mut outages = Outages::default();
        for _ in 0..2 {
            assert!(outages.note_error(Watched::Cluster, &failed(500)).is_some());
            assert_eq!(outages.note_error(Watched::Pods, &failed(500)), None);
            assert!(outages.note_event(Watched::Cluster, &EVENT));
            assert!(!outages.note_event(Watched::Pods, &EVENT));
        }
    }
}
