//! The files that people source or run in any container of the pod, as the documents promise.

use std::collections::BTreeMap;

use flux_shared::command_words::{Word, WordPart};
use flux_shared::paths::HELPER_LINKS;

use super::shell_quote::quote;
use super::{Content, Mode, Resolved, Step, shell_defaults};

/// flux-view.sh, flux-connect.sh, load-fluxion.sh. Executable, so that they can be run as well as sourced;
/// and the agent's own, not of the user that Flux runs as, whose jobs would change what root sources. The
/// documented paths are links, which an init container may have made.
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
        file(paths.flux_connect_sh(), Content::Text(connect(resolved))),
        file(paths.load_fluxion_sh(), Content::Text(fluxion(resolved))),
    ];
    files.into_iter().chain(links).collect()
}

/// What flux-view.sh exports: the values that the entrypoint had when it wrote the file.
fn exports(resolved: &Resolved) -> BTreeMap<String, Word> {
    let current = |name: &str| {
        (
            name.to_owned(),
            Word::Template(vec![WordPart::Env(name.to_owned())]),
        )
    };
    let mut exports = BTreeMap::from([
        current("PATH"),
        current("LD_LIBRARY_PATH"),
        (
            "fluxsocket".to_owned(),
            Word::literal(format!("local://{}", resolved.socket())),
        ),
    ]);
    // If Flux runs as another user, whoever enters the pod may be root, who has another home.
    exports.extend(resolved.identity.run_as.is_none().then(|| current("HOME")));
    exports.extend(resolved.python_path().map(|_| current("PYTHONPATH")));
    let user = resolved.spec.flux.environment.iter();
    exports.extend(user.map(|(name, value)| (name.clone(), Word::literal(value))));
    exports.extend([current(shell_defaults::PATH)]);
    exports
}

/// flux-connect.sh: starts a shell, or the command given, inside the instance.
fn connect(resolved: &Resolved) -> String {
    let view = quote(&resolved.paths.flux_view_sh());
    let shell = resolved.facts.shell.as_deref().unwrap_or("/bin/sh");
    format!("#!/bin/sh\n. {view}\n[ $# -gt 0 ] || set -- {shell}\nexec flux proxy \"$fluxsocket\" \"$@\"\n")
}

/// load-fluxion.sh: puts Fluxion in place of the scheduler that runs. To be run inside the instance, on the
/// lead.
fn fluxion(resolved: &Resolved) -> String {
    let modules = format!("{}/lib/flux/modules", resolved.paths.view());
    let load = |name: &str| {
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
    text += &format!("flux module load {} || exit 1\n", load("sched-fluxion-resource"));
    text += "# part of newer releases only\n";
    text += &format!(
        "flux module load {} 2>/dev/null || :\n",
        load("sched-fluxion-feasibility")
    );
    text += &format!("flux module load {} || exit 1\n", load("sched-fluxion-qmanager"));
    text + "flux module list\n"
}
