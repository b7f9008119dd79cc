//! The lead's initial program: what `flux start` runs once the instance is up, and the files that it needs.

use flux_shared::agent_spec::Program;
use flux_shared::command_words::{self, Word};
use flux_shared::submission;

use super::{Content, Mode, PlanError, Resolved, Stdout, Step, accounts, batch, restful};

/// What runs inside the instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Initial {
    pub command: Wrapped,
    pub stdout: Stdout,
}

/// A command line, without and with the agent's own commands.
#[derive(Debug, Clone, PartialEq)]
pub struct Wrapped {
    /// The command line as one would type it.
    pub as_typed: Vec<Word>,
    /// What is executed: the same, with the agent's own commands before or within it.
    pub argv: Vec<Word>,
}

impl Wrapped {
    /// A command line with nothing around it.
    fn plain(as_typed: Vec<Word>) -> Wrapped {
        Wrapped {
            argv: as_typed.clone(),
            as_typed,
        }
    }

    /// A command line whose time the agent measures, if [`time_prefix`] says so.
    fn timed(resolved: &Resolved, as_typed: Vec<Word>) -> Wrapped {
        Wrapped {
            argv: [time_prefix(resolved).as_slice(), &as_typed].concat(),
            as_typed,
        }
    }
}

/// The initial program of the lead. None: the broker gets none from the agent (`broker_alone` in `lead.rs`).
pub fn initial(resolved: &Resolved) -> Option<Initial> {
    let runner = &resolved.spec.runner;
    if runner.is_left_to_users() {
        return None;
    }
    let (mut command, stdout) = match &runner.program {
        Program::Persistent => {
            let served = restful::wanted(resolved)?;
            (Wrapped::plain(restful::words(resolved, served)), Stdout::Inherit)
        }
        Program::Submit { words } | Program::Launcher { words } if words.is_empty() => return None,
        Program::Submit { words } => (submit(resolved, words), stdout_of_submit(resolved)),
        Program::Launcher { words } => (launcher(resolved, words), Stdout::Inherit),
        Program::Script { launch: true, .. } => {
            (launcher(resolved, &[script_word(resolved)]), Stdout::Inherit)
        }
        Program::Script { launch: false, .. } => (
            submit(resolved, &[script_word(resolved)]),
            stdout_of_submit(resolved),
        ),
        Program::Batch { .. } | Program::BatchRaw { .. } => {
            // Standard output has the batch's id and events. The batch's own output goes to a file.
            let stdout = if resolved.spec.logging.quiet {
                Stdout::Discard
            } else {
                Stdout::Inherit
            };
            (run_batch(resolved), stdout)
        }
        Program::Diagnostics => (
            Wrapped::plain(literals([&resolved.paths.agent(), "diagnostics"])),
            Stdout::Inherit,
        ),
    };
    command.argv = accounts::with_accounting(resolved, command.argv);
    Some(Initial { command, stdout })
}

/// The program's files. Every pod gets a script, since any pod may run it. Only the lead gets a batch script: there,
/// `flux batch` copies it into the batch job.
pub fn files(resolved: &Resolved) -> Result<Vec<Step>, PlanError> {
    Ok(match &resolved.spec.runner.program {
        Program::Script { text, .. } => {
            let content = Content::Text(super::snippets::with_shebang(resolved, text, "the script")?);
            let owner = resolved.identity.owner;
            let step = Step::File {
                path: script_path(resolved),
                mode: Mode(0o755),
                owner,
                content,
            };
            vec![step]
        }
        Program::Batch { lines } => batch_files(resolved, || batch::script(resolved, lines))?,
        Program::BatchRaw { text } => batch_files(resolved, || batch::raw(resolved, text))?,
        _ => Vec::new(),
    })
}

/// The files of a batch: its script on the lead, and the configuration on every pod where a broker of the
/// batch's instance may run. `render` makes the script's text.
fn batch_files(
    resolved: &Resolved,
    render: impl Fn() -> Result<String, PlanError>,
) -> Result<Vec<Step>, PlanError> {
    let script = resolved
        .is_lead()
        .then(|| render().map(|text| batch::file(resolved, text)))
        .transpose()?;
    Ok(script.into_iter().chain(batch::config_file(resolved)).collect())
}

/// On a pipe, `flux submit` would buffer its output and errors. So it gets a pseudo-terminal, unless the container has
/// a terminal already.
fn stdout_of_submit(resolved: &Resolved) -> Stdout {
    if resolved.facts.terminal {
        Stdout::Inherit
    } else {
        Stdout::LineBuffered
    }
}

/// The spec's submit command (by default `flux submit`), with `command` as the job.
fn submit(resolved: &Resolved, command: &[Word]) -> Wrapped {
    let mut words = resolved.spec.runner.prefix.clone();
    let submit_command = submission::with_empty_input(&resolved.spec.flux.submit_command);
    words.extend(literals(submit_command));
    words.extend(literals(flags(resolved)));
    words.extend(is_verbose(resolved).then(|| Word::literal("-vvv")));
    words.push(Word::literal("--quiet"));
    // `flux run` always waits and shows the output. It has no option for that.
    let is_run = submission::flux_subcommand(&resolved.spec.flux.submit_command) == Some("run");
    words.extend((!is_run).then(|| Word::literal("--watch")));
    words.extend_from_slice(command);
    Wrapped::timed(resolved, words)
}

/// The command itself, after the user's prefix. It launches its own tasks.
fn launcher(resolved: &Resolved, command: &[Word]) -> Wrapped {
    Wrapped::timed(resolved, [&resolved.spec.runner.prefix, command].concat())
}

/// The agent submits the batch, waits for it, and exits with its exit code. If the batch fails, the agent prints the
/// end of the batch's output, so it must know that file (`--shows`). The agent also prints the batch's events:
/// `flux batch` has no option `-v`, and the job shell of Flux 0.88 crashes with `-o verbose` on two nodes.
fn run_batch(resolved: &Resolved) -> Wrapped {
    let prefix = resolved.spec.runner.prefix.as_slice();
    let directives = match &resolved.spec.runner.program {
        Program::BatchRaw { text } => batch::directives(text),
        _ => Vec::new(),
    };
    let flags = if batch::sets_size(&directives) {
        users_flags(resolved)
    } else {
        flags(resolved)
    };
    // The user's path has precedence over the agent's, and the agent's over Flux's default.
    let users_output = output_of(&flags).or_else(|| output_of(&directives));
    let agents_output = if users_output.is_none() {
        writable_output(resolved)
    } else {
        None
    };
    let output = users_output
        .or(agents_output.as_deref())
        .unwrap_or(DEFAULT_OUTPUT);
    let mut agent_batch = literals([
        resolved.paths.agent(),
        "batch".into(),
        format!("--shows={output}"),
    ]);
    agent_batch.extend(is_verbose(resolved).then(|| Word::literal("--events")));
    agent_batch.push(Word::literal("--"));
    let mut flux_batch = literals(["flux", "batch"]);
    // Before the user's flags, so that their `--broker-opts` overrides this option, which overrides directives.
    if !batch::sets_config(&directives) {
        flux_batch.extend(batch::config_option(resolved).map(Word::Literal));
    }
    flux_batch.extend(literals(&flags));
    // `flux job wait --all` waits for jobs with this flag. The agent runs it if the command prints no id.
    flux_batch.extend(literals(["--flags", "waitable"]));
    flux_batch.extend(agents_output.map(|path| Word::Literal(format!("--output={path}"))));
    flux_batch.push(Word::literal(batch::path(resolved)));
    Wrapped {
        as_typed: [prefix, &flux_batch].concat(),
        argv: [
            time_prefix(resolved).as_slice(),
            prefix,
            &agent_batch,
            &flux_batch,
        ]
        .concat(),
    }
}

/// Flux's default file for the output of a batch's script, below the working directory. (Flux fills in `{{id}}`.)
const DEFAULT_OUTPUT: &str = "flux-{{id}}.out";

/// A path that Flux's user may write the output to. None: the working directory is writable.
fn writable_output(resolved: &Resolved) -> Option<String> {
    // With `run_as`, the agent is root and Flux is not. Root keeps the working directory of the image, but
    // gives the spec's workingDir to Flux's user (`runner`).
    let belongs_to_root = resolved.identity.run_as.is_some() && resolved.spec.runner.working_dir.is_none();
    let is_needed = belongs_to_root || !resolved.facts.is_writable(&resolved.facts.working_directory);
    is_needed.then(|| format!("{}/{DEFAULT_OUTPUT}", resolved.logs))
}

/// The output path that the user's flags set. The last `--output` counts.
fn output_of(flags: &[String]) -> Option<&str> {
    flags
        .iter()
        .enumerate()
        .rev()
        .find_map(|(position, flag)| match flag.strip_prefix("--output")? {
            "" => flags.get(position + 1).map(String::as_str),
            rest => rest.strip_prefix('='),
        })
}

/// The agent's command that measures how long the command line after it runs. Empty if the spec does not ask
/// for times, or sets `logging.quiet`.
fn time_prefix(resolved: &Resolved) -> Vec<Word> {
    let logging = &resolved.spec.logging;
    if logging.timed && !logging.quiet {
        // The label of the Go operator. A launcher has it too, though it submits nothing.
        literals([&resolved.paths.agent(), "time", "--label", "fluxsubmit", "--"])
    } else {
        Vec::new()
    }
}

/// Whether to log more about the submission (`logging.debug` without `quiet`).
fn is_verbose(resolved: &Resolved) -> bool {
    let logging = &resolved.spec.logging;
    logging.debug && !logging.quiet
}

/// Environment variable of the image with flags for `flux submit` and `flux batch`.
const OPTION_FLAGS: &str = "FLUX_OPTION_FLAGS";

/// Flags for `flux submit` and `flux batch`: numbers of nodes and tasks, then the user's flags.
fn flags(resolved: &Resolved) -> Vec<String> {
    [size_flags(resolved), users_flags(resolved)].concat()
}

/// The numbers of nodes and tasks.
fn size_flags(resolved: &Resolved) -> Vec<String> {
    let spec = resolved.spec;
    let nodes = |count: u32| ["-N".to_owned(), count.to_string()];
    let tasks = ["-n".to_owned(), spec.tasks.to_string()];
    let image_flags = image_flags(resolved);
    let words = submission::options_of_flux(&spec.flux.submit_command)
        .iter()
        .chain(&spec.flux.option_flags)
        .chain(&image_flags);
    // `flux batch` has none of these options. (In a batch, the submit command is that of each line.)
    let is_batch = matches!(
        spec.runner.program,
        Program::Batch { .. } | Program::BatchRaw { .. }
    );
    let per_resource = if is_batch {
        Vec::new()
    } else {
        submission::per_resource_options(words)
    };
    // Flux rejects these options together with a number of tasks, and 1 is only the default. Then it is left out.
    let default_tasks_are_left_out = spec.tasks == 1 && !per_resource.is_empty();
    // With `-N`, Flux would distribute the cores evenly over the nodes, and reject a number that does not divide evenly.
    if default_tasks_are_left_out
        && per_resource.contains(&"--cores")
        && !per_resource.contains(&"--gpus-per-node")
    {
        return Vec::new();
    }
    let mut flags = Vec::new();
    let task_count = if default_tasks_are_left_out { 0 } else { spec.tasks };
    match (task_count, spec.elastic) {
        // No number of tasks (0, or left out above): only that of nodes is given, so the job gets all of them.
        (0, false) => flags.extend(nodes(spec.size)),
        // An elastic cluster: only the quorum is sure to be up. (In the operator's elastic specs, it is set and below
        // `size`. In a spec that people write, it may be unset or larger.)
        (0, true) => flags.extend(nodes(spec.quorum.unwrap_or(1).min(spec.size))),
        // At least one task for each node.
        (count, false) if count >= spec.size => flags.extend(nodes(spec.size).into_iter().chain(tasks)),
        // Fewer tasks than nodes, or an elastic job: Flux chooses the nodes.
        _ => flags.extend(tasks),
    }
    flags
}

/// The flags that the image sets.
fn image_flags(resolved: &Resolved) -> Vec<String> {
    let flags = resolved.facts.environment.get(OPTION_FLAGS);
    flags.map_or(Vec::new(), |flags| command_words::split_leniently(flags))
}

/// The user's flags. The image's come first, so that the spec's override them.
fn users_flags(resolved: &Resolved) -> Vec<String> {
    let mut flags = image_flags(resolved);
    flags.extend(resolved.spec.flux.option_flags.iter().cloned());
    flags
}

fn script_path(resolved: &Resolved) -> String {
    resolved.paths.script("job")
}

fn script_word(resolved: &Resolved) -> Word {
    Word::literal(script_path(resolved))
}

fn literals<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Vec<Word> {
    texts
        .into_iter()
        .map(|text| Word::literal(text.as_ref()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use flux_shared::agent_spec::AgentSpec;

    fn flags_of(spec: &str) -> String {
        let spec = AgentSpec::from_toml(&format!("name='mc'\n{spec}")).unwrap();
        let facts = Facts::default();
        flags(&Resolved::new(&spec, &facts).unwrap()).join(" ")
    }

    #[test]
    fn tasks_are_the_total_of_the_job() {
        assert_eq!(flags_of("size=4\ntasks=0"), "-N 4");
        assert_eq!(flags_of("size=4\ntasks=4"), "-N 4 -n 4");
        assert_eq!(flags_of("size=4\ntasks=8"), "-N 4 -n 8");
        assert_eq!(flags_of("size=4\ntasks=2"), "-n 2");
        assert_eq!(flags_of("size=4"), "-n 1");
        assert_eq!(flags_of("size=1"), "-N 1 -n 1");
    }

    #[test]
    fn flux_run_gets_no_watch_option() {
        let words = |command: &str| {
            program_of(&format!(
                "[flux]\nsubmit_command={command}\n[runner.program]\nmode='submit'\nwords=['true']\n"
            ))
        };
        assert!(words("['flux', 'submit']").contains("--watch"));
        assert!(words("['my-submit']").contains("--watch"));
        for run in ["['flux', 'run', '-x']", "['env', 'A=b', '/usr/bin/flux', 'run']"] {
            assert!(!words(run).contains("--watch"), "{}", words(run));
            assert!(words(run).contains("--quiet"), "{}", words(run));
        }
    }

    #[test]
    fn per_resource_options_replace_the_default_of_one_task() {
        let with = |top: &str, flags: &str| flags_of(&format!("{top}\n[flux]\noption_flags=[{flags}]"));
        for option in ["--gpus-per-node=2", "--tasks-per-node=2", "--tasks-per-core=1"] {
            assert_eq!(with("size=4", &format!("'{option}'")), format!("-N 4 {option}"));
        }
        assert_eq!(with("size=4", "'--cores', '6'"), "--cores 6");
        assert_eq!(
            with("size=4", "'--cores=8', '--gpus-per-node=1'"),
            "-N 4 --cores=8 --gpus-per-node=1",
            "--gpus-per-node needs -N"
        );
        assert_eq!(with("size=4\ntasks=0", "'--cores=8'"), "-N 4 --cores=8");
        assert_eq!(with("size=4", "'--gpus-per-task=2'"), "-n 1 --gpus-per-task=2");
        assert_eq!(
            with("size=4\nquorum=2\nelastic=true", "'--tasks-per-node=2'"),
            "-N 2 --tasks-per-node=2"
        );
        // In a batch, the submit command is that of each line. Another program's options are not Flux's.
        let batch = "\n[runner.program]\nmode='batch'\nlines=[{number=0,text='true'}]\n";
        for (command, program) in [
            ("'flux', 'submit', '--cores=2'", batch),
            ("'my-submit', '--cores=2'", ""),
        ] {
            let spec = format!("size=4\n[flux]\nsubmit_command=[{command}]{program}");
            assert_eq!(flags_of(&spec), "-n 1", "{spec}");
        }
        let spec = AgentSpec::from_toml("name='mc'\nsize=4").unwrap();
        let mut facts = Facts::default();
        facts
            .environment
            .insert(OPTION_FLAGS.into(), "--gpus-per-node=2".into());
        let flags = flags(&Resolved::new(&spec, &facts).unwrap());
        assert_eq!(flags.join(" "), "-N 4 --gpus-per-node=2");
    }

    #[test]
    fn flags_of_the_image_come_before_those_of_the_spec() {
        let spec = AgentSpec::from_toml("name='mc'\n[flux]\noption_flags=['-o', 'b=2']").unwrap();
        let flags_with = |own: &str| {
            let mut facts = Facts::default();
            facts.environment.insert(OPTION_FLAGS.into(), own.into());
            flags(&Resolved::new(&spec, &facts).unwrap()).join("|")
        };
        assert_eq!(
            flags_with("-ompi=openmpi@5 --env='A=1 2'"),
            "-N|1|-n|1|-ompi=openmpi@5|--env=A=1 2|-o|b=2"
        );
        assert_eq!(
            flags_with("-o it's"),
            "-N|1|-n|1|-o|it's|-o|b=2",
            "not valid in a shell: split at blanks"
        );
        assert_eq!(flags_with(""), "-N|1|-n|1|-o|b=2");
    }

    #[test]
    fn an_elastic_job_asks_for_no_more_nodes_than_it_must_have() {
        assert_eq!(flags_of("size=4\nquorum=2\nelastic=true\ntasks=0"), "-N 2");
        assert_eq!(flags_of("size=4\nquorum=2\nelastic=true\ntasks=8"), "-n 8");
    }

    fn program_of(spec: &str) -> String {
        let spec = AgentSpec::from_toml(&format!("name='mc'\nsize=2\ntasks=2\n{spec}")).unwrap();
        let facts = Facts::default();
        let program = initial(&Resolved::new(&spec, &facts).unwrap()).unwrap();
        let argv = program.command.argv;
        argv.iter()
            .map(|word| format!("{word:?}"))
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn shown_batch_output_is_where_the_flags_put_it() {
        let words = program_of("[runner.program]\nmode='batch'\nlines=[{number=0,text='true'}]\n");
        assert!(
            words.contains("--shows=flux-{{id}}.out\"") && !words.contains("--output"),
            "{words}"
        );
        assert_eq!(output_of(&["-o".into(), "--output-mode".into()]), None);
        assert_eq!(
            output_of(&["--output=a", "--output", "b", "-x"].map(str::to_owned)),
            Some("b")
        );
        assert_eq!(
            output_of(&["--output", "b", "--output=a"].map(str::to_owned)),
            Some("a")
        );
    }

    #[test]
    fn directives_of_a_batch_script_replace_the_agents_options() {
        let command = |lines: &str| {
            let text = format!("#!/bin/sh\n{lines}\nflux run -n 3 a\n");
            let spec =
                format!("name='mc'\nsize=2\ntasks=8\n[runner.program]\nmode='batch-raw'\ntext={text:?}\n");
            let spec = AgentSpec::from_toml(&spec).unwrap();
            // Without a writable working directory, the agent sets the output.
            let facts = Facts {
                writable: [].into(),
                ..Facts::default()
            };
            let program = initial(&Resolved::new(&spec, &facts).unwrap()).unwrap();
            let words: Vec<String> = program.command.argv.iter().map(Word::display).collect();
            words.join(" ")
        };
        let size = "-N 2 -n 8";
        for line in [
            "# flux: -n 4",
            "#FLUX: --exclusive -N2",
            "  # flux:--nslots=4",
            "# flux: --nodes 2 # two",
        ] {
            assert!(
                !command(line).contains(size) && command(line).contains(" --output="),
                "{line}"
            );
        }
        for (line, path) in [
            ("# flux: --output a.out", "a.out"),
            ("# flux: -t 5m\n# flux: --output='a b' # -n 4", "a b"),
        ] {
            let command = command(line);
            assert!(
                command.contains(size) && !command.contains("--output"),
                "{command}"
            );
            assert!(command.contains(&format!("--shows={path} ")), "{command}");
        }
        for (line, is_set) in [
            ("# flux: --broker-opts=-c/own", false),
            ("# flux: --broker-opts --config-path=/own", false),
            ("# flux: --broker-opt=-Slog-level=7,-c,/own", false),
            ("# flux: --broker-opts=-Slog-level=7", true),
            ("# flux: -N 2", true),
        ] {
            assert_eq!(
                command(line).contains(" --broker-opts=--config-path="),
                is_set,
                "{line}"
            );
        }
        for line in [
            "# flux: --cores-per-slot=2 # don't -n 4",
            "# -n 4",
            "flux run -n 4 a",
        ] {
            assert!(
                command(line).contains(size) && command(line).contains(" --output="),
                "{line}"
            );
        }
    }

    #[test]
    fn debug_logging_adds_verbose_options_unless_quiet() {
        let job = "[runner.program]\nmode='submit'\nwords=['true']\n[flux]\noption_flags=['--x']\n";
        let batch = "[runner.program]\nmode='batch'\nlines=[{number=0,text='true'}]\n";
        for (program, more) in [(job, "-vvv"), (batch, "--events")] {
            let words = |logging: &str| program_of(&format!("{program}[logging]\n{logging}"));
            assert!(words("debug=true").contains(more), "{}", words("debug=true"));
            assert!(!words("debug=false").contains(more) && !words("debug=true\nquiet=true").contains(more));
        }
    }
}
