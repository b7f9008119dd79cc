//! The lead's knowledge of the followers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use super::message;

/// What the lead's broker knows of the followers.
#[derive(Default)]
pub struct Book {
    /// The ranks of the followers that are online. The lead's is not among them.
    pub online: BTreeSet<u32>,
    /// The drained ranks, with the reasons.
    pub drained: BTreeMap<u32, String>,
    /// The followers' ranks on which tasks run, by task number. (The lead's own tasks are not in it.)
    pub tasks: BTreeMap<u64, u32>,
    /// The connection of the lead's agent, once it has joined the group `STAYING` (`broker.rs`).
    pub staying: Option<UnixStream>,
    /// Clients that watch the group of online brokers.
    pub watchers: Vec<UnixStream>,
    /// Whether jobs start. Flux creates named queues stopped.
    pub are_queues_started: bool,
}

impl Book {
    pub fn set_online(&mut self, followers: &BTreeMap<u32, TcpStream>) {
        self.online = followers.keys().copied().collect();
        let answer = message::answer("groups.get", Some(&members(join([0].iter().chain(&self.online)))));
        self.watchers
            .retain_mut(|watcher| watcher.write_all(&answer).is_ok());
    }

    pub fn takes_jobs(&self, rank: u32) -> bool {
        (rank == 0 || self.online.contains(&rank)) && !self.drained.contains_key(&rank)
    }
}

pub fn join<'a>(ranks: impl Iterator<Item = &'a u32>) -> String {
    ranks.map(u32::to_string).collect::<Vec<_>>().join(",")
}

pub fn members(ranks: String) -> String {
    format!("{{\"members\":\"{ranks}\"}}")
}
