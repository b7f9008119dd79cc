//! Notes on variables of the Go operator's entrypoint that a snippet assigns: it went on with their values, the agent does
//! not.

use super::report::Report;
use super::{ValidMiniCluster, flux};
use crate::crd::v1alpha2::MiniClusterSpec;

/// The entrypoint's variables, but for `brokerOptions`, which reaches the broker.
const WITHOUT_EFFECT: [&str; 17] = [
    "viewbase",
    "viewroot",
    "configroot",
    "software",
    "viewbin",
    "fluxpath",
    "hosts",
    "mainHost",
    "fluxuser",
    "fluxuid",
    "workdir",
    "cfg",
    "fluxsocket",
    "pythonversion",
    "foundroot",
    "curvepath",
    "command",
];

pub(super) fn tell(spec: &MiniClusterSpec, cluster: &ValidMiniCluster, report: &mut Report) {
    let Some((field, _)) = flux::runner(spec) else { return };
    let snippets = &cluster.runner.snippets;
    for (name, source) in [
        ("commands.init", &snippets.init),
        ("preCommand", &snippets.pre_command),
        ("commands.pre", &snippets.pre),
        ("commands.brokerPre", &snippets.broker_pre),
        ("commands.workerPre", &snippets.worker_pre),
    ] {
        for variable in source.iter().flat_map(|source| assigned(source)) {
            report.notice(
                format!("{field}.{name}"),
                format!(
                    "assigns `{variable}`, which snippets alone see: it does not change what Flux does (`brokerOptions` does)"
                ),
            );
        }
    }
}

/// Which of the variables a snippet assigns, at the beginning of a command.
fn assigned(source: &str) -> impl Iterator<Item = &'static str> {
    let commands = source.split(['\n', ';', '&', '|', '(']).map(str::trim_start);
    let names: Vec<&str> = commands
        .map(|command| command.strip_prefix("export ").unwrap_or(command).trim_start())
        .filter_map(|command| command.split_once('='))
        .map(|(name, _)| name.trim_end_matches('+'))
        .collect();
    WITHOUT_EFFECT.into_iter().filter(move |variable| names.contains(variable))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_entrypoint_that_a_snippet_assigns_are_found() {
        let found = |source: &str| assigned(source).collect::<Vec<_>>();
        assert_eq!(
            found("command=\"lmp -v x 4\"\n  cfg=/etc/flux; true && export hosts=a"),
            ["hosts", "cfg", "command"]
        );
        assert_eq!(found("brokerOptions=\"$brokerOptions -Sx=y\""), [""; 0]);
        assert_eq!(found("flux R encode --hosts=${hosts} --local\necho command=1\nmy_command=2 software"), [""; 0]);
    }
}
