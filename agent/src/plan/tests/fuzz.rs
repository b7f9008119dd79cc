//! What validation accepts can be planned, or is refused with a reason, on any host: no panic, no endless time.
#![allow(clippy::disallowed_methods, reason = "tests read files and the clock")]

use flux_shared::{derive, manifest, validate};

use super::*;

use test_support::mutate::{self, Dice};

/// Some host.
fn host(dice: &mut Dice) -> Facts {
    let names = ["/root", "/home/flux-operator", "/", "/tmp", "/state/archive.tar.gz", "/usr/bin/flux", "/etc/munge"];
    let some = |dice: &mut Dice| names.into_iter().filter(|_| dice.roll(2) == 0).map(String::from).collect();
    Facts {
        hostname: ["", "mc-0", "other", "hello-world-3", "burst-0-1"][dice.roll(5)].into(),
        index: [None, Some(0), Some(1), Some(9999)][dice.roll(4)],
        uid: [0, 1000, 4711, u32::MAX][dice.roll(4)],
        gid: [0, 1000, u32::MAX][dice.roll(3)],
        passwd: ["", "root:x:0:0:root:/root:/bin/sh\n", "flux:x:1000:1000::/home/flux:\n", ":::::::\n\0"][dice.roll(4)]
            .into(),
        cores: [0, 1, 64, u32::MAX][dice.roll(4)],
        cpu_quota: [None, Some(0.0), Some(0.5), Some(f64::NAN), Some(1e300), Some(-1.0)][dice.roll(6)],
        gpus: [0, 8, u32::MAX][dice.roll(3)],
        address: [None, Some("10.0.0.1".into()), Some("fd00::1".into()), Some("x y".into())][dice.roll(4)].clone(),
        shell: [None, Some("/bin/bash".into()), Some("/bin/sh".into())][dice.roll(3)].clone(),
        flux_on_path: [None, Some("/usr/bin/flux".into())][dice.roll(2)].clone(),
        terminal: dice.roll(2) == 0,
        present: some(dice),
        writable: some(dice),
        ..Facts::default()
    }
}

#[test]
fn what_is_accepted_can_be_planned_anywhere() {
    let examples = mutate::miniclusters();
    let mut planned = 0;
    mutate::for_a_while(4, |dice| {
        let document = mutate::spoilt(&examples, dice);
        let parsed = manifest::from_value(&document).and_then(|manifest| validate::validate(&manifest));
        let Ok(cluster) = parsed else { return };
        let spec = derive::agent_spec(&cluster);
        // On its own usual host every pod has a plan.
        for index in [0, spec.size - 1] {
            run(&spec, &facts(index));
        }
        let sidecars = spec.sidecars.keys().map(|name| ContainerRole::Sidecar(name.clone()));
        for role in sidecars.chain([ContainerRole::Runner]) {
            match plan(&spec, &host(dice), &role) {
                Ok(plan) => drop(serde_json::to_string(&plan).unwrap()),
                Err(why) => assert!(!why.to_string().is_empty()),
            }
        }
        planned += 1;
    });
    assert!(planned > 5, "only {planned} were planned");
}

/// What flux-core answers, in frames as RFC 3 has them.
fn broker_says(payload: &[u8], errno: u32) -> Vec<u8> {
    let mut message = vec![0, 3];
    message.extend_from_slice(b"a.b");
    message.push(255);
    message.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
    message.extend_from_slice(payload);
    message.extend([20, 0x8e, 1, 2, 0b1011]);
    for word in [0, 5, errno, 1] {
        message.extend(word.to_be_bytes());
    }
    message
}

#[test]
fn whatever_a_broker_says_is_read() {
    let mut understood = 0;
    mutate::for_a_while(2, |dice| {
        let deep = ["[", "{\"a\":", "0,", "x"][dice.roll(4)].repeat(1 << dice.roll(16));
        let payload = ["{\"state\":\"run\",\"set\":[0,1.5,null]}\0", "", "null\0", &deep][dice.roll(4)].to_owned();
        let mut bytes = broker_says(payload.as_bytes(), [0, 1, 38, u32::MAX][dice.roll(4)]);
        for _ in 0..dice.roll(4) {
            let at = dice.roll(bytes.len());
            match dice.roll(4) {
                0 => bytes.truncate(at),
                1 => bytes[at] = *dice.pick(&[0, 1, 20, 127, 254, 255]),
                2 => drop(bytes.splice(at..at, vec![*dice.pick(&[0, 255, b'{']); 1 << dice.roll(12)])),
                _ => drop(bytes.remove(at)),
            }
            if bytes.is_empty() {
                break;
            }
        }
        understood += usize::from(matches!(crate::flux_rpc::message::answer(&bytes), Some(Ok(_))));
        let head: Vec<u8> = bytes.iter().copied().chain([0; 8]).take(8).collect();
        let _ = crate::flux_rpc::message::length(head.try_into().unwrap());
    });
    assert!(understood > 5, "only {understood} were understood");
}
