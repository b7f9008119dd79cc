//! Limits on the webhook's connections and on the memory for request bodies. Anybody in the cluster can call it. So
//! each peer (IP address) has a share, new connections replace idle ones, and the memory of all bodies is bounded.
//!
//! tower's limits do not fit: they count the requests of a service without knowing the peer, and cannot close an idle
//! connection for a new one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Most connections at the same time. The API server needs only a few.
const CONNECTIONS: usize = 128;
/// Most connections of one peer.
const CONNECTIONS_OF_PEER: usize = 32;
/// Most connections that wait for a slot, in all and of one peer.
const WAITING: usize = 256;
const WAITING_OF_PEER: usize = 8;
/// How long a connection waits for a slot.
const SLOT_TIMEOUT: Duration = Duration::from_secs(5);

/// A body of at most this many bytes needs no reservation. Most bodies are smaller.
const UNRESERVED_MAX: usize = 32 << 10;
/// Largest body, in bytes, whose whole size is reserved from `MEMORY`. A larger body reserves this much, and one of the
/// `LARGE_BODIES`.
const SMALL_BODY_MAX: usize = 1 << 20;
/// Largest body that is accepted, in bytes: some thousand MiniClusters.
pub(super) const BODY_MAX: usize = 32 << 20;
/// Bytes that one permit of a memory semaphore stands for.
const UNIT: usize = 16 << 10;
/// Bytes that can be reserved for all bodies together, and for those of one peer.
const MEMORY: usize = 12 << 20;
const MEMORY_OF_PEER: usize = MEMORY / 4;
/// Most bodies larger than `SMALL_BODY_MAX` at the same time. Each peer may have one of them.
const LARGE_BODIES: usize = 2;

/// The connections and the memory that are in use.
#[derive(Debug)]
pub(super) struct Limits {
    state: Mutex<LimitState>,
    /// Notified when a connection ends or becomes idle.
    freed: Notify,
    /// Memory for all bodies, in permits of `UNIT` bytes.
    memory: Arc<Semaphore>,
    /// Permits for bodies larger than `SMALL_BODY_MAX`.
    large: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct LimitState {
    /// Id of the next connection.
    next_id: u64,
    connections: HashMap<u64, Connection>,
    shares: HashMap<IpAddr, Arc<Share>>,
    /// Number of connections that wait for a slot.
    waiting: HashMap<IpAddr, usize>,
}

/// A connection of this peer that is counted as waiting for a slot, until this is dropped.
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
    /// Whether a request is in progress.
    busy: bool,
    /// Notified when the connection has to be closed for another one.
    leave: Arc<Notify>,
}

/// Memory that one peer may reserve: as in [`Limits`], but only for this peer.
#[derive(Debug)]
struct Share {
    memory: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

/// The slot of an open connection, until this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    limits: Arc<Limits>,
    id: u64,
    share: Arc<Share>,
    leave: Arc<Notify>,
    /// When the current request began; None: the connection is idle.
    busy_since: Mutex<Option<Instant>>,
}

/// Memory reserved for a body, until this is dropped. Each part is reserved from the peer's share and from that of all.
#[derive(Debug, Default)]
pub(super) struct BodyMemory {
    of_peer: Option<OwnedSemaphorePermit>,
    of_all: Option<OwnedSemaphorePermit>,
    /// For a body larger than `SMALL_BODY_MAX`.
    large_of_peer: Option<OwnedSemaphorePermit>,
    large_of_all: Option<OwnedSemaphorePermit>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            state: Mutex::default(),
            freed: Notify::new(),
            memory: Arc::new(Semaphore::new(MEMORY / UNIT)),
            large: Arc::new(Semaphore::new(LARGE_BODIES)),
        }
    }
}

impl Limits {
    fn state(&self) -> MutexGuard<'_, LimitState> {
        self.state.lock()
    }

    /// Counts a connection of `peer` as waiting for a slot. None: too many wait already.
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
            // Created before the attempt, so that no notification is missed in between.
            let freed = self.freed.notified();
            if let Some(slot) = self.try_enter(peer) {
                return Some(slot);
            }
            // If `try_enter` has asked an idle connection to close, the end of that connection notifies `freed`.
            tokio::time::timeout_at(until, freed).await.ok()?;
        }
    }

    /// Takes a slot if there is one. Otherwise asks an idle connection to close, if there is one.
    fn try_enter(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionSlot> {
        let mut state = self.state();
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for connection in state.connections.values() {
            *counts.entry(connection.peer).or_default() += 1;
        }
        let has_too_many = counts
            .get(&peer)
            .is_some_and(|count| *count >= CONNECTIONS_OF_PEER);
        if has_too_many || state.connections.len() >= CONNECTIONS {
            // The oldest idle connection of the peer with the most connections. If this peer has too many itself, the
            // oldest of its own.
            let idle = state
                .connections
                .iter()
                .filter(|(_, connection)| !connection.busy && (!has_too_many || connection.peer == peer));
            let victim = idle.max_by_key(|(id, connection)| {
                (counts.get(&connection.peer).copied(), std::cmp::Reverse(**id))
            });
            if let Some((_, connection)) = victim {
                connection.leave.notify_one();
            }
            return None;
        }
        let id = state.next_id;
        state.next_id += 1;
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
            // A request may have begun since this connection was chosen.
            if !self.is_busy() {
                return;
            }
        }
    }

    /// Notes that a request has begun, or that its answer has been sent.
    pub(super) fn set_busy(&self, busy: bool) {
        *self.busy_since.lock() = busy.then(Instant::now);
        if let Some(connection) = self.limits.state().connections.get_mut(&self.id) {
            connection.busy = busy;
        }
        if !busy {
            self.limits.freed.notify_waiters();
        }
    }

    fn is_busy(&self) -> bool {
        self.busy_since.lock().is_some()
    }

    /// How long the current request has been in progress; zero if there is none.
    pub(super) fn busy_for(&self) -> Duration {
        let since = *self.busy_since.lock();
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Extends the reservation `held` to a body of `size` bytes; waits until there is memory for it.
    pub(super) async fn reserve(&self, held: &mut BodyMemory, size: usize) {
        if size <= UNRESERVED_MAX {
            return;
        }
        let held_permits = held.of_peer.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = size
            .min(SMALL_BODY_MAX)
            .div_ceil(UNIT)
            .saturating_sub(held_permits);
        if missing > 0 {
            // The peer's share first: a peer that has used it up takes nothing more from the others.
            acquire(&mut held.of_peer, &self.share.memory, missing).await;
            acquire(&mut held.of_all, &self.limits.memory, missing).await;
        }
        if size > SMALL_BODY_MAX && held.large_of_all.is_none() {
            acquire(&mut held.large_of_peer, &self.share.large, 1).await;
            acquire(&mut held.large_of_all, &self.limits.large, 1).await;
        }
    }
}

/// Adds `number` permits of the semaphore to `held`; waits until there are so many.
async fn acquire(held: &mut Option<OwnedSemaphorePermit>, semaphore: &Arc<Semaphore>, number: usize) {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    // The semaphore is never closed: this cannot fail.
    let Ok(permit) = semaphore.clone().acquire_many_owned(number).await else {
        return;
    };
    match held {
        Some(held) => held.merge(permit),
        None => *held = Some(permit),
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = self.limits.state();
        let removed = state.connections.remove(&self.id);
        if let Some(peer) = removed.map(|connection| connection.peer)
            && !state
                .connections
                .values()
                .any(|connection| connection.peer == peer)
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
            for _ in 0..CONNECTIONS_OF_PEER {
                held.push(limits.enter(peer(number)).await.unwrap());
            }
            held.iter().for_each(|slot| slot.set_busy(true));
            assert!(limits.enter(peer(number)).await.is_none(), "it has its share");
        }
        assert!(limits.enter(peer(9)).await.is_none(), "no connection is idle");
        held[CONNECTIONS_OF_PEER].set_busy(false);
        let makes_way = async {
            held[CONNECTIONS_OF_PEER].until_evicted().await;
            drop(held.remove(CONNECTIONS_OF_PEER));
        };
        let (_, entered) = tokio::join!(makes_way, limits.enter(peer(9)));
        assert!(entered.is_some());
        drop(held);
        assert_eq!(limits.state().connections.len(), 1);
        drop(entered);
        assert!(limits.state().shares.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_wait_for_memory_and_one_peer_never_takes_all() {
        let limits = Arc::new(Limits::default());
        let slot = limits.enter(peer(1)).await.unwrap();
        let other = limits.enter(peer(2)).await.unwrap();
        let try_reserve = async |slot: &ConnectionSlot, size: usize| {
            let mut memory = BodyMemory::default();
            tokio::time::timeout(SLOT_TIMEOUT, slot.reserve(&mut memory, size))
                .await
                .ok()
                .map(|()| memory)
        };
        let large = try_reserve(&slot, 2 * SMALL_BODY_MAX).await.unwrap();
        assert!(
            try_reserve(&slot, 2 * SMALL_BODY_MAX).await.is_none(),
            "one large body a peer"
        );
        assert!(try_reserve(&other, BODY_MAX).await.is_some());
        let mut small = Vec::new();
        while let Some(memory) = try_reserve(&slot, SMALL_BODY_MAX).await {
            small.push(memory);
        }
        assert_eq!(small.len(), MEMORY_OF_PEER / SMALL_BODY_MAX - 1);
        assert!(try_reserve(&other, SMALL_BODY_MAX).await.is_some());
        drop((large, small));
        assert!(try_reserve(&slot, 2 * SMALL_BODY_MAX).await.is_some());
    }
}
