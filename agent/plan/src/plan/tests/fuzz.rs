//! A spec that validation accepts, or that somebody has then changed, can be planned on any host, or is rejected with a
//! reason, in limited time and without a panic.

use flux_shared::validate::validate;
use flux_shared::{derive, manifest};
use serde_json::json;

use test_support::mutate::{self, Dice};

use super::*;
use crate::known_paths::{MUNGE, MUNGE_KEY};

/// How long the test tries mutated manifests (arbitrary: `FUZZ_SECONDS` overrides it).
const SECONDS: u64 = 4;

/// A random host.
fn host(dice: &mut Dice) -> Facts {
    let paths = [
        "/root",
        "/home/flux-operator",
        "/",
        "/tmp",
        "/usr/bin/flux",
        MUNGE,
        MUNGE_KEY,
    ];
    let subset = |dice: &mut Dice| {
        paths
            .into_iter()
            .filter(|_| dice.roll(2) == 0)
            .map(String::from)
            .collect()
    };
    Facts {
        hostname: ["", "mc-0", "other", "hello-world-3", "burst-0-1"][dice.roll(5)].into(),
        index: [None, Some(0), Some(1), Some(9999)][dice.roll(4)],
        uid: [0, 1000, 4711, u32::MAX][dice.roll(4)],
        gid: [0, 1000, u32::MAX][dice.roll(3)],
        passwd: [
            "",
            "root:x:0:0:root:/root:/bin/sh\n",
            "flux:x:1000:1000::/home/flux:\n",
            ":::::::\n\0",
        ][dice.roll(4)]
        .into(),
        home_owners: [(
            "/home/flux-operator".into(),
            [0, 1000, 1001, u32::MAX][dice.roll(4)],
        )]
        .into(),
        cores: [0, 1, 64, u32::MAX][dice.roll(4)],
        cpu_quota: [
            None,
            Some(0.0),
            Some(0.5),
            Some(f64::NAN),
            Some(1e300),
            Some(-1.0),
        ][dice.roll(6)],
        gpus: [0, 8, u32::MAX][dice.roll(3)],
        address: [
            None,
            Some("10.0.0.1".into()),
            Some("fd00::1".into()),
            Some("x y".into()),
        ][dice.roll(4)]
        .clone(),
        shell: [None, Some("/bin/bash".into()), Some("/bin/sh".into())][dice.roll(3)].clone(),
        flux_on_path: [None, Some("/usr/bin/flux".into())][dice.roll(2)].clone(),
        terminal: dice.roll(2) == 0,
        present: subset(dice),
        writable: subset(dice),
        writable_by_flux: subset(dice),
        ..Facts::default()
    }
}

/// The spec as somebody may have changed it. None: it cannot be read.
fn changed(spec: &AgentSpec, dice: &mut Dice) -> Option<AgentSpec> {
    let mut document = mutate::spoilt(&[json!({ "spec": spec })], dice);
    // `spoilt` looks for the containers of a MiniCluster, and leaves this key.
    document["spec"].as_object_mut()?.remove("containers");
    let spec: AgentSpec = serde_json::from_value(document["spec"].take()).ok()?;
    AgentSpec::from_toml(&spec.to_toml().ok()?).ok()
}

/// Plans all containers on random hosts.
fn plan_all(spec: &AgentSpec, dice: &mut Dice) {
    let sidecars = spec
        .sidecars
        .keys()
        .map(|name| PodContainer::Sidecar(name.clone()));
    for role in sidecars.chain([PodContainer::Runner]) {
        match build(spec, &host(dice), &role) {
            Ok(plan) => drop(serde_json::to_string(&plan).unwrap()),
            Err(why) => assert!(!why.to_string().is_empty() && !why.hint().is_empty()),
        }
    }
}

#[test]
fn accepted_manifest_is_planned_and_no_host_causes_a_panic() {
    let examples = mutate::miniclusters();
    let (mut planned, mut planned_changed) = (0, 0);
    mutate::for_a_while(SECONDS, |dice| {
        let document = mutate::spoilt(&examples, dice);
        let parsed = manifest::from_value(&document).and_then(|manifest| validate(&manifest));
        let Ok(cluster) = parsed else { return };
        let spec = derive::agent_spec(&cluster);
        // On the usual host every pod has a plan.
        for index in [0, spec.size - 1] {
            plan_of(&spec, &facts(index));
        }
        plan_all(&spec, dice);
        if let Some(spec) = changed(&spec, dice).filter(|changed| *changed != spec) {
            plan_all(&spec, dice);
            planned_changed += 1;
        }
        planned += 1;
    });
    assert!(
        planned > 5 && planned_changed > 1,
        "only {planned} and {planned_changed} were planned"
    );
}
