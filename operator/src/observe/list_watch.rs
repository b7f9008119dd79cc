//! A list that a watch follows, for ever.
//!
//! ```text
//! page ─► … ─► last page ─► watch ─► (ended) watch again …
//!  └ Init, InitApply …, InitDone ┘ └ Apply, Delete …   410: list again, at once
//! ```
//!
//! Written by hand: kube's `watcher` has one size of page for all lists, begins a list again when one of its pages
//! fails, and waits before it lists again after a 410 as if the server had failed. Its events and errors are
//! used.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Duration;

use flux_shared::backoff;
use futures::stream::{self, BoxStream};
use futures::{AsyncReadExt, Stream, StreamExt};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::{ObjectList, Request};
use kube::runtime::watcher::{Error, Event};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

/// Pauses after failures. With the time to connect, the longest is what a list may be stale for once the
/// server is back.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// The same while the operator has no permission: in an installation for one namespace, for ever.
const LONGEST_PAUSE_DENIED: Duration = Duration::from_secs(60);
/// Shortest time between two lists that need no pause, and between the ends of two watches.
const BETWEEN_LISTS: Duration = Duration::from_secs(10);
const BETWEEN_WATCHES: Duration = Duration::from_secs(1);
/// The server ends a watch after this many seconds.
const WATCH_SECONDS: u32 = 290;
/// A watch without data for this long has lost its connection: the server would have ended it before.
const IDLE_MAX: Duration = Duration::from_secs(295);
/// Most objects in a page.
const PAGE_MAX: u32 = 500;
/// The next page has twice as many objects while pages are smaller than this, in bytes.
const SMALL: usize = 1 << 20;
/// A page of more bytes is dropped and asked for again with fewer objects: its first ones were small, and one
/// object may have 1.5 MiB.
const PAGE_BYTES_MAX: u64 = 4 << 20;

/// The objects to list and watch.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Label selector; empty: everything.
    pub labels: String,
    /// Objects in the first page, and in pages of large objects.
    pub page: u32,
}

/// Lists and watches.
pub fn list_watch<K>(api: Api<K>, selection: Selection) -> impl Stream<Item = Result<Event<K>, Error>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let metadata_only = K::metadata_api();
    let (limit, client) = (selection.page, api.clone().into_client());
    let follower = Follower {
        api,
        client,
        metadata_only,
        selection,
        limit,
        state: FollowerState::Begin,
        failures: 0,
        denials: 0,
        listed: None,
        rest: None,
    };
    stream::unfold(follower, |mut follower| async move {
        Some((follower.next().await, follower))
    })
}

struct Follower<K> {
    api: Api<K>,
    client: Client,
    /// Whether the API server is asked for the metadata alone.
    metadata_only: bool,
    selection: Selection,
    /// Objects in the next page.
    limit: u32,
    state: FollowerState<K>,
    /// Failures in a row.
    failures: u32,
    /// The last of these failures that were denials: their pauses get longer than those of an outage, so they are counted
    /// apart.
    denials: u32,
    /// When a list last began because its resourceVersion was too old.
    listed: Option<Instant>,
    /// Until then nothing is asked.
    rest: Option<Instant>,
}

enum FollowerState<K> {
    Begin,
    Listing(Page<K>),
    Listed {
        version: String,
    },
    Watching {
        version: String,
        begin: Instant,
        events: BoxStream<'static, kube::Result<WatchEvent<K>>>,
    },
}

struct Page<K> {
    objects: VecDeque<K>,
    /// Leads to the next page, if there is one.
    token: Option<String>,
    version: String,
}

impl<K> Follower<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    async fn next(&mut self) -> Result<Event<K>, Error> {
        if self.denials > 0 {
            tokio::time::sleep(backoff::after(self.denials, FIRST_PAUSE, LONGEST_PAUSE_DENIED)).await;
        } else if self.failures > 0 {
            tokio::time::sleep(backoff::after(self.failures, FIRST_PAUSE, LONGEST_PAUSE)).await;
        }
        if let Some(rest) = self.rest.take() {
            tokio::time::sleep_until(rest).await;
        }
        loop {
            match self.step().await {
                Ok(None) => {}
                Ok(Some(event)) => {
                    (self.failures, self.denials) = (0, 0);
                    return Ok(event);
                }
                Err(error) => {
                    if is_too_old(&error) {
                        self.state = FollowerState::Begin;
                        self.rest = self.next_list_without_failure();
                        if self.rest.is_none() {
                            tracing::info!(%error, "a watch is too old to go on: listing again");
                            continue;
                        }
                        return Err(error);
                    }
                    self.failures = self.failures.saturating_add(1);
                    self.denials = if is_denied(&error) {
                        self.denials.saturating_add(1)
                    } else {
                        0
                    };
                    return Err(error);
                }
            }
        }
    }

    /// When to list again after the server has forgotten the past, which is no failure: None, at once, unless
    /// it was so just before.
    fn next_list_without_failure(&mut self) -> Option<Instant> {
        (self.failures, self.denials) = (0, 0);
        let (now, earliest) = (Instant::now(), self.listed.map(|last| last + BETWEEN_LISTS));
        let rest = earliest.filter(|earliest| *earliest > now);
        self.listed = Some(rest.unwrap_or(now));
        rest
    }

    /// One step: the next state, and an event if there is one. After an error the state is where to go on.
    async fn step(&mut self) -> Result<Option<Event<K>>, Error> {
        match std::mem::replace(&mut self.state, FollowerState::Begin) {
            FollowerState::Begin => {
                self.limit = self.selection.page;
                self.state = FollowerState::Listing(self.page(None).await.map_err(Error::InitialListFailed)?);
                Ok(Some(Event::Init))
            }
            FollowerState::Listing(mut page) => {
                if let Some(object) = page.objects.pop_front() {
                    self.state = FollowerState::Listing(page);
                    return Ok(Some(Event::InitApply(object)));
                }
                let Some(token) = page.token.clone() else {
                    self.state = FollowerState::Listed {
                        version: page.version,
                    };
                    return Ok(Some(Event::InitDone));
                };
                let next = self.page(Some(&token)).await;
                // The same page is asked for again.
                self.state = FollowerState::Listing(page);
                self.state = FollowerState::Listing(next.map_err(Error::InitialListFailed)?);
                Ok(None)
            }
            FollowerState::Listed { version } => {
                let mut wanted = WatchParams::default().timeout(WATCH_SECONDS);
                wanted.label_selector =
                    Some(self.selection.labels.clone()).filter(|labels| !labels.is_empty());
                let watch = self.api.watch(&wanted, &version).await.map(StreamExt::boxed);
                self.state = FollowerState::Listed {
                    version: version.clone(),
                };
                let events = watch.map_err(Error::WatchStartFailed)?;
                self.state = FollowerState::Watching {
                    version,
                    begin: Instant::now(),
                    events,
                };
                Ok(None)
            }
            FollowerState::Watching {
                version,
                begin,
                events,
            } => self.watch(version, begin, events).await,
        }
    }

    async fn watch(
        &mut self,
        mut version: String,
        begin: Instant,
        mut events: BoxStream<'static, kube::Result<WatchEvent<K>>>,
    ) -> Result<Option<Event<K>>, Error> {
        let event = match tokio::time::timeout(IDLE_MAX, events.next()).await {
            Ok(Some(event)) => event,
            Ok(None) | Err(_) => {
                // A server that ends each watch at once is not asked without a pause.
                tokio::time::sleep(BETWEEN_WATCHES.saturating_sub(begin.elapsed())).await;
                self.state = FollowerState::Listed { version };
                return Ok(None);
            }
        };
        let event = match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => Ok(Some(Event::Apply(object))),
            Ok(WatchEvent::Deleted(object)) => Ok(Some(Event::Delete(object))),
            Ok(WatchEvent::Bookmark(bookmark)) => {
                version = bookmark.metadata.resource_version;
                Ok(None)
            }
            Ok(WatchEvent::Error(status)) => Err(Error::WatchError(status)),
            Err(error) => Err(Error::WatchFailed(error)),
        };
        if let Ok(Some(Event::Apply(object) | Event::Delete(object))) = &event {
            version = object.resource_version().unwrap_or(version);
        }
        self.state = FollowerState::Watching {
            version,
            begin,
            events,
        };
        event
    }

    /// A page of the list.
    async fn page(&mut self, token: Option<&str>) -> kube::Result<Page<K>> {
        loop {
            let mut wanted = ListParams::default()
                .labels(&self.selection.labels)
                .limit(self.limit);
            wanted.continue_token = token.map(str::to_owned);
            let objects = Request::new(self.api.resource_url());
            let request = if self.metadata_only {
                objects.list_metadata(&wanted)
            } else {
                objects.list(&wanted)
            };
            let request = request.map_err(kube::Error::BuildRequest)?;
            let most = if self.limit > self.selection.page {
                PAGE_BYTES_MAX
            } else {
                u64::MAX - 1
            };
            let mut bytes = Vec::new();
            let answer = self.client.request_stream(request).await?;
            answer
                .take(most + 1)
                .read_to_end(&mut bytes)
                .await
                .map_err(kube::Error::ReadEvents)?;
            if u64::try_from(bytes.len()).is_ok_and(|size| size > most) {
                self.limit = (self.limit / 4).max(self.selection.page);
                continue;
            }
            let list: ObjectList<K> = serde_json::from_slice(&bytes).map_err(kube::Error::SerdeError)?;
            if bytes.len() < SMALL {
                self.limit = self.limit.saturating_mul(2).min(PAGE_MAX);
            }
            let token = list.metadata.continue_.filter(|token| !token.is_empty());
            let version = list.metadata.resource_version.unwrap_or_default();
            return Ok(Page {
                objects: list.items.into(),
                token,
                version,
            });
        }
    }
}

/// Whether the server no longer has what a watch, or the rest of a list, begins from.
fn is_too_old(error: &Error) -> bool {
    match error {
        Error::WatchError(status) => status.code == 410,
        Error::WatchStartFailed(kube::Error::Api(status))
        | Error::InitialListFailed(kube::Error::Api(status)) => status.code == 410,
        _ => false,
    }
}

/// Whether the operator has no permission to list or to watch.
pub fn is_denied(error: &Error) -> bool {
    matches!(
        error,
        Error::WatchStartFailed(kube::Error::Api(status)) | Error::InitialListFailed(kube::Error::Api(status))
            if status.code == 403
    )
}

#[cfg(test)]
pub(super) mod tests;
