//! Every field of the AgentSpec has an effect: if it changes, the plan of some container of some pod changes,
//! or the spec is rejected. The specs below are written without `..`, so that a new field does not compile
//! until it is tested here.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use flux_shared::agent_spec::Trace;

use super::*;

fn text(name: &str) -> Option<String> {
    Some(format!("echo {name}"))
}

fn sidecar(command: Option<String>, script: Option<String>) -> Sidecar {
    Sidecar {
        serves: false,
        wait_socket: true,
        init: text("init"),
        pre_command: text("pre-command"),
        pre: text("pre"),
        service_pre: text("service-pre"),
        command,
        script,
        post: text("post"),
    }
}

fn flux() -> FluxSettings {
    FluxSettings {
        log_level: 6,
        connect_timeout: Some("5s".into()),
        heartbeat_timeout: Some("60s".into()),
        parent_deadline: Some(600),
        lead_gone: Some(20),
        lead_silent: Some(30),
        metrics_port: Some(9090),
        topology: Some("kary:2".into()),
        submit_command: vec!["flux".into(), "submit".into()],
        option_flags: vec!["-ompi=none".into()],
        wrap: Some("strace,-f".into()),
        complete_workers: false,
        scheduler: Some(SchedulerKind::Fluxion),
        queue_policy: Some("easy".into()),
        broker_config: None,
        configs: BTreeMap::from([("queues".into(), "a = 1".into())]),
        disable_socket: false,
        environment: BTreeMap::from([("COLOUR".into(), "green".into())]),
    }
}

fn runner(program: Program) -> Runner {
    Runner {
        interactive: false,
        prefix: command_words::split("nice -n 5 $LEVEL").unwrap().words,
        cores: Some(2),
        cpu_limit: None,
        gpus: false,
        logs: "/results".into(),
        user: Some(RunnerUser {
            name: "fluence".into(),
            uid: 1002,
            run_flux_as_root: false,
        }),
        working_dir: Some("/work".into()),
        // A variable that the assumed pod has.
        per_pod: vec!["HOME".into()],
        snippets: Snippets {
            init: text("init"),
            pre_command: text("pre-command"),
            pre: text("pre"),
            broker_pre: text("broker-pre"),
            worker_pre: text("worker-pre"),
            post: text("post"),
        },
        program,
        restful: None,
    }
}

/// A spec that sets all fields that can be combined.
fn full(program: Program) -> AgentSpec {
    AgentSpec {
        version: flux_shared::agent_spec::VERSION,
        name: "mc".into(),
        namespace: "ns".into(),
        size: 3,
        max_size: Some(5),
        quorum: Some(2),
        tasks: 4,
        elastic: true,
        restart_policy: RestartPolicy::Never,
        mount_path: "/mnt/flux".into(),
        archive: Some("/state/a.tgz".into()),
        view: View {
            enabled: true,
            python_path: Some("/python".into()),
            install_root: None,
        },
        network: BrokerNetwork {
            service: "net".into(),
            port: 8050,
            cluster_domain: Some("cluster.local".into()),
            host_network: false,
            hostlist: Some("mc-[0-4],burst-[0-1]".into()),
            lead: None,
        },
        flux: flux(),
        logging: LogSettings {
            quiet: false,
            strict: Some(true),
            timed: true,
            debug: false,
            zeromq: false,
            format: LogFormat::Text,
        },
        trace: Some(Trace {
            parent: "00-0af7651916cd43dd8448eb211c80319c-8448eb211c80319c-01"
                .parse()
                .unwrap(),
        }),
        runner: runner(program),
        users: vec!["ada".into()],
        sidecars: BTreeMap::from([
            ("db".into(), sidecar(Some("serve".into()), None)),
            ("web".into(), sidecar(None, Some("#!/bin/sh\nserve\n".into()))),
        ]),
    }
}

/// Specs that together set every field where it has an effect.
fn specs() -> Vec<AgentSpec> {
    let command = command_words::split("run --level $LEVEL").unwrap().words;
    let programs = [
        Program::Submit {
            words: command.clone(),
        },
        Program::Launcher { words: command },
        Program::Script {
            text: "#!/bin/sh\nrun\n".into(),
            launch: false,
        },
        Program::Batch {
            lines: vec![BatchLine {
                number: 0,
                text: "run".into(),
            }],
        },
        Program::BatchRaw { text: "run\n".into() },
        Program::Persistent,
        Program::Diagnostics,
    ];
    let mut specs: Vec<AgentSpec> = programs.into_iter().map(full).collect();
    let mut more = |change: &dyn Fn(&mut AgentSpec)| {
        let mut spec = full(Program::Persistent);
        change(&mut spec);
        specs.push(spec);
    };
    more(&|spec| {
        spec.runner.restful = Some(Restful {
            repository: "r".into(),
            branch: "b".into(),
            port: 5000,
        })
    });
    more(&|spec| {
        // Without a hostlist, `max_size` is the number of hosts, and a batch has a configuration file. If it is not
        // elastic, it asks for `size` nodes.
        (spec.elastic, spec.network.hostlist) = (false, None);
        spec.runner.program = Program::BatchRaw { text: "run\n".into() };
    });
    // For R, the limit counts only if the spec declares no cores.
    more(&|spec| (spec.runner.cores, spec.runner.cpu_limit) = (None, Some(2.0)));
    more(&|spec| spec.flux.broker_config = Some("[a]\nb = 1\n".into()));
    more(&|spec| {
        spec.view = View {
            enabled: false,
            python_path: None,
            install_root: Some("/opt/flux".into()),
        }
    });
    more(&|spec| {
        spec.network.hostlist = Some("10.0.0.9,mc-[0-4]".into());
        spec.network.lead = Some(RemoteLead {
            address: "10.0.0.9".into(),
            port: 30093,
        });
    });
    specs
}

/// The plans of all containers of the first pods, or the error that rejects the spec.
fn outcome(spec: &AgentSpec) -> String {
    let spec = match AgentSpec::from_toml(&spec.to_toml().unwrap()) {
        Ok(spec) => spec,
        Err(why) => return why.to_string(),
    };
    let sidecars = spec
        .sidecars
        .keys()
        .map(|name| PodContainer::Sidecar(name.clone()));
    let roles: Vec<PodContainer> = sidecars.chain([PodContainer::Runner]).collect();
    let plans = (0..3).flat_map(|index| {
        let mut facts = facts(index);
        // The plan uses the spec's `install_root` only if Flux is there.
        facts.present.insert("/opt/flux/bin/flux".into());
        roles
            .iter()
            .map(move |role| (role.clone(), facts.clone()))
            .collect::<Vec<_>>()
    });
    let outcomes = plans.map(|(role, facts)| match build(&spec, &facts, &role) {
        Ok(plan) => serde_json::to_value(plan).unwrap(),
        Err(why) => json!(why.to_string()),
    });
    Value::Array(outcomes.collect()).to_string()
}

/// Every leaf of `value`, as a JSON pointer.
fn leaves(at: &str, value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => map
            .iter()
            .for_each(|(key, value)| leaves(&format!("{at}/{key}"), value, out)),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .for_each(|(i, value)| leaves(&format!("{at}/{i}"), value, out)),
        _ => out.push(at.to_owned()),
    }
}

/// Another value for the leaf. A text with a syntax of its own gets another text of this syntax.
fn changed(leaf: &str, value: &Value) -> Value {
    match value {
        Value::Bool(value) => json!(!value),
        Value::Number(number) if number.is_f64() => json!(number.as_f64().unwrap() + 1.0),
        Value::Number(number) => json!(number.as_u64().unwrap() + 1),
        Value::String(_) if leaf.ends_with("/topology") => json!("kary:3"),
        Value::String(_) if leaf.ends_with("/hostlist") => json!("mc-[0-4],other,10.0.0.9"),
        Value::String(_) if leaf.ends_with("/scheduler") => json!("simple"),
        Value::String(_) if leaf.ends_with("/broker_config") => json!("[a]\nb = 2\n"),
        Value::String(_) if leaf.starts_with("/flux/configs/") => json!("a = 2"),
        Value::String(text) if leaf == "/trace/parent" => json!(text.replace('c', "d")),
        Value::String(text) => json!(format!("{text}9")),
        other => panic!("{leaf}: {other}"),
    }
}

#[test]
fn every_spec_field_changes_some_plan() {
    let mut has_effect: BTreeMap<String, bool> = BTreeMap::new();
    for spec in specs() {
        let before = outcome(&spec);
        let value = serde_json::to_value(&spec).unwrap();
        let mut all = Vec::new();
        leaves("", &value, &mut all);
        // The kind of program is not changed: the specs have every kind.
        for leaf in all.into_iter().filter(|leaf| leaf != "/runner/program/mode") {
            let mut other = value.clone();
            let field = other.pointer_mut(&leaf).unwrap();
            *field = changed(&leaf, field);
            let other: AgentSpec =
                serde_json::from_value(other).unwrap_or_else(|why| panic!("{leaf}: {why}"));
            *has_effect.entry(leaf).or_default() |= outcome(&other) != before;
        }
    }
    let without_effect: Vec<&String> = has_effect
        .iter()
        .filter(|(_, has_effect)| !**has_effect)
        .map(|(leaf, _)| leaf)
        .collect();
    assert!(without_effect.is_empty(), "no effect: {without_effect:#?}");
    // Fields that are omitted if they have their default must be in some spec above.
    for field in [
        "/elastic",
        "/runner/cpu_limit",
        "/flux/broker_config",
        "/view/install_root",
        "/network/lead/port",
        "/runner/restful/port",
    ] {
        assert!(has_effect.contains_key(field), "{field}");
    }
}

#[test]
fn optional_spec_fields_change_a_plan_when_set() {
    let command = command_words::split("run").unwrap().words;
    let plain = full(Program::Submit { words: command });
    // `gpus` chooses the scheduler only if the spec does not.
    let without_scheduler = AgentSpec {
        flux: FluxSettings {
            scheduler: None,
            queue_policy: None,
            ..plain.flux.clone()
        },
        ..plain.clone()
    };
    let with_script = full(Program::Script {
        text: "#!/bin/sh\nrun\n".into(),
        launch: false,
    });
    type Change = (&'static str, fn(&mut AgentSpec));
    let set: [Change; 10] = [
        ("network.host_network", |spec| spec.network.host_network = true),
        ("logging.format", |spec| spec.logging.format = LogFormat::Json),
        ("restart_policy", |spec| {
            spec.restart_policy = RestartPolicy::OnFailure
        }),
        ("flux.complete_workers", |spec| spec.flux.complete_workers = true),
        ("flux.disable_socket", |spec| spec.flux.disable_socket = true),
        ("logging.quiet", |spec| spec.logging.quiet = true),
        ("logging.debug", |spec| spec.logging.debug = true),
        ("logging.zeromq", |spec| spec.logging.zeromq = true),
        ("runner.interactive", |spec| spec.runner.interactive = true),
        ("user.run_flux_as_root", |spec| {
            spec.runner.user = Some(RunnerUser {
                name: "fluence".into(),
                uid: 1002,
                run_flux_as_root: true,
            });
        }),
    ];
    let of_plain = set.map(|change| (&plain, change));
    let of_others: [(&AgentSpec, Change); 2] = [
        (
            &without_scheduler,
            ("runner.gpus", |spec| spec.runner.gpus = true),
        ),
        (
            &with_script,
            ("script.launch", |spec| {
                if let Program::Script { launch, .. } = &mut spec.runner.program {
                    *launch = true;
                }
            }),
        ),
    ];
    for (before, (field, change)) in of_plain.into_iter().chain(of_others) {
        let mut spec = before.clone();
        change(&mut spec);
        assert_ne!(outcome(&spec), outcome(before), "{field}");
    }
}
