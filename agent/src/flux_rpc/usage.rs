//! The resources and jobs of an instance, in numbers.
//!
//! ```text
//! `groups.get`, `resource.sched-status`, `resource.status`, `job-list.job-stats` ─► count (pure) ─► Usage
//! ```

use std::collections::{BTreeMap, BTreeSet};

use flux_shared::hostlist;
use flux_shared::usage::{Brokers, Host, HostState, InstanceResources, Jobs, States, Usage};
use serde_json::Value;

use super::connection::Broker;
use super::message::AskError;

/// The instance's hosts.
#[derive(Debug, Clone, Copy)]
pub struct KnownHosts<'a> {
    /// Their names, in rank order.
    pub hosts: &'a [String],
    /// Ranks that the cluster may grow by, sorted.
    pub spare: &'a [u32],
}

/// The answers of the lead's broker; null if there was no answer.
#[derive(Debug, Default)]
struct Answers {
    online: Value,
    resources: Value,
    drained: Value,
    jobs: Value,
}

/// Ranks whose brokers are connected. None: the lead does not answer.
pub async fn online(broker: &Broker) -> Option<BTreeSet<u32>> {
    let members = online_members(broker).await;
    let ranks = hostlist::idset(members.as_str()?)?;
    Some(ranks.into_iter().collect())
}

async fn online_members(broker: &Broker) -> Value {
    let group = "{\"name\":\"broker.online\"}";
    let mut answer = broker.ask(0, "groups.get", group).await.unwrap_or_default();
    answer["members"].take()
}

/// The instance's usage, asked of the lead through this pod's broker. What the lead does not know yet is left out. The
/// caller sets `state` and `seconds`. `has_resources`: whether nodes and jobs are known at all, by the state of this
/// pod's broker.
pub async fn full(broker: &Broker, instance: KnownHosts<'_>, has_resources: bool) -> Usage {
    let ask = async |topic: &str, payload: &str| broker.ask(0, topic, payload).await.unwrap_or_default();
    let mut answers = Answers {
        online: online_members(broker).await,
        ..Answers::default()
    };
    if has_resources {
        answers.resources = resource_sets(broker).await.unwrap_or_default();
        answers.drained = ask("resource.status", "{}").await["drain"].take();
        answers.jobs = ask("job-list.job-stats", "{}").await;
    }
    count(&answers, instance)
}

/// Nodes and jobs for the metrics, asked of the lead, without brokers and host names. What the lead does not know yet
/// is left out. Drained and spare nodes count as down, since the metrics count only nodes that are up.
pub async fn nodes_and_jobs(broker: &Broker) -> Usage {
    let answers = Answers {
        resources: resource_sets(broker).await.unwrap_or_default(),
        jobs: broker
            .ask(0, "job-list.job-stats", "{}")
            .await
            .unwrap_or_default(),
        ..Answers::default()
    };
    count(
        &answers,
        KnownHosts {
            hosts: &[],
            spare: &[],
        },
    )
}

/// Nodes by their ranks, as the lead sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes {
    /// Ranks that accept jobs.
    pub accepting: BTreeSet<u32>,
    /// Ranks with resources that are allocated to jobs.
    pub allocated: BTreeSet<u32>,
}

/// The nodes that accept jobs, and those with resources allocated to jobs. None: the lead does not answer.
pub async fn nodes(broker: &Broker) -> Option<Nodes> {
    let resources = resource_sets(broker).await.ok().filter(Value::is_object)?;
    let ranks = |set: &str| -> BTreeSet<u32> { amounts(&resources[set]).into_keys().collect() };
    Some(Nodes {
        accepting: &ranks("all") - &ranks("down"),
        allocated: ranks("allocated"),
    })
}

/// The resource sets `all`, `down` and `allocated`.
async fn resource_sets(broker: &Broker) -> Result<Value, AskError> {
    match broker.ask(0, "resource.sched-status", "{}").await {
        // Before flux-core 0.61, only the scheduler answered this.
        Err(AskError::Answer(_)) => broker.ask(0, "sched.resource-status", "{}").await,
        answer => answer,
    }
}

fn count(answers: &Answers, instance: KnownHosts) -> Usage {
    let online = answers.online.as_str().and_then(hostlist::idset);
    // A spare broker that is online is part of the instance: it has grown (maxSize).
    let is_spare = |rank: &&u32| instance.spare.binary_search(rank).is_ok();
    let joined = online.iter().flatten().filter(is_spare).count();
    Usage {
        brokers: Brokers {
            size: instance.hosts.len() - instance.spare.len() + joined,
            online: online.as_ref().map(|ranks| ranks.len()),
        },
        resources: answers
            .resources
            .is_object()
            .then(|| resources(answers, instance)),
        jobs: answers.jobs["job_states"]
            .is_object()
            .then(|| jobs(&answers.jobs)),
        ..Usage::default()
    }
}

fn resources(answers: &Answers, instance: KnownHosts) -> InstanceResources {
    let (all, down, allocated) = {
        let set = |name: &str| amounts(&answers.resources[name]);
        (set("all"), set("down"), set("allocated"))
    };
    let drained: Vec<u32> = answers
        .drained
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(ranks, _)| hostlist::idset(ranks))
        .flatten()
        .collect();
    let online = answers.online.as_str().and_then(hostlist::idset);
    let mut sum = InstanceResources::default();
    for (rank, Amount { cores, gpus }) in all {
        let is_online = online.as_ref().is_none_or(|online| online.contains(&rank));
        // The set `down` has all ranks that accept no jobs, the drained ones as well.
        let state = if !down.contains_key(&rank) {
            HostState::Up
        } else if is_online && drained.contains(&rank) {
            HostState::Drained
        } else if !is_online && instance.spare.binary_search(&rank).is_ok() {
            HostState::Spare
        } else {
            HostState::Down
        };
        let used = allocated.get(&rank).copied();
        let (cores_used, gpus_used) = used.map_or((0, 0), |used| (used.cores, used.gpus));
        sum.nodes.add(state, 1, used.is_some().into());
        sum.cores.add(state, cores, cores_used);
        sum.gpus.add(state, gpus, gpus_used);
        let name = instance.hosts.get(rank as usize).cloned().unwrap_or_default();
        sum.hosts.push(Host {
            rank,
            name,
            state,
            cores,
            cores_used,
            gpus,
            gpus_used,
        });
    }
    sum
}

#[derive(Debug, Clone, Copy, Default)]
struct Amount {
    cores: usize,
    gpus: usize,
}

/// Cores and GPUs on each rank of a resource set (RFC 20). Fluxion's empty set is null.
fn amounts(r: &Value) -> BTreeMap<u32, Amount> {
    let mut found: BTreeMap<u32, Amount> = BTreeMap::new();
    for group in r["execution"]["R_lite"].as_array().into_iter().flatten() {
        let ids = |value: &Value| value.as_str().and_then(hostlist::idset).unwrap_or_default();
        let (cores, gpus) = (
            ids(&group["children"]["core"]).len(),
            ids(&group["children"]["gpu"]).len(),
        );
        for rank in ids(&group["rank"]) {
            let amount = found.entry(rank).or_default();
            amount.cores += cores;
            amount.gpus += gpus;
        }
    }
    found
}

fn jobs(stats: &Value) -> Jobs {
    let state = |name: &str| stats["job_states"][name].as_u64().unwrap_or_default();
    let count = |name: &str| stats[name].as_u64().unwrap_or_default();
    Jobs {
        waiting: state("depend") + state("priority") + state("sched"),
        running: state("run") + state("cleanup"),
        ended: state("inactive"),
        successful: count("successful"),
        failed: count("failed"),
        canceled: count("canceled"),
        timeout: count("timeout"),
        states: States {
            new: state("new"),
            depend: state("depend"),
            priority: state("priority"),
            sched: state("sched"),
            run: state("run"),
            cleanup: state("cleanup"),
            inactive: state("inactive"),
        },
    }
}

#[cfg(test)]
mod tests {
    use flux_shared::usage::Count;
    use serde_json::json;

    use super::*;

    fn r(groups: Value) -> Value {
        json!({ "version": 1, "execution": { "R_lite": groups, "starttime": 0, "expiration": 0, "nodelist": ["mc-[0-4]"] } })
    }

    #[test]
    fn usage_counts_nodes_cores_and_gpus_in_use_and_usable() {
        let hosts: Vec<String> = (0..5).map(|rank| format!("mc-{rank}")).collect();
        let answers = Answers {
            online: json!("0-2"),
            // Answers of flux-core 0.88, with nodes that differ.
            resources: json!({
                "all": r(json!([
                    { "rank": "0-1,3-4", "children": { "core": "0-3" } }, { "rank": "2", "children": { "core": "0-7", "gpu": "0-1" } },
                ])),
                "down": r(json!([
                    { "rank": "1,3-4", "children": { "core": "0-3" } },
                ])),
                "allocated": r(json!([
                    { "rank": "0", "children": { "core": "1" } }, { "rank": "2", "children": { "core": "0-1", "gpu": "1" } },
                ])),
            }),
            drained: json!({ "1": { "reason": "hot", "timestamp": 1.0 } }),
            jobs: json!({
                "job_states": { "depend": 1, "priority": 0, "sched": 2, "run": 2, "cleanup": 1, "inactive": 9, "total": 15 },
                "successful": 5, "failed": 2, "canceled": 1, "timeout": 1, "inactive_purged": 3, "queues": [],
            }),
        };
        let usage = count(
            &answers,
            KnownHosts {
                hosts: &hosts,
                spare: &[4],
            },
        );
        assert_eq!(
            usage.brokers,
            Brokers {
                size: 4,
                online: Some(3)
            }
        );
        let resources = usage.resources.unwrap();
        assert_eq!(
            resources.nodes,
            Count {
                total: 4,
                used: 2,
                free: 0,
                down: 2
            }
        );
        assert_eq!(
            resources.cores,
            Count {
                total: 20,
                used: 3,
                free: 9,
                down: 8
            }
        );
        assert_eq!(
            resources.gpus,
            Count {
                total: 2,
                used: 1,
                free: 1,
                down: 0
            }
        );
        let states: Vec<&str> = resources.hosts.iter().map(|host| host.state.word()).collect();
        assert_eq!(states, ["up", "drained", "up", "down", "spare"]);
        assert_eq!(
            (resources.hosts[2].name.as_str(), resources.hosts[2].gpus_used),
            ("mc-2", 1)
        );
        let jobs = usage.jobs.unwrap();
        assert_eq!(
            (
                jobs.waiting,
                jobs.running,
                jobs.ended,
                jobs.successful,
                jobs.failed
            ),
            (3, 3, 9, 5, 2)
        );
        let states = States {
            depend: 1,
            sched: 2,
            run: 2,
            cleanup: 1,
            inactive: 9,
            ..States::default()
        };
        assert_eq!(jobs.states, states);
    }

    #[test]
    fn usage_counts_spare_brokers_that_are_online() {
        let hosts: Vec<String> = (0..3).map(|rank| format!("mc-{rank}")).collect();
        for (ranks, size) in [("0", 1), ("0-1", 2), ("0-2", 3), ("", 1)] {
            let answers = Answers {
                online: json!(ranks),
                ..Answers::default()
            };
            let instance = KnownHosts {
                hosts: &hosts,
                spare: &[1, 2],
            };
            assert_eq!(count(&answers, instance).brokers.size, size, "{ranks}");
        }
    }

    #[test]
    fn usage_is_none_where_unknown_and_zero_where_idle() {
        let hosts = ["mc-0".to_owned()];
        let instance = KnownHosts {
            hosts: &hosts,
            spare: &[],
        };
        let usage = count(&Answers::default(), instance);
        assert_eq!(
            (usage.brokers.online, usage.resources, usage.jobs),
            (None, None, None)
        );
        // Fluxion's empty sets.
        let idle = json!({ "all": r(json!([{ "rank": "0", "children": { "core": "0" } }])), "down": null, "allocated": null });
        let usage = count(
            &Answers {
                resources: idle,
                ..Answers::default()
            },
            instance,
        );
        let resources = usage.resources.unwrap();
        assert_eq!(
            (resources.nodes, resources.cores.free),
            (
                Count {
                    total: 1,
                    used: 0,
                    free: 1,
                    down: 0
                },
                1
            )
        );
    }
}
