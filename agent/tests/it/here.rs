//! `dry-run --here` and `facts` in a pod report what the entrypoint of that container does.

use serde_json::Value;

use crate::image::{AGENT, Container, Image, agent};
use crate::live::{Network, Running, pod_image, run_words};

const SPEC: &str = "archive = '/tmp/state.tgz'\n[logging]\nquiet = true\n[flux]\nlead_gone = 7\n\
    [runner.snippets]\npre = 'printf %s \"$asFlux\" >/record/as-flux'\n[runner.program]\nmode = 'launcher'\nwords = ['/bin/sleep', '600']\n\
    [sidecars.side]\nwait_socket = false\ncommand = 'echo side; sleep 600'\n";

fn json(running: &Running, words: &[&str]) -> Value {
    let output = running.exec(&[&["/usr/bin/env", "-i", "PATH=/nowhere", AGENT], words].concat());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"))
}

fn launch(document: &Value) -> &Value {
    let steps = document["pods"][0]["steps"].as_array().unwrap();
    steps.iter().find(|step| step["step"] == "launch").unwrap()
}

/// The arguments of Flux, as the entrypoint started it, from the fake Flux's record.
fn started(running: &Running, image: &Image) -> Vec<String> {
    let begun = || {
        let text = std::fs::read_to_string(image.at("/record/flux")).unwrap_or_default();
        text.lines()
            .next()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
    };
    let record = crate::live::eventually("Flux is started", begun);
    assert_eq!(
        running.children().len(),
        2,
        "Flux, and the shell of the snippets, whose EXIT trap is still to run"
    );
    record["argv"]
        .as_array()
        .unwrap()
        .iter()
        .map(|word| word.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn dry_run_and_facts_in_a_pod_match_its_entrypoint() {
    let image = pod_image(SPEC, 1);
    let words = run_words(&["--grace-period", "77", "--restarts-left", "3", "--lead-gone", "9"]);
    let mut container = Container::new(&image, "mc-0", &words);
    container.set("FLUX_OPTION_FLAGS", "-opmi=none");
    container.set("FLUX_AGENT_INDEX_FAILURES", "0");
    container.set("DB_PASSWORD", "hunter2");
    let running = Running::pod(&container, &Network::new());
    let argv = started(&running, &image);

    let facts = json(&running, &["facts", "--json"]);
    assert_eq!(
        (&facts["grace_period"], &facts["restarts_left"]),
        (&77.into(), &3.into())
    );
    assert_eq!(
        (&facts["hostname"], &facts["terminal"]),
        (&"mc-0".into(), &false.into())
    );
    assert_eq!(
        facts["environment"]["FLUX_OPTION_FLAGS"], "-opmi=none",
        "the environment is the container's, not that of the exec"
    );
    // The operator sets this variable for the agent, which removes it for the programs that it starts.
    assert_eq!(facts["environment"].get("FLUX_AGENT_INDEX_FAILURES"), None);
    assert_eq!(facts["environment"]["DB_PASSWORD"], "(left out)");

    let here = json(&running, &["dry-run", "--here", "--format", "json"]);
    assert!(!here.to_string().contains("hunter2"));
    let pod = &here["pods"][0];
    assert_eq!(
        (&pod["role"], &pod["hostname"], &pod["indexes"]),
        (&"lead".into(), &"mc-0".into(), &"0".into())
    );
    // The name of a dump differs for each start.
    let without_dump = |words: Vec<String>| -> Vec<String> {
        words
            .into_iter()
            .filter(|word| !word.starts_with("-Scontent.dump"))
            .collect()
    };
    let planned = launch(&here)["argv"]
        .as_array()
        .unwrap()
        .iter()
        .map(|word| word.as_str().unwrap().to_owned());
    assert_eq!(without_dump(planned.collect()), without_dump(argv));
    // With an archive, the program has half of the grace period of 77 s.
    let within = launch(&here)["argv"]
        .as_array()
        .unwrap()
        .iter()
        .any(|word| word == "--within=38.5");
    assert!(within, "the grace period is the entrypoint's: {}", launch(&here));

    let steps = pod["steps"].as_array().unwrap();
    let shell = steps.iter().find(|step| step["step"] == "shell").unwrap();
    assert_eq!(
        shell["as_flux"],
        std::fs::read_to_string(image.at("/record/as-flux")).unwrap()
    );

    // With these facts, in both formats, a laptop plans the same launch.
    let folder = crate::image::folder();
    let at = |name: &str| folder.path().join(name);
    std::fs::copy(image.at(flux_shared::paths::SPEC_FILE), at("agent.toml")).unwrap();
    let lines = running.exec(&[AGENT, "facts"]).stdout;
    assert!(String::from_utf8_lossy(&lines).contains("\ngrace_period: 77\n"));
    for (name, text) in [
        ("facts.yaml", lines),
        ("facts.json", facts.to_string().into_bytes()),
    ] {
        std::fs::write(at(name), text).unwrap();
        let mut command = std::process::Command::new(agent());
        command
            .args(["dry-run", "--format", "json"])
            .arg(at("agent.toml"))
            .arg("--facts")
            .arg(at(name));
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let on_laptop: Value = serde_json::from_slice(&output.stdout).unwrap();
        let words = |document: &Value| {
            let words = launch(document)["argv"].as_array().unwrap().iter();
            without_dump(words.map(|word| word.as_str().unwrap().to_owned()).collect())
        };
        assert_eq!(words(&on_laptop), words(&here), "{name}");
    }

    let text = running.exec(&[AGENT, "dry-run", "--here"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("Detected host: user root")
            && text.contains("when the pod is stopped, signal this process only"),
        "{text}"
    );
    assert!(
        text.contains("snippet pre") && text.contains("its output is not shown"),
        "{text}"
    );
}

#[test]
fn sidecar_prints_its_own_plan_and_facts_need_a_spec() {
    let image = pod_image(SPEC, 1);
    let container = Container::new(&image, "mc-0", &[AGENT, "sidecar", "side"]);
    let running = Running::pod(&container, &Network::new());
    running.wait_for_output("side");
    let here = json(&running, &["dry-run", "--here", "--format", "json"]);
    assert_eq!(here["pods"][0]["role"]["sidecar"], "side");
    assert_eq!(here["notices"].as_array().unwrap().len(), 0);
    // Outside of a pod there is no spec.
    let folder = crate::image::folder();
    let output = std::process::Command::new(agent())
        .args(["facts", "--json"])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(240),
        "no spec: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_follower_shows_the_waits_of_its_command_line() {
    // With `quiet`, the log would lack the line that this test waits for.
    let image = pod_image(&SPEC.replace("quiet = true", "quiet = false"), 2);
    let words = run_words(&["--lead-gone", "9"]);
    let running = Running::pod(&Container::new(&image, "mc-1", &words), &Network::new());
    running.wait_for_output("rank 1");
    let here = json(&running, &["dry-run", "--here", "--format", "json"]);
    assert_eq!(
        here["pods"][0]["waits"]["lead_gone"], 9,
        "the command line overrides the spec's 7"
    );
    assert_eq!(launch(&here)["part"], "follower");
}
