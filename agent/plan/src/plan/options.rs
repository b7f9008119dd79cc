//! Command-line options of every broker.

use flux_shared::flux_duration::DEFAULT_CONNECT_TIMEOUT;
use flux_shared::topology::DEFAULT_FANOUT;
use toml::{Table, Value};

use super::{Resolved, node_network, resources};

/// Flux's log level for all messages.
const DEBUG: u8 = 7;

/// The broker's attributes, as options `-SNAME=VALUE`. `without_initial_program`: the broker does not start a shell
/// or another program itself.
pub fn broker(resolved: &Resolved, without_initial_program: bool) -> Vec<String> {
    let (spec, paths) = (resolved.spec, &resolved.paths);
    let flux = &spec.flux;
    let users_config = users_config(resolved);
    // Most attributes, and their order, are those of the Go operator.
    let mut options = vec![attribute("cron.directory", paths.cron_dir())];
    options.extend(node_network::attribute(resolved).map(|(name, value)| attribute(name, value)));
    if flux.topology.is_none() && !has_topology(&users_config) {
        options.push(attribute("tbon.fanout", DEFAULT_FANOUT));
    }
    options.push(attribute("rundir", paths.run_dir()));
    if without_initial_program {
        options.push("-Sbroker.rc2_none".into());
    }
    options.push(attribute("statedir", paths.state_dir()));
    if !flux.disable_socket {
        options.push(attribute("local-uri", format!("local://{}", paths.socket())));
    }
    // Only a spec that people write can have an empty timeout. It counts as unset.
    if let Some(timeout) = flux
        .connect_timeout
        .as_deref()
        .filter(|timeout| !timeout.is_empty())
        .filter(|timeout| {
            *timeout != DEFAULT_CONNECT_TIMEOUT || !has_tbon_key(&users_config, "connect_timeout")
        })
    {
        options.push(attribute("tbon.connect_timeout", timeout));
    }
    if let Some(topology) = &flux.topology {
        options.push(attribute("tbon.topo", topology));
    }
    if let Some(quorum) = quorum(resolved) {
        // Before 0.51, Flux reads the ranks that it waits for (an idset), and a number is a single rank.
        let is_idset = resolved.facts.is_flux_before(51);
        let value = if is_idset {
            resources::ids(quorum)
        } else {
            quorum.to_string()
        };
        options.push(attribute("broker.quorum", value));
    }
    if spec.logging.zeromq {
        options.push(attribute("tbon.zmqdebug", 1));
    }
    let level = match (spec.logging.quiet, spec.logging.zeromq) {
        // Emergencies only.
        (true, _) => 0,
        // ZeroMQ's messages have the level debug.
        (false, true) => DEBUG,
        (false, false) => flux.log_level,
    };
    options.push(attribute("log-stderr-level", level));
    // Each broker writes its own messages to its own pod's log.
    options.push("-Slog-stderr-mode=local".into());
    options
}

/// The user's own broker.toml. An option overrides what this file sets, so a default must not become an option. The
/// table is empty if there is no file, and also if the file is no TOML (with such a file, no broker starts). Parts
/// (`flux.configs`) cannot set these keys: `OWN_KEYS` in `shared/src/broker_config.rs`.
fn users_config(resolved: &Resolved) -> Table {
    let text = resolved.spec.flux.broker_config.as_deref();
    text.unwrap_or_default().parse().unwrap_or_default()
}

/// Whether broker.toml sets the tree of the brokers: by a topology, or by the parents of the hosts.
fn has_topology(config: &Table) -> bool {
    let hosts = config
        .get("bootstrap")
        .and_then(|bootstrap| bootstrap.get("hosts"));
    let hosts = hosts.and_then(Value::as_array).map(Vec::as_slice);
    has_tbon_key(config, "topo")
        || hosts
            .unwrap_or_default()
            .iter()
            .any(|host| host.get("parent").is_some())
}

fn has_tbon_key(config: &Table, key: &str) -> bool {
    config.get("tbon").and_then(|tbon| tbon.get(key)).is_some()
}

fn attribute(name: &str, value: impl std::fmt::Display) -> String {
    format!("-S{name}={value}")
}

/// Number of brokers that must be up before the program starts. None: Flux's default, all of them.
///
/// If there are more hosts than the initial size, the others need not exist, so the program waits for the initial size.
/// If the lead is in another cluster, `spec.size` is not the size of the instance, but of this cluster alone.
fn quorum(resolved: &Resolved) -> Option<u32> {
    let spec = resolved.spec;
    spec.quorum
        .or_else(|| (resolved.hosts.size() > spec.size && spec.network.lead.is_none()).then_some(spec.size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use flux_shared::agent_spec::AgentSpec;

    #[test]
    fn zeromq_alone_shows_its_lines_unless_quiet() {
        let level = |logging: &str| {
            let spec = AgentSpec::from_toml(&format!("name='mc'\n[flux]\nlog_level=3\n[logging]\n{logging}"))
                .unwrap();
            let options = broker(&Resolved::new(&spec, &Facts::default()).unwrap(), false);
            options
                .iter()
                .find_map(|option| option.strip_prefix("-Slog-stderr-level="))
                .unwrap()
                .to_owned()
        };
        assert_eq!((level("").as_str(), level("zeromq=true").as_str()), ("3", "7"));
        assert_eq!(level("zeromq=true\nquiet=true"), "0");
    }

    #[test]
    fn defaults_override_nothing_in_the_users_broker_toml() {
        let tbon_options = |flux: &str| -> Vec<String> {
            let spec = AgentSpec::from_toml(&format!("name='mc'\nsize=3\n[flux]\n{flux}")).unwrap();
            let options = broker(&Resolved::new(&spec, &Facts::default()).unwrap(), false);
            let names = options.iter().filter_map(|option| option.strip_prefix("-Stbon."));
            names.map(str::to_owned).collect()
        };
        let (fanout, timeout) = ("fanout=256", "connect_timeout=5s");
        let default = "connect_timeout='5s'\nbroker_config='''";
        for text in [
            "a = 1",
            "tbon = 1",
            "not toml",
            "bootstrap.hosts = [{host = 'a'}]",
        ] {
            let options = tbon_options(&format!("{default}{text}'''"));
            assert_eq!(options, [fanout, timeout], "{text}");
        }
        for text in [
            "tbon.topo = 'kary:1'",
            "bootstrap.hosts = [{host = 'a'}, {host = 'b', parent = 'a'}]",
        ] {
            assert_eq!(tbon_options(&format!("{default}{text}'''")), [timeout], "{text}");
        }
        let own_timeout = "broker_config='''tbon.connect_timeout = '7s''''";
        assert_eq!(
            tbon_options(&format!("connect_timeout='5s'\n{own_timeout}")),
            [fanout]
        );
        // 9s is not the default, so the option stays.
        assert_eq!(
            tbon_options(&format!("connect_timeout='9s'\n{own_timeout}")),
            [fanout, "connect_timeout=9s"]
        );
        assert_eq!(
            tbon_options("topology='kary:2'\nbroker_config='''tbon.topo = 'kary:1''''"),
            ["topo=kary:2"]
        );
    }

    #[test]
    fn quorum_is_an_idset_of_ranks_before_flux_051() {
        let option = |size: u32, version: &str| {
            let spec = AgentSpec::from_toml(&format!("name='mc'\nsize={size}\nmax_size=4")).unwrap();
            let facts = Facts {
                flux_version: Some(version.into()),
                ..Facts::default()
            };
            let options = broker(&Resolved::new(&spec, &facts).unwrap(), false);
            let option = options
                .iter()
                .find_map(|option| option.strip_prefix("-Sbroker.quorum="));
            option.unwrap().to_owned()
        };
        assert_eq!(
            (option(2, "0.49.0"), option(1, "0.50.0")),
            ("0-1".into(), "0".into())
        );
        assert_eq!(
            (option(2, "0.51.0"), option(1, "0.88.0")),
            ("2".into(), "1".into())
        );
    }

    #[test]
    fn default_quorum_is_size_only_when_more_hosts_may_join() {
        let quorum_of = |text: &str| {
            let spec = AgentSpec::from_toml(&format!("name='mc'\n{text}")).unwrap();
            quorum(&Resolved::new(&spec, &Facts::default()).unwrap())
        };
        assert_eq!(quorum_of("size=2\nmax_size=4"), Some(2));
        assert_eq!(quorum_of("size=4"), None);
        assert_eq!(quorum_of("size=4\n[network]\nhostlist='mc-[0-1]'"), None);
    }
}
