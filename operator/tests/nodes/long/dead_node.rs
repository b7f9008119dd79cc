//! A node that is off for good, or so it seems.

use serde_json::json;

use crate::machines::{power_off, power_on};
use crate::stage::{End, Program, has_flux_itself, sleep, test};
use crate::timeline::now;

#[test]
fn decided_job_is_finished_while_another_node_is_dead() {
    test("decided", async |stage| {
        let ends = |name, code| Program { name, lead_on: 3, followers_on: &[2], first: 30, code, ..Program::default() };
        let (well, badly) = (ends("well", 0), ends("badly", 5));
        stage.create_all(&[&well, &badly]).await;
        let across =
            Program { name: "across", tasks: 2, spec: json!({ "maxRestarts": 0 }), first: 3600, ..ends("across", 0) };
        let with_flux = has_flux_itself("a job that loses a follower's node for good");
        if with_flux {
            stage.create(&across).await;
            stage.runs(&across, 1).await;
        }
        power_off(2).await;
        let lost_at = now();
        for (program, phase) in [(&well, "Completed"), (&badly, "Failed")] {
            let reason = if phase == "Failed" { Some("NonZeroExitCode") } else { None };
            let end = End { phase, code: Some(program.code), reason, starts: 1, restarts: &[] };
            stage.ended(program.name, &end).await;
            let ended_at = stage.container_ended_at(program.name).await;
            let seconds = stage.said(program.name, ended_at, phase, |status| status["phase"] == phase).await;
            assert!(seconds < 10.0, "{seconds}\n{}", stage.account(program.name));
        }
        if with_flux {
            let seconds = stage.said("across", lost_at, "Failed", |status| status["phase"] == "Failed").await;
            assert!(seconds < 75.0, "{seconds}\n{}", stage.account("across"));
            let status = stage.fixture.status("across").await;
            assert_eq!(status["reason"], "PodLost", "{status:#}");
        }
        power_on(2).await;
        sleep(15.0).await;
        for name in ["well", "badly"] {
            stage.history(name).assert_starts(1);
        }
        let status = stage.fixture.status("badly").await;
        assert_eq!(status["reason"], "NonZeroExitCode", "a final reason stays: {status:#}");
    });
}
