use super::*;
use crate::agent_spec::{AgentSpec, BatchLine, Program, RemoteLead, SchedulerKind};
use crate::command_words::Word;
use crate::crd::v1alpha2::Logging;
use crate::quantity::Quantity;
use crate::{derive, manifest};

fn read(spec: &str) -> Result<ValidMiniCluster, Vec<Problem>> {
    let containers = if spec.contains("containers:") {
        ""
    } else {
        "\n  containers: [{image: app, command: run}]"
    };
    let indented = spec.replace('\n', "\n  ");
    let text = format!(
        "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: mc}}\nspec:\n  {indented}{containers}\n"
    );
    manifest::parse(&text).and_then(|manifest| validate_and_note(&manifest))
}

/// The valid cluster `mc` with this spec (YAML lines). It gets one container unless the spec has some.
fn cluster(spec: &str) -> ValidMiniCluster {
    read(spec).unwrap_or_else(|problems| panic!("{spec}: {problems:?}"))
}

fn spec(text: &str) -> AgentSpec {
    derive::agent_spec(&cluster(text))
}

/// The cluster whose runner has these fields.
fn runner(fields: &str) -> ValidMiniCluster {
    cluster(&format!("containers: [{{image: app, {fields}}}]"))
}

fn problems(spec: &str) -> Vec<String> {
    read(spec)
        .map(|_| Vec::new())
        .unwrap_or_else(|problems| problems.iter().map(ToString::to_string).collect())
}

fn words(program: &Program) -> Vec<String> {
    match program {
        Program::Submit { words } | Program::Launcher { words } => words.iter().map(Word::display).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn omitted_fields_have_the_documented_defaults() {
    let cluster = cluster("size: 2");
    assert_eq!(
        (cluster.size, cluster.max_size, cluster.min_size, cluster.tasks),
        (2, 2, None, 1)
    );
    assert_eq!(
        (cluster.headless_name.as_str(), cluster.disable_affinity),
        ("flux-service", false)
    );
    assert_eq!(
        (cluster.deadline_seconds, cluster.backoff_limit, cluster.suspend),
        (None, 100, None)
    );
    assert!(!cluster.cleanup && cluster.ttl_seconds_after_finished.is_none());
    assert_eq!(cluster.logging, Logging::default());
    assert_eq!(cluster.flux.connect_timeout.as_deref(), Some("5s"));
    assert_eq!(
        (
            cluster.flux.log_level,
            cluster.flux.submit_command.join(" ").as_str()
        ),
        (6, "flux submit")
    );
    assert_eq!(
        (
            cluster.view.enabled,
            cluster.view.mount_path.as_str(),
            cluster.view.image
        ),
        (true, "/mnt/flux", None)
    );
    assert_eq!(cluster.runner.container.pull_policy, PullPolicy::IfNotPresent);
    assert!(cluster.notices.is_empty(), "{:?}", cluster.notices);
}

#[test]
fn empty_block_has_the_effect_of_an_omitted_one() {
    let blocks =
        "size: 2\nnetwork: {}\nflux: {container: {}, scheduler: {}, bursting: {}}\nlogging: {}\npod: {}";
    assert_eq!(cluster(blocks), cluster("size: 2"));
    assert_eq!(
        runner("command: run, commands: {}, resources: {}, lifeCycle: {}"),
        runner("command: run")
    );
}

#[test]
fn empty_connect_timeout_counts_as_unset() {
    assert_eq!(cluster("flux: {connectTimeout: ''}").flux.connect_timeout, None);
    assert_eq!(
        cluster("flux: {connectTimeout: 0s}")
            .flux
            .connect_timeout
            .as_deref(),
        Some("0s")
    );
}

#[test]
fn tasks_reach_the_agent_unchanged_unless_negative() {
    assert_eq!(
        [
            spec("tasks: 0").tasks,
            spec("size: 4\ntasks: 2").tasks,
            spec("tasks: 9").tasks
        ],
        [0, 2, 9]
    );
    assert!(problems("tasks: -1")[0].starts_with("spec.tasks"));
}

#[test]
fn sizes_must_fit_each_other() {
    assert_eq!(spec("size: 2\nmaxSize: 4").max_size, Some(4));
    assert_eq!(spec("size: 2\nmaxSize: 2").max_size, None);
    assert_eq!(
        (
            spec("size: 4\nminSize: 2").quorum,
            spec("size: 4\nminSize: 2").elastic
        ),
        (Some(2), true)
    );
    assert_eq!(
        (
            spec("size: 4\nminSize: 4").quorum,
            spec("size: 4\nminSize: 4").elastic
        ),
        (Some(4), false)
    );
    assert!(problems("size: 3\nmaxSize: 2")[0].starts_with("spec.maxSize"));
    assert!(problems("size: 3\nminSize: 4")[0].starts_with("spec.minSize"));
    assert!(problems("size: 3\nminSize: -1")[0].starts_with("spec.minSize"));
    assert!(problems("size: 10001")[0].starts_with("spec.size"));
}

#[test]
fn lead_cluster_lists_its_hosts_and_those_that_may_join() {
    let list = |text: &str| spec(text).network.hostlist;
    assert_eq!(list("size: 2"), None);
    // By default, a cluster that may join is named by its index, and has as many hosts as this one may have.
    assert_eq!(
        list("size: 2\nflux: {bursting: {clusters: [{name: a, size: 1}, {size: 3}, {name: c}]}}").as_deref(),
        Some("mc-[0-1],a-0,burst-1-[0-2],c-[0-1]")
    );
    assert_eq!(
        list("size: 2\nmaxSize: 5\nflux: {bursting: {clusters: [{}]}}").as_deref(),
        Some("mc-[0-4],burst-0-[0-4]")
    );
}

#[test]
fn a_bursted_cluster_names_its_lead_by_address() {
    let lead = "{name: root, address: 24.1.2.3, port: 30093, size: 4}";
    for place in [
        format!("flux: {{bursting: {{leadBroker: {lead}, clusters: [{{name: mc, size: 2}}]}}}}"),
        format!("flux: {{leadBroker: {lead}, bursting: {{clusters: [{{name: mc, size: 2}}]}}}}"),
    ] {
        let network = spec(&format!("size: 2\n{place}")).network;
        assert_eq!(network.hostlist.as_deref(), Some("24.1.2.3,root-[1-3],mc-[0-1]"));
        assert_eq!(
            network.lead,
            Some(RemoteLead {
                address: "24.1.2.3".into(),
                port: 30093
            })
        );
    }
    let alone =
        "flux: {leadBroker: {name: root, address: a.example, size: 1}, bursting: {clusters: [{name: mc}]}}";
    assert_eq!(spec(alone).network.hostlist.as_deref(), Some("a.example,mc-0"));
    assert_eq!(spec(alone).network.lead.unwrap().port, 8050);
    let negative = alone.replace("size: 1", "size: -1");
    assert_eq!(
        spec(&negative).network.hostlist,
        spec(&alone.replace("size: 1", "size: 0")).network.hostlist
    );
}

/// The notices of a MiniCluster without a program whose lead broker is elsewhere.
fn notices_of_follower_cluster(fields: &str, flux: &str) -> Vec<String> {
    let cluster = cluster(&format!(
        "{fields}\ncontainers: [{{image: app}}]\nflux: {{{flux}, leadBroker: {{name: root, address: a.example, size: 2}}, bursting: {{clusters: [{{name: mc, size: 300}}]}}}}"
    ));
    cluster.notices.iter().map(ToString::to_string).collect()
}

#[test]
fn notice_names_a_parent_in_another_minicluster() {
    let notices =
        |fields: &str, flux: &str| notices_of_follower_cluster(fields, &format!("curveCertSecret: c{flux}"));
    let found = notices("size: 300", "");
    let expected = "spec.flux.topology: broker mc-255 connects to root-1, which is not in this MiniCluster: ";
    assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    assert_eq!(notices("size: 300", ", topology: 'kary:0'"), [""; 0]);
    assert_eq!(
        notices(
            "size: 300",
            ", brokerConfig: 'bootstrap.hosts = [{host = \"mc\"}]'"
        ),
        [""; 0]
    );
    assert_eq!(notices("size: 4", ""), [""; 0]);
    let root =
        cluster("size: 2\nflux: {topology: 'kary:1', bursting: {clusters: [{name: burst-0, size: 4}]}}");
    assert_eq!(root.notices, []);
}

#[test]
fn follower_cluster_without_shared_certificate_has_a_notice() {
    let notices = |flux: &str| notices_of_follower_cluster("size: 4", flux);
    let found = notices("logLevel: 6");
    let expected = "spec.flux.curveCertSecret: is missing: a random certificate";
    assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    assert_eq!(notices("curveCertSecret: c"), [""; 0]);
    assert_eq!(
        notices("brokerConfig: 'bootstrap.hosts = [{host = \"mc\"}]'"),
        [""; 0]
    );
}

#[test]
fn given_hostlist_is_not_changed() {
    let list = "mc-[0-1], other[001-003]";
    for place in [
        format!("flux: {{bursting: {{hostlist: '{list}'}}}}"),
        format!("flux: {{leadBroker: {{address: x, hostlist: '{list}'}}}}"),
        format!("flux: {{bursting: {{leadBroker: {{address: x, hostlist: '{list}'}}}}}}"),
    ] {
        assert_eq!(
            spec(&format!("size: 2\n{place}")).network.hostlist.as_deref(),
            Some(list),
            "{place}"
        );
    }
    assert!(problems("flux: {bursting: {hostlist: 'a-[0-2]'}}")[0].contains("lack this cluster's own"));
    assert!(problems("flux: {bursting: {hostlist: 'mc_[0-1],mc-0'}}")[0].contains("host `mc_0`"));
}

#[test]
fn arch_aliases_become_the_value_of_the_nodes_label() {
    for (given, want) in [
        ("arm", "arm64"),
        ("arm64", "arm64"),
        ("aarch64", "arm64"),
        ("x86_64", "amd64"),
        ("amd64", "amd64"),
    ] {
        assert_eq!(
            cluster(&format!("flux: {{arch: {given}}}")).arch.as_deref(),
            Some(want)
        );
    }
    assert_eq!(cluster("size: 1").arch, None);
}

#[test]
fn snippet_variable_must_be_exported_when_command_reads_it() {
    let notices = |snippet: &str, more: &str| {
        let container =
            format!("image: a\n    command: app -n $COUNT\n    commands: {{pre: '{snippet}'}}{more}");
        let cluster = read(&format!("containers:\n  - {container}")).unwrap();
        cluster
            .notices
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let expected = "spec.containers[0].commands.pre: assigns `COUNT` without export: the command has it only if the \
                image or an overlay sets it: write \
                `export COUNT`";
    assert_eq!(notices("cd /tmp; COUNT=4", ""), [expected]);
    for fine in [
        "export COUNT=4",
        "COUNT=4; export COUNT",
        "set -a; COUNT=4",
        "OTHER=4",
    ] {
        assert_eq!(notices(fine, ""), [""; 0], "{fine}");
    }
    for set in ["environment: {COUNT: '2'}", "secrets: {COUNT: {name: s, key: k}}"] {
        assert_eq!(notices("COUNT=4", &format!("\n    {set}")), [""; 0]);
    }
}

#[test]
fn entrypoint_variable_outside_of_snippets_gets_a_notice() {
    let notices = |container: &str| {
        let cluster = read(&format!("containers:\n  - {{image: a, {container}}}")).unwrap();
        let notices = cluster.notices.iter().map(ToString::to_string);
        notices
            .filter(|notice| notice.contains("export"))
            .collect::<Vec<_>>()
    };
    for (container, start) in [
        (
            "launcher: true, command: '${viewroot}/bin/python3.11 run.py'",
            "command: `$viewroot` is set in snippets alone",
        ),
        (
            "command: app, commands: {prefix: $viewbin/x}",
            "commands.prefix: `$viewbin` is set in snippets alone",
        ),
        (
            "batch: true, command: './app -n $N', commands: {pre: N=8}",
            "commands.pre: assigns `N` without export",
        ),
        (
            "batch: true, batchRaw: true, command: './app -n $N', commands: {pre: N=8}",
            "commands.pre: assigns `N` without export",
        ),
    ] {
        let found = notices(container);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with(&format!("spec.containers[0].{start}")),
            "{found:?}"
        );
    }
    for fine in [
        "command: '${viewroot}/bin/x', commands: {pre: export viewroot}",
        "command: '${viewroot}/bin/x', environment: {viewroot: /opt}",
        "batch: true, command: 'N=3; ./app -n $N', commands: {pre: N=8}",
    ] {
        assert_eq!(notices(fine), [""; 0], "{fine}");
    }
}

#[test]
fn redirection_of_snippets_gets_a_notice() {
    let count = |container: &str| {
        let cluster = read(&format!("containers:\n  - {{image: a, {container}}}")).unwrap();
        let notices = cluster.notices.iter().map(ToString::to_string);
        notices
            .filter(|notice| notice.contains("redirects the snippets alone"))
            .count()
    };
    assert_eq!(count("command: b, commands: {pre: 'exec >/data/log 2>&1'}"), 1);
    assert_eq!(count("command: b, commands: {post: 'exec >/data/log 2>&1'}"), 0);
    assert_eq!(
        count("batch: true, command: b, commands: {pre: 'exec >/data/log'}"),
        0
    );
}

#[test]
fn shell_syntax_that_reaches_flux_as_text_gets_a_notice() {
    let count = |spec: &str| {
        let cluster = read(spec).unwrap();
        let notices = cluster.notices.iter().map(ToString::to_string);
        notices.filter(|notice| notice.contains("as text")).count()
    };
    assert_eq!(count("containers: [{image: a, command: 'app -n ${NP:-4}'}]"), 1);
    assert_eq!(count("containers: [{image: a, command: 'app -n ${NP}'}]"), 0);
    assert_eq!(count("containers: [{image: a, command: 'app *.in'}]"), 1);
    for flux in ["optionFlags: --env=A=$A", "submitCommand: 'flux run -N $N'"] {
        assert_eq!(
            count(&format!(
                "flux: {{{flux}}}\ncontainers: [{{image: a, command: b}}]"
            )),
            1,
            "{flux}"
        );
    }
    assert_eq!(
        count("flux: {optionFlags: --output=out}\ncontainers: [{image: a, command: b}]"),
        0
    );
}

#[test]
fn shell_source_with_windows_line_ends_gets_a_notice() {
    let fields = |containers: &str| -> Vec<String> {
        let cluster = read(&format!("containers: [{containers}]")).unwrap();
        let notices = cluster.notices.into_iter();
        let found = notices.filter(|notice| notice.message.contains("Windows line ends"));
        found.map(|notice| notice.field).collect()
    };
    for (container, field) in [
        (r#"commands: {script: "echo a\r\necho b\r\n"}"#, "commands.script"),
        (r#"command: a, commands: {pre: "echo a\r\n"}"#, "commands.pre"),
        (r#"command: a, preCommand: "echo a\r\n""#, "preCommand"),
        (
            r##"batch: true, batchRaw: true, command: "#!/bin/bash\r\na\r\n""##,
            "command",
        ),
    ] {
        assert_eq!(
            fields(&format!("{{image: a, {container}}}")),
            [format!("spec.containers[0].{field}")]
        );
    }
    let runner = "{image: a, command: b, runFlux: true}";
    assert_eq!(
        fields(&format!(
            r#"{runner}, {{image: c, name: web, command: "a\r\nb\r\n"}}"#
        )),
        ["spec.containers[1].command"]
    );
    // Words and lines are split at these ends.
    for command in [
        r#"command: "app\r\n  -n 4\r\n""#,
        r#"batch: true, command: "a\r\nb\r\n""#,
    ] {
        assert_eq!(fields(&format!("{{image: a, {command}}}")), [""; 0]);
    }
}

#[test]
fn per_resource_options_with_a_number_of_tasks_are_problems() {
    let with = |top: &str, flux: &str, container: &str| {
        problems(&format!(
            "{top}\nflux: {{{flux}}}\ncontainers: [{{image: a, {container}}}]"
        ))
    };
    let message = |field: &str, option: &str| {
        [format!(
            "{field}: `{option}` cannot go with a number of tasks: set tasks: 0"
        )]
    };
    let flags = "optionFlags: --gpus-per-node=2 -x";
    assert_eq!(
        with("tasks: 2", flags, "command: b"),
        message("spec.flux.optionFlags", "--gpus-per-node")
    );
    assert_eq!(
        with("tasks: 2", "submitCommand: flux run --cores 4", "command: b"),
        message("spec.flux.submitCommand", "--cores")
    );
    assert_eq!(
        with(
            "tasks: 2",
            "logLevel: 6",
            "command: b, fluxOptionFlags: --tasks-per-core=2"
        ),
        message("spec.containers[0].fluxOptionFlags", "--tasks-per-core")
    );
    for (top, container) in [
        ("tasks: 0", "command: b"),
        ("tasks: 1", "command: b"),
        // Nothing is submitted.
        ("tasks: 2", "command: b, launcher: true"),
        ("tasks: 2\ninteractive: true", "command: b"),
    ] {
        assert_eq!(
            with(top, flags, container),
            Vec::<String>::new(),
            "{top} {container}"
        );
    }
}

#[test]
fn submit_command_that_starts_an_instance_is_a_problem() {
    let with = |command: &str, container: &str| {
        problems(&format!(
            "flux: {{submitCommand: {command}}}\ncontainers: [{{image: a, {container}}}]"
        ))
    };
    for command in ["flux alloc -N1", "flux batch"] {
        let found = with(command, "command: b");
        assert!(
            found.len() == 1 && found[0].starts_with("spec.flux.submitCommand: `flux "),
            "{command}: {found:?}"
        );
        assert_eq!(with(command, "command: b, launcher: true"), Vec::<String>::new());
    }
    for command in ["flux run", "flux submit -x", "flux bulksubmit", "my-submit"] {
        assert_eq!(with(command, "command: b"), Vec::<String>::new(), "{command}");
    }
}

#[test]
fn escape_for_the_go_entrypoint_in_a_batch_gets_a_notice() {
    let count = |line: &str, raw: bool| {
        let text = format!(
            "containers:\n  - image: a\n    batch: true\n    batchRaw: {raw}\n    command: |\n      {line}\n"
        );
        let cluster = read(&text).unwrap();
        let notices = cluster.notices.iter().map(ToString::to_string);
        notices
            .filter(|notice| notice.contains("before the batch runs"))
            .count()
    };
    for raw in [false, true] {
        for line in [r"echo \$i", r#"sh -c \"a\""#] {
            assert_eq!(count(line, raw), 1, "{line}");
        }
        for line in [
            r#"sh -c "echo \$A""#,
            r"echo '\$A'",
            "echo $A ${A}",
            r"echo `echo \$A`",
        ] {
            assert_eq!(count(line, raw), 0, "{line}");
        }
    }
}

#[test]
fn cores_of_0_count_as_unset() {
    let plain = "containers: [{image: a, command: run, runFlux: true}, {image: b, name: s}]\nservices: [{image: c, name: 9p, ports: [564]}]";
    let typed = plain
        .replace("image: a", "image: a, cores: 0")
        .replace("image: b", "image: b, cores: 0")
        .replace("image: c", "image: c, cores: 0");
    assert_eq!(cluster(&typed), cluster(plain));
}

#[test]
fn trailing_slash_of_shared_memory_needs_no_notice() {
    let volumes = "volumes: {m: {emptyDir: true, emptyDirMedium: memory, path: /dev/shm/}}";
    assert_eq!(runner(volumes).notices.len(), 0);
}

#[test]
fn default_log_level_of_an_old_schema_contradicts_nothing() {
    let of = |levels: (u8, u8)| {
        let (flux, container) = levels;
        read(&format!(
            "flux: {{logLevel: {flux}}}\ncontainers: [{{image: app, command: run, fluxLogLevel: {container}}}]"
        ))
        .map(|cluster| cluster.flux.log_level)
        .map_err(|problems| problems.len())
    };
    assert_eq!(of((7, 6)), Ok(7));
    assert_eq!(of((6, 3)), Ok(3));
    assert_eq!(of((7, 3)), Err(1));
}

#[test]
fn command_is_split_into_words_with_notice_of_shell_syntax() {
    let plain = runner(r#"command: 'sh -c "echo hi; exit 7"'"#);
    assert_eq!(words(&plain.runner.program), ["sh", "-c", "echo hi; exit 7"]);
    assert!(plain.notices.is_empty());
    let shell = runner("command: 'echo a && echo $(b) > c'");
    assert_eq!(
        words(&shell.runner.program),
        ["echo", "a", "&&", "echo", "$(b)", ">", "c"]
    );
    assert_eq!(shell.notices.len(), 1);
    let notice = shell.notices[0].to_string();
    assert!(
        notice.starts_with("spec.containers[0].command: `&& $( >` reaches") && notice.contains("script"),
        "{notice}"
    );
    assert!(runner("command: 'ls a.txt $HOME'").notices.is_empty());
    let lines = runner(r#"command: "flux submit hostname\nflux queue drain\n""#);
    let notice = lines.notices[0].to_string();
    assert!(
        notice.starts_with("spec.containers[0].command: 2 lines are one command: `flux`"),
        "{notice}"
    );
    assert!(
        notice.contains("batch: true") && notice.contains("commands.script"),
        "{notice}"
    );
    assert!(
        runner(r#"batch: true, command: "flux a\nflux b\n""#)
            .notices
            .is_empty()
    );
}

#[test]
fn batch_script_that_sets_a_path_for_flux_gets_a_notice() {
    let notes =
        |command: &str| runner(&format!("batch: true, batchRaw: true, command: \"{command}\"")).notices;
    let notices = notes("export PYTHONPATH=/a\\nflux run b\\n");
    assert!(
        notices[0]
            .to_string()
            .starts_with("spec.containers[0].command: sets PYTHONPATH"),
        "{notices:?}"
    );
    assert!(
        notices[0].message.contains("flux run --env=PYTHONPATH=") && notices.len() == 1,
        "{notices:?}"
    );
    assert_eq!(notes("flux run --env=PYTHONPATH=/a b\\nMYPYTHONPATH=1 c"), []);
}

#[test]
fn fields_without_effect_are_reported_by_a_notice() {
    let notices_of =
        |spec: &str| -> Vec<String> { cluster(spec).notices.iter().map(ToString::to_string).collect() };
    let launcher = "containers: [{launcher: true, command: run}]";
    for (spec, field) in [
        (
            "interactive: true",
            "spec.containers[0].command: is not run: the cluster is interactive",
        ),
        (
            "flux: {curveCertSecret: c, leadBroker: {name: a, address: b}, bursting: {clusters: [{name: mc}]}}",
            "spec.containers[0].command: is",
        ),
        (
            "archive: {path: /state/a.tgz}\nflux: {curveCertSecret: c, leadBroker: {name: a, address: b}, bursting: {clusters: [{name: mc}]}}\ncontainers: [{image: app}]",
            "spec.archive: has no effect: the lead broker is in another cluster",
        ),
        (format!("tasks: 4\n{launcher}").as_str(), "spec.tasks"),
        ("tasks: 4\ncontainers: [{image: app}]", "spec.tasks"),
        (
            format!("flux: {{optionFlags: -ompi=none}}\n{launcher}").as_str(),
            "spec.flux.optionFlags",
        ),
        (
            "containers: [{launcher: true, command: run, fluxOptionFlags: -ompi=none}]",
            "spec.containers[0].fluxOptionFlags: has no effect",
        ),
        (
            format!("flux: {{submitCommand: flux run}}\n{launcher}").as_str(),
            "spec.flux.submitCommand",
        ),
        (
            "flux: {submitCommand: flux run}\ncontainers: [{batch: true, batchRaw: true, command: run}]",
            "spec.flux.submitCommand",
        ),
        (
            format!("logging: {{debug: true}}\n{launcher}").as_str(),
            "spec.logging.debug",
        ),
        (
            "flux: {container: {disable: true, source: copy}}",
            "spec.flux.container.source",
        ),
        (
            "flux: {container: {disable: true, pythonPath: /p}}",
            "spec.flux.container.pythonPath",
        ),
        (
            "flux: {brokerConfig: a = 1, scheduler: {queuePolicy: easy}}",
            "spec.flux.scheduler.queuePolicy",
        ),
        (
            "size: 2\nflux: {brokerConfig: '[bootstrap]'}",
            "spec.flux.brokerConfig: has no [bootstrap] hosts: each pod becomes an instance of its own",
        ),
        (
            "flux: {scheduler: {queuePolicy: easy}}\ncontainers: [{batch: true, command: run}]",
            "spec.flux.scheduler.queuePolicy: applies to the instance around the batch",
        ),
        (
            "flux: {configs: {a: '[exec]'}}\ncontainers: [{batch: true, batchRaw: true, command: run}]",
            "spec.flux.configs: applies to the instance around the batch",
        ),
        ("pod: {labels: {app: mine, tier: hpc}}", "spec.pod.labels[app]"),
        (
            "jobLabels: {app.kubernetes.io/name: mine, app: mine}",
            "spec.jobLabels[app.kubernetes.io/name]",
        ),
        (
            "containers: [{command: run, volumes: {m: {emptyDir: true, emptyDirMedium: memory, path: /s}}}]",
            "spec.containers[0].volumes[m].path: is not used: memory is mounted at /dev/shm",
        ),
    ] {
        let notices = notices_of(spec);
        assert!(
            notices.len() == 1 && notices[0].starts_with(field),
            "{spec}: {notices:?}"
        );
    }
    // No notice: fields with an effect, and the view's image and name, which people leave in when they disable it.
    let accepted = "tasks: 4\nflux: {container: {disable: true, image: a, name: b}, submitCommand: flux run, optionFlags: -o a}";
    assert_eq!(notices_of(accepted), Vec::<String>::new());
    let empty = "flux: {container: {disable: true, source: '', pythonPath: ''}}";
    assert_eq!(
        notices_of(empty),
        Vec::<String>::new(),
        "an empty text has the effect of an omitted one"
    );
}

#[test]
fn empty_text_counts_as_left_out() {
    let empty = "network: {headlessName: ''}\narchive: {path: ''}\nflux: {topology: '', wrap: '', arch: '', submitCommand: '', mungeSecret: '', container: {name: '', mountPath: '', pythonPath: '', imagePullSecret: ''}, scheduler: {queuePolicy: ''}}\npod: {restartPolicy: '', dnsPolicy: '', runtimeClassName: '', schedulerName: '', serviceAccountName: ''}";
    assert_eq!(cluster(empty), cluster("size: 1"));
    assert_eq!(
        runner("imagePullSecret: '', workingDir: '', commands: {servicePre: '', prefix: ''}"),
        cluster("containers: [{image: app}]")
    );
}

#[test]
fn minimal_service_needs_a_flat_tree() {
    let expected = "spec.flux.minimalService: publishes only the lead's name, ";
    let rejects = |fields: &str, flux: &str| {
        let problems = problems(&format!("{fields}\nflux: {{minimalService: true{flux}}}"));
        match problems.as_slice() {
            [] => false,
            [problem] if problem.starts_with(expected) => true,
            _ => panic!("{fields}, {flux}: {problems:?}"),
        }
    };
    // The largest size at which all followers connect to the lead.
    for (topology, flat) in [
        ("", 257),
        (", topology: 'kary:0'", MAX_SIZE),
        (", topology: 'kary:2'", 3),
        (", topology: mincrit", 1025),
        (", topology: 'mincrit:2'", 3),
        (", topology: binomial", 3),
        (", topology: custom", MAX_SIZE),
    ] {
        assert!(!rejects(&format!("size: {flat}"), topology), "{topology}");
        // The pods that may be added have parents, too.
        if flat < MAX_SIZE {
            for sizes in ["size: ", "size: 1\nmaxSize: "].map(|sizes| format!("{sizes}{}", flat + 1)) {
                assert!(rejects(&sizes, topology), "{sizes}{topology}");
            }
        }
    }
    // The pods of other clusters are in the tree, too.
    assert!(rejects(
        "size: 2",
        ", topology: 'kary:2', bursting: {clusters: [{size: 2}]}"
    ));
    // The user's own broker.toml has the addresses of the brokers.
    assert!(!rejects("size: 4", ", topology: 'kary:2', brokerConfig: 'a = 1'"));
    assert_eq!(problems("size: 4\nflux: {topology: 'kary:2'}"), [""; 0]);
}

#[test]
fn name_that_no_image_can_have_is_refused() {
    for image in [
        "app",
        "app:1",
        "ghcr.io/a/app:Debug",
        "localhost:5000/a",
        "Host:5000/a:B",
        "app@sha256:0a",
        "[::1]:5000/a__b/c:1@sha256:0a",
    ] {
        let spec = format!("flux: {{container: {{image: '{image}'}}}}\ncontainers: [{{image: '{image}'}}]");
        assert_eq!(problems(&spec), [""; 0]);
    }
    for image in [
        "app@latest",
        "ghcr.io/a/app:1 # later",
        " app",
        "app ",
        "Org/app/Tool:1",
        "App",
        "docker://ghcr.io/a/app",
        "a//b/app@sha256:",
        "app@sha256://0a",
        "/app",
        "ghcr.io/",
        "app:",
        "ghcr.io/a/app:1/b",
        ":1",
        "@sha256:0a",
    ] {
        let spec = format!(
            "flux: {{container: {{image: '{image}'}}}}\ncontainers: [{{image: '{image}'}}]\nservices: [{{name: s, image: '{image}'}}]"
        );
        let problems = problems(&spec);
        for field in ["containers[0]", "services[0]", "flux.container"] {
            let start = format!("spec.{field}.image: `{image}` cannot be the name of an image: ");
            assert!(
                problems.iter().any(|problem| problem.starts_with(&start)),
                "{problems:?}"
            );
        }
    }
}

#[test]
fn the_kind_of_program_follows_from_the_fields() {
    let program = |fields: &str| runner(fields).runner.program;
    assert_eq!(program("cores: 1"), Program::Persistent);
    assert_eq!(program("command: '  '"), Program::Persistent);
    assert_eq!(program("diagnostics: true, command: a"), Program::Diagnostics);
    assert!(matches!(
        program("command: a, launcher: true"),
        Program::Launcher { .. }
    ));
    assert!(matches!(
        program("commands: {script: a}, launcher: true"),
        Program::Script { launch: true, .. }
    ));
    assert!(matches!(
        cluster("launcher: true").runner.program,
        Program::Launcher { .. }
    ));
    assert_eq!(
        program("batch: true, batchRaw: true, command: \"a\\n\\nb $x\\n\""),
        Program::BatchRaw {
            text: "a\n\nb $x\n".into()
        }
    );
}

#[test]
fn lines_of_a_batch_keep_their_text_and_their_number() {
    let line = |number, text: &str| BatchLine {
        number,
        text: text.into(),
    };
    assert_eq!(
        runner("batch: true, command: \"echo 'a'\\n\\n  b \\\"$X\\\" | c\\n\"")
            .runner
            .program,
        Program::Batch {
            lines: vec![line(0, "echo 'a'"), line(2, "  b \"$X\" | c")]
        }
    );
    let batch = |command: &str| {
        let command = serde_json::to_string(command).unwrap();
        runner(&format!("batch: true, command: {command}")).runner.program
    };
    assert_eq!(
        batch("lmp -v x 8 \\\n  -in in\necho c:\\\\\necho 3 \\\n\necho 5 \\"),
        Program::Batch {
            lines: vec![
                line(0, "lmp -v x 8 \\\n  -in in"),
                line(2, "echo c:\\\\"),
                line(3, "echo 3 \\\n"),
                line(5, "echo 5 ")
            ]
        },
        "a line that ends with a backslash goes on in the next one, if there is one"
    );
    assert_eq!(
        batch("hostname # all \\\nsolve\n# big \\\nsolve '# \\\n' a#b\\\nc"),
        Program::Batch {
            lines: vec![
                line(0, "hostname # all \\"),
                line(1, "solve"),
                line(3, "solve '# \\\n' a#b\\\nc"),
            ]
        },
        "a comment does not"
    );
    assert_eq!(
        problems("containers: [{image: a, batch: true, command: '# later'}]").len(),
        1
    );
}

#[test]
fn comment_ends_a_batch_job_when_it_begins_a_continued_line() {
    let lines = |command: &str| {
        let command = serde_json::to_string(command).unwrap();
        match runner(&format!("batch: true, command: {command}")).runner.program {
            Program::Batch { lines } => lines.into_iter().map(|line| line.text).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(lines("echo a \\\n#x \\\necho b"), ["echo a \\\n#x \\", "echo b"]);
    assert_eq!(lines("echo \\\n\\\n#x \\\nb"), ["echo \\\n\\\n#x \\", "b"]);
    // No comment: the `#` is within a word, or quoted.
    for command in ["echo a\\\n#x \\\nb", "echo \"a \\\n#x\" \\\nb"] {
        assert_eq!(lines(command), [command]);
    }
}

#[test]
fn batch_job_that_takes_the_next_lines_as_text_is_refused() {
    let problems_of = |command: &str| {
        let command = serde_json::to_string(command).unwrap();
        problems(&format!(
            "containers: [{{image: a, batch: true, command: {command}}}]"
        ))
    };
    for (number, command) in [
        (0, "echo it's fine\n./simulate\necho that's all"),
        (1, "a\necho \"b\nc"),
        (0, "echo `date\nb"),
        (0, "echo 'a \\\n b\nc"),
        (2, "a # it's\n\nsh -c '\nb\n'"),
        (0, "echo $$'a\\'b'"),
        (0, "echo \"${x}\" \"$(date)\" it's\nb"),
        (0, "echo $(date\nb"),
        (0, "echo \"${x\nb"),
        (0, "cat <<EOF\nhello\nEOF\n./simulate"),
        (1, "a\ncat > \"${x}/in\" <<-'EOF'\nb\nEOF"),
        (0, "(cat<<EOF)\nb\nEOF"),
        (0, "cat \"$[x\" <<EOF\nb\nEOF"),
        (0, "echo $((1 << 2)) $(cat << EOF)\nb\nEOF"),
    ] {
        let found = problems_of(command);
        assert!(
            found.len() == 1
                && found[0].starts_with(&format!("spec.containers[0].command: line {number} has a ")),
            "{command}: {found:?}"
        );
    }
    for command in [
        "echo 'a # b'",
        "echo \"it's\" `date +\"%H\"`",
        "echo it\\'s",
        "echo 'a \\\n b'\nc",
        "echo \"a \\\n b\"\nc",
        "a # it's\nb",
        "a \\\n# it's\nb",
        "echo $'it\\'s' \"$\"'x'",
        "# it's\nb",
        "echo \"\\\"\" '\\'",
        r#"./sim --name "$(awk -F'"' '{print $2}' params)""#,
        r#"./sim -n "$(grep -c '"' data.txt)""#,
        r#"./sim --label "$(date +"%d o'clock")""#,
        r#"echo "`echo \"it's\"`""#,
        r#"echo "${x%'"'}" it"#,
        r#"echo "$$(it's" "${x:-it's}" ${x#\'} $(date)#it (a)"#,
        "cat <<< \"a\" <<<b",
        "echo $((1<<2)) $(( (1 + 2) << 3 )); ((x = 1 << 2))",
        "echo $[1<<2] $[a[1] << 2]",
        "echo '<<' \"<<\" \\<< `cat <<a` ${x:-<<}",
        "a # <<EOF",
    ] {
        assert_eq!(problems_of(command), [""; 0], "{command}");
    }
    assert_eq!(
        problems("containers: [{image: a, batch: true, batchRaw: true, command: \"echo 'a\\n\\nb'\"}]"),
        [""; 0]
    );
}

#[test]
fn metrics_port_is_refused_only_if_both_ports_are_served() {
    let both = "flux: {metricsPort: 5000}\nfluxRestful: {}\n";
    assert_eq!(problems(both), [""; 0], "a command replaces the API");
    assert_eq!(
        problems(&format!("{both}containers: [{{image: a}}]")),
        ["spec.flux.metricsPort: 5000 is the port of spec.fluxRestful as well: choose another"]
    );
    let without_socket =
        "flux: {metricsPort: 9000, disableSocket: true}\ncontainers: [{image: a, ports: [9000]}]";
    assert_eq!(problems(without_socket), [""; 0], "no metrics");
}

#[test]
fn brokers_port_is_refused_only_where_the_lead_listens_on_it() {
    let with_sidecar =
        "containers: [{image: a, runFlux: true, ports: [8050]}, {image: b, name: b, ports: [80, 8050]}]";
    for (field, flux, others) in [
        (
            "spec.flux.metricsPort",
            "metricsPort: 8050, ",
            "containers: [{image: a}]",
        ),
        (
            "spec.fluxRestful.port",
            "",
            "containers: [{image: a}]\nfluxRestful: {port: 8050}",
        ),
        ("spec.containers[1].ports", "", with_sidecar),
    ] {
        let found =
            |size: &str, options: &str| problems(&format!("{size}\nflux: {{{flux}{options}}}\n{others}"));
        let refused = [format!("{field}: 8050 is the brokers' own port: choose another")];
        let burst = "bursting: {clusters: [{name: burst, size: 1}], leadBroker: {address: 10.0.0.1, name: mc, size: 1}}";
        for (size, options) in [("size: 2", ""), ("size: 1\nmaxSize: 2", ""), ("size: 1", burst)] {
            assert_eq!(found(size, options), refused, "{size} {options}");
        }
        for (size, options) in [("size: 1", ""), ("size: 2", "brokerConfig: 'a = 1'")] {
            assert_eq!(found(size, options), [""; 0], "{size} {options}");
        }
    }
}

#[test]
fn name_of_a_variable_is_reported_in_its_own_list() {
    let why = "is not the name of a variable";
    assert_eq!(
        problems("containers: [{image: a, environment: {A=B: c}, secrets: {C=D: {name: s, key: k}}}]"),
        [
            format!("spec.containers[0].environment[A=B]: {why}"),
            format!("spec.containers[0].secrets[C=D]: {why}"),
        ]
    );
}

#[test]
fn view_is_not_mounted_within_the_operators_folders() {
    let is_refused = |path: &str| {
        problems(&format!("flux: {{container: {{mountPath: {path}}}}}"))
            .iter()
            .any(|problem| problem.starts_with("spec.flux.container.mountPath: would hide"))
    };
    for path in [
        "/mnt/flux-image",
        "/mnt/flux-image/x",
        "/mnt//flux-image/x",
        "/mnt/flux-software/packages",
        "/etc/munge/x",
        "/opt/software/x",
        "/home/flux-operator",
    ] {
        assert!(is_refused(path), "{path}");
    }
    // Names that only begin alike are other folders. Within the fallback HOME and `/usr`, the view may be mounted.
    for path in [
        "/mnt/flux-images",
        "/mnt/flux",
        "/etc/mungee",
        "/home/flux-operator/x",
        "/usr/x",
    ] {
        assert!(!is_refused(path), "{path}");
    }
}

#[test]
fn a_script_is_kept_but_for_the_escaped_dollar() {
    // The Go operator wrote scripts in a heredoc of bash, where users had to write `\$`, and `EOF` ended the script.
    let text = |script: &str| match runner(&format!("commands: {{script: {script}}}")).runner.program {
        Program::Script { text, launch: false } => text,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        text(r#""echo \\${A} $B 'c'\\n \t`d`\n""#),
        "echo ${A} $B 'c'\\n \t`d`\n"
    );
    assert_eq!(text(r#""EOF\n\\\\$x""#), "EOF\n\\$x");
}

/// Without these checks, each would fail only when the operator creates the Job or a Service.
#[test]
fn spec_that_kubernetes_would_reject_is_rejected_early() {
    let sidecar = "containers: [{image: a, runFlux: true}, {image: b, name: web, ports: [80]}]";
    for (spec, problem) in [
        (
            "pod: {labels: {job-name: a}}".to_owned(),
            "spec.pod.labels[job-name]: is set by Kubernetes",
        ),
        (
            "pod: {labels: {batch.kubernetes.io/controller-uid: a}}".to_owned(),
            "spec.pod.labels[batch.kubernetes.io/controller-uid]: is set by Kubernetes",
        ),
        (
            "pod: {hostPID: true}\nshareProcessNamespace: true".to_owned(),
            "spec.shareProcessNamespace: does not go with pod.hostPID",
        ),
        (
            format!("network: {{headlessName: web}}\n{sidecar}"),
            "spec.containers[1].name: must not be `web`",
        ),
    ] {
        assert!(
            problems(&spec)[0].starts_with(problem),
            "{spec}: {:?}",
            problems(&spec)
        );
    }
    assert_eq!(
        problems("pod: {labels: {job-name: mc}}"),
        Vec::<String>::new(),
        "the Job's own name"
    );
    let silent =
        "network: {headlessName: web}\ncontainers: [{image: a, runFlux: true}, {image: b, name: web}]";
    assert_eq!(
        problems(silent),
        Vec::<String>::new(),
        "without ports it has no Service"
    );
}

#[test]
fn both_spellings_of_the_snippets_are_taken() {
    let snippets = |fields: &str| runner(&format!("commands: {{{fields}}}")).runner.snippets;
    assert_eq!(
        snippets("preBroker: a, preWorker: b"),
        snippets("brokerPre: a, workerPre: b")
    );
    assert_eq!(
        snippets("brokerPre: a, preBroker: a").broker_pre.as_deref(),
        Some("a")
    );
    assert_eq!(snippets("pre: ' ', init: ''"), Default::default());
    let twice = problems("containers: [{commands: {brokerPre: a, preBroker: b}}]");
    assert!(
        twice[0].starts_with("spec.containers[0].commands.preBroker"),
        "{twice:?}"
    );
}

#[test]
fn user_has_two_spellings_and_may_run_flux_as_root() {
    let user = |fields: &str| runner(fields).runner.user;
    let flux = |uid, run_flux_as_root| {
        Some(crate::agent_spec::RunnerUser {
            name: "flux".into(),
            uid,
            run_flux_as_root,
        })
    };
    assert_eq!(user("command: a"), None);
    assert_eq!(user("fluxUser: {}"), flux(1000, false));
    assert_eq!(user("fluxuser: {uid: 1002}"), flux(1002, false));
    assert_eq!(
        user("fluxUser: {name: flux}, commands: {runFluxAsRoot: true}"),
        flux(1000, true)
    );
    assert!(problems("containers: [{fluxUser: {uid: 1}, fluxuser: {uid: 2}}]")[0].contains("fluxuser"));
}

#[test]
fn a_sidecar_is_wrapped_if_it_has_work_for_the_agent() {
    let sidecar = |fields: &str| {
        let text = format!("containers: [{{image: app, runFlux: true}}, {{image: db, name: db, {fields}}}]");
        cluster(&text).sidecars.remove(0).wrapped
    };
    assert_eq!(sidecar("ports: [1]"), None);
    assert_eq!(sidecar("noWrapEntrypoint: true"), None);
    assert_eq!(sidecar("commands: {init: ' '}"), None);
    assert_eq!(
        sidecar("command: 'serve | tee'").unwrap().command.as_deref(),
        Some("serve | tee")
    );
    for snippet in ["init", "pre", "post", "servicePre", "script"] {
        assert!(
            sidecar(&format!("commands: {{{snippet}: x}}")).is_some(),
            "{snippet}"
        );
    }
    assert!(sidecar("preCommand: x").unwrap().wait_socket);
    let both = "containers: [{runFlux: true}, {name: db, command: x, noWrapEntrypoint: true}]";
    assert!(problems(both)[0].starts_with("spec.containers[1].noWrapEntrypoint"));
    let text = "flux: {noWaitSocket: true}\ncontainers: [{runFlux: true}, {name: db, command: x}]";
    assert!(!spec(text).sidecars["db"].wait_socket);
}

#[test]
fn one_of_several_containers_runs_flux() {
    assert_eq!(
        cluster("containers: [{name: a}, {name: b, runFlux: true}]").sidecars[0]
            .container
            .name,
        "a"
    );
    assert!(problems("containers: [{name: a}, {name: b}]")[0].starts_with("spec.containers: 0 of them"));
    assert_eq!(
        problems("containers: [{runFlux: false}]"),
        [""; 0],
        "a typed client's zero value"
    );
    assert!(
        problems("containers: [{runFlux: false}, {name: b}]")[0].starts_with("spec.containers: 0 of them")
    );
    assert!(problems("containers: []")[0].starts_with("spec.containers: 0 of them"));
}

#[test]
fn the_runner_is_named_after_the_cluster_unless_it_has_a_name() {
    assert_eq!(runner("command: a").runner.container.name, "mc");
    assert_eq!(runner("command: a, name: solver").runner.container.name, "solver");
    let problems_found = problems("containers: [{runFlux: true}, {name: mc}]");
    assert!(
        problems_found[0].contains("`mc` is another container's name already"),
        "{problems_found:?}"
    );
    assert!(problems("containers: [{runFlux: true, name: main}, {name: mc}]").is_empty());
}

#[test]
fn volumes_of_every_kind_are_mounted_where_they_belong() {
    let mounts = |volumes: &str| runner(&format!("volumes: {{{volumes}}}")).runner.container.mounts;
    let one = |volumes: &str| {
        let mount = mounts(volumes).remove(0);
        (mount.path, mount.source)
    };
    let empty = |memory, size_limit: Option<&str>| VolumeSource::EmptyDir {
        memory,
        size_limit: size_limit.map(|text| Quantity(text.into())),
    };
    assert_eq!(
        one("a: {path: /d/, hostPath: /h}"),
        ("/d".into(), VolumeSource::HostPath("/h".into()))
    );
    assert_eq!(
        one("a: {emptyDir: true}"),
        ("/dev/shm".into(), empty(false, None))
    );
    assert_eq!(
        one("a: {emptyDir: true, path: /s}"),
        ("/s".into(), empty(false, None))
    );
    for medium in ["memory", "Memory", "MEMORY"] {
        let volume =
            format!("a: {{emptyDir: true, emptyDirMedium: {medium}, emptyDirSizeLimit: 64Gi, path: /s}}");
        assert_eq!(one(&volume), ("/dev/shm".into(), empty(true, Some("64Gi"))));
    }
    assert_eq!(
        one("a: {path: /d, claimName: c}"),
        ("/d".into(), VolumeSource::Claim("c".into()))
    );
    let items = BTreeMap::from([("k".to_owned(), "f".to_owned())]);
    assert_eq!(
        one("key: {path: /d, configMapName: other, items: {k: f}}").1,
        VolumeSource::ConfigMap {
            name: "other".into(),
            items: items.clone()
        }
    );
    assert_eq!(
        one("a: {path: /d, secretName: s, items: {k: f}}").1,
        VolumeSource::Secret {
            name: "s".into(),
            items
        }
    );
    let attributes = BTreeMap::from([("b".to_owned(), "c".to_owned())]);
    assert_eq!(
        one("a: {path: /d, csiDriver: x.io, csiDriverAttributes: {b: c}, readOnly: true}").1,
        VolumeSource::Csi {
            driver: "x.io".into(),
            attributes,
            read_only: true
        }
    );
}

#[test]
fn containers_and_services_each_have_their_own_mounts() {
    let cluster = cluster(
        "containers: [{runFlux: true, volumes: {a: {path: /x, claimName: c}}}, {name: b, volumes: {a: {path: /y, claimName: d}}}]\nservices: [{name: s, volumes: {a: {path: /z, claimName: e}}}]",
    );
    let places = [
        &cluster.runner.container,
        &cluster.sidecars[0].container,
        &cluster.services[0],
    ];
    let paths: Vec<&str> = places
        .iter()
        .flat_map(|container| &container.mounts)
        .map(|mount| mount.path.as_str())
        .collect();
    assert_eq!(paths, ["/x", "/y", "/z"]);
}

#[test]
fn archive_that_is_lost_with_the_lead_gets_a_notice() {
    let notices = |container: &str, more: &str| -> Vec<String> {
        let cluster = cluster(&format!(
            "archive: {{path: /state/deep/a.tgz}}\ncontainers: [{{image: a, {container}}}]\n{more}"
        ));
        cluster.notices.iter().map(ToString::to_string).collect()
    };
    for volumes in [
        "volumes: {}",
        "volumes: {v: {path: /stat, claimName: c}}",
        "volumes: {v: {path: /state/deep/er, claimName: c}}",
        "volumes: {v: {path: /state, emptyDir: true}}",
        "volumes: {v: {path: /state, claimName: c}, w: {path: /state/deep, emptyDir: true}}",
    ] {
        assert_eq!(
            notices(volumes, ""),
            [
                "spec.archive.path: /state/deep/a.tgz is on no volume that outlives the pods, so the state is lost with the lead: mount a claim above it"
            ],
            "{volumes}"
        );
    }
    let overlay = "podTemplate: {spec: {containers: [{name: app, volumeMounts: [{name: v, mountPath: /state}]}], volumes: [{name: v, ephemeral: {}}]}}";
    for (container, more) in [
        ("volumes: {v: {path: /state, claimName: c}}", ""),
        ("volumes: {v: {path: /state, hostPath: /d}}", ""),
        (
            "volumes: {v: {path: /state, emptyDir: true}, w: {path: /state/deep, claimName: c}}",
            "",
        ),
        // A Secret cannot be written: Flux restores its state from it, and saves none.
        ("volumes: {v: {path: /state, secretName: s}}", ""),
        ("existingVolumes: {c: {path: /state, claimName: c}}", ""),
        ("commands: {post: cp /state/deep/a.tgz /x}", ""),
        ("name: app", overlay),
    ] {
        assert_eq!(notices(container, more), [""; 0], "{container}");
    }
}

#[test]
fn volume_above_the_operators_mounts_gets_a_notice() {
    let notices = |fields: &str, source: &str| -> Vec<String> {
        let volumes = format!("volumes: {{v: {{{source}}}}}");
        let cluster = cluster(&format!(
            "{fields}\ncontainers: [{{runFlux: true}}, {{name: b, {volumes}}}]\nservices: [{{name: s, {volumes}}}]"
        ));
        cluster.notices.iter().map(ToString::to_string).collect()
    };
    for (source, folders) in [
        ("path: /opt, claimName: c", "/opt/software within /opt:"),
        ("path: /opt, hostPath: /opt", "/opt/software within /opt:"),
        // A notice only: if the image is the view itself, which is not known here, nothing is mounted at /opt/software.
        ("path: /opt, configMapName: c", "/opt/software within /opt:"),
        ("path: /etc, claimName: c", "/etc/flux-agent within /etc:"),
        (
            "path: /mnt, claimName: c",
            "/mnt/flux, /mnt/flux-software, /mnt/flux-image within /mnt:",
        ),
    ] {
        let found = notices("size: 1", source);
        assert_eq!(found.len(), 1, "{source}: {found:?}");
        let start = format!("spec.containers[1].volumes[v].path: the operator mounts {folders}");
        assert!(found[0].starts_with(&start), "{found:?}");
    }
    let disabled = "flux: {container: {disable: true}}";
    for (fields, source) in [
        ("size: 1", "path: /opt, emptyDir: true"),
        ("size: 1", "path: /opt/apps, claimName: c"),
        ("size: 1", "path: /home, claimName: c"),
        (disabled, "path: /opt, claimName: c"),
        (disabled, "path: /opt/software/x, claimName: c"),
    ] {
        let found = notices(fields, source);
        assert_eq!(found, [""; 0], "{source}");
    }
}

#[test]
fn hooks_and_service_commands_are_words_without_references() {
    let container =
        runner("lifeCycle: {postStartExec: 'sh -c \"date > /x\"', preStopExec: 'flux $A \"${B}c\"'}")
            .runner
            .container;
    assert_eq!(container.post_start.unwrap(), ["sh", "-c", "date > /x"]);
    assert_eq!(container.pre_stop.unwrap(), ["flux", "$A", "${B}c"]);
    let service = cluster("services: [{name: s, command: 'serve --all \"a b\"'}]")
        .services
        .remove(0);
    assert_eq!(service.entrypoint.unwrap(), ["serve", "--all", "a b"]);
}

#[test]
fn shell_syntax_of_hooks_and_service_commands_gets_a_notice() {
    let notices = |cluster: ValidMiniCluster| -> Vec<String> {
        cluster.notices.iter().map(ToString::to_string).collect()
    };
    let of_service =
        |command: &str| notices(cluster(&format!("services: [{{name: s, command: {command:?}}}]")));
    let of_hook = |command: &str| notices(runner(&format!("lifeCycle: {{preStopExec: {command:?}}}")));
    for (command, syntax) in [
        ("db --password $(P)", "$("),
        ("db --password=$P", "$"),
        ("db ${P}", "$"),
        ("a && b", "&&"),
        ("sh -c 'a' && b", "&&"),
    ] {
        let text = format!("`{syntax}` reaches the program as text");
        for (found, field) in [
            (of_service(command), "spec.services[0].command: "),
            (of_hook(command), "spec.containers[0].lifeCycle.preStopExec: "),
        ] {
            assert_eq!(found.len(), 1, "{command}: {found:?}");
            assert!(found[0].starts_with(&format!("{field}{text}")), "{found:?}");
        }
    }
    for command in [
        "sh -c 'echo $P && b'",
        "sh -c \"echo $P\"",
        "a \\$P $ $1",
        "db --all",
    ] {
        let found = [of_service(command), of_hook(command)].concat();
        assert_eq!(found, [""; 0], "{command}");
    }
}

#[test]
fn add_capabilities_becomes_capabilities_add() {
    let context = runner("securityContext: {privileged: true, addCapabilities: [IPC_LOCK]}")
        .runner
        .container
        .security_context;
    assert_eq!(
        context.unwrap(),
        serde_json::json!({"privileged": true, "capabilities": {"add": ["IPC_LOCK"]}})
    );
    assert_eq!(
        runner("securityContext: null").runner.container.security_context,
        None
    );
}

#[test]
fn pulling_always_wins_over_the_policy() {
    let policy = |fields: &str| runner(fields).runner.container.pull_policy;
    assert_eq!(
        policy("pullAlways: true, imagePullPolicy: Never"),
        PullPolicy::Always
    );
    assert_eq!(policy("imagePullPolicy: Never"), PullPolicy::Never);
}

#[test]
fn queue_policy_must_be_one_of_the_chosen_scheduler() {
    let options = |text: &str| {
        let flux = cluster(&format!("flux: {{scheduler: {{{text}}}}}")).flux;
        (flux.scheduler, flux.queue_policy)
    };
    assert_eq!(options("queuePolicy: easy"), (None, Some("easy".into())));
    assert_eq!(options("simple: false"), (Some(SchedulerKind::Fluxion), None));
    assert_eq!(
        options("simple: true, queuePolicy: fcfs"),
        (Some(SchedulerKind::Simple), Some("fcfs".into()))
    );
    assert!(problems("flux: {scheduler: {simple: true, queuePolicy: easy}}")[0].contains("Fluxion"));
}

#[test]
fn names_leave_room_for_hosts_and_services() {
    let named = |name: String, size: u32| {
        let text = format!(
            "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: {name}}}\nspec: {{size: {size}, containers: [{{image: a}}]}}\n"
        );
        manifest::parse(&text)
            .and_then(|manifest| validate(&manifest))
            .is_ok()
    };
    for size in [1, 64, 10_000] {
        assert!(named("a".repeat(names::cluster_name_max(size)), size), "{size}");
        assert!(
            !named("a".repeat(names::cluster_name_max(size) + 1), size),
            "{size}"
        );
    }
    // The Go operator accepts this name.
    assert!(named("2024-run".into(), 1));
    assert!(!named("a.b".into(), 1) && !named("-a".into(), 1));
}

#[test]
fn text_must_fit_into_a_config_map() {
    let script = |bytes: usize| format!("containers: [{{commands: {{script: '{}'}}}}]", "x".repeat(bytes));
    assert!(read(&script(MAX_TEXT)).is_ok());
    assert!(problems(&script(MAX_TEXT + 1))[0].contains("put larger files on a volume"));
}

#[test]
fn valid_spec_survives_the_agents_toml() {
    let text = "size: 3\nmaxSize: 5\nminSize: 2\narchive: {path: /s/a.tgz}\nflux: {environment: {A: \"b 'c' \\\"d\\\"\\n\"}, brokerConfig: '[a]'}\ncontainers: [{image: a, runFlux: true, command: \"x '$y' \\\"$z\\\"\", commands: {prefix: nice}}, {name: b, command: \"c\\n\\\\d\"}]";
    let spec = spec(text);
    assert_eq!(AgentSpec::from_toml(&spec.to_toml().unwrap()).unwrap(), spec);
}

#[test]
fn surprising_settings_are_hints_and_no_notices() {
    let hints = |spec: &str| -> Vec<String> {
        let head = "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {name: a}\nspec:\n";
        let cluster = validate_and_note(&crate::manifest::parse(&format!("{head}{spec}")).unwrap()).unwrap();
        assert!(cluster.notices.is_empty(), "{:?}", cluster.notices);
        cluster.hints().into_iter().map(|hint| hint.field).collect()
    };
    let (tasks, files) = ("spec.tasks", "spec.containers[].logs");
    assert_eq!(
        hints("  size: 4\n  containers: [{image: a, command: b}]\n"),
        [tasks]
    );
    assert_eq!(
        hints("  size: 4\n  tasks: 0\n  containers: [{image: a, command: b}]\n"),
        [""; 0]
    );
    assert_eq!(
        hints("  size: 4\n  interactive: true\n  containers: [{image: a}]\n"),
        [""; 0]
    );
    assert_eq!(
        hints("  size: 2\n  containers: [{image: a, command: b, batch: true}]\n"),
        [files]
    );
    let kept = "volumes: {v: {path: /out, claimName: c}}";
    let batch =
        format!("  size: 2\n  containers: [{{image: a, command: b, batch: true, logs: /out/x, {kept}}}]\n");
    assert_eq!(hints(&batch), [""; 0]);
    assert_eq!(hints(&batch.replace("/out/x", "/outer")), [files]);
}
