//! The five statements of Design 3.3 about MiniClusters (`shared/tests/documents/promises.md`), tested with both API
//! versions. Here are 3 to 5, which are about pods. 1 and 2 are about objects: see `operator/tests/it/design.rs`.

use flux_shared::validate::validate;
use flux_shared::{derive, manifest};

use super::*;

const VERSIONS: [&str; 2] = ["v1alpha1", "v1alpha2"];

/// The spec of three pods whose image has Flux. This is the default of v1alpha1.
fn spec_of(version: &str, container: &str) -> AgentSpec {
    let own_flux = if version == "v1alpha2" {
        "flux: {container: {disable: true}}, "
    } else {
        ""
    };
    let text = format!(
        "apiVersion: flux-framework.org/{version}\nkind: MiniCluster\nmetadata: {{name: mc}}\n\
         spec: {{size: 3, {own_flux}containers: [{{image: a{container}}}]}}\n"
    );
    let cluster = validate(&manifest::parse(&text).unwrap()).unwrap();
    derive::agent_spec(&cluster)
}

fn with_flux(index: u32) -> Facts {
    Facts {
        flux_on_path: Some("/usr/bin/flux".into()),
        ..facts(index)
    }
}

fn writes(plan: &Plan, name: &str) -> bool {
    plan.steps
        .iter()
        .any(|step| matches!(&step, Step::File { path, .. } if path.ends_with(name)))
}

fn waits(plan: &Plan) -> bool {
    plan.steps.iter().any(|step| matches!(step, Step::WaitParent(_)))
}

/// "Index 0 is special in that it creates the main shared assets, and launches the main command or server
/// (the others start with flux start and a sleep and essentially register to the cluster)."
#[test]
fn design_3_3_statement_3_index_0_is_special() {
    for version in VERSIONS {
        let spec = spec_of(version, ", command: work hard");
        let lead = plan_of(&spec, &with_flux(0));
        assert!(
            lead.role == Role::Lead && writes(&lead, "/program-result") && !waits(&lead),
            "{version}"
        );
        assert!(
            argv(&lead).contains(" flux submit ") && argv(&lead).ends_with("work hard"),
            "{version}"
        );
        for index in [1, 2] {
            let follower = plan_of(&spec, &with_flux(index));
            assert!(
                follower.role == Role::Follower && !writes(&follower, "/program-result") && waits(&follower),
                "{version}"
            );
            let words = argv(&follower);
            assert!(
                words.contains("/usr/bin/flux start ") && !words.contains("work"),
                "{version}: {words}"
            );
        }
    }
}

/// "Flux is required in the running container image (from the user), however the Flux RESTful API is not (it
/// is installed when the server comes up)."
#[test]
fn design_3_3_statement_4_image_needs_flux_but_no_restful_api() {
    for version in VERSIONS {
        let spec = spec_of(version, "");
        let without = Facts {
            flux_on_path: None,
            ..facts(0)
        };
        let why = build(&spec, &without, &PodContainer::Runner).unwrap_err();
        assert!(matches!(why, PlanError::FluxMissing(_)), "{version}: {why}");
        let words = argv(&plan_of(&spec, &with_flux(0)));
        // v1alpha2 serves the RESTful API only on request.
        assert_eq!(
            words.contains("/flux-agent restful "),
            version == "v1alpha1",
            "{version}: {words}"
        );
    }
    let mut spec = spec_of("v1alpha2", "");
    spec.runner.restful = Some(Restful::default());
    let words = argv(&plan_of(&spec, &with_flux(0)));
    assert!(
        words.contains("/flux-agent restful ") && words.contains("--repository=https://"),
        "{words}"
    );
    assert!(
        words.contains("--branch=main") && words.contains("--port=5000"),
        "{words}"
    );
    // The default branch is pinned to a commit, on a mirror too. A branch that the user chose is not.
    let pin = format!("--commit={RESTFUL_COMMIT}");
    let mut is_pinned = |restful: Restful| {
        spec.runner.restful = Some(restful);
        argv(&plan_of(&spec, &with_flux(0))).contains(&pin)
    };
    assert!(is_pinned(Restful::default()));
    assert!(is_pinned(Restful {
        repository: "https://mirror.example.com/api".into(),
        ..Restful::default()
    }));
    assert!(!is_pinned(Restful {
        branch: "develop".into(),
        ..Restful::default()
    }));
}

/// "For the persistent case, jobs can be submit until the cluster is stopped or deleted. For the ephemeral
/// case (providing the command) the job runs and the cluster goes away."
#[test]
fn design_3_3_statement_5_cluster_ends_only_with_a_command() {
    for version in VERSIONS {
        let spec = spec_of(version, ", command: work");
        let lead = plan_of(&spec, &with_flux(0));
        assert_eq!(launch(&lead).at_end, AtEnd::Exit);
        assert!(
            argv(&lead).ends_with("--watch work"),
            "{version}: {}",
            argv(&lead)
        );
        let persistent = spec_of(version, "");
        assert_eq!(persistent.runner.program, Program::Persistent, "{version}");
        let lead = plan_of(&persistent, &with_flux(0));
        let words = argv(&lead);
        // A server that runs until it is stopped, or the broker alone.
        let stays = words.contains("/flux-agent restful ") || words.starts_with("/usr/bin/flux broker ");
        assert!(stays && !words.contains("submit"), "{version}: {words}");
        assert_eq!(launch(&lead).at_end, AtEnd::ExitUnlessStopped, "{version}");
        let diagnostics = plan_of(&spec_of(version, ", diagnostics: true"), &with_flux(0));
        assert_eq!(launch(&diagnostics).at_end, AtEnd::ExitUnlessStopped, "{version}");
    }
}
