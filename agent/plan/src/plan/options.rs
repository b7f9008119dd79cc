//! Command-line options of the broker that are the same on every rank.

use flux_shared::topology::DEFAULT_FANOUT;

use super::{Resolved, node_network};

/// Flux's log level for all messages.
const DEBUG: u8 = 7;

/// The broker's attributes, as options `-SNAME=VALUE`. `without_initial_program`: the broker does not start a shell
/// or another program itself.
pub fn broker(resolved: &Resolved, without_initial_program: bool) -> Vec<String> {
    let (spec, paths) = (resolved.spec, &resolved.paths);
    let flux = &spec.flux;
    // Most attributes, and their order, are those of the earlier operator, in Go.
    let mut options = vec![attribute("cron.directory", paths.cron_dir())];
    options.extend(node_network::attribute(resolved).map(|(name, value)| attribute(name, value)));
    if flux.topology.is_none() {
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
    {
        options.push(attribute("tbon.connect_timeout", timeout));
    }
    if let Some(topology) = &flux.topology {
        options.push(attribute("tbon.topo", topology));
    }
    if let Some(quorum) = quorum(resolved) {
        options.push(attribute("broker.quorum", quorum));
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
