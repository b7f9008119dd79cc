//! The kubelet and containerd of a node are killed and started again while MiniClusters run there.

use crate::machines::restart;
use crate::stage::{ExpectedEnd, Program, test};

#[test]
fn jobs_go_on_when_containerd_and_kubelet_are_killed() {
    test("killed", async |stage| {
        let both = [
            Program {
                name: "across",
                lead_on: 2,
                followers_on: &[3],
                tasks: 2,
                first_run: 45,
                ..Program::default()
            },
            Program {
                name: "alone",
                lead_on: 2,
                first_run: 45,
                ..Program::default()
            },
        ];
        stage.create_all(&[&both[0], &both[1]]).await;
        for worker in [2, 3] {
            for daemon in ["kubelet", "containerd"] {
                restart(worker, daemon, 1).await;
            }
        }
        for program in &both {
            stage.ended(program.name, &ExpectedEnd::undisturbed()).await;
            stage.assert_untouched(program.name);
        }
    });
}

#[test]
fn program_that_ends_while_containerd_is_down_keeps_its_code() {
    test("containerd", async |stage| {
        let ends = |name, code| Program {
            name,
            lead_on: 2,
            first_run: 20,
            code,
            ..Program::default()
        };
        let (well, badly) = (ends("well", 0), ends("badly", 7));
        stage.create_all(&[&well, &badly]).await;
        restart(2, "containerd", 30).await;
        stage.ended("well", &ExpectedEnd::undisturbed()).await;
        let failed = ExpectedEnd {
            phase: "Failed",
            code: Some(7),
            reason: Some("NonZeroExitCode"),
            starts: 1,
            restarts: &[],
        };
        stage.ended("badly", &failed).await;
    });
}
