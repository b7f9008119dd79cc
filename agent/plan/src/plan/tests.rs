use flux_shared::agent_spec::*;
use flux_shared::command_words::{self, Word};
use flux_shared::paths::FALLBACK_HOME;

use super::*;

mod fields;
mod fuzz;
mod supervision;

fn spec(text: &str) -> AgentSpec {
    AgentSpec::from_toml(&format!("name = 'mc'\n{text}")).unwrap()
}

fn facts(index: u32) -> Facts {
    Facts {
        index: Some(index),
        ..Facts::default()
    }
}

fn plan_of(spec: &AgentSpec, facts: &Facts) -> Plan {
    build(spec, facts, &PodContainer::Runner).unwrap()
}

fn launch(plan: &Plan) -> &Launch {
    plan.steps
        .iter()
        .find_map(|step| match step {
            Step::Launch(launch) => Some(launch),
            _ => None,
        })
        .unwrap()
}

fn argv(plan: &Plan) -> String {
    launch(plan)
        .argv
        .iter()
        .map(shell_quote::word)
        .collect::<Vec<String>>()
        .join(" ")
}

/// The names of the steps, with their main detail if they have one.
fn outline(plan: &Plan) -> Vec<String> {
    plan.steps
        .iter()
        .map(|step| match step {
            Step::User { name, .. } => format!("user {name}"),
            Step::Password { user, .. } => format!("password {user}"),
            Step::Daemon { argv } => format!("daemon {}", argv.join(" ")),
            Step::Give { path, .. } => format!("give {path}"),
            Step::Directory { path, .. } => format!("directory {path}"),
            Step::File { path, .. } => format!("file {path}"),
            Step::Link { path, .. } => format!("link {path}"),
            Step::Environment { .. } => "environment".into(),
            Step::Shell(_) => "shell".into(),
            Step::Snippet(snippet) => format!("snippet {}", snippet.name),
            Step::EndShell => "end-shell".into(),
            Step::Replan => "replan".into(),
            Step::SnippetResources(_) => "snippet-resources".into(),
            Step::WaitParent(_) => "wait-parent".into(),
            Step::WaitSocket { .. } => "wait-socket".into(),
            Step::CheckEarlierStarts { restarts, .. } => format!("once {restarts}"),
            Step::LeadLost { restarts_left } => format!("lead-lost {restarts_left}"),
            Step::Launch(_) => "launch".into(),
            Step::PrepareArchive { .. } => "prepare-archive".into(),
            Step::PublishArchive { .. } => "publish-archive".into(),
            Step::Linger { seconds, .. } => format!("linger {seconds}"),
            Step::NoteEnd { .. } => "note-end".into(),
            Step::Stay => "stay".into(),
        })
        .collect()
}

#[test]
fn the_steps_come_in_the_order_of_the_documents() {
    let spec = spec(
        "size = 2\narchive = '/state/a.tgz'\n[runner]\nuser = {name = 'flux', uid = 1000}\n[runner.snippets]\n\
         init = 'a'\npre_command = 'b'\npre = 'c'\nbroker_pre = 'd'\nworker_pre = 'e'\npost = 'f'\n",
    );
    let without_files = |plan: &Plan| -> Vec<String> {
        outline(plan)
            .into_iter()
            .filter(|line| {
                !line.starts_with("directory") && !line.starts_with("file") && !line.starts_with("link")
            })
            .collect()
    };
    let lead = plan_of(&spec, &facts(0));
    // The first `environment` appends the view's folders for `init`, the second withdraws them. The third is for all
    // later steps.
    let want = [
        "user flux",
        "environment",
        "shell",
        "snippet init",
        "environment",
        "environment",
        "snippet preCommand",
        "snippet pre",
        "snippet brokerPre",
        "snippet-resources",
        "prepare-archive",
        "launch",
        "publish-archive",
        "snippet post",
        "end-shell",
    ];
    assert_eq!(without_files(&lead), want);
    let want = [
        "user flux",
        "environment",
        "shell",
        "snippet init",
        "environment",
        "environment",
        "snippet preCommand",
        "snippet pre",
        "snippet workerPre",
        "wait-parent",
        "launch",
        "snippet post",
        "end-shell",
    ];
    assert_eq!(without_files(&plan_of(&spec, &facts(1))), want);
}

/// As in v1alpha1: a snippet may create the user itself.
#[test]
fn snippets_run_before_user_is_made_when_image_brings_flux() {
    let steps = |snippets: &str| {
        let spec = spec(&format!(
            "[view]\nenabled = false\n[runner]\nuser = {{name = 'flux', uid = 1000}}\n[runner.snippets]\n{snippets}"
        ));
        let facts = Facts {
            flux_on_path: Some("/usr/bin/flux".into()),
            ..facts(0)
        };
        // Leaves out the agent's own files, which come first, and everything from the next directory on.
        let steps = outline(&plan_of(&spec, &facts)).into_iter();
        let steps = steps
            .skip_while(|line| !line.starts_with("file"))
            .skip_while(|line| line.starts_with("file"));
        steps
            .take_while(|line| !line.starts_with("directory"))
            .collect::<Vec<_>>()
    };
    let all = [
        "shell",
        "snippet init",
        "environment",
        "snippet preCommand",
        "snippet pre",
        "replan",
    ];
    assert_eq!(steps("init = 'a'\npre_command = 'b'\npre = 'c'\n"), all);
    let init = ["shell", "snippet init", "environment", "replan"];
    assert_eq!(steps("init = 'a'\n"), init, "it may have created the user");
    assert_eq!(
        steps("pre = 'a'\npost = 'b'\n"),
        ["environment", "shell", "snippet pre", "replan"]
    );
}

/// The shell ends at that place, so that an EXIT trap of a snippet runs there.
#[test]
fn shell_ends_after_program_and_archive_without_post() {
    let last = |top: &str, snippets: &str, index: u32| {
        let spec = spec(&format!("size = 2\narchive = '/state/a.tgz'\n{top}\n{snippets}"));
        let steps = outline(&build(&spec, &facts(index), &PodContainer::Runner).unwrap());
        let launch = steps.iter().position(|line| line == "launch").unwrap();
        steps[launch..].to_vec()
    };
    let own_flux = "[view]\nenabled = false";
    for snippet in ["init", "pre_command", "pre"] {
        let snippets = format!("[runner.snippets]\n{snippet} = 'a'");
        let lead = ["launch", "publish-archive", "end-shell"];
        assert_eq!(last("", &snippets, 0), lead, "{snippet}");
        let follower = ["launch", "end-shell"];
        assert_eq!(last("", &snippets, 1), follower, "{snippet}");
        assert_eq!(last(own_flux, &snippets, 0), lead, "{snippet}");
    }
    for (command, want) in [
        (
            "script = 'b'",
            &["snippet pre", "launch", "end-shell", "stay"][..],
        ),
        (
            "command = 'b'",
            &["snippet pre", "snippet command", "end-shell", "stay"],
        ),
        ("", &["snippet pre", "stay", "end-shell"]),
    ] {
        let sidecar = format!("[sidecars.s]\nserves = true\nwait_socket = false\npre = 'a'\n{command}");
        let container = PodContainer::Sidecar("s".into());
        let steps = outline(&build(&spec(&sidecar), &facts(0), &container).unwrap());
        assert!(
            steps.ends_with(&want.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>()),
            "{steps:?}"
        );
    }
}

#[test]
fn blank_snippets_are_no_steps_and_need_no_shell() {
    let spec =
        spec("[runner.snippets]\npre = \"\\n  \\n\"\n[runner.program]\nmode = 'submit'\nwords = ['a']\n");
    let scratch = Facts {
        shell: None,
        ..facts(0)
    };
    let steps = outline(&plan_of(&spec, &scratch));
    assert!(
        !steps
            .iter()
            .any(|line| line.starts_with("snippet") || line == "shell"),
        "{steps:?}"
    );
}

#[test]
fn plan_that_needs_a_shell_fails_when_the_image_has_none() {
    let scratch = Facts {
        shell: None,
        ..facts(0)
    };
    for text in [
        "[runner.snippets]\npost = 'true'\n",
        "[runner.program]\nmode = 'script'\ntext = 'true'\n",
        "[runner.program]\nmode = 'batch'\nlines = []\n",
        "[runner.program]\nmode = 'batch-raw'\ntext = 'true'\n",
    ] {
        let error = build(&spec(text), &scratch, &PodContainer::Runner).unwrap_err();
        assert_eq!(
            error.category(),
            flux_shared::exit::Category::ShellMissing,
            "{text}"
        );
    }
    let own = spec("[runner.program]\nmode = 'script'\ntext = \"#!/usr/bin/env python3\\n\"\n");
    assert!(build(&own, &scratch, &PodContainer::Runner).is_ok());
}

#[test]
fn host_missing_from_the_hostlist_fails_with_a_remedy() {
    let stranger = Facts {
        hostname: "other-7".into(),
        ..facts(0)
    };
    let error = build(&spec("size = 4"), &stranger, &PodContainer::Runner).unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to find host `other-7` in the hostlist mc-[0-3]"
    );
    assert!(error.hint().contains("setHostnameAsFQDN"));
}

#[test]
fn a_cluster_without_a_command_has_a_broker_without_a_program() {
    let headless = argv(&plan_of(&spec("size = 2"), &facts(0)));
    assert!(
        headless
            .starts_with("/mnt/flux/view/bin/flux broker --config-path /mnt/flux/config/etc/flux/config -S")
    );
    assert!(headless.contains(" -Sbroker.rc2_none "));
    // With a terminal, the broker starts a shell as its initial program, unless the MiniCluster is interactive.
    let terminal = Facts {
        terminal: true,
        ..facts(0)
    };
    assert!(!argv(&plan_of(&spec("size = 2"), &terminal)).contains("rc2_none"));
    let interactive =
        spec("size = 2\n[runner]\ninteractive = true\nprogram = {mode = 'submit', words = ['hostname']}\n");
    let plan = plan_of(&interactive, &terminal);
    assert!(argv(&plan).contains("-Sbroker.rc2_none") && !argv(&plan).contains("hostname"));
    // The notice says that the command is not run.
    assert_eq!(plan.notices.len(), 1);
}

#[test]
fn wrap_precedes_the_broker_without_a_program() {
    let wrap = "[flux]\nwrap = 'env,A=b'\n";
    let interactive = "[runner]\ninteractive = true\nprogram = {mode = 'submit', words = ['hostname']}\n";
    for users in ["", interactive] {
        let plan = plan_of(&spec(&format!("{wrap}{users}")), &facts(0));
        assert!(
            argv(&plan).starts_with("env A=b /mnt/flux/view/bin/flux broker "),
            "{}",
            argv(&plan)
        );
        assert_eq!(launch(&plan).signals, SignalTarget::Broker);
    }
}

#[test]
fn quorum_option_is_set_by_the_spec_or_for_later_hosts() {
    let quorum = |text: &str| {
        let argv = argv(&plan_of(&spec(text), &facts(0)));
        argv.split(' ')
            .find_map(|word| word.strip_prefix("-Sbroker.quorum=").map(str::to_owned))
    };
    assert_eq!(quorum("size = 4"), None);
    assert_eq!(quorum("size = 4\nquorum = 2").as_deref(), Some("2"));
    assert_eq!(quorum("size = 4\nmax_size = 8").as_deref(), Some("4"));
    assert_eq!(
        quorum("size = 4\n[network]\nhostlist = 'mc-[0-3],burst-0-[0-3]'").as_deref(),
        Some("4")
    );
    assert!(build(&spec("size = 2\nquorum = 3"), &facts(0), &PodContainer::Runner).is_err());
}

#[test]
fn followers_wait_for_their_own_parent() {
    let wait = |text: &str, index: u32| {
        plan_of(&spec(text), &facts(index))
            .steps
            .into_iter()
            .find_map(|step| match step {
                Step::WaitParent(BrokerAddress { host, port, .. }) => Some(format!("{host}:{port}")),
                _ => None,
            })
    };
    let suffix = ".flux-service.default.svc.cluster.local.:8050";
    assert_eq!(wait("size = 8", 7), Some(format!("mc-0{suffix}")));
    assert_eq!(
        wait("size = 8\n[flux]\ntopology = 'kary:2'", 7),
        Some(format!("mc-3{suffix}"))
    );
    assert_eq!(
        wait("size = 8\n[flux]\ntopology = 'binomial'", 7),
        Some(format!("mc-6{suffix}"))
    );
    assert_eq!(
        wait(
            "size = 2\n[network]\nlead = {address = 'lead.example', port = 30000}",
            0
        )
        .as_deref(),
        Some("lead.example:30000")
    );
    assert_eq!(wait("size = 2\n[flux]\nbroker_config = ''", 1), None);
}

/// The user's broker.toml is the same on all pods. If it names R, a broker without that file fails. Otherwise only the
/// lead's R counts.
#[test]
fn followers_have_resources_with_the_users_broker_toml() {
    let has_resources = |text: &str| {
        plan_of(&spec(text), &facts(1)).steps.iter().any(
            |step| matches!(step, Step::File { path, .. } if path == "/mnt/flux/config/etc/flux/system/R"),
        )
    };
    assert!(!has_resources("size = 2"));
    assert!(has_resources("size = 2\n[flux]\nbroker_config = ''"));
}

#[test]
fn dump_is_written_beside_the_archive() {
    let spec = spec("archive = '/state/a.tar.gz'");
    let mut facts = facts(0);
    facts.attempt = "00112233445566ff".into();
    let dump = "/state/.flux-dump-568bca65692d2ab9-00112233445566ff.tar.gz";
    assert!(
        argv(&plan_of(&spec, &facts)).ends_with(&format!("-Scontent.dump={dump}")),
        "{}",
        argv(&plan_of(&spec, &facts))
    );
    assert!(
        !argv(&plan_of(
            &AgentSpec { size: 2, ..spec },
            &Facts {
                index: Some(1),
                ..facts
            }
        ))
        .contains("content.")
    );
}

#[test]
fn a_batch_of_another_user_writes_where_that_user_can() {
    let user = "[runner.user]\nname = 'flux'\nuid = 1000\n";
    let words = argv(&plan_of(
        &spec(&format!(
            "{user}[runner.program]\nmode = 'batch-raw'\ntext = 'true'\n"
        )),
        &facts(0),
    ));
    // `--shows` tells `flux-agent batch` the output file. It prints the file's end if the batch fails.
    let place = "=/tmp/fluxout/flux-{{id}}.out";
    assert!(
        words.contains(&format!("--output{place}")) && words.contains(&format!("--shows{place}")),
        "{words}"
    );
    let mut own = spec("[runner.program]\nmode = 'batch-raw'\ntext = 'true'\n");
    assert!(!argv(&plan_of(&own, &facts(0))).contains("--output"));
    let read_only = Facts {
        writable: ["/tmp".to_owned()].into(),
        ..facts(0)
    };
    assert!(argv(&plan_of(&own, &read_only)).contains("--output=/tmp/fluxout/flux-{{id}}.out"));
    let mut chosen = own.clone();
    chosen.flux.option_flags = vec!["--output=/shared/mine.out".into()];
    let words = argv(&plan_of(&chosen, &read_only));
    assert!(
        words.contains("--output=/shared/mine.out") && words.contains("--shows=/shared/mine.out"),
        "{words}"
    );
    assert!(
        !words.contains("/tmp/fluxout"),
        "the user's own option has priority: {words}"
    );
    own.runner.user = Some(RunnerUser {
        name: "flux".into(),
        uid: 1000,
        run_flux_as_root: false,
    });
    own.runner.working_dir = Some("/work".into());
    assert!(
        !argv(&plan_of(&own, &facts(0))).contains("--output"),
        "the working directory is given to the user"
    );
}

#[test]
fn batch_script_is_in_config_for_any_working_directory() {
    let spec = spec("[runner.program]\nmode = 'batch'\nlines = [{number = 0, text = 'true'}]\n");
    let plan = plan_of(
        &spec,
        &Facts {
            working_directory: "/shared".into(),
            ..facts(0)
        },
    );
    let file = outline(&plan)
        .into_iter()
        .find(|line| line.ends_with("flux-job.batch"));
    assert_eq!(file.as_deref(), Some("file /mnt/flux/config/flux-job.batch"));
}

#[test]
fn unusable_home_variable_is_replaced() {
    let home = |facts: &Facts| {
        let plan = plan_of(&spec(""), facts);
        let set = plan.steps.iter().find_map(|step| match step {
            Step::Environment { changes } => changes.iter().find_map(|change| match change {
                EnvChange::Set {
                    name,
                    value: Word::Literal(value),
                } if name == "HOME" => Some(value.clone()),
                _ => None,
            }),
            _ => None,
        });
        (set, outline(&plan).first().cloned().unwrap())
    };
    let mut facts = facts(0);
    assert_eq!(home(&facts).0, None);
    (facts.uid, facts.gid) = (4711, 0);
    facts.environment.insert("HOME".into(), "/".into());
    // FALLBACK_HOME, a volume that the assumed pod has.
    assert_eq!(home(&facts).0.as_deref(), Some("/home/flux-operator"));
    // AGENT_HOME, where the volume is if the user's own volume is above FALLBACK_HOME.
    facts.writable.insert("/etc/flux-agent/home".into());
    assert_eq!(home(&facts).0.as_deref(), Some("/etc/flux-agent/home"));
    facts.environment.remove("HOME");
    facts.writable.clear();
    assert_eq!(
        home(&facts),
        (
            Some("/mnt/flux/config/home-4711".into()),
            "directory /mnt/flux/config/home-4711".into()
        )
    );
}

/// Facts that were read list `/`. A home that they do not list is missing.
#[test]
fn missing_home_is_replaced_unless_it_can_be_created() {
    let home = |home: &str, present: &[&str], writable: &[&str]| {
        let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
        let mut facts = Facts {
            uid: 1001,
            gid: 1001,
            present: paths(present),
            writable: paths(writable),
            ..facts(0)
        };
        facts.environment.insert("HOME".into(), home.into());
        let steps = plan_of(&spec(""), &facts).steps;
        steps.iter().find_map(|step| match step {
            Step::Environment { changes } => changes.iter().find_map(|change| match change {
                EnvChange::Set { name, value } if name == "HOME" => Some(value.resolve(|_| None)),
                _ => None,
            }),
            _ => None,
        })
    };
    let fallback = FALLBACK_HOME;
    let replaced = Some(fallback.to_owned());
    assert_eq!(home("/nonexistent", &["/", fallback], &[fallback]), replaced);
    assert_eq!(
        home("/home/app", &["/", "/home", fallback], &[fallback]),
        replaced
    );
    assert_eq!(
        home("/home/app", &["/", "/home/app", fallback], &[fallback]),
        None
    );
    // On a volume, where a snippet or a program may create it.
    assert_eq!(
        home("/data/me", &["/", "/data", fallback], &["/data", fallback]),
        None
    );
    assert_eq!(home("/nonexistent", &["/"], &[]), None, "no volume for the home");
    // Assumed facts do not list every home.
    assert_eq!(home("/home/app", &[fallback], &[fallback]), None);
}

#[test]
fn account_without_its_home_gets_the_fallback() {
    let plan = |user: &str, present: &[&str]| {
        let facts = Facts {
            passwd: "root:x:0:0::/root:/bin/sh\napp:x:1001:1001::/srv/app:/bin/sh\n".into(),
            present: present.iter().map(|path| (*path).to_owned()).collect(),
            writable: ["/".to_owned()].into(),
            ..facts(0)
        };
        let plan = plan_of(
            &spec(&format!("[runner.user]\nname = '{user}'\nuid = 1001\n")),
            &facts,
        );
        let created = outline(&plan)
            .into_iter()
            .find(|line| line.starts_with("directory /mnt/flux/config/home"));
        (launch(&plan).run_as.clone().unwrap().home, created)
    };
    let fallback = "/mnt/flux/config/home-1001";
    assert_eq!(
        plan("app", &["/"]),
        (fallback.to_owned(), Some(format!("directory {fallback}")))
    );
    assert_eq!(
        plan("app", &["/", FALLBACK_HOME]),
        (FALLBACK_HOME.to_owned(), None)
    );
    assert_eq!(plan("app", &["/", "/srv/app"]), ("/srv/app".to_owned(), None));
    assert_eq!(plan("app", &[]), ("/srv/app".to_owned(), None), "assumed facts");
    // The agent creates this user with its home.
    assert_eq!(plan("new", &["/"]), ("/home/new".to_owned(), None));
}

/// A volume for the home is no remedy for a read-only /etc. So the step that fails first is the user's.
#[test]
fn user_is_created_before_its_home_if_etc_is_read_only() {
    let creation = |present: &[&str], writable: &[&str]| -> Vec<String> {
        let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
        let facts = Facts {
            present: paths(present),
            writable: paths(writable),
            ..facts(0)
        };
        let plan = plan_of(
            &spec("users = ['ada']\n[runner.user]\nname = 'flux'\nuid = 1000\n"),
            &facts,
        );
        let of_users = |line: &String| line.starts_with("user ") || line.starts_with("directory /home/");
        outline(&plan).into_iter().filter(of_users).collect()
    };
    let home_first = [
        "directory /home/flux",
        "user flux",
        "directory /home/ada",
        "user ada",
    ];
    let user_first = [
        "user flux",
        "directory /home/flux",
        "user ada",
        "directory /home/ada",
    ];
    assert_eq!(creation(&["/", "/etc"], &[]), user_first);
    assert_eq!(creation(&["/", "/etc"], &["/", "/etc"]), home_first);
    assert_eq!(creation(&[], &[]), home_first, "assumed facts");
    assert_eq!(
        creation(&["/", "/etc", "/home/flux", "/home/ada"], &[]),
        ["user flux", "user ada"]
    );
}

#[test]
fn tmpdir_falls_back_to_a_writable_folder_for_nested_instances() {
    let tmpdir = |writable: &[&str], own: Option<&str>| {
        let mut facts = Facts {
            writable_by_flux: writable.iter().map(|path| (*path).to_owned()).collect(),
            ..facts(0)
        };
        facts
            .environment
            .extend(own.map(|own| ("TMPDIR".into(), own.to_owned())));
        let plan = plan_of(&spec(""), &facts);
        let creates_folder = outline(&plan).contains(&"directory /mnt/flux/config/tmp".to_owned());
        let set = plan.steps.iter().find_map(|step| match step {
            Step::Environment { changes } => changes.iter().find_map(|change| match change {
                EnvChange::Default { name, value } if name == "TMPDIR" => Some(value.clone()),
                _ => None,
            }),
            _ => None,
        });
        (set, creates_folder)
    };
    assert_eq!(tmpdir(&["/tmp", "/var/tmp"], None), (None, false));
    assert_eq!(tmpdir(&["/tmp"], None), (Some("/tmp".into()), false));
    assert_eq!(tmpdir(&["/var/tmp"], None), (Some("/var/tmp".into()), false));
    assert_eq!(tmpdir(&[], None), (Some("/mnt/flux/config/tmp".into()), true));
    assert_eq!(tmpdir(&[], Some("/scratch")), (None, false));
}

#[test]
fn flux_uri_of_the_container_is_removed() {
    let mut facts = facts(0);
    facts
        .environment
        .insert("FLUX_URI".into(), "local:///gone".into());
    let plan = plan_of(&spec(""), &facts);
    let removed = EnvChange::Remove {
        name: "FLUX_URI".into(),
    };
    let is_removed =
        |step: &Step| matches!(step, Step::Environment { changes } if changes.contains(&removed));
    assert!(plan.steps.iter().any(is_removed));
}

#[test]
fn unusable_shell_variable_is_replaced() {
    let shell = |own: Option<&str>, image: Option<&str>| {
        let mut facts = facts(0);
        facts.shell = image.map(str::to_owned);
        facts
            .environment
            .extend(own.map(|own| ("SHELL".into(), own.to_owned())));
        let plan = plan_of(&spec(""), &facts);
        let Step::Environment { changes } = &plan.steps[0] else {
            unreachable!()
        };
        changes.iter().find_map(|change| match change {
            EnvChange::Set {
                name,
                value: Word::Literal(value),
            } if name == "SHELL" => Some(value.clone()),
            _ => None,
        })
    };
    // Without SHELL, Flux uses /bin/bash.
    assert_eq!(shell(None, Some("/bin/bash")), None);
    assert_eq!(shell(None, Some("/bin/sh")).as_deref(), Some("/bin/sh"));
    assert_eq!(
        shell(Some("/bin/zsh"), Some("/bin/bash")).as_deref(),
        Some("/bin/bash")
    );
    assert_eq!(shell(None, None), None);
}

#[test]
fn missing_flux_and_missing_fluxion_are_errors() {
    let mut facts = facts(0);
    facts.view.fluxion = false;
    let wanted = spec("[flux]\nscheduler = 'fluxion'");
    assert!(matches!(
        build(&wanted, &facts, &PodContainer::Runner),
        Err(PlanError::FluxionMissing(_))
    ));
    facts.view.flux = false;
    assert!(matches!(
        build(&spec(""), &facts, &PodContainer::Runner),
        Err(PlanError::FluxMissing(_))
    ));
    facts.flux_on_path = None;
    let disabled = spec("[view]\nenabled = false");
    assert!(matches!(
        build(&disabled, &facts, &PodContainer::Runner),
        Err(PlanError::FluxMissing(_))
    ));
}

#[test]
fn flux_of_install_root_precedes_the_one_on_path() {
    let spec = spec("view = {enabled = false, install_root = '/opt/flux/'}");
    let mut facts = facts(0);
    let appended = |plan: &Plan| {
        let change = EnvChange::Append {
            name: "PATH".into(),
            separator: ':',
            value: "/opt/flux/bin".into(),
        };
        plan.steps
            .iter()
            .any(|step| matches!(step, Step::Environment { changes } if changes.contains(&change)))
    };
    let plan = plan_of(&spec, &facts);
    assert!(argv(&plan).starts_with("/usr/bin/flux ") && !appended(&plan));
    facts.present.insert("/opt/flux/bin/flux".into());
    let plan = plan_of(&spec, &facts);
    assert!(argv(&plan).starts_with("/opt/flux/bin/flux ") && appended(&plan));
}

/// The image's own Flux runs as the container's user, or as the spec's.
#[test]
fn init_has_the_install_root_on_its_path() {
    let mut facts = facts(0);
    facts.present.insert("/opt/flux/bin/flux".into());
    for user in ["", "user = {name = 'flux', uid = 1004}\n"] {
        let text = format!(
            "view = {{enabled = false, install_root = '/opt/flux'}}\n[runner]\n{user}snippets = {{init = 'flux version'}}"
        );
        let plan = plan_of(&spec(&text), &facts);
        let is_init = |step: &Step| format!("{step:?}").contains("flux version");
        let before: Vec<_> = plan.steps.iter().take_while(|step| !is_init(step)).collect();
        assert!(before.len() < plan.steps.len());
        assert!(
            before
                .iter()
                .any(|step| format!("{step:?}").contains("/opt/flux/bin\"")),
            "{user}: {before:?}"
        );
    }
}

/// The runner creates the users: a sidecar of another user cannot, and need not.
#[test]
fn sidecar_has_no_notices_of_the_runner() {
    let spec = spec("users = ['ada']\n[sidecars.db]\ncommand = 'serve'");
    let facts = Facts {
        uid: 1000,
        ..facts(0)
    };
    assert!(
        !build(&spec, &facts, &PodContainer::Runner)
            .unwrap()
            .notices
            .is_empty()
    );
    let sidecar = build(&spec, &facts, &PodContainer::Sidecar("db".into())).unwrap();
    assert_eq!(sidecar.notices, [""; 0]);
}

#[test]
fn unknown_sidecar_is_an_error() {
    let error = build(&spec(""), &facts(0), &PodContainer::Sidecar("db".into())).unwrap_err();
    assert_eq!(error, PlanError::UnknownSidecar("db".into()));
}

#[test]
fn certificate_is_only_in_the_step_that_writes_its_file() {
    let plan = plan_of(&spec("size = 2"), &facts(0));
    let with = plan
        .steps
        .iter()
        .filter(|planned| format!("{planned:?}").contains("Curve {"))
        .count();
    assert_eq!(with, 1);
}

#[test]
fn lost_lead_is_planned_without_the_users_program() {
    let spec = spec(
        "size = 2\n[runner]\nprogram = { mode = 'submit', words = ['job'] }\nsnippets = { pre = 'echo' }",
    );
    let lost = |index, restarts_left| Facts {
        earlier_pods: 1,
        restarts_left: Some(restarts_left),
        ..facts(index)
    };
    assert_eq!(outline(&plan_of(&spec, &lost(0, 0))), ["lead-lost 0"]);
    assert_eq!(outline(&plan_of(&spec, &lost(0, 2))), ["lead-lost 2"]);
    assert_eq!(
        plan_of(&spec, &lost(1, 0)).steps,
        plan_of(&spec, &facts(1)).steps,
        "a follower is replaced with the same plan"
    );
}

#[test]
fn lost_lead_fails_when_there_is_no_operator() {
    for policy in ["Never", "OnFailure"] {
        let spec = spec(&format!("size = 2\nrestart_policy = '{policy}'\n"));
        let lost = Facts {
            earlier_pods: 1,
            restarts_left: None,
            ..facts(0)
        };
        assert_eq!(outline(&plan_of(&spec, &lost)), ["lead-lost 0"]);
    }
}
