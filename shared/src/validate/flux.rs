//! Checks the options of Flux, the other clusters of its instance, and the container that provides it.

use std::collections::{BTreeMap, HashSet};

use super::fields::{absolute, drop_empty, given, image, object_name, resources, security_context};
use super::report::Report;
use super::sizes::Sizes;
use super::{FluxOptions, PullPolicy, ViewContainer, metrics};
use crate::agent_spec::{RemoteLead, SchedulerKind};
use crate::choices::QUEUE_POLICIES;
use crate::crd::v1alpha2::{self, Bursting, Container, Flux, LeadBroker, MiniClusterSpec};
use crate::curve::Certificate;
use crate::names::AGENT_CONTAINER;
use crate::toml_error::one_line;
use crate::{broker_config, command_words, flux_duration, hostlist, names, paths, topology};

/// Default log level: informational messages.
pub(super) const DEFAULT_LOG_LEVEL: u8 = 6;
/// Names of the operator's own volumes in the pod.
pub(super) const OWN_VOLUMES: [&str; 11] = [
    "flux-agent-bin",
    "flux-agent-config",
    "flux-view-image",
    "flux-runner-image",
    "flux-software",
    "flux-agent-spec",
    "flux-agent-curve",
    "flux-agent-users",
    "flux-agent-restful",
    "flux-operator-home",
    "flux-munge",
];

/// Checks `spec.flux`, except its container ([`view`]).
pub(super) fn check(spec: &MiniClusterSpec, name: &str, sizes: Sizes, report: &mut Report) -> FluxOptions {
    let mut flux = spec.flux.clone().unwrap_or_default();
    drop_empty(&mut [
        &mut flux.topology,
        &mut flux.wrap,
        &mut flux.munge_secret,
        &mut flux.curve_cert_secret,
    ]);
    let connect_timeout = match flux.connect_timeout.as_str() {
        "" => None,
        text => report
            .take("spec.flux.connectTimeout", flux_duration::seconds(text))
            .map(|_| text.to_owned()),
    };
    let heartbeat_timeout = given(&flux.heartbeat_timeout);
    if let Some(timeout) = &heartbeat_timeout {
        report.take("spec.flux.heartbeatTimeout", check_heartbeat(timeout));
    }
    let curve_cert = check_plain_fields(&flux, report);
    let mut submit_command = words_of("spec.flux.submitCommand", &flux.submit_command, report);
    if submit_command.is_empty() {
        submit_command = words_of("spec.flux.submitCommand", &v1alpha2::submit_command(), report);
    }
    let option_flags = option_flags(spec, &flux, report);
    let log_level = log_level(spec, &flux, report);
    let (scheduler, queue_policy) = scheduler(&flux, report);
    let (hostlist, lead) = hosts(&flux, name, sizes, report);
    let parent_deadline = seconds("parentDeadlineSeconds", flux.parent_deadline_seconds, report);
    let lead_gone = seconds("leadGoneSeconds", flux.lead_gone_seconds, report);
    let lead_silent = seconds("leadSilentSeconds", flux.lead_silent_seconds, report);
    let metrics_port = metrics::port(spec, &flux, lead.is_some(), report);
    let instance_hosts =
        || hostlist::expand(&hostlist::of_instance(hostlist.as_deref(), name, sizes.max_size)).ok();
    // A broker.toml of the user's own names the brokers' addresses itself.
    if flux
        .broker_config
        .as_deref()
        .is_none_or(|config| config.trim().is_empty())
        && (flux.minimal_service || hostlist.is_some())
        && let Some(hosts) = instance_hosts()
    {
        let topology = flux.topology.as_deref();
        if flux.minimal_service {
            report.take("spec.flux.minimalService", check_parents(topology, hosts.len()));
        }
        if let Some((host, parent)) = foreign_parent(topology, &hosts, name, sizes) {
            report.notice(
                "spec.flux.topology",
                format!(
                    "broker {host} connects to {parent}, which is not in this MiniCluster: unless both are in one \
                     namespace, set `topology: kary:0` in all of them"
                ),
            );
        }
    }
    // A part of broker.toml may have an R, which names hosts. An R counts only on the lead. So only the cluster with
    // the lead compares these hosts with the instance's.
    let own_hosts = if lead.is_some() { None } else { instance_hosts() };
    let configs = configs(&flux, own_hosts.as_deref(), report);
    if let Some(config) = &flux.broker_config
        && names_no_hosts(config)
        && instance_hosts().is_some_and(|hosts| hosts.len() > 1)
    {
        report.notice(
            "spec.flux.brokerConfig",
            "has no [bootstrap] hosts: each pod becomes an instance of its own. To add to the operator's \
             configuration, use flux.configs",
        );
    }
    FluxOptions {
        complete_workers: flux.complete_workers,
        topology: flux.topology,
        submit_command,
        option_flags,
        log_level,
        wrap: flux.wrap,
        scheduler,
        queue_policy,
        minimal_service: flux.minimal_service,
        broker_config: flux.broker_config.filter(|config| !config.trim().is_empty()),
        configs,
        curve_cert,
        curve_cert_secret: flux.curve_cert_secret,
        connect_timeout,
        heartbeat_timeout,
        parent_deadline,
        lead_gone,
        lead_silent,
        metrics_port,
        disable_socket: flux.disable_socket,
        wait_socket: !flux.no_wait_socket,
        munge_secret: flux.munge_secret,
        environment: flux.environment,
        hostlist,
        lead,
    }
}

/// Checks fields whose values are used unchanged. Returns the certificate, if one is given.
fn check_plain_fields(flux: &Flux, report: &mut Report) -> Option<Certificate> {
    if let Some(topology) = &flux.topology {
        report.take("spec.flux.topology", check_topology(topology));
    }
    if let Some(wrap) = &flux.wrap
        && (wrap.trim().is_empty() || wrap.chars().any(char::is_whitespace))
    {
        report.problem(
            "spec.flux.wrap",
            "must be words separated by commas, without blanks, such as strace,-f",
        );
    }
    for key in flux.environment.keys().filter(|key| !is_shell_name(key)) {
        report.problem(
            format!("spec.flux.environment[{key}]"),
            "is not the name of a variable",
        );
    }
    if let Some(config) = &flux.broker_config
        && let Err(error) = toml::from_str::<toml::Table>(config)
    {
        report.problem(
            "spec.flux.brokerConfig",
            format!("is not TOML: {}", one_line(config, &error)),
        );
    }
    let curve_cert = flux
        .curve_cert
        .as_deref()
        .filter(|text| !text.trim().is_empty())
        .and_then(|text| report.take("spec.flux.curveCert", certificate(text)));
    if let Some(secret) = &flux.munge_secret {
        report.take("spec.flux.mungeSecret", object_name(secret));
    }
    if let Some(secret) = &flux.curve_cert_secret {
        report.take("spec.flux.curveCertSecret", object_name(secret));
        if flux
            .curve_cert
            .as_deref()
            .is_some_and(|text| !text.trim().is_empty())
        {
            report.problem("spec.flux.curveCertSecret", "replaces curveCert: set only one");
        }
    }
    curve_cert
}

/// Whether `config` is a broker.toml that names no hosts. False if it is blank or not TOML.
fn names_no_hosts(config: &str) -> bool {
    let Ok(table) = config.parse::<toml::Table>() else {
        return false;
    };
    let bootstrap = table.get("bootstrap").and_then(toml::Value::as_table);
    let hosts = bootstrap.and_then(|bootstrap| bootstrap.get("hosts"));
    let hosts = hosts.and_then(toml::Value::as_array);
    !config.trim().is_empty() && hosts.is_none_or(Vec::is_empty)
}

/// Checks a number of seconds. `field` is its name in `spec.flux`.
fn seconds(field: &str, seconds: Option<i64>, report: &mut Report) -> Option<u64> {
    let positive = u64::try_from(seconds?).ok().filter(|seconds| *seconds > 0);
    let positive = positive.ok_or_else(|| "must be 1 or more; leave it out for the default".to_owned());
    report.take(format!("spec.flux.{field}"), positive)
}

/// Checks the parts of broker.toml, and returns those that are not empty. `hosts`: all hosts of the instance, if this
/// cluster has the lead.
fn configs(flux: &Flux, hosts: Option<&[String]>, report: &mut Report) -> BTreeMap<String, String> {
    let parts: BTreeMap<String, String> = flux
        .configs
        .iter()
        .filter(|(_, text)| !text.trim().is_empty())
        .map(|(name, text)| (name.clone(), text.clone()))
        .collect();
    if !parts.is_empty() && flux.broker_config.iter().any(|config| !config.trim().is_empty()) {
        report.problem(
            "spec.flux.configs",
            "does not go with brokerConfig, which is the whole file: add them there",
        );
    }
    if let Err(wrong) = broker_config::merged(&parts, hosts) {
        wrong
            .into_iter()
            .for_each(|wrong| report.problem(format!("spec.flux.configs[{}]", wrong.part), wrong.why));
    }
    parts
}

/// Checks a heartbeat timeout: Flux sends a heartbeat every two seconds.
fn check_heartbeat(text: &str) -> Result<(), String> {
    match flux_duration::seconds(text)? {
        0.0 => Ok(()),
        seconds if seconds > 2.0 => Ok(()),
        _ => Err("must be longer than the 2s between two heartbeats, or 0 for never".into()),
    }
}

/// The container that runs Flux, with the path of its field.
pub(super) fn runner(spec: &MiniClusterSpec) -> Option<(String, &Container)> {
    let (i, runner) = spec
        .containers
        .iter()
        .enumerate()
        .find(|(i, _)| spec.runs_flux(*i))?;
    Some((format!("spec.containers[{i}]"), runner))
}

/// `optionFlags`, or `fluxOptionFlags` of the container that runs Flux.
fn option_flags(spec: &MiniClusterSpec, flux: &Flux, report: &mut Report) -> Vec<String> {
    let option_flags = words_of("spec.flux.optionFlags", &flux.option_flags, report);
    let Some((field, runner)) = runner(spec) else {
        return option_flags;
    };
    let field = format!("{field}.fluxOptionFlags");
    let older = words_of(
        &field,
        runner.flux_option_flags.as_deref().unwrap_or_default(),
        report,
    );
    if !option_flags.is_empty() && !older.is_empty() && option_flags != older {
        report.problem(field, "contradicts spec.flux.optionFlags: set only one");
    }
    if option_flags.is_empty() {
        older
    } else {
        option_flags
    }
}

/// `fluxLogLevel` of the container that runs Flux, or `logLevel`.
fn log_level(spec: &MiniClusterSpec, flux: &Flux, report: &mut Report) -> u8 {
    let mut check = |field: &str, level: i32| match u8::try_from(level) {
        Ok(level @ 0..=7) => level,
        _ => {
            report.problem(field, "must be 0 (emergencies only) to 7 (debug)");
            DEFAULT_LOG_LEVEL
        }
    };
    let log_level = check("spec.flux.logLevel", flux.log_level);
    let Some((field, older)) = runner(spec).and_then(|(field, runner)| Some((field, runner.flux_log_level?)))
    else {
        return log_level;
    };
    let field = format!("{field}.fluxLogLevel");
    let older = check(&field, older);
    // A default contradicts nothing: it cannot be told from a field that is left out, and early releases of the Go
    // operator wrote it into every container.
    if older == DEFAULT_LOG_LEVEL {
        return log_level;
    }
    if log_level != DEFAULT_LOG_LEVEL && log_level != older {
        report.problem(field, "contradicts spec.flux.logLevel: set only one");
    }
    older
}

fn certificate(text: &str) -> Result<Certificate, String> {
    Certificate::parse(text)
        .map_err(|why| format!("is not a curve certificate as `flux keygen` writes it: {why}"))
}

/// Whether a shell can assign a variable of this name: `flux-view.sh`, which people source, exports the variables.
fn is_shell_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Splits a text into words, of which none refers to a variable. Adds a notice if they look like shell source. Empty
/// after a problem.
fn words_of(field: &str, text: &str, report: &mut Report) -> Vec<String> {
    let Some(split) = report.take(field, command_words::split_without_references(text)) else {
        return Vec::new();
    };
    if !split.shell_syntax.is_empty() {
        let syntax = split.shell_syntax.join(" ");
        report.notice(
            field,
            format!("`{syntax}` reaches Flux as text: no shell runs it, and no variable is replaced"),
        );
    }
    split.words.iter().map(command_words::Word::display).collect()
}

fn check_topology(text: &str) -> Result<(), String> {
    let (kind, degree) = text
        .split_once(':')
        .map_or((text, None), |(kind, degree)| (kind, Some(degree)));
    let degree_ok = degree.is_none_or(|degree| degree.parse::<u16>().is_ok());
    match (kind, degree) {
        ("kary", Some(_)) | ("mincrit", _) if degree_ok => Ok(()),
        // `custom`: the brokers' parents are in broker.toml. The agent's own broker.toml has none: the tree is flat.
        ("binomial" | "custom", None) => Ok(()),
        _ => Err(format!(
            "`{text}` is not one of kary:K, binomial, mincrit, mincrit:K, custom"
        )),
    }
}

/// Checks that the lead is the parent of all brokers: with `minimalService`, no other has a name in the DNS.
fn check_parents(topology: Option<&str>, size: usize) -> Result<(), String> {
    // `check_topology` reports a text that is no topology.
    let Ok(mut parents) = topology::parents(topology, u32::try_from(size).unwrap_or(u32::MAX)) else {
        return Ok(());
    };
    match parents.find(|(_, parent)| *parent > 0) {
        Some((rank, parent)) => Err(format!(
            "publishes only the lead's name, but broker {rank} connects to broker {parent}: leave minimalService out, \
             or set topology: kary:0"
        )),
        None => Ok(()),
    }
}

/// The first of this cluster's hosts whose parent is in another cluster and not the lead, with this parent. Only the
/// lead's address is known in other namespaces.
fn foreign_parent<'a>(
    topology: Option<&str>,
    hosts: &'a [String],
    name: &str,
    sizes: Sizes,
) -> Option<(&'a str, &'a str)> {
    let own_hosts: HashSet<String> = (0..sizes.max_size)
        .map(|index| names::host(name, index))
        .collect();
    let host = |rank: u32| hosts.get(rank as usize).map(String::as_str);
    // `check_topology` reports a text that is no topology.
    topology::parents(topology, u32::try_from(hosts.len()).ok()?)
        .ok()?
        .filter(|(_, parent)| *parent > 0)
        .filter_map(|(rank, parent)| Some((host(rank)?, host(parent)?)))
        .find(|(host, parent)| own_hosts.contains(*host) && !own_hosts.contains(*parent))
}

/// The scheduler and its queue policy, checked. `simple: false` with an empty queuePolicy counts as unset: clients with
/// Go types send these zero values if nothing was chosen.
fn scheduler(flux: &Flux, report: &mut Report) -> (Option<SchedulerKind>, Option<String>) {
    let scheduler = flux.scheduler.clone().unwrap_or_default();
    let policy = given(&scheduler.queue_policy);
    if let Some(policy) = &policy {
        if !QUEUE_POLICIES.contains(&policy.as_str()) {
            report.problem(
                "spec.flux.scheduler.queuePolicy",
                format!("is `{policy}`, must be one of {}", QUEUE_POLICIES.join(", ")),
            );
        }
        if scheduler.simple == Some(true) && policy != "fcfs" {
            report.problem(
                "spec.flux.scheduler.queuePolicy",
                "needs Fluxion: leave out scheduler.simple, or set it to false",
            );
        }
    }
    let is_unset = scheduler.simple == Some(false) && scheduler.queue_policy.as_deref() == Some("");
    let simple = if is_unset { None } else { scheduler.simple };
    let kind = simple.map(|simple| {
        if simple {
            SchedulerKind::Simple
        } else {
            SchedulerKind::Fluxion
        }
    });
    (kind, policy)
}

/// Whether the lead broker is in another cluster. All clusters may have the same block: in the cluster that it names, the
/// lead broker is not remote.
pub fn is_lead_elsewhere(flux: &Flux, name: &str) -> bool {
    let (in_bursting, alias) = given_lead_brokers(flux);
    let lead = in_bursting.or(alias);
    lead.is_some_and(|lead| lead.name.as_deref() != Some(name))
}

/// The lead broker in `bursting`, and the one in the alias beside it, if they are given.
fn given_lead_brokers(flux: &Flux) -> (Option<&LeadBroker>, Option<&LeadBroker>) {
    let bursting = flux.bursting.as_ref();
    let in_bursting = bursting.and_then(|bursting| bursting.lead_broker.as_ref());
    let alias = flux.lead_broker.as_ref();
    (
        in_bursting.filter(|lead| lead.is_given()),
        alias.filter(|lead| lead.is_given()),
    )
}

/// The hostlist of the instance (None: it has only this cluster's hosts), and the lead broker, if it is in another
/// cluster.
fn hosts(flux: &Flux, name: &str, sizes: Sizes, report: &mut Report) -> (Option<String>, Option<RemoteLead>) {
    let bursting = flux.bursting.clone().unwrap_or_default();
    let (in_bursting, alias) = given_lead_brokers(flux);
    if in_bursting.is_some() && alias.is_some() {
        report.problem(
            "spec.flux.leadBroker",
            "is also set at spec.flux.bursting.leadBroker: set only one",
        );
    }
    let field = if in_bursting.is_some() {
        "spec.flux.bursting.leadBroker"
    } else {
        "spec.flux.leadBroker"
    };
    let lead = in_bursting.or(alias).cloned();
    let not_blank = |list: &Option<String>| list.clone().filter(|list| !list.trim().is_empty());
    let list =
        not_blank(&bursting.hostlist).or_else(|| lead.as_ref().and_then(|lead| not_blank(&lead.hostlist)));
    let is_lead = lead.is_some() && !is_lead_elsewhere(flux, name);
    let lead = if is_lead { None } else { lead };
    if is_lead {
        report.notice(
            field,
            "names this cluster, which is the lead: only the other clusters use address and port",
        );
    }
    if list.is_some() && !bursting.clusters.is_empty() {
        report.problem(
            "spec.flux.bursting.hostlist",
            "names all hosts, so clusters must be left out",
        );
    }
    let generated = generated_hosts(&bursting, lead.as_ref(), name, sizes, report);
    let remote = lead.and_then(|lead| remote(field, &lead, list.is_some(), report));
    let result = match (list, remote.is_some() || !bursting.clusters.is_empty()) {
        (Some(list), _) => Some(list),
        (None, true) => Some(generated),
        (None, false) => None,
    };
    if let Some(list) = &result {
        match hostlist::expand(list) {
            Ok(hosts) => {
                if let Some(bad) = hosts.iter().find(|host| !hostlist::is_bootstrap_host(host)) {
                    report.problem(
                        "spec.flux.bursting",
                        format!("host `{bad}`: Flux takes letters, digits, `-` and dots only"),
                    );
                }
                let known: HashSet<&String> = hosts.iter().collect();
                let own = (0..sizes.max_size).map(|index| names::host(name, index));
                if let Some(absent) = own.into_iter().find(|host| !known.contains(host)) {
                    report.problem(
                        "spec.flux.bursting",
                        format!(
                            "the hosts `{list}` lack this cluster's own, such as {absent}: name it in clusters or hostlist"
                        ),
                    );
                }
            }
            Err(why) => report.problem("spec.flux.bursting.hostlist", format!("is not a hostlist: {why}")),
        }
    }
    (result, remote)
}

/// The hostlist by names and sizes: the cluster with the lead, then the clusters that may join. The first host of a
/// lead in another cluster is its address.
fn generated_hosts(
    bursting: &Bursting,
    lead: Option<&LeadBroker>,
    name: &str,
    sizes: Sizes,
    report: &mut Report,
) -> String {
    let mut lists = Vec::new();
    let largest_size = sizes.max_size;
    match lead {
        None => lists.push(hostlist::range(name, 0, largest_size - 1)),
        Some(lead) => {
            lists.push(lead.address.clone().unwrap_or_default());
            // A negative one, which the API server accepts, counts as left out, too.
            let size = lead
                .size
                .filter(|size| *size > 0)
                .map_or(largest_size, i32::unsigned_abs);
            if size > 1 {
                lists.push(hostlist::range(
                    lead.name.as_deref().unwrap_or_default(),
                    1,
                    size - 1,
                ));
            }
        }
    }
    for (i, cluster) in bursting.clusters.iter().enumerate() {
        let field = format!("spec.flux.bursting.clusters[{i}]");
        let size = cluster
            .size
            .filter(|size| *size != 0)
            .unwrap_or(largest_size as i32);
        if size < 1 || size as usize > hostlist::MAX_HOSTS {
            report.problem(
                format!("{field}.size"),
                format!("must be 1 to {}", hostlist::MAX_HOSTS),
            );
            continue;
        }
        // The documented default.
        let prefix = given(&cluster.name).unwrap_or_else(|| format!("burst-{i}"));
        lists.push(hostlist::range(&prefix, 0, size.unsigned_abs() - 1));
    }
    lists.join(",")
}

/// Checks the address of a lead broker in another cluster. `has_list`: a hostlist is given, so that its name is not
/// needed.
fn remote(field: &str, lead: &LeadBroker, has_list: bool, report: &mut Report) -> Option<RemoteLead> {
    let address = given(&lead.address);
    if address.is_none() {
        report.problem(
            format!("{field}.address"),
            "is needed: the host name or address at which the lead broker answers",
        );
    } else if address
        .as_deref()
        .is_some_and(|address| !hostlist::is_bootstrap_host(address))
    {
        report.problem(
            format!("{field}.address"),
            "must be a host name or an IPv4 address: Flux takes no other",
        );
    }
    if lead.name.as_deref().unwrap_or_default().is_empty() && !has_list {
        report.problem(
            format!("{field}.name"),
            "is needed: the name of the lead's MiniCluster",
        );
    }
    let port = u16::try_from(lead.port).ok().filter(|port| *port > 0);
    if port.is_none() {
        report.problem(format!("{field}.port"), "must be 1 to 65535");
    }
    Some(RemoteLead {
        address: address?,
        port: port?,
    })
}

/// Checks the container that provides Flux, and `installRoot`.
pub(super) fn view(spec: &MiniClusterSpec, report: &mut Report) -> ViewContainer {
    let mut view = spec
        .flux
        .as_ref()
        .and_then(|flux| flux.container.clone())
        .unwrap_or_default();
    let field = "spec.flux.container";
    if view.name.is_empty() {
        view.name = v1alpha2::view_name();
    }
    if view.mount_path.is_empty() {
        view.mount_path = v1alpha2::mount_path();
    }
    drop_empty(&mut [
        &mut view.source,
        &mut view.python_path,
        &mut view.working_dir,
        &mut view.image_pull_secret,
    ]);
    if !names::is_dns_label(&view.name)
        // The view's volume has the name of its container. (`flux-software` is also the name of an init container.)
        || OWN_VOLUMES.contains(&view.name.as_str())
        || view.name == AGENT_CONTAINER
    {
        report.problem(
            format!("{field}.name"),
            "must be a DNS label, and none of the operator's own names",
        );
    }
    let mount_path = report.take(format!("{field}.mountPath"), absolute(&view.mount_path));
    let mount_path = mount_path.unwrap_or_else(|| paths::DEFAULT_MOUNT_PATH.into());
    // These folders themselves cannot be the mount path; a folder within them can.
    let is_taken =
        [paths::FALLBACK_HOME, "/etc", "/usr", "/bin", "/lib", "/opt"].contains(&mount_path.as_str());
    // Within these folders, the mount path is refused as well. The first three are the kernel's. Of the operator's, most
    // are mounted read-only, so a container runtime cannot create a mount point in them.
    let closed = [
        "/proc",
        "/sys",
        "/dev",
        paths::AGENT_FOLDER,
        paths::MUNGE_DIR,
        paths::SOFTWARE_DIR,
        paths::SOFTWARE_STAGING,
        paths::VIEW_IMAGE_MOUNT,
    ];
    if is_taken || paths::is_within(&mount_path, closed) {
        report.problem(
            format!("{field}.mountPath"),
            "would hide the image's files there: choose an unused folder",
        );
    }
    if let Some(secret) = &view.image_pull_secret {
        report.take(format!("{field}.imagePullSecret"), object_name(secret));
    }
    let root = spec.flux.as_ref().and_then(|flux| given(&flux.install_root));
    if root.is_some() && !view.disable {
        report.problem(
            "spec.flux.installRoot",
            "is where the image's own Flux is: it needs container.disable: true",
        );
    }
    let root = root.and_then(|root| report.take("spec.flux.installRoot", absolute(&root)));
    ViewContainer {
        enabled: !view.disable,
        // v1alpha1's default `/usr` counts as left out: the agent then takes the prefix of the `flux` on the PATH, or
        // else `/usr`.
        install_root: root.filter(|root| root != "/usr"),
        image: image(&format!("{field}.image"), &view.image, report),
        source: view
            .source
            .and_then(|source| report.take(format!("{field}.source"), source.parse())),
        name: view.name,
        python_path: view.python_path,
        resources: resources(&format!("{field}.resources"), &view.resources, report),
        working_dir: view.working_dir,
        pull_policy: if view.pull_always {
            PullPolicy::Always
        } else {
            PullPolicy::IfNotPresent
        },
        image_pull_secret: view.image_pull_secret,
        mount_path,
        security_context: security_context(
            &format!("{field}.securityContext"),
            &view.security_context,
            report,
        ),
    }
}
