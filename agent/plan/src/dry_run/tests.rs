use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::*;
use flux_shared::exit::Category;

mod golden;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn inputs() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder("inputs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

fn run(args: &Args) -> Result<String, DryRunError> {
    super::run(args, |path| std::fs::read_to_string(path))
}

fn args(file: &Path) -> Args {
    Args {
        file: Some(file.to_owned()),
        ..Args::default()
    }
}

fn input(name: &str) -> PathBuf {
    folder("inputs").join(name)
}

#[test]
fn the_json_form_is_that_of_the_schema() {
    let schema =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("schema/dry-run.json")).unwrap();
    let schema = serde_json::from_str(&schema).unwrap();
    jsonschema::meta::validate(&schema).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for file in inputs() {
        let json = run(&Args {
            format: Format::Json,
            ..args(&file)
        })
        .unwrap();
        let value = serde_json::from_str(&json).unwrap();
        let errors: Vec<String> = validator
            .iter_errors(&value)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{}: {errors:#?}", file.display());
    }
}

#[test]
fn json_is_a_minicluster_on_one_line_and_after_three_dashes() {
    let text = r#"{"apiVersion":"flux-framework.org/v1alpha2","kind":"MiniCluster","metadata":{"name":"a"},"spec":{"containers":[{"image":"b"}]}}"#;
    for begin in ["", "---\n", "# mine\n---\n"] {
        assert!(
            super::source::Source::parse(&format!("{begin}{text}")).is_ok(),
            "{begin:?}"
        );
    }
}

#[test]
fn notices_about_the_text_come_first() {
    let document = |name: &str, spec: &str| {
        format!(
            "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: {name}}}\n\
             spec: {{{spec}}}\n---\n"
        )
    };
    let containers = "containers: [{image: app, command: id}]";
    let single = document("b", containers);
    let several = document("a", &format!("size: 2, size: 3, {containers}")) + &single;
    let source = Source::parse(&several).unwrap();
    let first = "the file has 2 MiniClusters: only the first one, a, is used";
    assert_eq!(source.text_notices[0], first);
    assert!(source.text_notices.len() == 2 && source.text_notices[1].contains("duplicate"));
    assert!(source.notices.starts_with(&source.text_notices));
    assert!(Source::parse(&single).unwrap().text_notices.is_empty());
}

#[test]
fn agent_spec_stays_toml_when_a_snippet_holds_a_manifest() {
    let snippet = "kubectl create -f - <<END\nkind: Job\n---\n{}\nEND\n";
    for begin in ["", "\n# mine\n\n"] {
        let text = format!("{begin}name = 'mc'\n[runner.snippets]\npre = '''\n{snippet}'''\n");
        let source = super::source::Source::parse(&text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(source.kind, super::source::SourceKind::AgentSpec);
    }
}

#[test]
fn dry_run_index_prints_one_pod_and_rejects_unknown_index() {
    let text = run(&Args {
        index: Some(3),
        ..args(&input("hello.yaml"))
    })
    .unwrap();
    assert!(
        text.contains("Follower: index 3, host hello-world-3, rank 3") && !text.contains("Lead:"),
        "{text}"
    );
    let error = run(&Args {
        index: Some(4),
        ..args(&input("hello.yaml"))
    })
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to find a pod with index 4: the highest index is 3"
    );
}

#[test]
fn dry_run_plans_for_given_cpus_gpus_uid_and_missing_shell() {
    let text = |change: fn(&mut Args)| {
        let mut args = Args {
            full: true,
            ..args(&input("hello.yaml"))
        };
        change(&mut args);
        run(&args)
    };
    let eight = text(|args| args.cpus = Some(8)).unwrap();
    assert!(eight.contains("8 cores") && eight.matches("type=\"Core\"").count() >= 8);
    let stranger = text(|args| args.uid = Some(4711)).unwrap();
    assert!(stranger.contains("HOME=/home/flux-operator") && stranger.contains("4711:4711"));
    assert!(
        text(|args| args.gpus = Some(2))
            .unwrap()
            .contains("name=\"gpu1\"")
    );
    assert!(
        text(|args| args.no_shell = true).is_ok(),
        "a command needs no shell"
    );
}

#[test]
fn facts_file_is_used_and_its_errors_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("facts.toml");
    let with = |text: &str, name: &str| {
        std::fs::write(&file, text).unwrap();
        run(&Args {
            facts: Some(file.clone()),
            ..args(&input(name))
        })
    };
    let text = with(
        "cores = 16\ncpu_quota = 2.0\n[view]\nfluxion = false\n",
        "hello.yaml",
    )
    .unwrap();
    assert!(text.contains("2 cores") && text.contains("no Fluxion"), "{text}");
    assert!(matches!(
        with("core = 1\n", "hello.yaml"),
        Err(DryRunError::Facts { .. })
    ));
    // TOML has no null.
    let shellless = with("shell: null\nindex: 0\n", "hello.yaml");
    assert!(shellless.is_ok(), "{shellless:?}");
    let missing = with("[view]\nflux = false\n", "hello.yaml").unwrap_err();
    assert_eq!(missing.category(), Category::ViewMissing);
}

#[test]
fn key_of_the_facts_file_counts_without_an_option() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("facts.toml");
    std::fs::write(&file, "[key]\nseed = '/my/seed'\nof = ['1-2']\n").unwrap();
    let args = Args {
        facts: Some(file),
        format: Format::Json,
        ..args(&input("hello.yaml"))
    };
    let json = run(&args).unwrap();
    assert!(json.contains("/my/seed"), "{json}");
}

#[test]
fn facts_with_a_host_name_are_those_of_the_pod_of_that_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("facts.toml");
    std::fs::write(&file, "hostname = 'hello-world-2'\n").unwrap();
    let with = |index| {
        let args = Args {
            facts: Some(file.clone()),
            index,
            full: true,
            ..args(&input("hello.yaml"))
        };
        run(&args).unwrap()
    };
    for (index, pod) in [
        (None, "Follower: index 2, host hello-world-2, rank 2"),
        (Some(2), "Follower: index 2, host hello-world-2, rank 2"),
        (Some(3), "Follower: index 3, host hello-world-3, rank 3"),
        (Some(0), "Lead: index 0, host hello-world-0, rank 0"),
    ] {
        let text = with(index);
        assert!(text.contains(pod), "{index:?}: {text}");
    }
}

#[test]
fn facts_with_a_nodes_name_need_an_index() {
    let folder = tempfile::tempdir().unwrap();
    let (spec, facts) = (folder.path().join("agent.toml"), folder.path().join("facts.toml"));
    std::fs::write(&spec, "name = 'mc'\nsize = 2\n[network]\nhost_network = true\n").unwrap();
    std::fs::write(&facts, "hostname = 'node-7'\n").unwrap();
    let with = |index| {
        run(&Args {
            facts: Some(facts.clone()),
            index,
            ..args(&spec)
        })
    };
    let error = with(None).unwrap_err();
    assert!(
        matches!(&error, DryRunError::Plan { source: crate::plan::PlanError::NoIndex { host }, .. } if host == "node-7"),
        "{error:?}"
    );
    assert!(with(Some(1)).unwrap().contains("index 1, host mc-1, rank 1"));
}

#[test]
fn every_problem_of_a_manifest_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.yaml");
    std::fs::write(
        &file,
        "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {name: a}\nspec:\n  size: 0\n  deadlineSeconds: 0\n  containers: [{image: x, command: a}]\n",
    )
    .unwrap();
    let DryRunError::Input { source, .. } = run(&args(&file)).unwrap_err() else {
        unreachable!()
    };
    assert!(source.0.len() >= 2, "{source}");
}

#[test]
fn overlay_environment_reaches_the_runner() {
    let text = "{apiVersion: flux-framework.org/v1alpha2, kind: MiniCluster, metadata: {name: mc}, spec: {\
        podTemplate: {spec: {containers: [{name: app, env: [{name: B, value: over}, {name: A, $patch: delete}, \
        {name: C, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]}]}}, \
        containers: [{image: a, name: app, command: b, environment: {A: one, D: two}}]}}";
    let environment = Source::parse(text).unwrap().assumed_facts(None).environment;
    // C has no literal value, so dry-run knows none.
    let value_of = |name: &str| environment.get(name).map(String::as_str);
    assert_eq!(
        (value_of("A"), value_of("B"), value_of("C"), value_of("D")),
        (None, Some("over"), None, Some("two"))
    );
}

#[test]
fn environment_is_expanded_as_in_a_pod() {
    let text = "{apiVersion: flux-framework.org/v1alpha2, kind: MiniCluster, metadata: {name: mc}, spec: {\
        podTemplate: {spec: {containers: [{name: app, env: [{name: Z, value: first}, \
        {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]}]}}, \
        containers: [{image: a, name: app, command: b, environment: {A: '$(Z)$$', B: '$(NODE):1'}}]}}";
    let environment = Source::parse(text).unwrap().assumed_facts(None).environment;
    assert_eq!((&*environment["A"], &*environment["B"]), ("first$", "$(NODE):1"));
}

#[test]
fn sidecars_are_planned_with_their_own_facts() {
    let folder = tempfile::tempdir().unwrap();
    let (file, facts) = (folder.path().join("mc.yaml"), folder.path().join("facts.toml"));
    let text = "{apiVersion: flux-framework.org/v1alpha2, kind: MiniCluster, metadata: {name: mc}, spec: {\
        size: 1, interactive: true, containers: [\
        {image: a, runFlux: true, workingDir: /work, environment: {TMPDIR: /scratch}}, \
        {image: b, name: own, command: c, commands: {pre: 'true'}, workingDir: /own, \
         securityContext: {runAsUser: 1000}, environment: {TMPDIR: /tmp/own}}]}}";
    std::fs::write(&file, text).unwrap();
    std::fs::write(&facts, "working_directory = '/of-file'\n").unwrap();
    let sidecar = |change: &dyn Fn(&mut Args)| {
        let mut args = Args {
            full: true,
            ..args(&file)
        };
        change(&mut args);
        let text = run(&args).unwrap();
        let (runner, sidecar) = text.split_once("Sidecar own").unwrap();
        assert!(!runner.contains("1000"), "{runner}");
        sidecar.to_owned()
    };
    let has = |text: &str, wanted: &[&str]| {
        for wanted in wanted {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    };
    let own = sidecar(&|_| {});
    has(
        &own,
        &[
            "workdir=/own",
            "fluxuid=1000",
            "HOME=/home/flux-operator",
            "USER=1000",
        ],
    );
    assert!(!own.contains("/work\n") && !own.contains("/scratch"), "{own}");
    // Options change the facts of all containers, and a file replaces them.
    let stranger = sidecar(&|args| args.uid = Some(4711));
    has(&stranger, &["workdir=/own", "fluxuid=4711"]);
    let of_file = sidecar(&|args| args.facts = Some(facts.clone()));
    has(&of_file, &["workdir=/of-file", "fluxuid=0"]);
}

#[test]
fn given_home_precedes_that_of_the_assumed_user() {
    let folder = tempfile::tempdir().unwrap();
    let (file, facts) = (folder.path().join("mc.yaml"), folder.path().join("facts.toml"));
    let facts_of = |variables: &str, facts_text: Option<&str>, uid, home: Option<&str>| {
        let text = format!(
            "{{apiVersion: flux-framework.org/v1alpha2, kind: MiniCluster, metadata: {{name: mc}}, spec: {{\
             containers: [{{image: a, command: b, environment: {{{variables}}}, securityContext: {{runAsUser: 1000}}}}]}}}}"
        );
        std::fs::write(&file, text).unwrap();
        facts_text.inspect(|text| std::fs::write(&facts, text).unwrap());
        let args = Args {
            facts: facts_text.map(|_| facts.clone()),
            uid,
            env: home
                .map(|home| ("HOME".into(), home.into()))
                .into_iter()
                .collect(),
            ..args(&file)
        };
        let read = |path: &Path| std::fs::read_to_string(path);
        let facts = super::args::input(&args, &read).unwrap().facts;
        let home = facts.environment["HOME"].clone();
        (facts.uid, home, facts.writable.contains("/"))
    };
    let own = "HOME: /own";
    let stranger = "uid = 7\nwritable = []\n[environment]\nHOME = '/'\n";
    for (variables, facts, uid, home, expected) in [
        ("", None, None, None, (1000, "/", false)),
        ("", None, Some(8), None, (8, "/", false)),
        ("", None, Some(8), Some("/work"), (8, "/work", false)),
        (own, None, None, None, (1000, "/own", false)),
        (own, None, Some(8), None, (8, "/own", false)),
        (own, None, Some(8), Some("/work"), (8, "/work", false)),
        ("", None, Some(0), None, (0, "/root", true)),
        ("", Some(stranger), None, None, (7, "/", false)),
        ("", Some(stranger), Some(0), None, (0, "/root", true)),
        ("", Some(stranger), Some(8), Some("/work"), (8, "/work", false)),
    ] {
        let (found_uid, found_home, can_write) = facts_of(variables, facts, uid, home);
        assert_eq!(
            (found_uid, found_home.as_str(), can_write),
            expected,
            "{variables} {facts:?} {uid:?} {home:?}"
        );
    }
}

#[test]
fn user_is_that_of_the_container_else_of_the_pod() {
    let ids = |pod: &str, container: &str| {
        let text = format!(
            "{{apiVersion: flux-framework.org/v1alpha2, kind: MiniCluster, metadata: {{name: mc}}, spec: {{\
             pod: {{securityContext: {{{pod}}}}}, containers: [{{image: a, securityContext: {{{container}}}}}]}}}}"
        );
        let facts = Source::parse(&text).unwrap().assumed_facts(None);
        (facts.uid, facts.gid)
    };
    assert_eq!(ids("", ""), (0, 0));
    assert_eq!(ids("runAsUser: 7", ""), (7, 0));
    assert_eq!(ids("runAsUser: 7, runAsGroup: 8", ""), (7, 8));
    assert_eq!(ids("runAsUser: 7, runAsGroup: 8", "runAsUser: 9"), (9, 8));
    assert_eq!(ids("runAsUser: 7", "runAsUser: 0"), (0, 0));
}

#[test]
fn home_is_elsewhere_when_a_volume_is_above_it() {
    let text = |volumes: &str, overlay: &str| {
        let text = format!(
            "{{apiVersion: flux-framework.org/v1alpha2, kind: MiniCluster, metadata: {{name: mc}}, spec: {{\
             containers: [{{image: a, name: app, command: b, securityContext: {{runAsUser: 7}}, \
             volumes: {{{volumes}}}}}], podTemplate: {{spec: {{containers: [{{name: app, volumeMounts: [{overlay}]}}]}}}}}}}}"
        );
        let source = Source::parse(&text).unwrap();
        let plans = pods::plan(&source, &source.assumed_facts(None), &BTreeMap::new(), None).unwrap();
        serde_json::to_string(&plans).unwrap()
    };
    let homes = ["/home/flux-operator", "/etc/flux-agent/home"];
    for (path, home) in [
        ("/homes", homes[0]),
        ("/home/ada", homes[0]),
        ("/home/flux-operator", homes[0]),
        ("/home", homes[1]),
    ] {
        let volume = format!("homes: {{path: {path}, claimName: homes}}");
        let overlay = format!("{{name: homes, mountPath: {path}}}");
        let mut texts = vec![text(&volume, "")];
        if path != homes[0] {
            texts.push(text("", &overlay));
        }
        for text in texts {
            let found = homes.map(|home| text.contains(home));
            assert_eq!(found, homes.map(|other| other == home), "{path}: {text}");
        }
    }
}

#[test]
fn limit_of_the_pod_counts_for_the_assumed_cores() {
    let cores = |pod: &str, limits: &str| {
        let text = format!(
            "{{apiVersion: flux-framework.org/v1alpha2, kind: MiniCluster, metadata: {{name: mc}}, spec: {{\
             pod: {{{pod}}}, containers: [{{image: a, command: b, resources: {{limits: {{{limits}}}}}}}]}}}}"
        );
        let source = Source::parse(&text).unwrap();
        source.assumed_facts(None).usable_cores(&source.spec.runner)
    };
    assert_eq!(cores("resources: {cpu: 2}", ""), 2);
    assert_eq!(cores("resources: {cpu: 16}", ""), 16);
    assert_eq!(cores("resources: {cpu: 2}", "cpu: 3"), 3);
    // With a runtime class, `pod.resources` is the pod's overhead.
    assert_eq!(cores("resources: {cpu: 2}, runtimeClassName: kata", ""), 4);
}

#[test]
fn limits_of_the_runner_are_its_assumed_cores_and_gpus() {
    let cores_and_gpus = |limits: &str| {
        let text = format!(
            "{{apiVersion: flux-framework.org/v1alpha2, kind: MiniCluster, metadata: {{name: mc}}, spec: {{\
             containers: [{{image: a, command: b, resources: {{limits: {{{limits}}}}}}}]}}}}"
        );
        let source = Source::parse(&text).unwrap();
        let facts = source.assumed_facts(None);
        (facts.usable_cores(&source.spec.runner), facts.gpus)
    };
    assert_eq!(cores_and_gpus(""), (4, 0));
    assert_eq!(cores_and_gpus("cpu: 2, nvidia.com/gpu: 2"), (2, 2));
    assert_eq!(cores_and_gpus("cpu: 2500m, memory: 1Gi"), (2, 0));
    assert_eq!(cores_and_gpus("cpu: 48, amd.com/gpu: 4"), (48, 4));
    assert_eq!(cores_and_gpus("cpu: 500m"), (1, 0));
    assert_eq!(cores_and_gpus("cpu: 0"), (4, 0));
}

#[test]
fn cpu_limit_counts_unless_cpus_or_a_quota_are_assumed() {
    let folder = tempfile::tempdir().unwrap();
    let (mini_cluster, agent_spec, facts) = (
        folder.path().join("mc.yaml"),
        folder.path().join("agent.toml"),
        folder.path().join("facts.toml"),
    );
    let text = "{apiVersion: flux-framework.org/v1alpha2, kind: MiniCluster, metadata: {name: mc}, spec: {\
                containers: [{image: a, command: b, resources: {limits: {cpu: 6}}}]}}";
    std::fs::write(&mini_cluster, text).unwrap();
    std::fs::write(&agent_spec, "name = 'mc'\n[runner]\ncpu_limit = 6\n").unwrap();
    for file in [mini_cluster, agent_spec] {
        let has_cores = |count: u32, assumed: Option<&str>, cpus| {
            assumed.inspect(|text| std::fs::write(&facts, text).unwrap());
            let text = run(&Args {
                facts: assumed.map(|_| facts.clone()),
                cpus,
                full: true,
                ..args(&file)
            })
            .unwrap();
            let host = format!("Assumed host: user root, {count} cores");
            let listed = format!("\"core\":\"0-{}\"", count - 1);
            assert!(text.contains(&host) && text.contains(&listed), "{count}: {text}");
        };
        has_cores(6, None, None);
        has_cores(6, Some("cores = 64"), None);
        has_cores(2, Some("cores = 64\ncpu_quota = 2.0"), None);
        has_cores(8, None, Some(8));
        has_cores(8, Some("cores = 64\ncpu_quota = 2.0"), Some(8));
    }
}

#[test]
fn assumed_cpus_keep_exclusive_and_shared_cpusets() {
    let folder = tempfile::tempdir().unwrap();
    let (file, facts) = (folder.path().join("agent.toml"), folder.path().join("facts.toml"));
    let is_bound = |limit: &str, quota: &str, cpus: u32| {
        std::fs::write(&file, format!("name = 'mc'\n[runner]\n{limit}\n")).unwrap();
        let text = format!("cores = 4\ncpuset = 4\noom_score = -997\n{quota}\n");
        std::fs::write(&facts, text).unwrap();
        let args = Args {
            facts: Some(facts.clone()),
            cpus: Some(cpus),
            ..args(&file)
        };
        let read = |path: &Path| std::fs::read_to_string(path);
        let super::args::Input { source, facts, .. } = super::args::input(&args, &read).unwrap();
        let runner = &source.spec.runner;
        assert_eq!(facts.usable_cores(runner), cpus, "{limit} {quota}");
        crate::plan::Binding::of(runner, &facts).on
    };
    for cpus in [2, 4, 8] {
        for (limit, quota, expected) in [
            ("", "", true),
            ("", "cpu_quota = 4.0", true),
            ("cpu_limit = 4", "", true),
            ("", "cpu_quota = 2.5", false),
            ("", "cpu_quota = 2.0", false),
            ("cpu_limit = 2.5", "", false),
        ] {
            assert_eq!(is_bound(limit, quota, cpus), expected, "{limit} {quota} {cpus}");
        }
    }
}

#[test]
fn dry_run_does_not_print_a_certificate_of_the_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret.yaml");
    let secret = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
    let public = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
    let manifest = format!(
        "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: a}}\nspec:\n  size: 2\n  flux:\n    curveCert: |\n      metadata\n          name = \"a\"\n      curve\n          public-key = \"{public}\"\n          secret-key = \"{secret}\"\n  containers:\n  - image: x\n    command: hostname\n"
    );
    std::fs::write(&file, manifest).unwrap();
    for format in [Format::Text, Format::Json] {
        let output = run(&Args {
            format,
            ..args(&file)
        })
        .unwrap();
        assert!(!output.contains(&secret[..8]));
    }
}

#[test]
fn summary_is_six_lines_and_uncoloured_unless_painted() {
    let text = run(&args(&input("hello.yaml"))).unwrap();
    assert_eq!(text.lines().count(), 6, "{text}");
    assert!(
        text.contains(
            "lead       flux submit --input=/dev/null -N 4 -n 4 --quiet --watch echo \"hello ${USER}\"\n"
        ),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'));
    let painted = paint(&text);
    assert!(painted.contains("\u{1b}[1mlead \u{1b}[0m"), "{painted}");
    let plain = ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[33m"]
        .iter()
        .fold(painted, |text, style| text.replace(style, ""));
    assert_eq!(plain, text);
}

#[test]
fn summary_has_the_reports_of_interactive_diagnostics() {
    let text = summary_of("size: 2\n  interactive: true\n  containers: [{image: app, diagnostics: true}]");
    assert!(
        text.contains("output     three reports in the lead's log"),
        "{text}"
    );
}

#[test]
fn summary_names_no_created_user_when_flux_runs_as_root() {
    let text = summary_of("containers: [{image: app, command: id, commands: {runFluxAsRoot: true}}]");
    assert!(!text.contains("created in every pod"), "{text}");
}

/// The summary of a MiniCluster with these fields.
fn summary_of(fields: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mc.yaml");
    let text = format!(
        "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: mc}}\nspec:\n  {fields}\n"
    );
    std::fs::write(&file, text).unwrap();
    run(&args(&file)).unwrap()
}

/// Every file with a MiniCluster below `examples/`, and those with older spellings of fields.
fn examples() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = ["../../examples", "../../shared/tests/spellings"]
        .map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join(name))
        .into();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_manifest = |path: &Path| path.extension().is_some_and(|end| end == "yaml" || end == "yml");
            let has_minicluster = |text: String| text.lines().any(|line| line == "kind: MiniCluster");
            if path.is_dir() {
                folders.push(path);
            } else if is_manifest(&path) && has_minicluster(std::fs::read_to_string(&path).unwrap()) {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn every_example_is_planned() {
    let examples = examples();
    assert!(examples.len() > 20, "{examples:?}");
    for file in examples {
        for format in [Format::Text, Format::Json] {
            let result = run(&Args {
                format,
                ..args(&file)
            });
            assert!(result.is_ok(), "{}: {:?}", file.display(), result.err());
        }
    }
}

/// Arguments like those of the entrypoint in `examples/jobset`, with assumed values.
fn of_a_jobset(more: &[&str]) -> Args {
    use clap::Parser;
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }
    let words = [
        "dry-run",
        "--name-from-env=JOB",
        "--service-from-env=SET",
        "--size-from-env=N",
        "--key-from-env=UID,ATTEMPT",
    ];
    let assumed = [
        "--env=JOB=train-node-0",
        "--env=SET=train",
        "--env=N=3",
        "--env=UID=4-5",
        "--env=ATTEMPT=1",
    ];
    Line::try_parse_from(words.iter().chain(&assumed).chain(more))
        .unwrap()
        .args
}

#[test]
fn jobset_pods_are_planned_from_entrypoint_words() {
    let text = run(&of_a_jobset(&["--full", "--", "echo", "a  b", "$HOME"])).unwrap();
    assert!(
        text.contains("train-node-0-[0-2]") && text.contains("train-node-0-0.train.default.svc"),
        "{text}"
    );
    assert!(
        text.contains("submit --input=/dev/null -N 3 --quiet --watch echo 'a  b' '$HOME'\n"),
        "{text}"
    );
    let certificate = "(a certificate derived from the seed in /etc/flux-agent/seed/seed and from train-node-0, 4-5, 1; never shown)";
    // For the followers, the text says that the file is the same as the lead's.
    assert_eq!(text.matches(certificate).count(), 1, "{text}");

    let json = run(&Args {
        format: Format::Json,
        ..of_a_jobset(&["--", "true"])
    })
    .unwrap();
    let schema =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("schema/dry-run.json")).unwrap();
    let validator = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(&serde_json::from_str(&json).unwrap())
        .map(|error| error.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

#[test]
fn entrypoint_options_reject_miniclusters_and_unset_variables() {
    let cluster = Args {
        file: Some(input("hello.yaml")),
        ..of_a_jobset(&[])
    };
    let why = run(&cluster).unwrap_err();
    assert!(
        std::error::Error::source(&why)
            .unwrap()
            .to_string()
            .contains("a MiniCluster sets them itself"),
        "{why}"
    );
    let unset = Args {
        env: Vec::new(),
        ..of_a_jobset(&[])
    };
    let why = run(&unset).unwrap_err();
    let source = std::error::Error::source(&why).unwrap().to_string();
    assert!(
        source.contains("failed to use --name-from-env JOB: it is not set"),
        "{source}"
    );
}
