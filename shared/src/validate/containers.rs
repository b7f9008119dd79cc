//! Checks the containers: the one that runs Flux (the runner), its sidecars, and those of the services pod.

use super::fields::{given, image, is_given, object_name, resources, security_context};
use super::flux::DEFAULT_LOG_LEVEL;
use super::report::Report;
use super::volumes::Surroundings;
use super::{PullPolicy, ValidContainer, ValidRunner, ValidSidecar, ViewContainer, program, volumes};
use crate::agent_spec::{self, RunnerUser};
use crate::crd::v1alpha2::{Commands, Container, FluxUser, MiniClusterSpec};
use crate::names::{AGENT_CONTAINER, SOFTWARE_CONTAINER};
use crate::{command_words, names};

/// The image of a container that names none: the default of the Go operator's schema.
pub const DEFAULT_IMAGE: &str = "ghcr.io/rse-ops/accounting:app-latest";
/// Limit in bytes of all commands, scripts and snippets together: they are stored in a ConfigMap, which holds
/// 1 MiB.
pub const MAX_TEXT: usize = 900_000;

/// The checked containers by role.
pub(super) struct Parts {
    pub(super) runner: Option<ValidRunner>,
    pub(super) sidecars: Vec<ValidSidecar>,
    pub(super) services: Vec<ValidContainer>,
}

pub(super) fn check(
    spec: &MiniClusterSpec,
    cluster: &str,
    view: &ViewContainer,
    wait_socket: bool,
    report: &mut Report,
) -> Parts {
    let surroundings = Surroundings {
        cluster,
        view,
        volumes: &spec.volumes,
    };
    let mut parts = Parts {
        runner: None,
        sidecars: Vec::new(),
        services: Vec::new(),
    };
    let runners = (0..spec.containers.len()).filter(|i| spec.runs_flux(*i)).count();
    if runners != 1 {
        report.problem(
            "spec.containers",
            format!("{runners} of them run Flux: set runFlux: true on exactly one"),
        );
    }
    for (i, container) in spec.containers.iter().enumerate() {
        let field = format!("spec.containers[{i}]");
        windows_line_ends(&field, container, spec.runs_flux(i), report);
        if spec.runs_flux(i) {
            parts.runner = Some(runner(&field, container, spec, &surroundings, report));
        } else {
            parts
                .sidecars
                .push(sidecar(&field, container, &surroundings, wait_socket, report));
        }
    }
    if spec.launcher && runners == 0 {
        report.problem("spec.launcher", "needs a container that runs Flux");
    }
    for (i, container) in spec.services.iter().enumerate() {
        parts.services.push(service(
            &format!("spec.services[{i}]"),
            container,
            &surroundings,
            report,
        ));
    }
    unique_names(spec, cluster, view, report);
    // The commands of `spec.services` are in the services pod, not in the ConfigMap.
    let bytes: usize = spec.containers.iter().map(text_bytes).sum();
    if bytes > MAX_TEXT {
        report.problem(
            "spec.containers",
            format!("commands, scripts and snippets have {bytes} bytes in all, and {MAX_TEXT} is the limit: put larger files on a volume"),
        );
    }
    parts
}

/// Bytes of a container's commands, script and snippets.
fn text_bytes(container: &Container) -> usize {
    let commands = container.commands.clone().unwrap_or_default();
    [&container.command, &container.pre_command, &commands.script]
        .into_iter()
        .chain(snippets(&commands))
        .flatten()
        .map(String::len)
        .sum()
}

/// Adds notices about shell source with Windows line ends.
fn windows_line_ends(field: &str, container: &Container, runs_flux: bool, report: &mut Report) {
    let commands = container.commands.clone().unwrap_or_default();
    // Other commands are split into words or lines.
    let is_command_source = !runs_flux || (container.batch && container.batch_raw);
    for (name, text) in [
        (
            "command",
            if is_command_source {
                &container.command
            } else {
                &None
            },
        ),
        ("preCommand", &container.pre_command),
        ("commands.script", &commands.script),
        ("commands.init", &commands.init),
        ("commands.pre", &commands.pre),
        ("commands.brokerPre", &commands.broker_pre),
        ("commands.preBroker", &commands.pre_broker),
        ("commands.workerPre", &commands.worker_pre),
        ("commands.preWorker", &commands.pre_worker),
        ("commands.servicePre", &commands.service_pre),
        ("commands.post", &commands.post),
    ] {
        if text.as_ref().is_some_and(|text| text.contains("\r\n")) {
            report.notice(
                format!("{field}.{name}"),
                "has Windows line ends (CR LF), which shells take as text: save it with LF",
            );
        }
    }
}

/// Checks that no two containers of a pod have the same name.
fn unique_names(spec: &MiniClusterSpec, cluster: &str, view: &ViewContainer, report: &mut Report) {
    // These names are taken even if rendering makes no such container, and in the services pod, which never has one: so
    // a name does not become invalid by another field, and there is one rule for both pods.
    let init_containers = [AGENT_CONTAINER, SOFTWARE_CONTAINER]
        .map(|name| (name.to_owned(), "the operator's own init container"));
    let taken: Vec<_> = init_containers
        .into_iter()
        .chain([(view.name.clone(), "the view's")])
        .collect();
    for (list, containers) in [("containers", &spec.containers), ("services", &spec.services)] {
        let mut names = taken.clone();
        for (i, container) in containers.iter().enumerate() {
            let runs_flux = list == "containers" && spec.runs_flux(i);
            let name = if runs_flux {
                Some(runner_name(container, cluster))
            } else {
                container.name.as_deref()
            };
            let Some(name) = name else { continue };
            if let Some((_, whose)) = names.iter().find(|(other, _)| other == name) {
                report.problem(
                    format!("spec.{list}[{i}].name"),
                    format!("`{name}` is {whose} name already: choose another"),
                );
            }
            names.push((name.to_owned(), "another container's"));
        }
    }
}

/// Checks the container that runs Flux.
fn runner(
    field: &str,
    container: &Container,
    spec: &MiniClusterSpec,
    surroundings: &Surroundings<'_>,
    report: &mut Report,
) -> ValidRunner {
    let commands = container.commands.clone().unwrap_or_default();
    if container.no_wrap_entrypoint {
        report.problem(
            format!("{field}.noWrapEntrypoint"),
            "is for sidecars: the container that runs Flux needs the agent",
        );
    }
    if is_given(&commands.service_pre) {
        report.problem(
            format!("{field}.commands.servicePre"),
            "is for sidecars: use pre, brokerPre or workerPre here",
        );
    }
    let cores = declared_cores(container);
    if cores.is_some_and(|cores| !(1..=65_536).contains(&cores)) {
        report.problem(
            format!("{field}.cores"),
            "must be 1 to 65536; leave it out for the cores that the container may use",
        );
    }
    let logs = given(&container.logs);
    if logs.as_deref().is_some_and(|logs| !logs.starts_with('/')) {
        report.problem(format!("{field}.logs"), "must be an absolute path");
    }
    let launcher = container.launcher || spec.launcher;
    let program = program::check(field, container, &commands, launcher, report);
    let prefix = commands.prefix.as_deref().unwrap_or_default();
    let prefix = report
        .take(format!("{field}.commands.prefix"), command_words::split(prefix))
        .unwrap_or_default();
    let user = user(field, container, &commands, report);
    // Sidecars are not checked: only the runner's agent decides by this variable whether it runs the program.
    for (list, is_set) in [
        (
            "environment",
            container.environment.contains_key(names::COMPLETION_INDEX),
        ),
        ("secrets", container.secrets.contains_key(names::COMPLETION_INDEX)),
    ] {
        if is_set {
            report.problem(
                format!("{field}.{list}[{}]", names::COMPLETION_INDEX),
                names::COMPLETION_INDEX_IS_SET,
            );
        }
    }
    let mut valid = common_fields(field, container, surroundings, report);
    volumes::check_above_own(field, container, &valid.mounts, surroundings.view, report);
    valid.name = runner_name(container, surroundings.cluster).to_owned();
    // The MiniCluster's own name is checked in `sizes`.
    if valid.name != surroundings.cluster && !names::is_dns_label(&valid.name) {
        report.problem(
            format!("{field}.name"),
            "must be lower case letters, digits and `-`, 63 at most",
        );
    }
    let snippets = agent_spec::Snippets {
        init: snippet(&commands.init),
        pre_command: snippet(&container.pre_command),
        pre: snippet(&commands.pre),
        broker_pre: either_spelling(
            field,
            Spelling {
                name: "brokerPre",
                value: &commands.broker_pre,
            },
            Spelling {
                name: "preBroker",
                value: &commands.pre_broker,
            },
            report,
        ),
        worker_pre: either_spelling(
            field,
            Spelling {
                name: "workerPre",
                value: &commands.worker_pre,
            },
            Spelling {
                name: "preWorker",
                value: &commands.pre_worker,
            },
            report,
        ),
        post: snippet(&commands.post),
    };
    ValidRunner {
        container: valid,
        program,
        prefix: prefix.words,
        cores: cores.map(i32::unsigned_abs),
        logs,
        user,
        snippets,
    }
}

/// Name of the container that runs Flux: the user's, or the cluster's name.
fn runner_name<'a>(container: &'a Container, cluster: &'a str) -> &'a str {
    container
        .name
        .as_deref()
        .filter(|name| !name.is_empty())
        .unwrap_or(cluster)
}

/// The text, unless it is blank.
fn snippet(text: &Option<String>) -> Option<String> {
    text.clone().filter(|text| !text.trim().is_empty())
}

/// One spelling of a field of `commands`.
struct Spelling<'a> {
    name: &'a str,
    value: &'a Option<String>,
}

/// The snippet of a field that has two spellings. Different texts in both are a problem.
fn either_spelling(field: &str, first: Spelling, second: Spelling, report: &mut Report) -> Option<String> {
    match (snippet(first.value), snippet(second.value)) {
        (Some(value), Some(other)) if value != other => {
            report.problem(
                format!("{field}.commands.{}", second.name),
                format!("is another spelling of {}: set only one", first.name),
            );
            Some(value)
        }
        (value, other) => value.or(other),
    }
}

/// The user that Flux runs as. None: the container's own user, or a problem was reported.
fn user(
    field: &str,
    container: &Container,
    commands: &Commands,
    report: &mut Report,
) -> Option<agent_spec::RunnerUser> {
    if container.flux_user.is_some()
        && container.fluxuser.is_some()
        && container.flux_user != container.fluxuser
    {
        report.problem(
            format!("{field}.fluxuser"),
            "is another spelling of fluxUser: set only one",
        );
    }
    let spelling = if container.flux_user.is_some() {
        "fluxUser"
    } else {
        "fluxuser"
    };
    let given = container.flux_user.clone().or_else(|| container.fluxuser.clone());
    let Some(mut user) = given.filter(|user| !user.disable) else {
        if commands.run_flux_as_root {
            report.notice(
                format!("{field}.commands.runFluxAsRoot"),
                "has no effect without fluxUser: Flux runs as the container's own user",
            );
        }
        // With `run_flux_as_root`, Flux runs as the container's own user, whatever user is named here. Root is named so
        // that the agent adds a notice if the container's user is not root.
        return commands.run_flux_as_root.then(|| agent_spec::RunnerUser {
            name: "root".into(),
            uid: 0,
            run_flux_as_root: true,
        });
    };
    // Clients with the Go operator's types write the zero values of fields that are not set.
    if user.name.as_deref() == Some("") && user.uid == Some(0) {
        user.uid = None;
    }
    let name = user
        .name
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "flux".into());
    if !names::is_user_name(&name) {
        report.problem(format!("{field}.{spelling}.name"), names::USER_NAME_RULE);
    }
    let uid = u32::try_from(user.uid.unwrap_or(RunnerUser::DEFAULT_UID.into()))
        .ok()
        // The largest id means "no change" to chown and setresuid. The next one is nobody's on some systems.
        .filter(|uid| *uid < u32::MAX - 1);
    if uid.is_none() {
        report.problem(format!("{field}.{spelling}.uid"), "must be a user id, 0 or more");
    }
    Some(RunnerUser {
        name,
        uid: uid?,
        run_flux_as_root: commands.run_flux_as_root,
    })
}

/// Whether `fluxUser` or `fluxuser` is disabled, or differs from the default user: `flux`, 1000. The Go operator's
/// schema fills in this user, so it need not be the author's choice. An empty name and uid 0 count as left out.
fn names_a_user(user: &Option<FluxUser>) -> bool {
    let is_default = |user: &FluxUser| {
        let (name, uid) = (
            user.name.as_deref().unwrap_or_default(),
            user.uid.unwrap_or_default(),
        );
        matches!(name, "" | "flux") && (uid == 0 || uid == i64::from(RunnerUser::DEFAULT_UID))
    };
    user.as_ref()
        .is_some_and(|user| user.disable || !is_default(user))
}

/// Fields that only the container that runs Flux may have, and whether each is set.
fn runner_fields(container: &Container) -> [(&'static str, bool); 10] {
    [
        ("launcher", container.launcher),
        ("batch", container.batch),
        ("batchRaw", container.batch_raw),
        ("diagnostics", container.diagnostics),
        ("logs", is_given(&container.logs)),
        ("cores", declared_cores(container).is_some()),
        ("fluxUser", names_a_user(&container.flux_user)),
        ("fluxuser", names_a_user(&container.fluxuser)),
        ("fluxOptionFlags", has_option_flags(container)),
        (
            "fluxLogLevel",
            // The Go operator's schema fills in the default in every container.
            container
                .flux_log_level
                .is_some_and(|level| level != i32::from(DEFAULT_LOG_LEVEL)),
        ),
    ]
}

/// Checks a sidecar.
fn sidecar(
    field: &str,
    container: &Container,
    surroundings: &Surroundings<'_>,
    wait_socket: bool,
    report: &mut Report,
) -> ValidSidecar {
    let commands = container.commands.clone().unwrap_or_default();
    let own_fields = [
        ("commands.brokerPre", is_given(&commands.broker_pre)),
        ("commands.preBroker", is_given(&commands.pre_broker)),
        ("commands.workerPre", is_given(&commands.worker_pre)),
        ("commands.preWorker", is_given(&commands.pre_worker)),
        ("commands.prefix", is_given(&commands.prefix)),
        ("commands.runFluxAsRoot", commands.run_flux_as_root),
    ];
    for (name, is_set) in runner_fields(container).into_iter().chain(own_fields) {
        if is_set {
            report.problem(
                format!("{field}.{name}"),
                "is for the container that runs Flux, not for a sidecar",
            );
        }
    }
    let mut spec = agent_spec::Sidecar {
        // Set below. Ports are no work for the agent, so `has_work` does not depend on them.
        serves: false,
        wait_socket,
        init: snippet(&commands.init),
        pre_command: snippet(&container.pre_command),
        pre: snippet(&commands.pre),
        service_pre: snippet(&commands.service_pre),
        command: snippet(&container.command),
        script: snippet(&commands.script).map(|text| program::unescape(&text)),
        post: snippet(&commands.post),
    };
    if spec.command.is_some() && spec.script.is_some() {
        report.problem(
            format!("{field}.commands.script"),
            "replaces command: set only one",
        );
    }
    // Waiting for the socket is no work by itself. `wait_socket` is the same for all sidecars.
    let without_work = agent_spec::Sidecar {
        wait_socket,
        ..agent_spec::Sidecar::default()
    };
    let has_work = spec != without_work;
    if has_work && container.no_wrap_entrypoint {
        report.problem(
            format!("{field}.noWrapEntrypoint"),
            "keeps the image's own entrypoint, so command, preCommand and commands would have no effect: leave them out",
        );
    }
    let valid = common_fields(field, container, surroundings, report);
    volumes::check_above_own(field, container, &valid.mounts, surroundings.view, report);
    spec.serves = !valid.ports.is_empty();
    check_name(field, container, !container.ports.is_empty(), report);
    ValidSidecar {
        container: valid,
        wrapped: (has_work && !container.no_wrap_entrypoint).then_some(spec),
    }
}

/// The field `cores`. 0, from clients with Go types, means that it is not set.
fn declared_cores(container: &Container) -> Option<i32> {
    container.cores.filter(|cores| *cores != 0)
}

/// Checks the name of a sidecar or of a container of the services pod. `has_service`: it names a Service, too.
fn check_name(field: &str, container: &Container, has_service: bool, report: &mut Report) {
    match container.name.as_deref() {
        None | Some("") => report.problem(
            format!("{field}.name"),
            "is needed for every container except the one that runs Flux",
        ),
        Some(name) if !names::is_dns_label(name) => {
            report.problem(
                format!("{field}.name"),
                "must be lower case letters, digits and `-`, 63 at most",
            );
        }
        Some(name) if has_service && !names::is_service_name(name) => {
            report.problem(
                format!("{field}.name"),
                "names a Service (for its ports), so it must begin with a letter",
            );
        }
        Some(_) => {}
    }
}

/// Whether any field of `commands` is set.
fn has_values(commands: &Commands) -> bool {
    let texts = [&commands.prefix, &commands.script];
    commands.run_flux_as_root || texts.into_iter().chain(snippets(commands)).any(is_given)
}

/// The snippets of `commands`, of both spellings.
fn snippets(commands: &Commands) -> [&Option<String>; 8] {
    [
        &commands.init,
        &commands.pre,
        &commands.broker_pre,
        &commands.pre_broker,
        &commands.worker_pre,
        &commands.pre_worker,
        &commands.post,
        &commands.service_pre,
    ]
}

/// Checks a container of the services pod.
fn service(
    field: &str,
    container: &Container,
    surroundings: &Surroundings<'_>,
    report: &mut Report,
) -> ValidContainer {
    let commands = container.commands.clone().unwrap_or_default();
    let run_flux = ("runFlux", container.run_flux == Some(true));
    let own_fields = [
        ("preCommand", is_given(&container.pre_command)),
        ("commands", has_values(&commands)),
        (
            "noWrapEntrypoint",
            // Without a command, the image's own entrypoint runs anyway.
            container.no_wrap_entrypoint && is_given(&container.command),
        ),
    ];
    for (name, is_set) in [run_flux]
        .into_iter()
        .chain(runner_fields(container))
        .chain(own_fields)
    {
        if is_set {
            report.problem(
                format!("{field}.{name}"),
                "has no meaning in the services pod, whose containers run their image's entrypoint (or command)",
            );
        }
    }
    let mut valid = common_fields(field, container, surroundings, report);
    if let Some(command) = container
        .command
        .as_deref()
        .filter(|command| !command.trim().is_empty())
    {
        valid.entrypoint = literal_words(&format!("{field}.command"), command, report);
    }
    check_name(field, container, false, report);
    valid
}

/// Whether `fluxOptionFlags`, the older spelling of `flux.optionFlags`, has any option.
pub(super) fn has_option_flags(container: &Container) -> bool {
    container
        .flux_option_flags
        .as_deref()
        .is_some_and(|flags| !flags.trim().is_empty())
}

/// Checks the fields that containers of all roles have.
fn common_fields(
    field: &str,
    container: &Container,
    surroundings: &Surroundings<'_>,
    report: &mut Report,
) -> ValidContainer {
    let variables = container.environment.keys().map(|name| ("environment", name));
    let of_secrets = container.secrets.keys().map(|name| ("secrets", name));
    for (list, name) in variables
        .chain(of_secrets)
        .filter(|(_, name)| !names::is_env_name(name))
    {
        report.problem(format!("{field}.{list}[{name}]"), "is not the name of a variable");
    }
    for (name, secret) in &container.secrets {
        report.take(format!("{field}.secrets[{name}].name"), object_name(&secret.name));
        if container.environment.contains_key(name) {
            report.problem(
                format!("{field}.secrets[{name}]"),
                "is also set in environment: set only one",
            );
        }
    }
    let image_pull_secret = given(&container.image_pull_secret);
    if let Some(secret) = &image_pull_secret {
        report.take(format!("{field}.imagePullSecret"), object_name(secret));
    }
    let mut ports = Vec::new();
    for port in &container.ports {
        match u16::try_from(*port).ok().filter(|port| *port > 0) {
            Some(port) if ports.contains(&port) => {
                report.problem(format!("{field}.ports"), format!("{port} is listed twice"))
            }
            Some(port) => ports.push(port),
            None => report.problem(
                format!("{field}.ports"),
                format!("{port} is not a port: 1 to 65535"),
            ),
        }
    }
    let hooks = container.life_cycle.clone().unwrap_or_default();
    let hook = |name: &str, text: &Option<String>, report: &mut Report| {
        let text = text.as_deref().filter(|text| !text.trim().is_empty())?;
        literal_words(&format!("{field}.lifeCycle.{name}"), text, report)
    };
    ValidContainer {
        name: container.name.clone().unwrap_or_default(),
        image: image(&format!("{field}.image"), &container.image, report)
            .unwrap_or_else(|| DEFAULT_IMAGE.into()),
        resources: resources(&format!("{field}.resources"), &container.resources, report),
        image_pull_secret,
        working_dir: given(&container.working_dir),
        pull_policy: pull_policy(field, container, report),
        environment: container.environment.clone(),
        secrets: container.secrets.clone(),
        ports,
        post_start: hook("postStartExec", &hooks.post_start_exec, report),
        pre_stop: hook("preStopExec", &hooks.pre_stop_exec, report),
        mounts: volumes::check(field, container, surroundings, report),
        security_context: security_context(
            &format!("{field}.securityContext"),
            &container.security_context,
            report,
        ),
        entrypoint: None,
    }
}

/// The words of a hook, or of a command in the services pod. Adds a notice if they look like shell source.
fn literal_words(field: &str, text: &str, report: &mut Report) -> Option<Vec<String>> {
    let split = report.take(field, command_words::split_without_references(text))?;
    if !split.shell_syntax.is_empty() {
        let syntax = split.shell_syntax.join(" ");
        report.notice(
            field,
            format!("`{syntax}` reaches the program as text: no shell runs it, and no variable is replaced; use sh -c '...' for shell source"),
        );
    }
    Some(split.words.iter().map(command_words::Word::display).collect())
}

fn pull_policy(field: &str, container: &Container, report: &mut Report) -> PullPolicy {
    match container.image_pull_policy.as_deref() {
        _ if container.pull_always => PullPolicy::Always,
        None | Some("" | "IfNotPresent") => PullPolicy::IfNotPresent,
        Some("Always") => PullPolicy::Always,
        Some("Never") => PullPolicy::Never,
        Some(other) => {
            report.problem(
                format!("{field}.imagePullPolicy"),
                format!("is `{other}`, must be one of Always, IfNotPresent, Never"),
            );
            PullPolicy::IfNotPresent
        }
    }
}
