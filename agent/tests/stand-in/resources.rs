//! What the nodes have, as `resource.sched-status` says it (RFC 20): a core each, and no job on it.

use serde_json::{Value, json};

pub fn status(size: usize, is_online: impl Fn(u32) -> bool) -> String {
    let all: Vec<u32> = (0..).take(size).collect();
    let down: Vec<u32> = all.iter().copied().filter(|rank| *rank > 0 && !is_online(*rank)).collect();
    json!({ "all": set(&all), "down": set(&down), "allocated": null }).to_string()
}

fn set(ranks: &[u32]) -> Value {
    let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
    let group = json!({ "rank": ranks.join(","), "children": { "core": "0" } });
    json!({ "version": 1, "execution": { "R_lite": if ranks.is_empty() { vec![] } else { vec![group] } } })
}
