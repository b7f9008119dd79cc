//! `list`: the MiniClusters of one namespace, or of all namespaces.

use comfy_table::{Table, presets};
use flux_shared::crd::v1alpha2::MiniCluster;
use flux_shared::printable::printable;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::failure::Failure;
use crate::observed;
use crate::output::Output;
use crate::screen;
use crate::target::Target;

/// Arguments of `list`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// List the MiniClusters of all namespaces
    #[arg(long, short = 'A')]
    pub all_namespaces: bool,
}

/// Prints the MiniClusters.
pub async fn run(target: &Target, args: &Args, output: Output) -> Result<u8, Failure> {
    let clusters = if args.all_namespaces {
        Api::all(target.client.clone())
    } else {
        target.clusters()
    };
    let all = clusters
        .list(&ListParams::default())
        .await
        .map_err(Failure::call("list MiniClusters"))?
        .items;
    if all.is_empty() && output.format.is_none() {
        let place = if args.all_namespaces {
            "any namespace".into()
        } else {
            format!("namespace {}", target.namespace)
        };
        screen::tell(&format!("no MiniClusters in {place}"));
        return Ok(0);
    }
    output
        .show(&all, || table(&all, args.all_namespaces, Timestamp::now()))
        .map(|()| 0)
}

fn table(all: &[MiniCluster], with_namespaces: bool, now: Timestamp) -> String {
    let namespace = with_namespaces.then_some("NAMESPACE");
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(
        namespace
            .into_iter()
            .chain(["NAME", "STATUS", "SIZE", "READY", "EXIT", "AGE", "REASON"]),
    );
    for cluster in all {
        let status = cluster.status.clone().unwrap_or_default();
        let namespace = with_namespaces.then(|| cluster.namespace().unwrap_or_default());
        table.add_row(
            namespace.into_iter().chain([
                cluster.name_any(),
                observed::phase_of(cluster.status.as_ref()).to_owned(),
                cluster.spec.size.to_string(),
                status.ready_size.to_string(),
                status.exit_code.map(|code| code.to_string()).unwrap_or_default(),
                cluster
                    .creation_timestamp()
                    .map(|at| age(at.0, now))
                    .unwrap_or_default(),
                status.reason.unwrap_or_default(),
            ]),
        );
    }
    printable(&(screen::lines_of(&table).join("\n") + "\n")).into_owned()
}

/// The age in one unit, rounded down. Minutes begin at 2 minutes, hours at 2 hours, days at 2 days.
fn age(since: Timestamp, now: Timestamp) -> String {
    match now.as_second().saturating_sub(since.as_second()).max(0) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn list_shows_status_exit_code_and_age() {
        let cluster = json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
            "metadata": { "name": "work", "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "size": 2, "containers": [{ "image": "a" }] },
            "status": { "phase": "Failed", "exitCode": 7, "reason": "NonZeroExitCode" },
        });
        let all: Vec<MiniCluster> = vec![serde_json::from_value(cluster).unwrap()];
        let words = |text: &str| {
            text.lines()
                .map(|line| line.split_whitespace().map(str::to_owned).collect())
                .collect()
        };
        let shown: Vec<Vec<String>> = words(&table(&all, true, "2026-01-01T00:03:00Z".parse().unwrap()));
        assert_eq!(
            shown[1],
            ["team", "work", "Failed", "2", "0", "7", "3m", "NonZeroExitCode"]
        );
        assert_eq!(shown[0].len(), shown[1].len());
    }

    #[test]
    fn list_shows_no_terminal_codes() {
        let cluster = json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "work" },
            "spec": { "size": 2, "containers": [{ "image": "a" }] }, "status": { "reason": "a\u{1b}[2Jb" },
        });
        let text = table(
            &[serde_json::from_value(cluster).unwrap()],
            false,
            Timestamp::UNIX_EPOCH,
        );
        assert!(text.ends_with("a\u{fffd}[2Jb\n"), "{text:?}");
    }

    #[test]
    fn age_has_one_unit() {
        let since = |seconds| age(Timestamp::UNIX_EPOCH, Timestamp::from_second(seconds).unwrap());
        assert_eq!(
            [0, 119, 120, 7_200, 172_800].map(since),
            ["0s", "119s", "2m", "2h", "2d"]
        );
    }
}
