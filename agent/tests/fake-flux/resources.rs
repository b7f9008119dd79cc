//! The resources of the nodes, in Flux's format R (RFC 20).

use std::collections::BTreeSet;

use flux_shared::hostlist::expand;
use serde_json::{Value, json};

use crate::broker;

/// `flux R encode`: every host with the same cores and GPUs.
pub fn encode(words: &[&str]) -> Option<String> {
    let option = |name: &str| {
        words
            .iter()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let hosts = option("--hosts").filter(|hosts| !hosts.is_empty())?;
    let count = expand(hosts).ok()?.len();
    let mut children = json!({ "core": option("--cores").unwrap_or("0") });
    // Flux accepts this short form of `--gpus`, which public manifests have.
    if let Some(gpus) = option("--gpu") {
        children["gpu"] = gpus.into();
    }
    let ranks = if count == 1 {
        "0".to_owned()
    } else {
        format!("0-{}", count - 1)
    };
    let kinds = [json!({ "rank": ranks, "children": children })];
    let execution = json!({ "R_lite": kinds, "starttime": 0.0, "expiration": 0.0, "nodelist": [hosts] });
    Some(json!({ "version": 1, "execution": execution }).to_string())
}

/// `flux resource list -no FORM`: from R if the broker has one, else one core for each node.
pub fn list(form: &str) -> Option<String> {
    let size: usize = broker::ask("getattr size")?.parse().ok()?;
    let r: Value = serde_json::from_str(&broker::ask("resources")?).unwrap_or_default();
    // How many ids are in a set such as `0-3`: as many as hosts in `n[0-3]`.
    let ids = |set: &Value| {
        set.as_str()
            .and_then(|set| Some(expand(&format!("n[{set}]")).ok()?.len()))
            .unwrap_or(0)
    };
    let of_kind = |kind: &Value, name: &str| ids(&kind["rank"]) * ids(&kind["children"][name]);
    let count = |name: &str| {
        let kinds = r["execution"]["R_lite"].as_array();
        kinds.map(|kinds| kinds.iter().map(|kind| of_kind(kind, name)).sum::<usize>())
    };
    let (cores, gpus) = (count("core").unwrap_or(size), count("gpu").unwrap_or(0));
    let line = form
        .replace("{nnodes}", &size.to_string())
        .replace("{ncores}", &cores.to_string());
    Some(line.replace("{ngpus}", &gpus.to_string()))
}

/// The answer to `resource.sched-status`: each node has one core.
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
