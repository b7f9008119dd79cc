//! Nodes that run, but cannot reach each other or the API server.

use crate::machines::cut;
use crate::stage::{ExpectedEnd, Program, test, until};
use crate::timeline::now;
use test_support::node::has_flux_itself;

#[test]
fn program_cut_off_from_api_server_restarts_only_once_joined() {
    test("cut-api", async |stage| {
        let on_worker_1 = |name, first_run, code| Program {
            name,
            lead_on: 1,
            may_use: &[2],
            evicted_after: 10,
            first_run,
            code,
            ..Program::default()
        };
        let goes_on = on_worker_1("goes-on", 3600, 0);
        // These programs end after their pods were marked for deletion, and before the cut ends.
        let (well, badly) = (on_worker_1("well", 90, 0), on_worker_1("badly", 90, 3));
        stage.create_all(&[&goes_on, &well, &badly]).await;
        let cut_at = now();
        let cut_off = cut(1, "api", 130);
        let seconds = stage.until_reason("goes-on", cut_at, "NodeLost").await;
        assert!(seconds < 60.0, "{seconds}\n{}", stage.account("goes-on"));
        // Shortly before the cut ends.
        until(cut_at, 125.0).await;
        stage.assert_untouched("goes-on");
        for name in ["well", "badly"] {
            let status = stage.fixture.status(name).await;
            assert!(
                status["completionTime"].is_null(),
                "nobody can know the end yet: {status:#}"
            );
        }
        cut_off.end().await;
        stage
            .ended("goes-on", &ExpectedEnd::after_restart(&["LeadLost"]))
            .await;
        assert_eq!(
            stage.history("goes-on").runs()[0].told_to_stop,
            1,
            "{}",
            stage.account("goes-on")
        );
        stage.ended("well", &ExpectedEnd::undisturbed()).await;
        let failed = ExpectedEnd {
            phase: "Failed",
            code: Some(3),
            reason: None,
            starts: 1,
            restarts: &[],
        };
        stage.ended("badly", &failed).await;
    });
}

/// Two workers that do not reach each other. The API server reaches both, so nothing is evicted.
fn workers_cut_off(name: &str, seconds: u32) {
    test(name, async |stage| {
        let on_lead = Program {
            name: "on-lead",
            followers_on: &[2],
            first_run: seconds + 30,
            ..Program::default()
        };
        let across = |name, restarts| Program {
            name,
            followers_on: &[2],
            tasks: 2,
            spec: serde_json::json!({ "maxRestarts": restarts }),
            ..Program::default()
        };
        let (may, may_not) = (across("may", 1), across("may-not", 0));
        stage.create_all(&[&on_lead]).await;
        let with_flux = has_flux_itself("a job that does not reach its follower");
        if with_flux {
            stage.create_all(&[&may, &may_not]).await;
        }
        let cut_at = now();
        cut(1, "2", seconds).end().await;
        stage.ended("on-lead", &ExpectedEnd::undisturbed()).await;
        stage.assert_untouched("on-lead");
        if with_flux {
            // Flux gives up after 20 s (tbon.tcp_user_timeout).
            stage
                .ended("may", &ExpectedEnd::after_restart(&["PodLost"]))
                .await;
            let restarted_at = stage.history("may").runs()[1].from;
            assert!(
                restarted_at - cut_at > f64::from(seconds),
                "its brokers cannot meet: {}",
                stage.account("may")
            );
            let status = stage.fixture.when_finished("may-not").await;
            assert_eq!(
                (&status["phase"], &status["reason"]),
                (&"Failed".into(), &"PodLost".into()),
                "{status:#}"
            );
            stage.history("may-not").assert_starts(1);
        }
    });
}

#[test]
fn job_across_two_nodes_restarts_after_a_cut_of_90_s() {
    workers_cut_off("cut-90", 90);
}

/// The cut is longer than the 5 min after which a broker without heartbeats ends (Flux's `heartbeat.timeout`).
#[test]
fn job_across_two_nodes_restarts_after_a_cut_of_6_min() {
    workers_cut_off("cut-360", 360);
}
