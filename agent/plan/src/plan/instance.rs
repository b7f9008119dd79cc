//! Data about a pod's Flux instance, for the commands that people run in the pod. It is computed by the same functions
//! as the plan.

use std::collections::BTreeSet;

use flux_shared::agent_spec::AgentSpec;
use flux_shared::names;

use super::hosts::BrokerAddresses;
use super::{
    Binding, BrokerAddress, EnvChange, Owner, PlanError, Resolved, RunAs, Step, environment, follower,
    restful, search_paths, user,
};
use crate::facts::Facts;

/// The instance as one of its pods sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    /// This host's name in the hostlist.
    pub hostname: String,
    /// The rank of this host's broker.
    pub rank: u32,
    pub is_lead: bool,
    /// Every host in rank order, by its name in the hostlist.
    pub hosts: Vec<String>,
    /// Ranks of pods beyond the initial size, to which the cluster can grow. These pods need not exist.
    pub spare: Vec<u32>,
    addresses: BrokerAddresses,
    /// Path of the broker's socket.
    pub socket: String,
    /// The parent broker. None: this is the lead, or the user's own broker.toml names the parent.
    pub parent: Option<BrokerAddress>,
    /// The user that Flux runs as.
    pub owner: Owner,
    /// The same user with its home and name. None: Flux runs as the agent's own user.
    pub run_as: Option<RunAs>,
    /// Changes to the container's environment for Flux.
    pub environment: Vec<EnvChange>,
    /// Further changes for commands of Flux. They hide the user's search paths, as for brokers.
    pub for_flux: Vec<EnvChange>,
    /// Path of the `flux` program, or why none was found.
    pub flux: Result<String, PlanError>,
    /// Port of the Flux RESTful API. None: this host does not serve it.
    pub restful_port: Option<u16>,
    /// A notice about which user Flux runs as (`Identity::notice`).
    pub user_notice: Option<String>,
    /// Whether Flux binds tasks to cores on this host.
    pub binding: Binding,
}

impl Instance {
    /// The instance of the pod that `facts` describe.
    pub fn of(spec: &AgentSpec, facts: &Facts) -> Result<Instance, PlanError> {
        let resolved = Resolved::new(spec, facts)?;
        let parent = if resolved.is_lead() {
            None
        } else {
            follower::parent(&resolved)?
        };
        let steps = user::steps(&resolved)
            .into_iter()
            .chain(environment::steps(&resolved)?);
        let changes = steps.filter_map(|step| match step {
            Step::Environment { changes } => Some(changes),
            _ => None,
        });
        Ok(Instance {
            rank: resolved.rank,
            is_lead: resolved.is_lead(),
            addresses: BrokerAddresses::of(spec, &resolved.domain),
            socket: resolved.socket(),
            parent,
            owner: resolved.identity.owner,
            run_as: user::run_as(&resolved),
            flux: resolved.flux(),
            environment: changes.flatten().collect(),
            for_flux: search_paths::changes(&resolved),
            user_notice: resolved.identity.notice.clone(),
            restful_port: restful::wanted(&resolved).map(|served| served.port),
            spare: spare(spec, &resolved.hosts.names),
            binding: resolved.binding,
            hostname: resolved.hostname,
            hosts: resolved.hosts.names,
        })
    }

    /// The number of brokers without the spare ones.
    pub fn least_brokers(&self) -> usize {
        self.hosts.len() - self.spare.len()
    }

    /// Where the broker of `rank` listens.
    pub fn address_of(&self, rank: u32) -> BrokerAddress {
        let host = self.hosts.get(rank as usize).map_or("", String::as_str);
        self.addresses.of_rank(rank, host)
    }
}

/// The ranks, in ascending order, of those `hosts` that are pods beyond the initial size.
fn spare(spec: &AgentSpec, hosts: &[String]) -> Vec<u32> {
    let spare_hosts: BTreeSet<String> = (spec.size..spec.max_size())
        .map(|index| names::host(&spec.name, index))
        .collect();
    (0..)
        .zip(hosts)
        .filter(|(_, host)| spare_hosts.contains(*host))
        .map(|(rank, _)| rank)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(spec: &str, index: u32) -> Instance {
        let spec = AgentSpec::from_toml(spec).unwrap();
        Instance::of(
            &spec,
            &Facts {
                index: Some(index),
                ..Facts::default()
            },
        )
        .unwrap()
    }

    #[test]
    fn a_follower_has_a_parent_and_the_lead_has_none() {
        let spec = "name='mc'\nsize=3\nnamespace='ns'";
        let lead = instance(spec, 0);
        assert!(lead.is_lead && lead.parent.is_none() && lead.hosts.len() == 3);
        assert_eq!(lead.address_of(2).host, "mc-2.flux-service.ns.svc.cluster.local.");
        let follower = instance(spec, 2);
        assert_eq!((follower.rank, follower.is_lead), (2, false));
        let parent = follower.parent.as_ref().unwrap();
        assert_eq!(
            (parent.host.as_str(), parent.port, parent.only_looked_up),
            ("mc-0.flux-service.ns.svc.cluster.local.", 8050, false)
        );
        assert_eq!(follower.address_of(0), *parent);
        assert_eq!(follower.socket, "/mnt/flux/config/run/flux/local");
    }

    #[test]
    fn pods_that_may_be_asked_for_later_are_spare() {
        let elastic = instance("name='mc'\nsize=2\nmax_size=4", 0);
        assert_eq!(
            (elastic.spare.as_slice(), elastic.least_brokers()),
            ([2, 3].as_slice(), 2)
        );
        let burst = instance(
            "name='mc'\nsize=1\nmax_size=2\n[network]\nhostlist='mc-[0-1],burst-[0-1]'",
            0,
        );
        assert_eq!(burst.spare, [1]);
        assert!(instance("name='mc'\nsize=4", 0).spare.is_empty());
    }

    #[test]
    fn remote_lead_is_at_the_address_that_was_given() {
        for (address, hostlist) in [
            ("lead.example", ""),
            // A name without dots: the pods' service and domain are not appended.
            ("lead", ""),
            // The hostlist begins with the lead's own name. Brokers connect to its address.
            ("10.0.0.1", "hostlist='mc-0,burst-0-[0-1]'"),
        ] {
            let burst = instance(
                &format!(
                    "name='burst-0'\nsize=2\n[network]\nlead={{address='{address}',port=30123}}\n{hostlist}"
                ),
                1,
            );
            let lead = BrokerAddress {
                host: address.into(),
                port: 30123,
                only_looked_up: false,
            };
            assert_eq!(
                (burst.parent.as_ref(), burst.address_of(0)),
                (Some(&lead), lead.clone())
            );
            let own = burst.address_of(burst.rank);
            assert_eq!(
                (own.host.as_str(), own.port),
                ("burst-0-1.flux-service.default.svc.cluster.local.", 8050)
            );
        }
    }
}
