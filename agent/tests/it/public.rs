//! Features that public manifests of the Go operator rely on: the entrypoint's variables, R, `post` in every
//! pod, third-party scripts.

use std::fs;

use flux_shared::termination::{Ender, Termination};
use flux_shared::validate::validate;
use flux_shared::{derive, manifest};

use crate::image::{AGENT, Container, Ended, Image, real_flux, run};
use crate::live::{Network, Running, eventually, run_words, termination_of};

mod documents;
mod flux_of_a_snippet;
mod idioms;
mod own_software;

/// The images of a MiniCluster's pods, and its name.
pub struct Pods {
    pub name: String,
    pub images: Vec<Image>,
}

impl Pods {
    /// The pods of a whole manifest. `prepare` adds what the manifest expects to each image.
    pub fn of(text: &str, prepare: impl Fn(&Image)) -> Pods {
        let valid = validate(&manifest::parse(text).unwrap()).unwrap();
        let spec = derive::agent_spec(&valid);
        let image = |_| {
            let image = Image::usual();
            image.with_programs(&["cat", "ls", "mkdir", "chmod", "touch"]);
            image.file(flux_shared::paths::SPEC_FILE, 0o644, &spec.to_toml().unwrap());
            image.certificate((0, 0));
            image.hosts(&spec.name, &spec.network.service, spec.size);
            image.file("/dev/termination-log", 0o666, "");
            prepare(&image);
            image
        };
        Pods {
            name: spec.name.clone(),
            images: (0..spec.size).map(image).collect(),
        }
    }

    /// Runs all pods in parallel, to their end.
    pub fn run(&self) -> Vec<Ended> {
        let containers = self.images.iter().enumerate().map(|(index, image)| {
            let mut container = Container::new(image, &format!("{}-{index}", self.name), &[AGENT, "run"]);
            container.set("JOB_COMPLETION_INDEX", &index.to_string());
            container
        });
        run(&containers.collect::<Vec<_>>())
    }

    fn terminations(&self) -> Vec<Termination> {
        self.images.iter().map(termination_of).collect()
    }
}

/// A MiniCluster of `size` pods with these fields, and these lines in its only container.
fn minicluster(size: u32, fields: &str, container: &str) -> Pods {
    let container = container.trim_end().replace('\n', "\n    ");
    let text = format!(
        "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: mc}}\nspec:\n  size: {size}\n  \
         {fields}\n  containers:\n  - image: app\n    {container}\n"
    );
    Pods::of(&text, |_| {})
}

const QUIET: &str = "logging: {quiet: true}";

fn codes(ended: &[Ended]) -> Vec<i32> {
    ended.iter().map(|ended| ended.code).collect()
}

#[test]
fn r_of_a_snippet_is_fluxs_r_wherever_it_is_written() {
    let rows = [
        (
            "pre",
            "--hosts=${hosts} --cores=0 > ${viewroot}/etc/flux/system/R",
            "2 2 0",
        ),
        (
            "pre",
            "--hosts=mc-[0-1] --cores=0 --gpu=0-7 > /mnt/flux/view/etc/flux/system/R",
            "2 2 16",
        ),
        (
            "init",
            "--hosts=${hosts} --cores=0-2 > ${configroot}/etc/flux/system/R",
            "2 6 0",
        ),
        (
            "brokerPre",
            "--hosts=${hosts} --cores=0-1 > $configroot/etc/flux/system/R; umask 077",
            "2 4 0",
        ),
    ];
    for (snippet, line, want) in rows {
        for view in ["", "flux: {container: {disable: true}}"] {
            let command = "launcher: true\ncommand: flux resource list -no \"{nnodes} {ncores} {ngpus}\"";
            let pods = minicluster(
                2,
                &format!("logging: {{quiet: false}}\n  {view}"),
                &format!("{command}\ncommands: {{{snippet}: 'flux R encode {line}'}}"),
            );
            if !view.is_empty() {
                // Without a view, Flux is the image's own. Here only the fake one is put into the image.
                if real_flux().is_some() {
                    continue;
                }
                let flux = crate::image::fake_flux();
                for image in &pods.images {
                    fs::remove_dir_all(image.at("/mnt/flux/view")).unwrap();
                    image.program(flux, "/usr/bin/flux");
                }
            }
            let ended = pods.run();
            assert_eq!(codes(&ended), [0, 0], "{snippet} {view}: {ended:?}");
            assert_eq!(
                ended[0].stdout.lines().last(),
                Some(want),
                "{snippet} {view}: {}",
                ended[0].stderr
            );
            let note = "Flux uses the resources (R) that a snippet wrote to /mnt/flux/config/etc/flux/system/R: 2 hosts";
            assert!(ended[0].stderr.contains(note), "{}", ended[0].stderr);
        }
    }
}

/// The user's own broker.toml names no R, the documented R, or another one.
#[test]
fn r_of_a_snippet_is_used_with_an_own_broker_config() {
    let own = "[access]\nallow-guest-user = true\nallow-root-owner = true\n\
        [bootstrap]\ncurve_cert = '/mnt/flux/config/curve/curve.cert'\ndefault_port = 8050\n\
        default_bind = 'tcp://10.9.0.1:%p'\ndefault_connect = 'tcp://%h:%p'\nhosts = [{ host = 'mc-0' }]\n";
    let named = |path: &str| format!("{own}[resource]\npath = '{path}'\nnoverify = true\n");
    let other = r#"{"version":1,"execution":{"R_lite":[{"rank":"0","children":{"core":"0"}}],"starttime":0,"expiration":0,"nodelist":["mc-0"]}}"#;
    for (config, want, is_reported) in [
        (own.to_owned(), "1 5 8", true),
        (format!("{own}[resource]\nexclude = ''\n"), "1 5 8", true),
        (named("/mnt/flux/config/etc/flux/system/R"), "1 5 8", true),
        (named("/mnt/flux/view/etc/flux/system/R"), "1 5 8", true),
        (named("/etc/other"), "1 1 0", false),
    ] {
        let config = serde_json::to_string(&config).unwrap();
        let pods = minicluster(
            1,
            &format!("logging: {{quiet: false}}\n  flux: {{brokerConfig: {config}}}"),
            "launcher: true\ncommand: flux resource list -no \"{nnodes} {ncores} {ngpus}\"\n\
             commands: {pre: 'flux R encode --hosts=${hosts} --cores=0-4 --gpu=0-7 > ${viewroot}/etc/flux/system/R'}",
        );
        pods.images[0].file("/etc/other", 0o644, other);
        let ended = pods.run().remove(0);
        assert_eq!(
            (ended.code, ended.stdout.lines().last()),
            (0, Some(want)),
            "{config}: {}",
            ended.stderr
        );
        assert_eq!(
            ended.stderr.contains("(R) that a snippet wrote"),
            is_reported,
            "{config}: {}",
            ended.stderr
        );
    }
}

#[test]
fn unusable_r_fails_with_remedy_if_strict_else_is_ignored() {
    let rows = [
        (
            "flux R encode --hosts=other-[0-3] --cores=0",
            "it is for the hosts other-[0-3], and this instance has mc-0",
        ),
        ("echo", "it is empty"),
        ("echo flux: error", "it is not JSON"),
    ];
    for (line, why) in rows {
        let run = |strict: bool| {
            let pods = minicluster(
                1,
                &format!("logging: {{strict: {strict}}}"),
                &format!(
                    "launcher: true\ncommand: echo ran\ncommands: {{pre: '{line} > $viewroot/etc/flux/system/R'}}"
                ),
            );
            (pods.run().remove(0), pods.terminations().remove(0))
        };
        let (ended, termination) = run(true);
        assert_eq!(
            (ended.code, ended.stdout.as_str(), termination.by),
            (241, "", Ender::Agent),
            "{line}: {ended:?}"
        );
        assert!(
            termination.message.contains(why) && termination.message.contains("--hosts=${hosts}"),
            "{}",
            termination.message
        );
        let (ended, _) = run(false);
        ended.expect(0, "ran\n", line);
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
    }
}

#[test]
fn failed_post_of_a_follower_does_not_change_the_result() {
    let pods = minicluster(
        2,
        QUIET,
        "command: sh -c 'echo recorded > /tmp/recording.out'\ncommands:\n  post: cat /tmp/recording.out\n",
    );
    let ended = pods.run();
    assert_eq!(
        (codes(&ended), ended[0].stdout.as_str()),
        (vec![0, 0], "recorded\n"),
        "{ended:?}"
    );
    let terminations = pods.terminations();
    assert_eq!(
        (terminations[0].failed_post(), terminations[1].failed_post()),
        (None, Some(1))
    );
    assert_eq!((terminations[1].by, terminations[1].code), (Ender::Program, 0));
    assert_eq!(
        terminations[1].snippet_error,
        "cat: /tmp/recording.out: No such file or directory"
    );
    assert!(
        ended[1]
            .stderr
            .contains("the snippet post ended with exit code 1: cat: "),
        "{}",
        ended[1].stderr
    );
}

#[test]
fn post_stops_at_a_failure_and_decides_only_if_strict_is_set() {
    for (strict, size, job, post, code, out) in [
        ("", 1, 0, "false; echo on; exit 3", 0, "on\n"),
        ("", 1, 5, "false; echo on; exit 3", 5, "on\n"),
        ("strict: false", 1, 0, "false; echo on; exit 3", 0, "on\n"),
        ("strict: true", 1, 0, "echo on; (exit 3); echo off", 3, "on\n"),
        ("strict: true", 1, 5, "echo on; (exit 3); echo off", 5, "on\n"),
        ("strict: true", 2, 0, "[ $JOB_COMPLETION_INDEX = 0 ]", 0, ""),
    ] {
        let pods = minicluster(
            size,
            &format!("logging: {{quiet: true, {strict}}}"),
            &format!("command: sh -c 'exit {job}'\ncommands:\n  post: \"{post}\"\n"),
        );
        let ended = pods.run();
        let case = format!("{strict} {job} {post}: {ended:?}");
        assert_eq!((ended[0].code, ended[0].stdout.as_str()), (code, out), "{case}");
        let terminations = pods.terminations();
        assert_eq!(terminations[0].program_code, Some(job), "{case}");
        let failed = terminations
            .iter()
            .filter_map(Termination::failed_post)
            .collect::<Vec<_>>();
        assert_eq!(failed, [if size == 2 { 1 } else { 3 }], "{case}");
        assert!(ended[1..].iter().all(|ended| ended.code == 0), "{case}");
    }
}

#[test]
fn batch_with_a_post_that_reads_one_pods_output_completes() {
    let pods = minicluster(
        2,
        QUIET,
        "batch: true\ncommands:\n  post: |\n    ls /tmp/fluxout -1\n    cat /tmp/fluxout/job-0.out\n\
         command: |\n  echo hello world 1\n  echo hello world 2\n",
    );
    let ended = pods.run();
    assert_eq!(codes(&ended), [0, 0], "{ended:?}");
    assert_eq!(pods.terminations()[1].failed_post(), Some(1));
}

#[test]
fn variable_that_is_not_set_is_empty_in_a_here_document() {
    let pods = minicluster(
        1,
        "logging: {quiet: false}",
        "launcher: true\ncommand: /bin/bash /tmp/run.sh\ncommands:\n  pre: |\n    cat <<EOT >> /tmp/run.sh\n    \
         CGROUP_PATH_LINE=\\$(cat \"/proc/\\$\\$/cgroup\")\n    echo $CGROUP_PATH_LINE\n    flux run hostname\n    EOT\n",
    );
    let ended = pods.run();
    assert_eq!(codes(&ended), [0], "{ended:?}");
    assert!(ended[0].stdout.ends_with("mc-0\n"), "{}", ended[0].stdout);
}

#[test]
fn failed_snippet_is_reported_with_last_line_and_remedy() {
    for quiet in [false, true] {
        let pods = minicluster(
            2,
            &format!("logging: {{quiet: {quiet}}}"),
            "command: hostname\ncommands:\n  pre: |\n    mkdir -p /opt/info\n    \
             cat /sys/fs/cgroup/no-such-file > /opt/info/cpusets.txt\n    ls /opt/info\n",
        );
        let ended = pods.run();
        assert_eq!(codes(&ended), [1, 1], "{ended:?}");
        for (termination, ended) in pods.terminations().iter().zip(&ended) {
            assert_eq!(
                (
                    termination.by,
                    termination.snippet.as_deref(),
                    termination.snippet_code
                ),
                (Ender::Snippet, Some("pre"), Some(1))
            );
            let line = "cat: /sys/fs/cgroup/no-such-file: No such file or directory";
            assert_eq!(termination.snippet_error, line);
            let remedy = "To continue after a command that fails, set logging.strict: false";
            assert_eq!(termination.message, format!("{remedy}."));
            let report = format!("the snippet pre ended with exit code 1: {line}. {remedy}\n");
            assert_eq!(ended.stderr.matches(&report).count(), 1, "{}", ended.stderr);
            // Without `quiet`, the log also has the snippet's own output.
            assert_eq!(
                ended.stderr.matches(line).count(),
                if quiet { 1 } else { 2 },
                "{}",
                ended.stderr
            );
        }
    }
}

/// The operator requests the end by an annotation, which the kubelet writes into the file `END_KEY`. Only one of the two
/// pods exists, so it waits for the other after its snippet.
#[test]
fn pod_ends_with_the_reason_when_the_operator_requests_it() {
    // 143: the lead's code, as after SIGTERM. 238: `REPLACE`, the code of a follower that is stopped.
    for (index, code) in [("0", 143), ("1", 238)] {
        let pods = minicluster(
            2,
            "logging: {quiet: false}",
            "command: echo ran\ncommands: {pre: echo before}",
        );
        let image = &pods.images[usize::from(index == "1")];
        let mut container = Container::new(image, &format!("mc-{index}"), &run_words(&[]));
        container.set("JOB_COMPLETION_INDEX", index);
        let pod = Running::pod(&container, &Network::new());
        eventually("its snippet has run", || {
            pod.stdout().contains("before").then_some(())
        });
        let why = "the snippet pre of the pod of index 3 ended with exit code 1";
        let file = format!("{}/{}", flux_shared::paths::SPEC_DIR, flux_shared::paths::END_KEY);
        image.file(&file, 0o644, &format!("2026-11-26T10:00:00Z {why}"));
        let ended = pod.end();
        assert_eq!(ended.code, code, "{ended:?}");
        assert!(
            ended.stderr.contains(&format!("{why}: this pod ends")) && !ended.stdout.contains("ran"),
            "{ended:?}"
        );
        let termination = termination_of(image);
        assert_eq!(
            (termination.by, termination.message.to_lowercase().contains(why)),
            (Ender::Stop, true),
            "{termination:?}"
        );
    }
}

/// In v1alpha1, the command of a sidecar did not wait for the broker.
#[test]
fn v1alpha1_snippet_may_wait_for_a_sidecar() {
    let text = "apiVersion: flux-framework.org/v1alpha1\nkind: MiniCluster\nmetadata: {name: mc}\nspec:\n  size: 1\n  \
        flux: {container: {image: view}}\n  logging: {quiet: true}\n  containers:\n  \
        - image: app\n    runFlux: true\n    command: hostname\n    \
        commands: {pre: 'until [ -e /tmp/served ]; do sleep 0.02; done'}\n  \
        - {image: side, name: server, command: 'echo >/tmp/served; sleep 600'}\n";
    let pods = Pods::of(text, |_| {});
    let (image, network) = (&pods.images[0], Network::new());
    let lead = Running::pod(&Container::new(image, "mc-0", &run_words(&[])), &network);
    let server = [AGENT, "sidecar", "server"];
    let _server = Running::pod(&Container::new(image, "mc-0", &server), &network);
    lead.end().expect(0, "mc-0\n", "");
}

/// As by `sudo -u flux … flux proxy local:///run/flux/local`, whether root or the Flux user runs Flux.
#[test]
fn v1alpha1_socket_is_reached_by_root_and_by_fluxs_user() {
    for fields in ["", "commands: {runFluxAsRoot: true}"] {
        let text = format!(
            "apiVersion: flux-framework.org/v1alpha1\nkind: MiniCluster\nmetadata: {{name: mc}}\nspec:\n  size: 1\n  \
             interactive: true\n  containers:\n  - {{image: app, {fields}}}\n"
        );
        let pods = Pods::of(&text, |image| {
            fs::create_dir(image.at("/run")).unwrap();
            // This MiniCluster has no view: Flux is the image's own.
            fs::remove_dir_all(image.at("/mnt/flux/view")).unwrap();
            if real_flux().is_none() {
                image.program(crate::image::fake_flux(), "/usr/bin/flux");
            }
        });
        let image = &pods.images[0];
        image.with_programs(&["setpriv"]);
        let mut container = Container::new(image, "mc-0", &run_words(&[]));
        let flux = real_flux().map_or("/usr/bin/flux".into(), |flux| flux.display().to_string());
        let folder = flux.trim_end_matches("/flux").to_owned();
        container.set("PATH", &format!("{folder}:{}", crate::image::PATH));
        let lead = Running::pod(&container, &Network::new());
        let size_via_proxy = |words: &[&str]| {
            let ask = [
                flux.as_str(),
                "proxy",
                "local:///run/flux/local",
                &flux,
                "getattr",
                "size",
            ];
            let output = lead.exec(&[words, &ask].concat());
            (
                output.status.success(),
                String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            )
        };
        let size = || (true, "1".to_owned());
        eventually("the broker answers root", || {
            (size_via_proxy(&[]) == size()).then_some(())
        });
        let user = [
            "setpriv",
            "--reuid=1000",
            "--regid=1000",
            "--clear-groups",
            "env",
            "HOME=/tmp",
        ];
        // By default Flux runs as the user 1000. With `runFluxAsRoot`, this user is a guest, whom Flux admits.
        assert_eq!(size_via_proxy(&user), size(), "{fields}");
        lead.signal(15);
        lead.end();
    }
}

/// Name and value of each variable in the lead of a cluster of two.
const VARIABLES: &str = "brokerOptions=-Scron.directory=/mnt/flux/config/etc/flux/system/cron.d -Stbon.fanout=256 \
-Srundir=/mnt/flux/config/run/flux -Sstatedir=/mnt/flux/config/var/lib/flux \
-Slocal-uri=local:///mnt/flux/config/run/flux/local -Stbon.connect_timeout=5s -Slog-stderr-level=0 -Slog-stderr-mode=local
cfg=/mnt/flux/config/etc/flux/config
command=sh -c 'set; env'
configroot=/mnt/flux/config
curvepath=/mnt/flux/config/curve/curve.cert
fluxpath=/mnt/flux/view/bin/flux
fluxsocket=local:///mnt/flux/config/run/flux/local
fluxuid=0
fluxuser=root
foundroot=/mnt/flux/view/lib/python3.11
hosts=mc-[0-1]
mainHost=mc-0
pythonversion=/mnt/flux/view/bin/python3.11
software=/mnt/flux/software
viewbase=/mnt/flux
viewbin=/mnt/flux/view/bin
viewroot=/mnt/flux/view
workdir=/
";

#[test]
fn entrypoints_variables_are_in_every_snippet_and_in_no_program() {
    let names: Vec<&str> = VARIABLES
        .lines()
        .map(|line| line.split_once('=').unwrap().0)
        .collect();
    let print = |to: &str| {
        let each = names
            .iter()
            .map(|name| format!("echo \"{name}=${name}\" >>/tmp/{to}; "));
        format!("env >>/tmp/env; {}", each.collect::<String>())
    };
    let snippets = ["init", "pre", "brokerPre", "workerPre", "post"];
    let lines = snippets.map(|name| format!("  {name}: '{}'\n", print(name).replace('\'', "''")));
    let pods = minicluster(
        2,
        QUIET,
        &format!(
            "launcher: true\ncommand: sh -c 'set; env'\ncommands:\n{}",
            lines.concat()
        ),
    );
    let ended = pods.run();
    assert_eq!(codes(&ended), [0, 0], "{ended:?}");
    let read =
        |index: usize, name: &str| fs::read_to_string(pods.images[index].at("/tmp").join(name)).unwrap();
    // `VARIABLES` names the Python of the fake view.
    if real_flux().is_none() {
        for name in ["init", "pre", "brokerPre", "post"] {
            assert_eq!(read(0, name), VARIABLES, "{name}");
        }
        assert_eq!(
            read(1, "workerPre"),
            VARIABLES,
            "with the same options on each rank"
        );
    }
    let seen = format!("{}{}{}", read(0, "env"), read(1, "env"), ended[0].stdout);
    for name in names {
        assert!(
            !seen.lines().any(|line| line.starts_with(&format!("{name}="))),
            "{name} is exported: {seen}"
        );
    }
}

#[test]
fn entrypoint_variable_is_the_containers_when_it_has_one() {
    let pods = minicluster(
        1,
        QUIET,
        "environment: {workdir: /mine, hosts: ''}\ncommand: sh -c 'echo $workdir'\nlauncher: true\ncommands:\n  \
         init: cd /tmp; echo \"<$hosts>\" >/tmp/seen\n  pre: echo \"$workdir $mainHost\" >>/tmp/seen\n",
    );
    let mut container = Container::new(&pods.images[0], "mc-0", &[AGENT, "run"]);
    // In a cluster, the pod has these variables from its spec.
    container.environment.extend([
        ("workdir".into(), "/mine".into()),
        ("hosts".into(), String::new()),
    ]);
    let ended = run(&[container]).remove(0);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "/mine\n"), "{ended:?}");
    assert_eq!(
        fs::read_to_string(pods.images[0].at("/tmp/seen")).unwrap(),
        "<>\n/mine mc-0\n"
    );
}

#[test]
fn working_directory_is_the_one_that_init_leaves() {
    let pods = minicluster(
        1,
        QUIET,
        "command: 'true'\ncommands:\n  init: cd /tmp\n  pre: echo $workdir >/tmp/seen; cd /\n  \
         brokerPre: echo $workdir >>/tmp/seen\n",
    );
    assert_eq!(codes(&pods.run()), [0]);
    assert_eq!(
        fs::read_to_string(pods.images[0].at("/tmp/seen")).unwrap(),
        "/tmp\n/tmp\n"
    );
}

#[test]
fn options_that_a_snippet_adds_reach_the_broker_of_each_pod() {
    let pods = minicluster(
        2,
        QUIET,
        "command: flux getattr log-level\nlauncher: true\ncommands:\n  \
         pre: brokerOptions=\"$brokerOptions -Slog-level=3\"\n  workerPre: brokerOptions=\"$brokerOptions -Slog-level=4\"\n",
    );
    let ended = pods.run();
    assert_eq!(
        (codes(&ended), ended[0].stdout.as_str()),
        (vec![0, 0], "3\n"),
        "{ended:?}"
    );
    if real_flux().is_none() {
        let level_options = |image: &Image| {
            let call = image
                .record()
                .into_iter()
                .find(|call| call["argv"][1] == "start")
                .unwrap();
            call["argv"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|word| word.as_str().unwrap().starts_with("-Slog-level"))
                .count()
        };
        assert_eq!(
            (level_options(&pods.images[0]), level_options(&pods.images[1])),
            (1, 2)
        );
    }
}

/// The scripts of Spack, Intel, conda and Lmod read variables that are not set, and some of their commands
/// fail.
#[test]
fn scripts_of_others_that_read_unset_variables_can_be_sourced() {
    let profile = "[ -z \"$SPACK_ROOT\" ] && SPACK_ROOT=/opt/spack\nif [ \"$PS1\" ]; then :; fi\n\
        export PATH=\"/opt/env/bin:$PATH\" MANPATH=\"/opt/env/man:$MANPATH\"\n_fn() { [ -n \"$1\" ] || return 0; }\n_fn\n";
    // A single container runs Flux, with `runFlux` or without.
    for container in ["", "runFlux: true\n"] {
        let pods = minicluster(
            1,
            QUIET,
            &format!(
                "{container}launcher: true\ncommand: sh -c 'echo $MANPATH $PATH'\ncommands:\n  init: . /tmp/profile.sh\n  \
                 pre: source /tmp/profile.sh; cd /tmp\n"
            ),
        );
        pods.images[0].file("/tmp/profile.sh", 0o644, profile);
        let ended = pods.run();
        let own = crate::image::PATH;
        // The wrapper of `flux`, which hides the user's paths, comes first.
        let wrapper = "/mnt/flux/config/run/flux/flux-agent-bin";
        let want = format!(
            "/opt/env/man:/opt/env/man: {wrapper}:/opt/env/bin:/opt/env/bin:{own}:/mnt/flux/view/bin\n"
        );
        assert_eq!(
            (codes(&ended), ended[0].stdout.as_str()),
            (vec![0], want.as_str()),
            "{ended:?}"
        );
    }
}
