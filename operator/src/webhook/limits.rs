//! Limits on the webhook's connections and on memory for bodies. Anybody in the cluster can call it, so each peer has a share,
//! idle connections are dropped for new ones, and all bodies together are bounded.
#![expect(clippy::disallowed_methods, reason = "it waits, but not for ever")]

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Connections at the same time; the API server keeps few.
const CONNECTIONS: usize = 128;
/// Connections of one peer.
const OF_PEER: usize = 32;
/// Connections that wait for a place, and those of one peer.
const WAITING: usize = 256;
const WAITING_OF_PEER: usize = 8;
/// How long one waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// What each connection has without asking: mostly that is all of a body.
const FREE: usize = 32 << 10;
/// The first part of each larger body.
const SMALL: usize = 1 << 20;
/// The largest body: some thousand MiniClusters.
pub(super) const BODY_MAX: usize = 32 << 20;
/// What one permit is for.
const UNIT: usize = 16 << 10;
/// The first parts of all bodies together, and of those of one peer.
const ROOM: usize = 12 << 20;
const ROOM_OF_PEER: usize = ROOM / 4;
/// Bodies that are larger than their first part, at the same time; of one peer there is one.
const LARGE: usize = 2;

/// All that can be held.
#[derive(Debug)]
pub(super) struct Places {
    state: Mutex<State>,
    /// Rings when a connection ends or turns idle.
    freed: Notify,
    room: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    connections: HashMap<u64, Connection>,
    shares: HashMap<IpAddr, Arc<Share>>,
    waiting: HashMap<IpAddr, usize>,
}

/// A turn to wait, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn(Arc<Places>, IpAddr);

impl Drop for Turn {
    fn drop(&mut self) {
        let waiting = &mut self.0.state().waiting;
        if let Some(count) = waiting.get_mut(&self.1) {
            *count -= 1;
        }
        waiting.retain(|_, count| *count > 0);
    }
}

#[derive(Debug)]
struct Connection {
    peer: IpAddr,
    /// A request is under way.
    busy: bool,
    /// It has to make way.
    leave: Arc<Notify>,
}

/// What one peer may hold.
#[derive(Debug)]
struct Share {
    room: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    id: u64,
    share: Arc<Share>,
    leave: Arc<Notify>,
    busy_since: Mutex<Option<Instant>>,
}

/// What a body holds, until it is dropped.
#[derive(Debug, Default)]
pub(super) struct Room(Vec<OwnedSemaphorePermit>);

impl Default for Places {
    fn default() -> Places {
        Places {
            state: Mutex::default(),
            freed: Notify::new(),
            room: Arc::new(Semaphore::new(ROOM / UNIT)),
            large: Arc::new(Semaphore::new(LARGE)),
        }
    }
}

impl Places {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn to wait for a place; none: too many wait.
    pub(super) fn turn(self: &Arc<Self>, peer: IpAddr) -> Option<Turn> {
        let waiting = &mut self.state().waiting;
        if waiting.values().sum::<usize>() >= WAITING {
            return None;
        }
        let count = waiting.entry(peer).or_default();
        (*count < WAITING_OF_PEER).then(|| {
            *count += 1;
            Turn(self.clone(), peer)
        })
    }

    /// A place for a connection of `peer`, as soon as there is one. None: not in time.
    pub(super) async fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let until = Instant::now() + PATIENCE;
        loop {
            let freed = self.freed.notified();
            if let Some(place) = self.try_enter(peer) {
                return Some(place);
            }
            // An idle one that was asked to leave does so at once.
            tokio::time::timeout_at(until, freed).await.ok()?;
        }
    }

    fn try_enter(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let mut state = self.state();
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for connection in state.connections.values() {
            *counts.entry(connection.peer).or_default() += 1;
        }
        let is_full = state.connections.len() >= CONNECTIONS;
        if counts.get(&peer).is_some_and(|count| *count >= OF_PEER) || is_full {
            // The oldest idle one of whoever has most; of this peer, if that is the one with too many.
            let own = counts.get(&peer).is_some_and(|count| *count >= OF_PEER);
            let idle = state.connections.iter().filter(|(_, it)| !it.busy && (!own || it.peer == peer));
            let most = idle.max_by_key(|(id, it)| (counts.get(&it.peer).copied(), std::cmp::Reverse(**id)));
            if let Some((_, connection)) = most {
                connection.leave.notify_one();
            }
            return None;
        }
        let id = state.next;
        state.next += 1;
        let leave = Arc::new(Notify::new());
        state.connections.insert(id, Connection { peer, busy: false, leave: leave.clone() });
        let share = state.shares.entry(peer).or_insert_with(|| {
            let room = Arc::new(Semaphore::new(ROOM_OF_PEER / UNIT));
            Arc::new(Share { room, large: Arc::new(Semaphore::new(1)) })
        });
        let share = share.clone();
        drop(state);
        Some(Place { places: self.clone(), id, share, leave, busy_since: Mutex::default() })
    }
}

impl Place {
    /// Returns when this connection has to make way for others.
    pub(super) async fn has_to_leave(&self) {
        loop {
            self.leave.notified().await;
            if !self.is_busy() {
                return;
            }
        }
    }

    /// A request begins, or its answer has been sent.
    pub(super) fn busy(&self, busy: bool) {
        *self.busy_since.lock().unwrap_or_else(PoisonError::into_inner) = busy.then(Instant::now);
        if let Some(connection) = self.places.state().connections.get_mut(&self.id) {
            connection.busy = busy;
        }
        if !busy {
            self.places.freed.notify_waiters();
        }
    }

    fn is_busy(&self) -> bool {
        self.busy_since.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// How long its request has been under way.
    pub(super) fn busy_for(&self) -> Duration {
        let since = *self.busy_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Takes what a body of `size` bytes needs beyond what it holds; waits for it.
    pub(super) async fn grow(&self, held: &mut Room, size: usize) {
        if size <= FREE {
            return;
        }
        let take = async |semaphore: &Arc<Semaphore>, number: usize| {
            // The semaphore is never closed: this cannot fail.
            semaphore.clone().acquire_many_owned(u32::try_from(number).unwrap_or(u32::MAX)).await.ok()
        };
        let units =
            |permits: usize| permits.saturating_sub(held.0.first().map_or(0, OwnedSemaphorePermit::num_permits));
        let more = units(size.min(SMALL).div_ceil(UNIT));
        if more > 0 {
            for (number, semaphore) in [&self.share.room, &self.places.room].into_iter().enumerate() {
                let Some(permit) = take(semaphore, more).await else { return };
                match held.0.get_mut(number) {
                    Some(known) => known.merge(permit),
                    None => held.0.push(permit),
                }
            }
        }
        if size > SMALL && held.0.len() < 4 {
            for semaphore in [&self.share.large, &self.places.large] {
                held.0.extend(take(semaphore, 1).await);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.state();
        let gone = state.connections.remove(&self.id);
        if let Some(peer) = gone.map(|it| it.peer)
            && !state.connections.values().any(|it| it.peer == peer)
            // Nobody's body but those that ended with their connections holds any of it.
            && state.shares.get(&peer).is_some_and(|share| Arc::strong_count(share) <= 2)
        {
            state.shares.remove(&peer);
        }
        drop(state);
        self.places.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_has_a_share_and_what_is_idle_makes_way() {
        let places = Arc::new(Places::default());
        let mut held = Vec::new();
        for number in 0..4 {
            for _ in 0..OF_PEER {
                held.push(places.enter(peer(number)).await.unwrap());
            }
        }
        held.iter().for_each(|place| place.busy(true));
        assert!(places.enter(peer(9)).await.is_none(), "all are at work");
        held[OF_PEER].busy(false);
        let makes_way = async {
            held[OF_PEER].has_to_leave().await;
            drop(held.remove(OF_PEER));
        };
        let (_, came) = tokio::join!(makes_way, places.enter(peer(9)));
        assert!(came.is_some());
        drop(held);
        assert_eq!(places.state().connections.len(), 1);
        drop(came);
        assert!(places.state().shares.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_wait_for_room_and_one_peer_takes_not_all() {
        let places = Arc::new(Places::default());
        let place = places.enter(peer(1)).await.unwrap();
        let other = places.enter(peer(2)).await.unwrap();
        let grows = async |place: &Place, size: usize| {
            let mut room = Room::default();
            tokio::time::timeout(PATIENCE, place.grow(&mut room, size)).await.ok().map(|()| room)
        };
        let large = grows(&place, 2 * SMALL).await.unwrap();
        assert!(grows(&place, 2 * SMALL).await.is_none(), "one large body a peer");
        assert!(grows(&other, BODY_MAX).await.is_some());
        let mut small = Vec::new();
        while let Some(room) = grows(&place, SMALL).await {
            small.push(room);
        }
        assert_eq!(small.len(), ROOM_OF_PEER / SMALL - 1);
        assert!(grows(&other, SMALL).await.is_some());
        drop((large, small));
        assert!(grows(&place, 2 * SMALL).await.is_some());
    }
}
