//! A node that runs, and does not reach the API server.

use crate::machines::cut;
use crate::stage::{End, Program, test, until};
use crate::timeline::now;

#[test]
fn program_cut_off_from_the_api_server_restarts_only_once_joined() {
    test("cut-api", async |stage| {
        let ends_after = |name, first, code| Program {
            name,
            lead_on: 1,
            may_use: &[2],
            evicted_after: 10,
            first,
            code,
            ..Program::default()
        };
        let goes_on = ends_after("goes-on", 3600, 0);
        // After they were marked for deletion, and before anybody could tell them.
        let (well, badly) = (ends_after("well", 90, 0), ends_after("badly", 90, 3));
        stage.create_all(&[&goes_on, &well, &badly]).await;
        let cut_at = now();
        let cut_off = cut(1, "api", 130);
        let seconds = stage.said_reason("goes-on", cut_at, "NodeLost").await;
        assert!(seconds < 60.0, "{seconds}\n{}", stage.account("goes-on"));
        until(cut_at, 125.0).await;
        stage.assert_untouched("goes-on");
        for name in ["well", "badly"] {
            let status = stage.fixture.status(name).await;
            assert!(status["completionTime"].is_null(), "nobody can know it yet: {status:#}");
        }
        cut_off.end().await;
        stage.ended("goes-on", &End::after_restart(&["LeadLost"])).await;
        assert_eq!(stage.history("goes-on").runs()[0].told_to_stop, 1, "{}", stage.account("goes-on"));
        stage.ended("well", &End::undisturbed()).await;
        let failed = End { phase: "Failed", code: Some(3), reason: None, starts: 1, restarts: &[] };
        stage.ended("badly", &failed).await;
    });
}
