//! The documented files that people source or run in any container of the pod.

use std::collections::BTreeMap;

use flux_shared::command_words::{Word, WordPart};
use flux_shared::paths::HELPER_LINKS;

use super::shell_quote::quote;
use super::{Content, Mode, Resolved, Step, shell_defaults};

/// flux-view.sh, flux-connect.sh and load-fluxion.sh. They are executable, so that they can be run as well as sourced.
/// The agent owns them, not Flux's user, since jobs of that user could otherwise change what root sources. The
/// documented paths are links to the files. An init container may have made the links already.
pub fn steps(resolved: &Resolved) -> Vec<Step> {
    let paths = &resolved.paths;
    let file = |path: String, content: Content| Step::File {
        path,
        mode: Mode(0o755),
        owner: resolved.agent_owner(),
        content,
    };
    let links = HELPER_LINKS.into_iter().map(|(path, target)| Step::Link {
        path: paths.at(path),
        target: target.to_owned(),
    });
    let files = [
        file(paths.flux_view_sh(), Content::Exports(exports(resolved))),
        file(paths.flux_connect_sh(), Content::Text(connect_script(resolved))),
        file(paths.load_fluxion_sh(), Content::Text(fluxion_script(resolved))),
    ];
    files.into_iter().chain(links).collect()
}

/// The variables that flux-view.sh exports. Their values are those of the entrypoint when it writes the file.
fn exports(resolved: &Resolved) -> BTreeMap<String, Word> {
    let current_value = |name: &str| {
        (
            name.to_owned(),
            Word::Template(vec![WordPart::Env(name.to_owned())]),
        )
    };
    let mut exports = BTreeMap::from([
        current_value("PATH"),
        current_value("LD_LIBRARY_PATH"),
        (
            "fluxsocket".to_owned(),
            Word::literal(format!("local://{}", resolved.socket())),
        ),
    ]);
    // If Flux runs as another user, a person who enters the pod may be root, and root has another home.
    exports.extend(resolved.identity.run_as.is_none().then(|| current_value("HOME")));
    exports.extend(resolved.python_path().map(|_| current_value("PYTHONPATH")));
    let users_variables = resolved.spec.flux.environment.iter();
    exports.extend(users_variables.map(|(name, value)| (name.clone(), Word::literal(value))));
    // After the user's variables, which may set FLUX_SHELL_RC_PATH: its current value has the view's and the agent's
    // folders, too.
    exports.extend([current_value(shell_defaults::RC_PATH_VARIABLE)]);
    exports
}

/// flux-connect.sh: starts a shell, or the command given, inside the instance.
fn connect_script(resolved: &Resolved) -> String {
    let view = quote(&resolved.paths.flux_view_sh());
    let shell = resolved.facts.shell.as_deref().unwrap_or("/bin/sh");
    format!("#!/bin/sh\n. {view}\n[ $# -gt 0 ] || set -- {shell}\nexec flux proxy \"$fluxsocket\" \"$@\"\n")
}

/// load-fluxion.sh: replaces the running scheduler by Fluxion. It must run inside the instance, on the lead.
fn fluxion_script(resolved: &Resolved) -> String {
    let modules = format!("{}/lib/flux/modules", resolved.paths.view());
    // The view's modules by their paths: the agent adds the view's folder to the brokers' search path only if it chose
    // Fluxion (`environment`).
    let module_to_load = |name: &str| {
        if resolved.spec.view.enabled {
            quote(&format!("{modules}/{name}.so"))
        } else {
            name.to_owned()
        }
    };
    let mut text = String::from("#!/bin/sh\n");
    for module in [
        "sched-fluxion-qmanager",
        "sched-fluxion-feasibility",
        "sched-fluxion-resource",
        "sched-simple",
    ] {
        text += &format!("flux module remove -f {module}\n");
    }
    text += &format!(
        "flux module load {} || exit 1\n",
        module_to_load("sched-fluxion-resource")
    );
    text += "# part of newer releases only\n";
    text += &format!(
        "flux module load {} 2>/dev/null || :\n",
        module_to_load("sched-fluxion-feasibility")
    );
    text += &format!(
        "flux module load {} || exit 1\n",
        module_to_load("sched-fluxion-qmanager")
    );
    text + "flux module list\n"
}
