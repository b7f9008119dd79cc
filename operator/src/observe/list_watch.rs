//! Lists the objects of a kind, and then watches them, for ever.
//!
//! ```text
//! page ─► … ─► last page ─► watch ─► (ended) watch again …
//!  └ Init, InitApply …, InitDone ┘ └ Apply, Delete …   410: list again
//! ```
//!
//! This replaces kube's `watcher`, whose events and errors it uses. `watcher` has one page size for all lists. It
//! restarts a list when one of its pages fails. After a 410 it waits before it lists again, as if the server had
//! failed.

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

/// First and longest pause after failures in a row. The longest is short, since the operator works with stale objects
/// until the next attempt, even if the server is back.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// Longest pause while the operator has no permission (403). In an installation for one namespace, it may never get
/// it.
const LONGEST_PAUSE_DENIED: Duration = Duration::from_secs(60);
/// Shortest time between the starts of two lists that a 410 caused, and of two watches without a list in between.
const BETWEEN_LISTS: Duration = Duration::from_secs(10);
const BETWEEN_WATCHES: Duration = Duration::from_secs(1);
/// The server ends a watch after this many seconds, kube's default.
const WATCH_SECONDS: u32 = 290;
/// A watch without an event for this long has lost its connection: the server ends it earlier (`WATCH_SECONDS`).
const IDLE_MAX: Duration = Duration::from_secs(295);
/// Most objects in a page.
const PAGE_MAX: u32 = 500;
/// After a page of fewer bytes than this, the next page has twice as many objects.
const SMALL_PAGE_BYTES: usize = 1 << 20;
/// A page of more bytes than this is dropped and requested again with fewer objects. This happens after pages of
/// small objects: one object may have 1.5 MiB. A page with as few objects as the first one may have any size.
const PAGE_BYTES_MAX: u64 = 4 << 20;

/// The objects to list and watch.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Label selector; empty: everything.
    pub labels: String,
    /// Objects in the first page, and in pages of large objects.
    pub page: u32,
}

/// Lists and watches. Errors are retried; the stream never ends. Until InitDone, the events of a list are incomplete.
pub fn list_watch<K>(api: Api<K>, selection: Selection) -> impl Stream<Item = Result<Event<K>, Error>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let metadata_only = K::metadata_api();
    let (limit, client) = (selection.page, api.clone().into_client());
    let list_watch = ListWatch {
        api,
        client,
        metadata_only,
        selection,
        limit,
        state: ListWatchState::Begin,
        failures: 0,
        denials: 0,
        last_relist: None,
        paused_until: None,
    };
    stream::unfold(list_watch, |mut list_watch| async move {
        Some((list_watch.next().await, list_watch))
    })
}

struct ListWatch<K> {
    api: Api<K>,
    client: Client,
    /// Whether only the metadata of the objects is requested.
    metadata_only: bool,
    selection: Selection,
    /// Objects in the next page.
    limit: u32,
    state: ListWatchState<K>,
    /// Failures in a row.
    failures: u32,
    /// Denials (403) in a row. They are counted separately, since their pauses become longer than those of an outage.
    denials: u32,
    /// When the last list that a 410 caused began, or will begin.
    last_relist: Option<Instant>,
    /// No request is sent before this time.
    paused_until: Option<Instant>,
}

/// `version` is the resourceVersion after which a watch begins.
enum ListWatchState<K> {
    /// The first page of a list is requested next.
    Begin,
    /// The objects of a page are reported one by one.
    Listing(Page<K>),
    /// A watch is requested next.
    Listed { version: String },
    Watching {
        version: String,
        begin: Instant,
        events: BoxStream<'static, kube::Result<WatchEvent<K>>>,
    },
}

struct Page<K> {
    objects: VecDeque<K>,
    /// Token for the next page, if there is one.
    token: Option<String>,
    /// resourceVersion of the list.
    version: String,
}

impl<K> ListWatch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// The next event or error, after the pause that follows a failure.
    async fn next(&mut self) -> Result<Event<K>, Error> {
        if self.denials > 0 {
            tokio::time::sleep(backoff::after(self.denials, FIRST_PAUSE, LONGEST_PAUSE_DENIED)).await;
        } else if self.failures > 0 {
            tokio::time::sleep(backoff::after(self.failures, FIRST_PAUSE, LONGEST_PAUSE)).await;
        }
        if let Some(end) = self.paused_until.take() {
            tokio::time::sleep_until(end).await;
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
                        self.state = ListWatchState::Begin;
                        self.paused_until = self.pause_before_relist();
                        if self.paused_until.is_none() {
                            tracing::info!(%error, "a watch or list is too old to go on: listing again");
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

    /// When to list again after a resourceVersion was too old (410), which does not count as a failure. None: at
    /// once. There is a pause only if the last such list began less than `BETWEEN_LISTS` ago.
    fn pause_before_relist(&mut self) -> Option<Instant> {
        (self.failures, self.denials) = (0, 0);
        let (now, earliest) = (Instant::now(), self.last_relist.map(|last| last + BETWEEN_LISTS));
        let pause_end = earliest.filter(|earliest| *earliest > now);
        self.last_relist = Some(pause_end.unwrap_or(now));
        pause_end
    }

    /// One step: sets the next state, and returns an event if there is one. After an error, the next step repeats the
    /// request that failed, or goes on with the watch.
    async fn step(&mut self) -> Result<Option<Event<K>>, Error> {
        match std::mem::replace(&mut self.state, ListWatchState::Begin) {
            ListWatchState::Begin => {
                self.limit = self.selection.page;
                self.state =
                    ListWatchState::Listing(self.fetch_page(None).await.map_err(Error::InitialListFailed)?);
                Ok(Some(Event::Init))
            }
            ListWatchState::Listing(mut page) => {
                if let Some(object) = page.objects.pop_front() {
                    self.state = ListWatchState::Listing(page);
                    return Ok(Some(Event::InitApply(object)));
                }
                let Some(token) = page.token.clone() else {
                    self.state = ListWatchState::Listed {
                        version: page.version,
                    };
                    return Ok(Some(Event::InitDone));
                };
                let next = self.fetch_page(Some(&token)).await;
                // If this request failed, the state remains, and the next step requests the same page again.
                self.state = ListWatchState::Listing(page);
                self.state = ListWatchState::Listing(next.map_err(Error::InitialListFailed)?);
                Ok(None)
            }
            ListWatchState::Listed { version } => {
                let mut wanted = WatchParams::default().timeout(WATCH_SECONDS);
                wanted.label_selector =
                    Some(self.selection.labels.clone()).filter(|labels| !labels.is_empty());
                let watch = self.api.watch(&wanted, &version).await.map(StreamExt::boxed);
                self.state = ListWatchState::Listed {
                    version: version.clone(),
                };
                let events = watch.map_err(Error::WatchStartFailed)?;
                self.state = ListWatchState::Watching {
                    version,
                    begin: Instant::now(),
                    events,
                };
                Ok(None)
            }
            ListWatchState::Watching {
                version,
                begin,
                events,
            } => self.watch(version, begin, events).await,
        }
    }

    /// Waits for the next event of a watch.
    async fn watch(
        &mut self,
        mut version: String,
        begin: Instant,
        mut events: BoxStream<'static, kube::Result<WatchEvent<K>>>,
    ) -> Result<Option<Event<K>>, Error> {
        let event = match tokio::time::timeout(IDLE_MAX, events.next()).await {
            Ok(Some(event)) => event,
            Ok(None) | Err(_) => {
                // If the server ends each watch at once, the next one is not requested without a pause.
                tokio::time::sleep(BETWEEN_WATCHES.saturating_sub(begin.elapsed())).await;
                self.state = ListWatchState::Listed { version };
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
        self.state = ListWatchState::Watching {
            version,
            begin,
            events,
        };
        event
    }

    /// Requests a page of the list: the first one, or the one of `token`. Adapts the number of objects in the next
    /// page (`limit`).
    async fn fetch_page(&mut self, token: Option<&str>) -> kube::Result<Page<K>> {
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
            let bytes_max = if self.limit > self.selection.page {
                PAGE_BYTES_MAX
            } else {
                // No limit. Less than the maximum, since one is added below.
                u64::MAX - 1
            };
            let mut bytes = Vec::new();
            let answer = self.client.request_stream(request).await?;
            // One byte more than the limit, to notice a page that is larger.
            answer
                .take(bytes_max + 1)
                .read_to_end(&mut bytes)
                .await
                .map_err(kube::Error::ReadEvents)?;
            if u64::try_from(bytes.len()).is_ok_and(|size| size > bytes_max) {
                self.limit = (self.limit / 4).max(self.selection.page);
                continue;
            }
            let list: ObjectList<K> = serde_json::from_slice(&bytes).map_err(kube::Error::SerdeError)?;
            if bytes.len() < SMALL_PAGE_BYTES {
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

/// Whether the server no longer has the resourceVersion at which a watch or the rest of a list begins (410).
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
