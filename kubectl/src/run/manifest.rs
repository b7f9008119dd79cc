//! Builds the MiniCluster of `run` from the options and the file. Pure.

use std::collections::BTreeMap;

use flux_shared::command_words;
use flux_shared::crd::v1alpha2::{Container, MiniCluster, MiniClusterSpec};
use flux_shared::manifest::{self, Manifest};
use flux_shared::validate::{Notice, Problem, validate_and_note};
use serde_json::{Value, json};

use crate::observed;

/// Options of `run` that make the MiniCluster.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Wanted {
    /// Image of the program
    #[arg(value_name = "IMAGE", required_unless_present = "from")]
    pub image: Option<String>,
    /// The program and its arguments; passed as they are, without a shell (but Flux replaces its templates, such as {{id}})
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
    /// Number of pods, each a broker [default: 1, or the file's]
    #[arg(long, value_name = "N")]
    pub size: Option<i32>,
    /// Largest size that `scale` may set later [default: the size, or the file's]
    #[arg(long, value_name = "N")]
    pub max_size: Option<i32>,
    /// Total number of tasks [default: one per pod, or the file's]
    #[arg(long, value_name = "N")]
    pub tasks: Option<i32>,
    /// Name of the MiniCluster [default: run- and five random letters, or the file's]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Set an environment variable of the program; can be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_variable)]
    pub environment: Vec<(String, String)>,
    /// Use the first MiniCluster of this file (- for standard input); the other options override it
    #[arg(long, value_name = "FILE")]
    pub from: Option<String>,
    /// Also print the agent's and Flux's own lines
    #[arg(long, short)]
    pub verbose: bool,
    /// Keep the MiniCluster, its pods and logs when the job has ended
    #[arg(long)]
    pub keep: bool,
}

/// Parses `NAME=VALUE`.
fn parse_variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it is not of the form NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The MiniCluster, with the namespace that its file names.
#[derive(Debug)]
pub struct RunManifest {
    pub cluster: MiniCluster,
    pub namespace: Option<String>,
    /// Notes about parts of the file that are valid, but perhaps not what was meant.
    pub notes: Vec<Notice>,
}

/// Builds the MiniCluster from the options and the text of the file. `random`: lower case letters for a generated
/// name. A MiniCluster with such a name also has `generateName`.
pub fn build(wanted: &Wanted, file: Option<&str>, random: &str) -> Result<RunManifest, Vec<Problem>> {
    let document = match file {
        // A text without a MiniCluster is an error, so there is a first one.
        Some(text) => manifest::documents(text)?.swap_remove(0),
        // `tasks: 0`: one task for each pod.
        None => json!({
            "apiVersion": flux_operator_core::labels::API_VERSION, "kind": "MiniCluster", "metadata": {},
            "spec": { "tasks": 0, "containers": [{}] },
        }),
    };
    let has_logging = document["spec"]["logging"].is_object();
    let Manifest {
        name,
        mut spec,
        queueing,
        cleans_by_default,
        ..
    } = manifest::from_value(&document)?;
    // (With only a `generateName`, `name` ends in `xxxxx`.)
    let has_name = document["metadata"]["name"]
        .as_str()
        .is_some_and(|name| !name.is_empty());
    let (name, prefix) = match &wanted.name {
        Some(name) => (name.clone(), None),
        None if has_name => (name, None),
        None => {
            let prefix = document["metadata"]["generateName"].as_str().unwrap_or("run-");
            (format!("{prefix}{random}"), Some(prefix.to_owned()))
        }
    };
    spec.size = wanted.size.unwrap_or(spec.size);
    spec.tasks = wanted.tasks.unwrap_or(spec.tasks);
    spec.max_size = wanted.max_size.or(spec.max_size);
    if wanted.keep {
        (spec.cleanup, spec.cleanup_pods) = (false, false);
        spec.ttl_seconds_after_finished = None;
    }
    if !wanted.command.is_empty() {
        // Otherwise the command would not run.
        spec.interactive = false;
    }
    let runner = runner(&mut spec)?;
    runner.image = wanted.image.clone().or(runner.image.take());
    // A variable can have one source only.
    for (name, value) in &wanted.environment {
        runner.secrets.remove(name);
        runner.environment.insert(name.clone(), value.clone());
    }
    if !wanted.command.is_empty() {
        runner.command = Some(command_words::join(&wanted.command));
        // These would replace the command, or make a batch of its lines.
        (runner.batch, runner.batch_raw, runner.diagnostics) = (false, false, false);
        if let Some(commands) = &mut runner.commands {
            commands.script = None;
        }
    }
    // Without a program, the agent's and Flux's lines are the only output, so they are printed. If the file has
    // `logging`, the file decides.
    if observed::runs_program(&spec) && !wanted.verbose && !has_logging {
        spec.logging.get_or_insert_default().quiet = true;
    }
    let namespace = document["metadata"]["namespace"]
        .as_str()
        .filter(|namespace| !namespace.is_empty())
        .map(str::to_owned);
    // This namespace only serves the validation. The MiniCluster gets none here.
    let checked_namespace = namespace.clone().unwrap_or_else(|| "default".into());
    let manifest = Manifest {
        name,
        namespace: checked_namespace,
        queueing,
        cleans_by_default,
        maximum_size: None,
        spec,
    };
    let valid = validate_and_note(&manifest)?;
    let mut cluster = MiniCluster::new(&manifest.name, manifest.spec);
    cluster.metadata.labels = texts(&document["metadata"]["labels"]);
    cluster.metadata.annotations = texts(&document["metadata"]["annotations"]);
    cluster.metadata.generate_name = prefix;
    // Notes are for files only: without one, the user has just typed the options.
    let notes = file.map_or_else(Vec::new, |text| {
        let of_cluster = valid.notices.iter().cloned().chain(valid.hints());
        manifest::notices(text).into_iter().chain(of_cluster).collect()
    });
    Ok(RunManifest {
        cluster,
        namespace,
        notes,
    })
}

/// The string values of a JSON object. None: it is no object.
fn texts(map: &Value) -> Option<BTreeMap<String, String>> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some(
        map.as_object()?
            .iter()
            .filter_map(|(key, value)| Some((key.clone(), text(value)?)))
            .collect(),
    )
}

/// The container whose program is the job.
fn runner(spec: &mut MiniClusterSpec) -> Result<&mut Container, Vec<Problem>> {
    match observed::runner_position(spec).and_then(|position| spec.containers.get_mut(position)) {
        Some(runner) => Ok(runner),
        None => Err(vec![Problem::new(
            "spec.containers",
            "exactly one needs runFlux: true",
        )]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(image: Option<&str>, command: &[&str]) -> Wanted {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        Wanted {
            image: image.map(str::to_owned),
            command,
            ..Wanted::default()
        }
    }

    const FILE: &str = "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata:\n  name: mine\n  namespace: team\n  labels: {kueue.x-k8s.io/queue-name: q}\nspec:\n  size: 3\n  tasks: 6\n  containers:\n  - {image: side, name: side, runFlux: false}\n  - {image: main, command: old, runFlux: true, environment: {A: '1'}, secrets: {TOKEN: {name: s, key: k}}}\n";

    #[test]
    fn minicluster_is_built_from_an_image_and_a_command() {
        let built = build(
            &wanted(Some("app:1"), &["sh", "-c", "echo $HOME; exit 7"]),
            None,
            "abcde",
        )
        .unwrap();
        let spec = built.cluster.spec;
        assert_eq!(built.cluster.metadata.name.as_deref(), Some("run-abcde"));
        assert_eq!((spec.size, spec.tasks), (1, 0));
        assert_eq!(
            spec.containers[0].command.as_deref(),
            Some("sh -c 'echo $HOME; exit 7'")
        );
        assert!(spec.logging.unwrap().quiet);
    }

    #[test]
    fn blank_command_is_no_program_so_logging_is_not_quiet() {
        let file = FILE.replace("command: old", "command: ' '");
        let built = build(&wanted(None, &[]), Some(&file), "abcde").unwrap();
        assert!(!built.cluster.spec.logging.is_some_and(|logging| logging.quiet));
    }

    #[test]
    fn image_is_taken_by_tag_digest_or_both() {
        let digest = format!("sha256:{}", "9f86d081".repeat(8));
        for image in [
            "r.example:5000/app:1".to_owned(),
            format!("app@{digest}"),
            format!("r.example:5000/app:1@{digest}"),
        ] {
            let built = build(&wanted(Some(&image), &["true"]), None, "abcde").unwrap();
            assert_eq!(built.cluster.spec.containers[0].image, Some(image));
        }
    }

    #[test]
    fn command_replaces_a_script_and_the_lines_of_a_batch() {
        for instead in [
            "commands: {script: a, pre: b}",
            "command: a, batch: true, batchRaw: true, diagnostics: true",
        ] {
            let file = FILE.replace("command: old", instead);
            let built = build(&wanted(None, &["new"]), Some(&file), "abcde").unwrap();
            let main = &built.cluster.spec.containers[1];
            assert_eq!(main.command.as_deref(), Some("new"), "{instead}");
            assert!(!main.batch && !main.batch_raw && !main.diagnostics, "{instead}");
            let pre = main
                .commands
                .as_ref()
                .and_then(|commands| commands.pre.as_deref());
            assert_eq!(pre, instead.contains("pre").then_some("b"), "{instead}");
        }
    }

    #[test]
    fn command_of_an_interactive_file_is_run() {
        let file = FILE.replace("size: 3", "size: 3\n  interactive: true");
        let built = build(&wanted(None, &["new"]), Some(&file), "abcde").unwrap();
        assert!(observed::runs_program(&built.cluster.spec));
        let built = build(&wanted(None, &[]), Some(&file), "abcde").unwrap();
        assert!(!observed::runs_program(&built.cluster.spec));
    }

    #[test]
    fn options_change_what_a_file_says_and_nothing_else() {
        let mut options = wanted(None, &["new", "a b"]);
        options.size = Some(5);
        options.environment = vec![("B".into(), "2".into()), ("TOKEN".into(), "mine".into())];
        let built = build(&options, Some(FILE), "abcde").unwrap();
        assert_eq!(built.cluster.metadata.generate_name, None);
        assert_eq!(
            (built.cluster.metadata.name.as_deref(), built.namespace.as_deref()),
            (Some("mine"), Some("team"))
        );
        assert_eq!(
            built.cluster.metadata.labels.unwrap()["kueue.x-k8s.io/queue-name"],
            "q"
        );
        let spec = built.cluster.spec;
        assert_eq!((spec.size, spec.tasks), (5, 6));
        let (side, main) = (&spec.containers[0], &spec.containers[1]);
        assert_eq!(
            (side.image.as_deref(), side.command.as_deref()),
            (Some("side"), None)
        );
        assert_eq!(
            (main.image.as_deref(), main.command.as_deref()),
            (Some("main"), Some("new 'a b'"))
        );
        assert_eq!(main.environment.len(), 3);
        assert!(main.secrets.is_empty(), "a variable can have one source only");
        assert!(spec.logging.unwrap().quiet, "standard output is the job's alone");
        let unchanged = build(&wanted(None, &[]), Some(FILE), "abcde")
            .unwrap()
            .cluster
            .spec;
        assert_eq!(
            (unchanged.size, unchanged.containers[1].command.as_deref()),
            (3, Some("old"))
        );
    }

    #[test]
    fn file_is_run_quietly_unless_it_or_an_option_says_otherwise() {
        let is_quiet = |options: &Wanted, file: &str| {
            build(options, Some(file), "abcde")
                .unwrap()
                .cluster
                .spec
                .logging
                .is_some_and(|logging| logging.quiet)
        };
        let timed = FILE.replace("size: 3", "size: 3\n  logging: {timed: true}");
        let without = FILE.replace("command: old, ", "");
        let interactive = FILE.replace("size: 3", "size: 3\n  interactive: true");
        let plain = wanted(None, &[]);
        assert!(is_quiet(&plain, FILE));
        assert!(!is_quiet(
            &Wanted {
                verbose: true,
                ..plain.clone()
            },
            FILE
        ));
        assert!(!is_quiet(&plain, &timed) && !is_quiet(&plain, &without) && !is_quiet(&plain, &interactive));
    }

    #[test]
    fn keep_switches_every_cleanup_of_the_file_off() {
        let options = Wanted {
            keep: true,
            ..wanted(None, &[])
        };
        let cleans = "size: 3\n  cleanup: true\n  cleanupPods: true\n  ttlSecondsAfterFinished: 0";
        // v1alpha1 deletes the pods by default.
        for file in [
            FILE.replace("size: 3", cleans),
            FILE.replace("v1alpha2", "v1alpha1"),
        ] {
            let built = build(&options, Some(&file), "abcde").unwrap();
            let spec = built.cluster.spec;
            assert!(!spec.cleanup && !spec.cleanup_pods && spec.ttl_seconds_after_finished.is_none());
            assert!(built.notes.is_empty(), "{:?}", built.notes);
        }
        let twice = FILE.replace("size: 3", "size: 2\n  size: 3");
        let notes = build(&options, Some(&twice), "abcde").unwrap().notes;
        assert!(notes[0].to_string().contains("duplicate"), "{notes:?}");
    }

    #[test]
    fn max_size_is_that_of_the_option_or_the_file() {
        let max_size = |options: &Wanted, file: Option<&str>| {
            build(options, file, "abcde").unwrap().cluster.spec.max_size
        };
        let mut options = wanted(Some("app:1"), &["true"]);
        assert_eq!(max_size(&options, None), None);
        options.max_size = Some(6);
        assert_eq!(max_size(&options, None), Some(6));
        let file = FILE.replace("size: 3", "size: 3\n  maxSize: 4");
        assert_eq!(max_size(&wanted(None, &[]), Some(&file)), Some(4));
        options.image = None;
        assert_eq!(max_size(&options, Some(&file)), Some(6));
    }

    #[test]
    fn empty_namespace_of_a_file_counts_as_missing() {
        let file = FILE.replace("namespace: team", "namespace: ''");
        let built = build(&wanted(None, &[]), Some(&file), "abcde").unwrap();
        assert_eq!(built.namespace, None);
    }

    #[test]
    fn generate_name_is_completed_by_the_plugin() {
        let file = FILE.replace("name: mine", "generateName: batch-");
        let built = build(&wanted(None, &[]), Some(&file), "abcde").unwrap();
        assert_eq!(built.cluster.metadata.name.as_deref(), Some("batch-abcde"));
        assert_eq!(built.cluster.metadata.generate_name.as_deref(), Some("batch-"));
    }

    #[test]
    fn name_of_file_is_kept_when_it_ends_like_a_generated_one() {
        let file = FILE.replace("name: mine", "name: mine-xxxxx");
        let built = build(&wanted(None, &[]), Some(&file), "abcde").unwrap();
        assert_eq!(built.cluster.metadata.name.as_deref(), Some("mine-xxxxx"));
    }

    #[test]
    fn all_problems_of_the_options_are_reported_together() {
        let mut options = wanted(Some("app:1"), &["true"]);
        (options.size, options.tasks) = (Some(0), Some(-1));
        let problems = build(&options, None, "abcde").unwrap_err();
        assert_eq!(problems.len(), 2, "{problems:?}");
    }
}
