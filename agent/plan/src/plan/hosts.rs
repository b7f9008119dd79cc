//! The instance's hosts in rank order, and their names in the DNS.

use flux_shared::agent_spec::{AgentSpec, RemoteLead};
use flux_shared::{hostlist, names};

use super::{BrokerAddress, PlanError};

/// The domain where neither the spec nor resolv.conf names one.
const DEFAULT_DOMAIN: &str = "cluster.local";

/// The instance's hosts in rank order.
#[derive(Debug, Clone, PartialEq)]
pub struct Hosts {
    /// The hosts in hostlist syntax (RFC 29), as they are written to files.
    pub list: String,
    /// Every host once, in rank order.
    pub names: Vec<String>,
}

impl Hosts {
    /// The hosts of the spec. A lead in another cluster comes first. If the user's hostlist begins with a host that is
    /// no pod of this cluster, and does not contain the lead's address, that host is the lead. Ranks are then the same
    /// in both clusters. Otherwise the lead's address is put first.
    pub fn of(spec: &AgentSpec) -> Result<Hosts, PlanError> {
        let mut list = spec.hostlist();
        let mut names = hostlist::expand(&list).map_err(PlanError::Hostlist)?;
        let is_own_pod =
            |name: &String| (0..spec.max_size()).any(|index| *name == names::host(&spec.name, index));
        if let Some(lead) = &spec.network.lead
            && (names.contains(&lead.address) || names.first().is_none_or(is_own_pod))
            && names.first() != Some(&lead.address)
        {
            names.retain(|name| *name != lead.address);
            names.insert(0, lead.address.clone());
            list = encode(&names);
        }
        match names.iter().find(|name| !hostlist::is_bootstrap_host(name)) {
            Some(name) => Err(PlanError::Hostlist(format!("`{name}` is not a host name"))),
            None if names.is_empty() => Err(PlanError::Hostlist("it is empty".into())),
            None => Ok(Hosts { list, names }),
        }
    }

    pub fn rank_of(&self, host: &str) -> Result<u32, PlanError> {
        hostlist::rank_of(&self.names, host).ok_or_else(|| PlanError::NotInHostlist {
            host: host.into(),
            hostlist: self.list.clone(),
        })
    }

    pub fn size(&self) -> u32 {
        u32::try_from(self.names.len()).unwrap_or(u32::MAX)
    }

    /// The host of `rank`; empty if there is none.
    pub fn name(&self, rank: u32) -> &str {
        self.names.get(rank as usize).map_or("", String::as_str)
    }
}

/// A hostlist that names each of `names` exactly once, in this order. Neighbours with consecutive numbers become a
/// range.
pub fn encode(names: &[String]) -> String {
    let mut entries: Vec<(String, Option<(u64, u64)>)> = Vec::new();
    for name in names {
        let (prefix, number) = numbered(name);
        match (entries.last_mut(), number) {
            (Some((last, Some((_, end)))), Some(number)) if *last == prefix && *end + 1 == number => {
                *end = number
            }
            _ => entries.push((prefix, number.map(|number| (number, number)))),
        }
    }
    let entry = |(prefix, range): (String, Option<(u64, u64)>)| match range {
        None => prefix,
        Some((first, last)) if first == last => format!("{prefix}{first}"),
        Some((first, last)) => format!("{prefix}[{first}-{last}]"),
    };
    entries.into_iter().map(entry).collect::<Vec<String>>().join(",")
}

/// A name's prefix and number, if it is a prefix and then a number of at most 12 digits without padding. Otherwise the
/// whole name, without a number. (`hostlist::expand` reads ranges of at most 15 digits.)
fn numbered(name: &str) -> (String, Option<u64>) {
    let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = &name[prefix.len()..];
    let is_padded = digits.len() > 1 && digits.starts_with('0');
    match (
        is_padded || digits.len() > 12 || prefix.is_empty(),
        digits.parse(),
    ) {
        (false, Ok(number)) => (prefix.to_owned(), Some(number)),
        _ => (name.to_owned(), None),
    }
}

/// The cluster's domain: from the spec, else from the host, else the default.
pub fn domain(spec: &AgentSpec, from_host: Option<&str>) -> String {
    let chosen = spec
        .network
        .cluster_domain
        .as_deref()
        .or(from_host)
        .unwrap_or(DEFAULT_DOMAIN);
    chosen.trim_end_matches('.').to_owned()
}

/// The addresses on which brokers listen.
#[derive(Debug, Clone, PartialEq)]
pub struct BrokerAddresses {
    remote_lead: Option<RemoteLead>,
    /// What follows a host's name in the DNS, with a dot at both ends. The last dot makes the name absolute, so that
    /// the resolver does not use its search list.
    suffix: String,
    port: u16,
    /// Whether the agent only looks up a broker's name and does not connect. With `logging.zeromq`, the broker would
    /// log such a connection as a failed handshake.
    only_looked_up: bool,
}

impl BrokerAddresses {
    pub fn of(spec: &AgentSpec, domain: &str) -> BrokerAddresses {
        BrokerAddresses {
            remote_lead: spec.network.lead.clone(),
            suffix: format!("{}.", suffix(spec, domain)),
            port: spec.network.port,
            only_looked_up: spec.logging.zeromq,
        }
    }

    /// The broker of `rank`, on `host`: a remote lead at the spec's address, any other at its full DNS name.
    pub fn of_rank(&self, rank: u32, host: &str) -> BrokerAddress {
        let (host, port) = match &self.remote_lead {
            Some(lead) if rank == 0 => (lead.address.clone(), lead.port),
            _ => (format!("{host}{}", self.suffix), self.port),
        };
        BrokerAddress {
            host,
            port,
            only_looked_up: self.only_looked_up,
        }
    }
}

/// What follows a pod's host name in the DNS, with the leading dot and without a trailing one.
pub fn suffix(spec: &AgentSpec, domain: &str) -> String {
    format!(".{}.{}.svc.{domain}", spec.network.service, spec.namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_lead_comes_first_once() {
        let hosts = |text: &str| Hosts::of(&AgentSpec::from_toml(text).unwrap()).unwrap();
        let local = hosts("name='mc'\nsize=3");
        assert_eq!((local.list.as_str(), local.size()), ("mc-[0-2]", 3));
        let named = "name='burst-0'\nsize=2\n[network]\nhostlist='10.0.0.1,mc-[1-3],burst-0-[0-1]'\nlead={address='10.0.0.1'}";
        assert_eq!(hosts(named).list, "10.0.0.1,mc-[1-3],burst-0-[0-1]");
        let lead_as_host_name =
            "name='b'\nsize=2\n[network]\nhostlist='mc-[0-1],b-[0-1]'\nlead={address='10.0.0.1'}";
        assert_eq!(
            hosts(lead_as_host_name).list,
            "mc-[0-1],b-[0-1]",
            "the lead is mc-0, as on its own side"
        );
        let bare = "name='burst-0'\nsize=2\n[network]\nlead={address='lead.example'}";
        assert_eq!(hosts(bare).list, "lead.example,burst-0-[0-1]");
    }

    #[test]
    fn hostlist_that_flux_rejects_is_rejected_by_the_plan() {
        for list in ["", "a_b", "mc-[0-1][0-1]"] {
            let spec = AgentSpec::from_toml(&format!("name='mc'\n[network]\nhostlist='{list}'")).unwrap();
            assert!(Hosts::of(&spec).is_err(), "{list}");
        }
    }

    proptest::proptest! {
        #[test]
        fn an_encoded_list_expands_to_the_same_hosts(names in proptest::collection::btree_set("[a-c](-?[0-9]{0,3})", 1..20)) {
            let names: Vec<String> = names.into_iter().filter(|name| hostlist::is_bootstrap_host(name)).collect();
            proptest::prop_assert_eq!(hostlist::expand(&encode(&names)).unwrap(), names);
        }
    }
}
