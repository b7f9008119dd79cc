//! What the nodes have, as `resource.sched-status` says it (RFC 20): a core each.

use std::collections::BTreeSet;

use serde_json::{Value, json};

pub fn status(size: usize, takes_jobs: impl Fn(u32) -> bool, allocated: &BTreeSet<u32>) -> String {
    let all: BTreeSet<u32> = (0..).take(size).collect();
    let down = all.iter().copied().filter(|rank| !takes_jobs(*rank)).collect();
    json!({ "all": set(&all), "down": set(&down), "allocated": set(allocated) }).to_string()
}

fn set(ranks: &BTreeSet<u32>) -> Value {
    let list: Vec<String> = ranks.iter().map(u32::to_string).collect();
    let group = json!({ "rank": list.join(","), "children": { "core": "0" } });
    json!({ "version": 1, "execution": { "R_lite": if ranks.is_empty() { vec![] } else { vec![group] } } })
}
