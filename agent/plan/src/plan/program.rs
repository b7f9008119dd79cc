//! The lead's initial program: what `flux start` runs once the instance is up, and the files that it needs.

use flux_shared::agent_spec::Program;
use flux_shared::command_words::{self, Word};

use super::{Content, Mode, PlanError, Resolved, Stdout, Step, accounts, batch, restful};

/// What runs inside the instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Initial {
    /// The program as one would type it. Empty: the broker alone, until it is shut down.
    pub program: Vec<Word>,
    /// The same with what the agent puts around it.
    pub words: Vec<Word>,
    pub stdout: Stdout,
}

impl Initial {
    const NONE: Initial = Initial {
        program: Vec::new(),
        words: Vec::new(),
        stdout: Stdout::Inherit,
    };

    /// Whether `flux start` runs something; else the broker runs alone.
    pub fn runs_inside(&self) -> bool {
        !self.program.is_empty()
    }
}

/// A program as one would type it, and with what the agent puts around it.
struct Wrapped {
    program: Vec<Word>,
    words: Vec<Word>,
}

impl Wrapped {
    /// A program with nothing around it.
    fn plain(program: Vec<Word>) -> Wrapped {
        Wrapped {
            words: program.clone(),
            program,
        }
    }

    /// A program whose time the agent measures, if that is asked for and shown.
    fn timed(resolved: &Resolved, program: Vec<Word>) -> Wrapped {
        Wrapped {
            words: timed(resolved).into_iter().chain(program.clone()).collect(),
            program,
        }
    }
}

/// The initial program of the lead.
pub fn initial(resolved: &Resolved) -> Initial {
    let runner = &resolved.spec.runner;
    let interactive = runner.interactive && runner.program != Program::Diagnostics;
    if interactive {
        return Initial::NONE;
    }
    let quiet = resolved.spec.logging.quiet;
    let live = live(resolved);
    let (wrapped, stdout) = match &runner.program {
        Program::Persistent => match restful::wanted(resolved) {
            Some(served) => (Wrapped::plain(restful::words(resolved, served)), Stdout::Inherit),
            None => return Initial::NONE,
        },
        Program::Submit { words } | Program::Launcher { words } if words.is_empty() => return Initial::NONE,
        Program::Submit { words } => (submit(resolved, words), live),
        Program::Launcher { words } => (launcher(resolved, words), Stdout::Inherit),
        Program::Script { launch: true, .. } => {
            (launcher(resolved, &[script_word(resolved)]), Stdout::Inherit)
        }
        Program::Script { launch: false, .. } => (submit(resolved, &[script_word(resolved)]), live),
        Program::Batch { .. } | Program::BatchRaw { .. } if quiet => (run_batch(resolved), Stdout::Discard),
        Program::Batch { .. } | Program::BatchRaw { .. } => (run_batch(resolved), Stdout::Inherit),
        Program::Diagnostics => (
            Wrapped::plain(literals([&resolved.paths.agent(), "diagnostics"])),
            Stdout::Inherit,
        ),
    };
    let Wrapped { program, words } = wrapped;
    Initial {
        program,
        words: accounts::with_accounting(resolved, words),
        stdout,
    }
}

/// The program's files: a script on every pod (any of them may run it), a batch on the lead.
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
        Program::Batch { lines } => of_a_batch(resolved, || batch::script(resolved, lines))?,
        Program::BatchRaw { text } => of_a_batch(resolved, || batch::raw(resolved, text))?,
        _ => Vec::new(),
    })
}

/// The script on the lead; the configuration wherever a broker of the batch's instance may run.
fn of_a_batch(
    resolved: &Resolved,
    script: impl Fn() -> Result<String, PlanError>,
) -> Result<Vec<Step>, PlanError> {
    let script = resolved
        .is_lead()
        .then(|| Ok(batch::file(resolved, script()?)))
        .transpose()?;
    Ok(script.into_iter().chain(batch::config_file(resolved)).collect())
}

/// `flux submit` keeps its output and errors back on a pipe; a terminal makes it flush every line.
fn live(resolved: &Resolved) -> Stdout {
    if resolved.facts.terminal {
        Stdout::Inherit
    } else {
        Stdout::LineBuffered
    }
}

fn submit(resolved: &Resolved, command: &[Word]) -> Wrapped {
    let mut words = resolved.spec.runner.prefix.clone();
    words.extend(literals(&resolved.spec.flux.submit_command));
    words.extend(literals(flags(resolved)));
    words.extend(is_debug(resolved).then(|| Word::literal("-vvv")));
    words.extend(literals(["--quiet", "--watch"]));
    words.extend_from_slice(command);
    Wrapped::timed(resolved, words)
}

fn launcher(resolved: &Resolved, command: &[Word]) -> Wrapped {
    Wrapped::timed(resolved, [&resolved.spec.runner.prefix, command].concat())
}

/// The batch is submitted and awaited by the agent, whose exit code is the batch's. `flux batch` knows no
/// `-v` (and the shell of Flux 0.88 dies of `-o verbose` on two nodes): the agent prints the batch's events.
fn run_batch(resolved: &Resolved) -> Wrapped {
    let prefix = resolved.spec.runner.prefix.as_slice();
    let flags = flags(resolved);
    let users = output_of(&flags);
    let writable = if users.is_none() {
        writable_output(resolved)
    } else {
        None
    };
    let output = users.or(writable.as_deref()).unwrap_or(FLUX_OUTPUT);
    let mut awaits = literals([
        resolved.paths.agent(),
        "batch".into(),
        format!("--shows={output}"),
    ]);
    awaits.extend(is_debug(resolved).then(|| Word::literal("--events")));
    awaits.push(Word::literal("--"));
    let mut batch = literals(["flux", "batch"]);
    // Before the user's flags, so that a `--broker-opts` of theirs wins.
    batch.extend(batch::config_option(resolved).map(Word::Literal));
    batch.extend(literals(&flags));
    batch.extend(literals(["--flags", "waitable"]));
    batch.extend(writable.map(|path| Word::Literal(format!("--output={path}"))));
    batch.push(Word::literal(batch::path(resolved)));
    let words = [timed(resolved).as_slice(), prefix, &awaits, &batch].concat();
    Wrapped {
        program: [prefix, &batch].concat(),
        words,
    }
}

/// Flux's default file for the output of a batch's script, below the working directory. (Flux fills in `{{id}}`.)
const FLUX_OUTPUT: &str = "flux-{{id}}.out";

/// A path that Flux's user may write the output to, if the working directory is none.
fn writable_output(resolved: &Resolved) -> Option<String> {
    let is_roots = resolved.identity.run_as.is_some() && resolved.spec.runner.working_dir.is_none();
    let is_needed = is_roots || !resolved.facts.is_writable(&resolved.facts.working_directory);
    is_needed.then(|| format!("{}/{FLUX_OUTPUT}", resolved.logs))
}

/// The path of the output by the user's flags, of which the last one counts.
fn output_of(flags: &[String]) -> Option<&str> {
    flags
        .iter()
        .enumerate()
        .rev()
        .find_map(|(at, flag)| match flag.strip_prefix("--output")? {
            "" => flags.get(at + 1).map(String::as_str),
            rest => rest.strip_prefix('='),
        })
}

/// The words that make the agent measure what follows, if that is asked for and shown.
fn timed(resolved: &Resolved) -> Vec<Word> {
    let logging = &resolved.spec.logging;
    if logging.timed && !logging.quiet {
        literals([&resolved.paths.agent(), "time", "--label", "fluxsubmit", "--"])
    } else {
        Vec::new()
    }
}

/// Whether to say more about the submission.
fn is_debug(resolved: &Resolved) -> bool {
    let logging = &resolved.spec.logging;
    logging.debug && !logging.quiet
}

/// An image's variable with flags for what is submitted.
const OPTION_FLAGS: &str = "FLUX_OPTION_FLAGS";

/// Size and tasks, and the user's flags.
fn flags(resolved: &Resolved) -> Vec<String> {
    let spec = resolved.spec;
    let nodes = |count: u32| ["-N".to_owned(), count.to_string()];
    let tasks = ["-n".to_owned(), spec.tasks.to_string()];
    let mut flags = Vec::new();
    match (spec.tasks, spec.elastic) {
        (0, false) => flags.extend(nodes(spec.size)),
        (0, true) => flags.extend(nodes(spec.quorum.unwrap_or(1).min(spec.size))),
        (count, false) if count >= spec.size => flags.extend(nodes(spec.size).into_iter().chain(tasks)),
        _ => flags.extend(tasks),
    }
    // The image's come first, so that the spec's count.
    let of_the_image = resolved
        .facts
        .environment
        .get(OPTION_FLAGS)
        .map(String::as_str)
        .unwrap_or_default();
    let by_blanks = || of_the_image.split_whitespace().map(str::to_owned).collect();
    flags.extend(command_words::split_literal(of_the_image).unwrap_or_else(|_| by_blanks()));
    flags.extend(spec.flux.option_flags.iter().cloned());
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
            "no quoting at all"
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
        let words = initial(&Resolved::new(&spec, &facts).unwrap()).words;
        words
            .iter()
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
    fn debug_says_more_of_a_job_and_of_a_batch_unless_quiet() {
        let job = "[runner.program]\nmode='submit'\nwords=['true']\n[flux]\noption_flags=['--x']\n";
        let batch = "[runner.program]\nmode='batch'\nlines=[{number=0,text='true'}]\n";
        for (program, more) in [(job, "-vvv"), (batch, "--events")] {
            let words = |logging: &str| program_of(&format!("{program}[logging]\n{logging}"));
            assert!(words("debug=true").contains(more), "{}", words("debug=true"));
            assert!(!words("debug=false").contains(more) && !words("debug=true\nquiet=true").contains(more));
        }
    }
}
