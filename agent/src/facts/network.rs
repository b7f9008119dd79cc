//! Names and addresses of this host, from plain files.

use std::net::IpAddr;

use super::FactsError;
use super::host::HostFiles;

/// The name of this host.
pub fn hostname() -> Result<String, FactsError> {
    let name = nix::unistd::gethostname().map_err(|error| FactsError::Hostname(error.to_string()))?;
    name.into_string()
        .map_err(|_| FactsError::Hostname("it is not UTF-8".into()))
}

/// The pod's own address, from the value of a variable that the operator sets. None: no variable, or no valid address.
pub fn parse_address(text: Option<String>) -> Option<String> {
    text?
        .trim()
        .parse()
        .ok()
        .map(|address: IpAddr| address.to_string())
}

/// The host's own address: its line in /etc/hosts, or else the first address of an interface, IPv4 before IPv6,
/// without loopback and link-local ones. None with the node's network: the node's files and interfaces do not say
/// which address the pod's name resolves to.
pub fn address(host: &HostFiles, hostname: &str, is_host_network: bool) -> Option<String> {
    if is_host_network {
        return None;
    }
    let text = host.text("/etc/hosts").unwrap_or_default();
    from_hosts(&text, hostname)
        .or_else(from_interfaces)
        .map(|address| address.to_string())
}

/// The first address of this name in a hosts file. Not a loopback address, which other hosts cannot reach.
fn from_hosts(text: &str, hostname: &str) -> Option<IpAddr> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address: IpAddr = words.next()?.parse().ok()?;
            words.any(|name| name == hostname).then_some(address)
        })
        .find(|address| !address.is_loopback())
}

fn from_interfaces() -> Option<IpAddr> {
    let found: Vec<IpAddr> = nix::ifaddrs::getifaddrs()
        .ok()?
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        })
        .filter(|address| !address.is_loopback() && !is_link_local(address))
        .collect();
    found
        .iter()
        .find(|address| address.is_ipv4())
        .or(found.first())
        .copied()
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The cluster's domain: what follows `svc.` in the search list of resolv.conf.
pub fn cluster_domain(host: &HostFiles) -> Option<String> {
    from_resolv_conf(&host.text("/etc/resolv.conf")?)
}

fn from_resolv_conf(text: &str) -> Option<String> {
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("search"))
        .flat_map(str::split_whitespace)
        .map(|name| name.trim_end_matches('.'))
        .collect();
    let domains: Vec<&str> = names
        .iter()
        .filter_map(|name| name.strip_prefix("svc."))
        .collect();
    // In a namespace called svc, the name of the namespace begins with `svc.`, too.
    let is_of_namespace = |domain: &&&str| {
        let end = format!(".svc.{domain}");
        names.iter().any(|name| name.ends_with(&end))
    };
    let domain = domains.iter().find(is_of_namespace).or(domains.first())?;
    (!domain.is_empty()).then(|| (*domain).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_domain_follows_svc_in_the_search_list() {
        let kubernetes =
            "nameserver 10.96.0.10\nsearch default.svc.corp.example svc.corp.example corp.example lan\n";
        assert_eq!(from_resolv_conf(kubernetes).as_deref(), Some("corp.example"));
        assert_eq!(from_resolv_conf("nameserver 1.1.1.1\nsearch lan\n"), None);
        assert_eq!(from_resolv_conf("search svc.lan\n").as_deref(), Some("lan"));
        for namespace in ["svc", "default"] {
            let search = format!("search {namespace}.svc.cluster.local. svc.cluster.local. cluster.local.\n");
            assert_eq!(
                from_resolv_conf(&search).as_deref(),
                Some("cluster.local"),
                "{namespace}"
            );
        }
    }

    #[test]
    fn host_network_address_is_only_the_one_given() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        std::fs::write(root.path().join("etc/hosts"), "10.0.0.7 node-3\n").unwrap();
        let host = HostFiles::new(root.path());
        assert_eq!(address(&host, "node-3", false).as_deref(), Some("10.0.0.7"));
        assert_eq!(address(&host, "node-3", true), None);
        let parse = |text: &str| parse_address(Some(text.to_owned()));
        assert_eq!(
            (parse("10.0.0.7").as_deref(), parse(" fd00::7\n").as_deref()),
            (Some("10.0.0.7"), Some("fd00::7"))
        );
        assert_eq!(
            (parse(""), parse("node-3"), parse_address(None)),
            (None, None, None),
            "a pod without an address yet"
        );
    }

    #[test]
    fn hosts_file_gives_the_address_of_the_own_name() {
        let text =
            "127.0.0.1 localhost mc-0\n# 10.0.0.9 mc-0\n10.0.0.7\tmc-0.flux-service.default mc-0 # me\n";
        assert_eq!(from_hosts(text, "mc-0"), "10.0.0.7".parse().ok());
        assert_eq!(from_hosts(text, "mc-1"), None);
    }
}
