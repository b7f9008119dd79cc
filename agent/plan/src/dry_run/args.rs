//! `dry-run FILE`: the command line, and the plans of all pods with assumed facts.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use flux_shared::agent_spec::Runner;

use super::error::DryRunError;
use super::format::Format;
use super::json::render_json;
use super::pods;
use super::source::{Source, assume_user};
use super::summary::render_summary;
use super::text::render_text;
use crate::facts::Facts;
use crate::plan::FromEnvironment;

/// Show what every pod of a MiniCluster would do, without a cluster; with --here, what this pod does.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    /// A MiniCluster (YAML or JSON) or an AgentSpec (TOML); `-` reads standard input
    #[arg(value_name = "FILE", required_unless_present_any = ["here", "name_from_env", "lead_from_env"])]
    pub file: Option<PathBuf>,
    /// In a pod: print every step of this container's plan, from the pod's own spec and facts
    #[arg(long, conflicts_with_all = [
        "file", "index", "full", "facts", "cpus", "gpus", "uid", "no_fluxion", "no_shell", "env", "name_from_env",
        "lead_from_env", "service_from_env", "namespace_from_env", "size_from_env", "key_from_env", "seed", "words",
    ])]
    pub here: bool,
    /// Print only the pod with this completion index, with every step
    #[arg(long, value_name = "N")]
    pub index: Option<u32>,
    /// Print every step of every pod, not a summary
    #[arg(long)]
    pub full: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Assume the host facts in this file (TOML, YAML or JSON; see `flux-agent facts`)
    #[arg(long, value_name = "FILE")]
    pub facts: Option<PathBuf>,
    /// Assume this number of cores, 1 or more
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: Option<u32>,
    /// Assume this number of GPUs
    #[arg(long, value_name = "N")]
    pub gpus: Option<u32>,
    /// Assume that the containers run as this user and the group of the same id, with no new entry in /etc/passwd
    #[arg(long, value_name = "UID")]
    pub uid: Option<u32>,
    /// Assume a view without Fluxion
    #[arg(long)]
    pub no_fluxion: bool,
    /// Assume an image without a shell
    #[arg(long)]
    pub no_shell: bool,
    /// Assume this variable in the container's environment; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    pub env: Vec<(String, String)>,
    /// The options of `flux-agent run` that describe its job, for pods that no operator configures. They change an
    /// AgentSpec or, if they name the cluster, make FILE unnecessary. With a MiniCluster they are an error
    #[command(flatten)]
    pub from_environment: FromEnvironment,
}

/// Reads a file as text.
pub(super) type Read<'a> = dyn Fn(&Path) -> io::Result<String> + 'a;

fn text_of(path: &Path, read: &Read) -> Result<String, DryRunError> {
    read(path).map_err(|source| DryRunError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Parses `NAME=VALUE`.
fn parse_variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or("use NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Plans the pods of `args.file`; returns the plans as text or JSON. `read` reads a file as text.
pub fn run(args: &Args, read: impl Fn(&Path) -> io::Result<String>) -> Result<String, DryRunError> {
    let Input {
        source,
        facts,
        sidecar_facts,
    } = input(args, &read)?;
    let pods = pods::plan(&source, &facts, &sidecar_facts, args.index)?;
    match args.format {
        Format::Text if args.full || args.index.is_some() => Ok(render_text(&source, &facts, &pods)),
        Format::Text => Ok(render_summary(&source, &facts, &pods)),
        Format::Json => render_json(&source, &facts, &pods).map_err(|source| DryRunError::Json { source }),
    }
}

pub(super) struct Input {
    pub(super) source: Source,
    /// The assumed facts of the container that runs Flux.
    pub(super) facts: Facts,
    /// Those of the sidecars, by their names. Empty: they have the same facts.
    sidecar_facts: BTreeMap<String, Facts>,
}

/// Reads the MiniCluster or AgentSpec, and the assumed facts: those of `--facts`. Without this option, they are the
/// defaults, changed as the MiniCluster specifies. Options such as `--cpus` override both.
pub(super) fn input(args: &Args, read: &Read) -> Result<Input, DryRunError> {
    let facts_from_file = read_facts(args, read)?;
    let mut environment = facts_from_file
        .as_ref()
        .map_or_else(BTreeMap::new, |facts| facts.environment.clone());
    environment.extend(args.env.iter().cloned());
    let (path, text) = match (&args.file, args.from_environment.in_place_of_spec()) {
        (Some(path), _) => (path.clone(), text_of(path, read)?),
        (None, Some(text)) => (PathBuf::from("the command line"), text.to_owned()),
        // clap allows this only with `--here`. flux-agent handles `--here` itself, so this program is kubectl's plugin.
        (None, None) => return Err(DryRunError::NotInPod),
    };
    let source =
        Source::of(&text, &args.from_environment, &environment).map_err(|problems| DryRunError::Input {
            path,
            source: problems,
        })?;
    // What the curve certificate is derived from. `--key-from-env` overrides the facts.
    let key = args
        .from_environment
        .key(&environment)
        .map_err(|source| DryRunError::Plan { index: None, source })?;
    let (mut facts, mut sidecar_facts) = match (facts_from_file, args.uid) {
        (Some(mut facts), Some(uid)) => {
            assume_user(&mut facts, uid, uid);
            (facts, BTreeMap::new())
        }
        (Some(facts), None) => (facts, BTreeMap::new()),
        (None, uid) => (source.assumed_facts(uid), source.assumed_facts_of_sidecars(uid)),
    };
    for facts in [&mut facts].into_iter().chain(sidecar_facts.values_mut()) {
        apply_options(args, &source.spec.runner, facts);
        facts.key = key.clone().or_else(|| facts.key.take());
    }
    Ok(Input {
        source,
        facts,
        sidecar_facts,
    })
}

/// Changes the facts as options such as `--cpus` say. `--uid` is already applied: it changes HOME, but a HOME of the
/// MiniCluster or of `--env` precedes.
fn apply_options(args: &Args, runner: &Runner, facts: &mut Facts) {
    facts.environment.extend(args.env.iter().cloned());
    if let Some(cores) = args.cpus {
        facts.cores = cores;
        // The facts' quota, or the spec's limit, could allow fewer cores. The new quota keeps exclusive CPUs exclusive
        // and shared CPUs shared: only that of exclusive CPUs is their number.
        let limit = facts.cpu_limit(runner);
        let is_shared = |cpus| limit.is_some_and(|limit| limit != f64::from(cpus));
        facts.cpu_quota = match facts.cpuset {
            Some(cpus) if is_shared(cpus) => Some(f64::from(cores) + 0.5),
            Some(cpus) => Some(cpus.max(cores).into()),
            None => Some(cores.into()),
        };
        facts.cpuset = facts.cpuset.map(|cpus| cpus.max(cores));
    }
    facts.gpus = args.gpus.unwrap_or(facts.gpus);
    facts.view.fluxion &= !args.no_fluxion;
    if args.no_shell {
        facts.shell = None;
    }
}

/// Reads the file of `--facts`, if the option is given.
fn read_facts(args: &Args, read: &Read) -> Result<Option<Facts>, DryRunError> {
    let Some(path) = &args.facts else { return Ok(None) };
    let text = text_of(path, read)?;
    Facts::parse(&text)
        .map(Some)
        .map_err(|source| DryRunError::Facts {
            path: path.clone(),
            source,
        })
}
