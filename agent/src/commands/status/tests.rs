use super::*;
use crate::wait::resolve::NameError;
use flux_agent_plan::facts::Facts;
use flux_shared::agent_spec::AgentSpec;

fn instance(index: u32) -> Instance {
    let spec = AgentSpec::from_toml("name='mc'\nsize=4").unwrap();
    Instance::of(
        &spec,
        &Facts {
            index: Some(index),
            ..Facts::default()
        },
    )
    .unwrap()
}

fn state(name: &str, seconds: u64) -> Result<BrokerState, AskError> {
    Ok(BrokerState {
        name: name.into(),
        seconds,
    })
}

fn text_of(observed: &Observations) -> String {
    report(observed).text()
}

#[test]
fn ready_is_running_and_nothing_else() {
    assert_eq!(ready(&state("run", 0), None), Ok(()));
    for name in [
        "join",
        "init",
        "quorum",
        "cleanup",
        "shutdown",
        "finalize",
        "exit",
        "unheard-of",
    ] {
        assert!(ready(&state(name, 3), None).unwrap_err().contains(name));
    }
    assert!(
        ready(&Err(AskError::Slow), Some(&Activity::Snippet("post".into())))
            .unwrap_err()
            .contains("does not answer")
    );
    let messages = [1, 2].map(|seconds| ready(&state("join", seconds), None).unwrap_err());
    assert_eq!(
        messages[0], messages[1],
        "Kubernetes counts equal messages as one event"
    );
}

#[test]
fn each_absent_host_is_named_with_its_reason() {
    let lead = instance(0);
    let dns = "10.96.0.10".parse().unwrap();
    let cases: [(Option<Missing>, &str); 5] = [
        (
            Some(Missing::Name(NameError::NoSuchName(dns))),
            "does the headless Service exist?",
        ),
        (
            Some(Missing::Name(NameError::Silent(dns))),
            "Does the cluster's DNS run",
        ),
        (
            Some(Missing::Route {
                address: dns,
                why: "no answer".into(),
            }),
            "network policy",
        ),
        (
            Some(Missing::Port("10.0.0.7:8050".parse().unwrap())),
            "has not joined",
        ),
        (None, "has not joined"),
    ];
    for (why, want) in cases {
        let mut observed = Observations::new(&lead, state("quorum", 12));
        observed.online = Some(vec![0, 1]);
        assert_eq!((observed.missing(), observed.idle_spares()), (vec![2, 3], vec![]));
        observed.absent = vec![Absent {
            rank: 2,
            host: "mc-2".into(),
            why,
        }];
        let text = text_of(&observed);
        let line = text.lines().find(|line| line.starts_with("missing")).unwrap();
        assert!(line.contains("mc-2 (rank 2)") && line.contains(want), "{line}");
        assert!(
            text.contains("2 of 4 brokers") && text.contains("and 1 more"),
            "{text}"
        );
        assert!(text.contains("waits until enough brokers"), "{text}");
    }
}

#[test]
fn probe_reason_is_one_line_with_causes_without_own_rank() {
    let follower = instance(2);
    let mut observed = Observations::new(&follower, state("init", 20));
    observed.online = Some(vec![0]);
    assert_eq!(
        observed.missing(),
        [1, 3],
        "its own rank is not missing, although not online yet"
    );
    observed.absent = vec![Absent {
        rank: 1,
        host: "mc-1".into(),
        why: None,
    }];
    let why = with_causes("the broker is in state init".into(), &observed);
    assert!(
        why.starts_with("the broker is in state init; missing: mc-1 (rank 1): its pod is there"),
        "{why}"
    );
    assert!(
        why.ends_with("; missing: and 1 more") && !why.contains('\n'),
        "{why}"
    );
}

#[test]
fn a_snippet_that_runs_is_why_there_is_no_broker() {
    let follower = instance(1);
    let error = AskError::NoSocket("/x".into());
    let mut observed = Observations::new(&follower, Err(error.clone()));
    observed.activity = Some(Activity::Snippet("workerPre".into()));
    observed.parent = Some(("mc-0.flux.".into(), Ok(Link::Broken)));
    let text = text_of(&observed);
    let want = "mc-1 (rank 1) is not up: the snippet workerPre runs. See the pod's log\n";
    assert!(
        text.contains(want) && text.contains("parent   mc-0.flux answers\n"),
        "{text}"
    );
    assert_eq!(
        ready(&Err(error), observed.activity.as_ref()),
        Err("the snippet workerPre runs".into())
    );
    observed.state = state("join", 1);
    assert!(
        !text_of(&observed).contains("workerPre"),
        "the state of a broker that answers is more important"
    );
}

#[test]
fn idle_spare_host_is_not_missing() {
    let spec = AgentSpec::from_toml("name='mc'\nsize=2\nmax_size=4").unwrap();
    let lead = Instance::of(
        &spec,
        &Facts {
            index: Some(0),
            ..Facts::default()
        },
    )
    .unwrap();
    let mut observed = Observations::new(&lead, state("run", 12));
    observed.online = Some(vec![0, 1]);
    let text = text_of(&observed);
    assert!(
        text.contains("2 brokers: the cluster started with 2 and may have 4"),
        "{text}"
    );
    assert!(
        !text.contains("missing") && text.contains("spare    2 more"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&report(&observed).json()).unwrap();
    assert_eq!((&json["missing"], &json["spare"]), (&json!([]), &json!([2, 3])));
    // The pod of a host that was requested since then exists.
    observed.absent = vec![Absent {
        rank: 3,
        host: "mc-3".into(),
        why: None,
    }];
    let text = text_of(&observed);
    assert!(
        text.contains("missing  mc-3 (rank 3)") && text.contains("spare    1 more"),
        "{text}"
    );
    // All hosts are online.
    observed.online = Some(vec![0, 1, 2, 3]);
    assert!(!text_of(&observed).contains("spare"));
}

#[test]
fn follower_status_explains_its_parents_connection() {
    let follower = instance(2);
    type Case = (Result<BrokerState, AskError>, Result<Link, Missing>, &'static str);
    let cases: [Case; 4] = [
        (state("join", 60), Ok(Link::Broken), "certificate"),
        (
            Err(AskError::NoSocket("/x".into())),
            Ok(Link::Broken),
            "has not started, or the certificates differ",
        ),
        (state("join", 1), Ok(Link::Broken), "not connected yet"),
        (
            state("join", 60),
            Ok(Link::Steady),
            "has not admitted this broker yet",
        ),
    ];
    let mut stopped = Observations::new(&follower, Err(AskError::Slow));
    stopped.parent = Some(("mc-0.flux.".into(), Ok(Link::Steady)));
    let text = text_of(&stopped);
    assert!(
        text.contains("it is suspended or very busy\nparent   mc-0.flux is connected\n"),
        "{text}"
    );
    let text = text_of(&Observations::new(
        &follower,
        Err(AskError::NoSocket("/x".into())),
    ));
    assert!(
        text.contains("has not started, or has ended. See the pod's log"),
        "{text}"
    );
    for (state, link, want) in cases {
        let mut observed = Observations::new(&follower, state);
        observed.parent = Some(("mc-0.flux.".into(), link));
        let text = text_of(&observed);
        assert!(
            text.lines()
                .any(|line| line.starts_with("parent   mc-0.flux ") && line.contains(want)),
            "{text}"
        );
    }
}

#[test]
fn status_has_no_terminal_codes_from_users() {
    let lead = instance(0);
    let mut observed = Observations::new(&lead, state("run", 5));
    observed.drained = json!({"1": {"reason": "bad\u{1b}]0;title\u{7}\tmemory"}});
    observed.recent =
        json!([{"id": 0, "state": 64, "exception_type": "exec\u{9b}2J", "exception_note": "no\r"}]);
    let report = report(&observed);
    let json: Value = serde_json::from_str(&report.json()).unwrap();
    let lines = json["lines"].as_array().unwrap();
    let lines: Vec<&str> = lines.iter().map(|line| line[1].as_str().unwrap()).collect();
    for text in [report.text(), lines.join("")] {
        assert!(!text.contains(['\u{1b}', '\u{7}', '\u{9b}', '\r']), "{text:?}");
    }
    assert!(report.text().contains("bad\u{fffd}]0;title\u{fffd}\tmemory"));
}

#[test]
fn status_explains_drained_nodes_and_unstarted_jobs() {
    let lead = instance(0);
    let mut observed = Observations::new(&lead, state("run", 5));
    observed.torpid = vec![3];
    observed.drained = json!({"1": {"timestamp": 1.0, "reason": "bad memory"}, "2-3": {"reason": ""}});
    observed.jobs = json!({"depend": 0, "priority": 1, "sched": 1, "run": 3, "cleanup": 0, "inactive": 7});
    // The states are bits (RFC 21): 8 is SCHED, 16 is RUN, 64 is INACTIVE.
    observed.recent = json!([
        {"id": 26_071_793_664_u64, "state": 64, "nnodes": 5, "exception_type": "alloc", "exception_note": "unsatisfiable"},
        {"id": 0, "state": 8, "nnodes": 3},
        {"id": 1, "state": 8, "annotations": {"sched": {"reason_pending": "insufficient resources"}}},
        {"id": 2, "state": 16, "nnodes": 1},
    ]);
    let text = text_of(&observed);
    for want in [
        "silent   mc-3 (rank 3): its broker is suspended",
        "mc-1 (rank 1): bad memory. `flux resource undrain 1`",
        "(rank 2-3): no reason given",
        "3 running, 2 waiting, 7 ended",
        "ƒgiskvs (5 nodes) failed (alloc): unsatisfiable",
        "ƒ1 (3 nodes) waits for nodes that are up, free and not drained",
        "ƒ2 waits: insufficient resources",
    ] {
        assert!(text.contains(want), "{want}\n{text}");
    }
    assert!(!text.contains("ƒ3"), "a running job is not explained: {text}");
}

#[test]
fn the_json_form_has_facts_and_lines() {
    let lead = instance(0);
    let mut observed = Observations::new(&lead, state("quorum", 12));
    observed.online = Some(vec![0, 1, 2]);
    let json: Value = serde_json::from_str(&report(&observed).json()).unwrap();
    assert_eq!(
        (&json["state"], &json["size"], &json["missing"]),
        (&json!("quorum"), &json!(4), &json!([3]))
    );
    assert_eq!(json["lines"][0][0], "broker");
    let silent = Observations::new(&lead, Err(AskError::Ended));
    let json: Value = serde_json::from_str(&report(&silent).json()).unwrap();
    assert!(json["state"].is_null() && json["missing"].is_null());
}
