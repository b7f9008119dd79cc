//! Limits on the webhook's connections and on memory for bodies. Anybody in the cluster can call it, so each
//! peer has a share, idle connections are dropped for new ones, and all bodies together are bounded.
//!
//! Not tower's limits: they count requests, of a service that knows no peer, and can close no idle connection
//! for a new one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Connections at the same time; the API server keeps few.
const CONNECTIONS: usize = 128;
/// Most connections of one peer.
const OF_PEER: usize = 32;
/// Most connections that wait for a slot, in all and of one peer.
const WAITING: usize = 256;
const WAITING_OF_PEER: usize = 8;
/// How long a connection waits for a slot.
const SLOT_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a body that need no reservation: most bodies are smaller.
const FREE: usize = 32 << 10;
/// The part of a larger body that is reserved from `MEMORY`.
const SMALL: usize = 1 << 20;
/// The largest body, some thousand MiniClusters.
pub(super) const BODY_MAX: usize = 32 << 20;
/// Bytes per permit.
const UNIT: usize = 16 << 10;
/// Bytes that can be reserved for all bodies together, and for those of one peer.
const MEMORY: usize = 12 << 20;
const MEMORY_OF_PEER: usize = MEMORY / 4;
/// Most bodies larger than `SMALL` at the same time; one peer may have one.
const LARGE: usize = 2;

/// The connections and the memory that are in use.
#[derive(Debug)]
pub(super) struct Limits {
    state: Mutex<LimitState>,
    /// Notified when a connection ends or becomes idle.
    freed: Notify,
    memory: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct LimitState {
    next: u64,
    connections: HashMap<u64, Connection>,
    shares: HashMap<IpAddr, Arc<Share>>,
    waiting: HashMap<IpAddr, usize>,
}

/// A place among those that wait for a slot, until it is dropped.
#[derive(Debug)]
pub(super) struct Waiter(Arc<Limits>, IpAddr);

impl Drop for Waiter {
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
    /// A request is in progress.
    busy: bool,
    /// Notified when the connection has to be closed for another one.
    leave: Arc<Notify>,
}

/// Memory that one peer may reserve.
#[derive(Debug)]
struct Share {
    memory: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

/// An open connection, until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    limits: Arc<Limits>,
    id: u64,
    share: Arc<Share>,
    leave: Arc<Notify>,
    busy_since: Mutex<Option<Instant>>,
}

/// Memory reserved for a body, until it is dropped.
#[derive(Debug, Default)]
pub(super) struct BodyMemory(Vec<OwnedSemaphorePermit>);

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            state: Mutex::default(),
            freed: Notify::new(),
            memory: Arc::new(Semaphore::new(MEMORY / UNIT)),
            large: Arc::new(Semaphore::new(LARGE)),
        }
    }
}

impl Limits {
    fn state(&self) -> MutexGuard<'_, LimitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins those that wait for a slot. None: too many wait already.
    pub(super) fn queue_up(self: &Arc<Self>, peer: IpAddr) -> Option<Waiter> {
        let waiting = &mut self.state().waiting;
        if waiting.values().sum::<usize>() >= WAITING {
            return None;
        }
        let count = waiting.entry(peer).or_default();
        (*count < WAITING_OF_PEER).then(|| {
            *count += 1;
            Waiter(self.clone(), peer)
        })
    }

    /// Waits for a slot for a connection of `peer`. None: none became free within `SLOT_TIMEOUT`.
    pub(super) async fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionSlot> {
        let until = Instant::now() + SLOT_TIMEOUT;
        loop {
            let freed = self.freed.notified();
            if let Some(slot) = self.try_enter(peer) {
                return Some(slot);
            }
            // An idle connection that is asked to close does so at once.
            tokio::time::timeout_at(until, freed).await.ok()?;
        }
    }

    fn try_enter(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionSlot> {
        let mut state = self.state();
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for connection in state.connections.values() {
            *counts.entry(connection.peer).or_default() += 1;
        }
        let has_too_many = counts.get(&peer).is_some_and(|count| *count >= OF_PEER);
        if has_too_many || state.connections.len() >= CONNECTIONS {
            // The oldest idle connection of the peer with most; of this peer, if it has too many itself.
            let idle = state
                .connections
                .iter()
                .filter(|(_, connection)| !connection.busy && (!has_too_many || connection.peer == peer));
            let most = idle.max_by_key(|(id, connection)| {
                (counts.get(&connection.peer).copied(), std::cmp::Reverse(**id))
            });
            if let Some((_, connection)) = most {
                connection.leave.notify_one();
            }
            return None;
        }
        let id = state.next;
        state.next += 1;
        let leave = Arc::new(Notify::new());
        state.connections.insert(
            id,
            Connection {
                peer,
                busy: false,
                leave: leave.clone(),
            },
        );
        let share = state.shares.entry(peer).or_insert_with(|| {
            let memory = Arc::new(Semaphore::new(MEMORY_OF_PEER / UNIT));
            Arc::new(Share {
                memory,
                large: Arc::new(Semaphore::new(1)),
            })
        });
        let share = share.clone();
        drop(state);
        Some(ConnectionSlot {
            limits: self.clone(),
            id,
            share,
            leave,
            busy_since: Mutex::default(),
        })
    }
}

impl ConnectionSlot {
    /// Returns when this connection has to be closed for another one.
    pub(super) async fn until_evicted(&self) {
        loop {
            self.leave.notified().await;
            if !self.is_busy() {
                return;
            }
        }
    }

    /// Notes that a request has begun, or that its answer has been sent.
    pub(super) fn set_busy(&self, busy: bool) {
        *self.busy_since.lock().unwrap_or_else(PoisonError::into_inner) = busy.then(Instant::now);
        if let Some(connection) = self.limits.state().connections.get_mut(&self.id) {
            connection.busy = busy;
        }
        if !busy {
            self.limits.freed.notify_waiters();
        }
    }

    fn is_busy(&self) -> bool {
        self.busy_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }

    /// How long the current request has been in progress.
    pub(super) fn busy_for(&self) -> Duration {
        let since = *self.busy_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Extends the reservation in `held` to a body of `size` bytes, and waits until there is memory for it.
    pub(super) async fn reserve(&self, held: &mut BodyMemory, size: usize) {
        if size <= FREE {
            return;
        }
        let acquire = async |semaphore: &Arc<Semaphore>, number: usize| {
            // The semaphore is never closed: this cannot fail.
            semaphore
                .clone()
                .acquire_many_owned(u32::try_from(number).unwrap_or(u32::MAX))
                .await
                .ok()
        };
        let units = |permits: usize| {
            permits.saturating_sub(held.0.first().map_or(0, OwnedSemaphorePermit::num_permits))
        };
        let more = units(size.min(SMALL).div_ceil(UNIT));
        if more > 0 {
            for (number, semaphore) in [&self.share.memory, &self.limits.memory].into_iter().enumerate() {
                let Some(permit) = acquire(semaphore, more).await else {
                    return;
                };
                match held.0.get_mut(number) {
                    Some(known) => known.merge(permit),
                    None => held.0.push(permit),
                }
            }
        }
        if size > SMALL && held.0.len() < 4 {
            for semaphore in [&self.share.large, &self.limits.large] {
                held.0.extend(acquire(semaphore, 1).await);
            }
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = self.limits.state();
        let gone = state.connections.remove(&self.id);
        if let Some(peer) = gone.map(|connection| connection.peer)
            && !state.connections.values().any(|connection| connection.peer == peer)
            // No connection of the peer is left that could hold a reservation in it.
            && state.shares.get(&peer).is_some_and(|share| Arc::strong_count(share) <= 2)
        {
            state.shares.remove(&peer);
        }
        drop(state);
        self.limits.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[tokio::test(start_paused = true)]
    async fn webhook_peer_has_a_share_and_idle_connections_make_way() {
        let limits = Arc::new(Limits::default());
        let mut held = Vec::new();
        for number in 0..4 {
            for _ in 0..OF_PEER {
                held.push(limits.enter(peer(number)).await.unwrap());
            }
        }
        held.iter().for_each(|slot| slot.set_busy(true));
        assert!(limits.enter(peer(9)).await.is_none(), "all are at work");
        held[OF_PEER].set_busy(false);
        let makes_way = async {
            held[OF_PEER].until_evicted().await;
            drop(held.remove(OF_PEER));
        };
        let (_, came) = tokio::join!(makes_way, limits.enter(peer(9)));
        assert!(came.is_some());
        drop(held);
        assert_eq!(limits.state().connections.len(), 1);
        drop(came);
        assert!(limits.state().shares.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_wait_for_room_and_one_peer_takes_not_all() {
        let limits = Arc::new(Limits::default());
        let slot = limits.enter(peer(1)).await.unwrap();
        let other = limits.enter(peer(2)).await.unwrap();
        let grows = async |slot: &ConnectionSlot, size: usize| {
            let mut memory = BodyMemory::default();
            tokio::time::timeout(SLOT_TIMEOUT, slot.reserve(&mut memory, size))
                .await
                .ok()
                .map(|()| memory)
        };
        let large = grows(&slot, 2 * SMALL).await.unwrap();
        assert!(grows(&slot, 2 * SMALL).await.is_none(), "one large body a peer");
        assert!(grows(&other, BODY_MAX).await.is_some());
        let mut small = Vec::new();
        while let Some(memory) = grows(&slot, SMALL).await {
            small.push(memory);
        }
        assert_eq!(small.len(), MEMORY_OF_PEER / SMALL - 1);
        assert!(grows(&other, SMALL).await.is_some());
        drop((large, small));
        assert!(grows(&slot, 2 * SMALL).await.is_some());
    }
}
