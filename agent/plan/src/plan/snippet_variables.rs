//! Shell variables for snippets. They have the names that the Go operator's entrypoint used, since public manifests rely
//! on them. Programs do not see them.

use std::collections::BTreeMap;

use flux_shared::agent_spec::Program;
use flux_shared::command_words::Word;

use super::identity::account_by;
use super::shell_quote::word;
use super::{Launch, Resolved, options};

/// Name of the variable with the working directory. After `init`, it has the directory in which `init` ended.
pub const DIRECTORY_VARIABLE: &str = "workdir";

/// Name of the variable with the broker's options, which snippets may change.
pub const BROKER_OPTIONS: &str = "brokerOptions";

/// Names and values of all variables. `launch`: that of the broker or of a sidecar's script. `command`: the command of
/// a sidecar; None for the runner.
pub fn all(
    resolved: &Resolved,
    launch: Option<&Launch>,
    command: Option<&str>,
) -> BTreeMap<&'static str, String> {
    let (paths, facts) = (&resolved.paths, resolved.facts);
    let view = paths.view();
    let view_bin = format!("{view}/bin");
    let python = if resolved.spec.view.enabled {
        facts.view.python.as_deref()
    } else {
        None
    };
    // A sidecar's image may lack Flux. The runner's plan fails without Flux, so it needs no default.
    let flux = resolved.flux().unwrap_or_else(|_| format!("{view_bin}/flux"));
    let (name, uid) = user(resolved);
    // Pod 0 of this MiniCluster, also if the user's hostlist begins with another host. None: the lead is in another
    // cluster.
    let own_lead = resolved
        .spec
        .network
        .lead
        .is_none()
        .then(|| flux_shared::names::host(&resolved.spec.name, 0));
    BTreeMap::from([
        ("viewbase", paths.mount().to_owned()),
        ("viewroot", view.clone()),
        ("configroot", paths.config_root()),
        ("software", paths.software_link()),
        ("viewbin", view_bin.clone()),
        ("fluxpath", flux),
        ("hosts", resolved.hosts.list.clone()),
        (
            "mainHost",
            own_lead.unwrap_or_else(|| resolved.hosts.name(0).to_owned()),
        ),
        ("fluxuser", name),
        ("fluxuid", uid.to_string()),
        // Before `init`. `snippets` sets it again after `init`.
        (DIRECTORY_VARIABLE, facts.working_directory.clone()),
        ("cfg", paths.broker_config_dir()),
        ("fluxsocket", format!("local://{}", resolved.socket())),
        (BROKER_OPTIONS, broker_options(resolved, launch)),
        (
            "pythonversion",
            python.map_or(String::new(), |python| format!("{view_bin}/{python}")),
        ),
        (
            "foundroot",
            python.map_or(String::new(), |python| format!("{view}/lib/{python}")),
        ),
        ("curvepath", paths.curve_cert()),
        (
            "command",
            command.map_or_else(|| command_of(resolved), str::to_owned),
        ),
    ])
}

/// Name and uid of Flux's user. Without an account, the uid is also the name.
fn user(resolved: &Resolved) -> (String, u32) {
    let uid = resolved.identity.owner.uid;
    let account = resolved.identity.run_as.clone();
    let account = account.or_else(|| account_by(&resolved.facts.passwd, |_, account_uid| account_uid == uid));
    (
        account.map_or_else(|| uid.to_string(), |account| account.name),
        uid,
    )
}

/// The broker's options, separated by blanks. A sidecar launches no broker: it gets those of a follower (`follower`).
fn broker_options(resolved: &Resolved, launch: Option<&Launch>) -> String {
    let planned = launch.and_then(|launch| launch.argv.get(launch.options.clone()?));
    match planned {
        Some(words) => join(words.iter().map(literal)),
        None => join(options::broker(resolved, resolved.spec.runner.interactive).into_iter()),
    }
}

/// The word's text. The broker's options have no variables to fill in.
fn literal(word: &Word) -> String {
    word.resolve(|_| None)
}

fn join(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(" ")
}

/// The command of the spec's program, as text.
fn command_of(resolved: &Resolved) -> String {
    match &resolved.spec.runner.program {
        Program::Submit { words } | Program::Launcher { words } => join(words.iter().map(word)),
        Program::Script { .. } => resolved.paths.script("job"),
        Program::Batch { lines } => lines
            .iter()
            .map(|line| line.text.as_str())
            .collect::<Vec<_>>()
            .join("\n"),
        Program::BatchRaw { text } => text.clone(),
        Program::Persistent | Program::Diagnostics => String::new(),
    }
}
