//! The metrics of an instance over HTTP, with the fake Flux or with real Flux (`make test-flux`).

use std::fs;
use std::process::Command;

use crate::image::real_flux;
use crate::instance::{images, launch, start, submit};
use crate::live::{Network, Running, eventually, gate};

/// The body of the answer, requested in the pod's network. None without an answer or without metrics.
fn metrics(pod: &Running, path: &str) -> Option<String> {
    let ask =
        format!("exec 3<>/dev/tcp/127.0.0.1/9402; printf 'GET {path} HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3");
    let answer = Command::new("nsenter")
        .args(["-t", &pod.pid.to_string(), "--net", "bash", "-c", &ask])
        .output()
        .unwrap();
    let answer = String::from_utf8(answer.stdout).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200 ").then(|| body.to_owned())
}

#[test]
fn lead_serves_metrics_when_flux_runs_as_another_user() {
    for user in ["", "[runner.user]\nname = 'flux'\nuid = 1000\n"] {
        // One job runs on the only core, and three wait. The fake Flux counts no jobs: it always reports one running
        // job.
        let script = "for i in 1 2 3 4; do flux submit --quiet sleep 60; done; echo up; until [ -e /tmp/go ]; do sleep 0.1; done";
        let script = if real_flux().is_some() {
            script
        } else {
            "echo up; until [ -e /tmp/go ]; do sleep 0.1; done"
        };
        let program = launch(script);
        let images = images(
            &format!("{program}[flux]\nmetrics_port = 9402\n{user}[runner]\ncores = 1\n"),
            1,
        );
        let pod = start(&images, &Network::new(), &[]).remove(0);
        pod.wait_for_output("up\n");
        let text = eventually("the metrics", || {
            metrics(&pod, "/metrics")
                .filter(|text| text.contains("job_queue_state_run_count{minicluster=\"mc\"} 1\n"))
        });
        assert!(
            text.contains("# TYPE node_up_count gauge\nnode_up_count{minicluster=\"mc\"} 1\n"),
            "{text}"
        );
        let json: serde_json::Value = serde_json::from_str(&metrics(&pod, "/metrics.json").unwrap()).unwrap();
        assert_eq!(
            (&json["minicluster"], &json["node_cores_up_count"]),
            (&"mc".into(), &1.into()),
            "{json}"
        );
        if real_flux().is_some() {
            eventually("the waiting jobs", || {
                let json: serde_json::Value = serde_json::from_str(&metrics(&pod, "/metrics.json")?).unwrap();
                (json["job_queue_state_sched_count"] == 3 && json["node_free_count"] == 0).then_some(())
            });
        }
        fs::write(gate(&images[0], "go"), "").unwrap();
        assert_eq!(pod.end().code, 0, "{user}");
    }
}

#[test]
fn metrics_port_is_closed_by_default() {
    let images = images(&submit("echo up; until [ -e /tmp/go ]; do sleep 0.1; done"), 1);
    let pod = start(&images, &Network::new(), &[]).remove(0);
    pod.wait_for_output("up\n");
    assert_eq!(metrics(&pod, "/metrics"), None);
    fs::write(gate(&images[0], "go"), "").unwrap();
    assert_eq!(pod.end().code, 0);
}
