//! The steps for broker.toml, and for the broker's directories, the hostlist and links.

use flux_shared::agent_spec::Program;
use flux_shared::broker_config;
use flux_shared::paths::VIEW_LINKS;
use serde::Serialize;

use super::error::SerializationError;
use super::{Content, Mode, Owner, PlanError, Resolved, Step, discovery, hosts, scheduler};
use crate::known_paths::{SYSTEM_CONFIG, SYSTEM_RUN};

/// The directories that the agent owns, so that Flux's user cannot change what is in them.
pub fn own_directories(resolved: &Resolved) -> Vec<Step> {
    let (paths, owner) = (&resolved.paths, resolved.agent_owner());
    let directories = [
        paths.config_root(),
        paths.broker_config_dir(),
        paths.system_dir(),
        paths.cron_dir(),
    ];
    directories
        .into_iter()
        .map(|path| directory(path, 0o755, owner))
        .collect()
}

/// The directories that Flux's user writes to. It owns those that the agent creates, but no folder above them.
pub fn directories(resolved: &Resolved) -> Vec<Step> {
    let (paths, owner) = (&resolved.paths, resolved.identity.owner);
    let mut directories = vec![(paths.run_dir(), 0o755), (paths.state_dir(), 0o700)];
    if resolved.needs_curve() {
        directories.push((paths.curve_dir(), 0o700));
    }
    let logs_exist = resolved.facts.is_present(&resolved.logs);
    if !logs_exist {
        directories.push((resolved.logs.clone(), 0o755));
    }
    let make = |(path, mode)| directory(path, mode, owner);
    // An existing folder may be a volume of the user. `Directory` would set its mode and owner. `Give` changes only
    // the owner, and only if Flux's user cannot write to the folder. Only a batch writes there; other programs just get
    // the folder's name in FLUX_OUTPUT_DIR.
    let give_logs = || Step::Give {
        path: resolved.logs.clone(),
        owner,
    };
    let is_batch = matches!(
        resolved.spec.runner.program,
        Program::Batch { .. } | Program::BatchRaw { .. }
    );
    directories
        .into_iter()
        .map(make)
        .chain((logs_exist && is_batch).then(give_logs))
        .collect()
}

fn directory(path: String, mode: u32, owner: Owner) -> Step {
    Step::Directory {
        path,
        mode: Mode(mode),
        owner,
    }
}

/// The hostlist, one line.
pub fn hostlist(resolved: &Resolved) -> Step {
    let content = Content::Text(format!("{}\n", resolved.hosts.list));
    let owner = resolved.agent_owner();
    Step::File {
        path: resolved.paths.hostlist(),
        mode: Mode(0o644),
        owner,
        content,
    }
}

/// broker.toml: the user's own text unchanged or, without one, the agent's.
pub fn config(resolved: &Resolved) -> Result<Step, PlanError> {
    let text = match &resolved.spec.flux.broker_config {
        Some(text) => text.clone(),
        None => generate(resolved)?,
    };
    let owner = resolved.agent_owner();
    let content = Content::Text(text);
    Ok(Step::File {
        path: resolved.paths.broker_toml(),
        mode: Mode(0o644),
        owner,
        content,
    })
}

/// The tables that the user gives: the whole broker.toml, or else its parts. A text that is not TOML is left out.
pub fn users_tables(resolved: &Resolved) -> impl Iterator<Item = toml::Table> {
    let flux = &resolved.spec.flux;
    let parts = flux.broker_config.is_none().then(|| flux.configs.values());
    let texts = flux.broker_config.iter().chain(parts.into_iter().flatten());
    texts.filter_map(|text| text.parse().ok())
}

/// Links from the paths in the documentation of v1alpha1 to the files of this agent. With a view, the links below
/// the mount path were made together with the view. Without one, the agent's installer may have made them already.
pub fn documented_links(resolved: &Resolved) -> Vec<Step> {
    let mut links = socket_link(resolved);
    if resolved.spec.view.enabled {
        return links;
    }
    links.extend(VIEW_LINKS.into_iter().map(|(path, target)| Step::Link {
        path: resolved.paths.at(path),
        target: target.to_owned(),
    }));
    links
}

/// The link from `SYSTEM_CONFIG` to the folder of broker.toml or, if `SYSTEM_CONFIG` exists, from `broker.toml` in it
/// to the file. None if this is no system instance, or if the agent may not make the link.
pub fn system_link(resolved: &Resolved) -> Option<Step> {
    let facts = resolved.facts;
    if !resolved.is_system_instance() {
        return None;
    }
    let config_dir = resolved.paths.broker_config_dir();
    let (path, target, parent) = if facts.is_present(SYSTEM_CONFIG) {
        (
            format!("{SYSTEM_CONFIG}/broker.toml"),
            resolved.paths.broker_toml(),
            SYSTEM_CONFIG,
        )
    } else {
        (SYSTEM_CONFIG.to_owned(), config_dir, "/etc")
    };
    facts.is_writable(parent).then_some(Step::Link { path, target })
}

/// The link from v1alpha1's path of the broker's socket to the socket, and its folder `SYSTEM_RUN`, if they can be
/// made. The folder is a real one: if it were a link to the socket's folder, the link in it would be at the socket's own
/// path and lead to itself.
fn socket_link(resolved: &Resolved) -> Vec<Step> {
    let facts = resolved.facts;
    let folder_exists = facts.is_present(SYSTEM_RUN);
    let can_be_made = facts.is_writable(if folder_exists { SYSTEM_RUN } else { "/run" });
    // Only the documentation of v1alpha1 names this path. The images for v1alpha1 contain Flux, so they use no view.
    if resolved.spec.view.enabled || resolved.spec.flux.disable_socket || !can_be_made {
        return Vec::new();
    }
    let owner = resolved.agent_owner();
    let folder = Step::Directory {
        path: SYSTEM_RUN.to_owned(),
        mode: Mode(0o755),
        owner,
    };
    let link = Step::Link {
        path: format!("{SYSTEM_RUN}/local"),
        target: resolved.paths.socket(),
    };
    let folder = (!folder_exists).then_some(folder);
    folder.into_iter().chain([link]).collect()
}

/// The agent's broker.toml.
#[derive(Serialize)]
struct Config {
    access: Access,
    bootstrap: Bootstrap,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<Resource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat: Option<Heartbeat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modules: Option<Modules>,
    #[serde(rename = "sched-fluxion-qmanager", skip_serializing_if = "Option::is_none")]
    qmanager: Option<Qmanager>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Access {
    allow_guest_user: bool,
    allow_root_owner: bool,
}

#[derive(Serialize)]
struct Bootstrap {
    #[serde(skip_serializing_if = "Option::is_none")]
    curve_cert: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    enable_ipv6: bool,
    default_port: u16,
    default_bind: String,
    default_connect: String,
    hosts: Vec<HostEntry>,
}

#[derive(Serialize)]
struct HostEntry {
    host: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connect: Option<String>,
}

#[derive(Serialize)]
struct Resource {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// Flux does not check R against the resources of the node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    noverify: bool,
    /// Flux keeps cores in the discovered resources that the broker itself may not use.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    norestrict: bool,
}

#[derive(Serialize)]
struct Heartbeat {
    timeout: String,
}

#[derive(Serialize)]
struct Modules {
    alternatives: Alternatives,
}

#[derive(Serialize)]
struct Alternatives {
    sched: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Qmanager {
    queue_policy: String,
}

/// The text of the agent's broker.toml, with the user's parts (`flux.configs`) merged over it.
fn generate(resolved: &Resolved) -> Result<String, PlanError> {
    let config = Config {
        access: Access {
            allow_guest_user: true,
            allow_root_owner: true,
        },
        bootstrap: bootstrap(resolved),
        resource: resource(resolved),
        // If unset, Flux's default of five minutes applies. A lead on a busy node may be silent for long: shorter
        // timeouts made healthy jobs fail.
        heartbeat: resolved
            .spec
            .flux
            .heartbeat_timeout
            .clone()
            .map(|timeout| Heartbeat { timeout }),
        modules: scheduler::chosen(resolved)?.map(|kind| Modules {
            alternatives: Alternatives {
                sched: scheduler::module(kind),
            },
        }),
        qmanager: resolved
            .spec
            .flux
            .queue_policy
            .clone()
            .map(|queue_policy| Qmanager { queue_policy }),
    };
    let render_error = |why: String| PlanError::Render {
        file: "broker.toml",
        source: SerializationError(why),
    };
    let parts = &resolved.spec.flux.configs;
    if parts.is_empty() {
        return toml::to_string(&config).map_err(|error| render_error(error.to_string()));
    }
    let mut table = toml::Table::try_from(&config).map_err(|error| render_error(error.to_string()))?;
    // If a part has `resource.config`, its hosts must be these.
    let hosts = resolved.spec.own_hosts();
    let mut users_table = broker_config::merged(parts, hosts.as_deref()).map_err(|problems| {
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        render_error(texts.join("; "))
    })?;
    apply_users_verification(&mut table, &mut users_table);
    broker_config::merge(&mut table, users_table).map_err(render_error)?;
    toml::to_string(&table).map_err(|error| render_error(error.to_string()))
}

/// If the user's parts have `resource.verify`, removes the agent's `noverify`, beside which Flux would ignore it. If
/// they have `resource.config` (an R that replaces any other), disables the check of R, unless they decide about it.
fn apply_users_verification(table: &mut toml::Table, users_table: &mut toml::Table) {
    let resource_of = |table| toml::Table::get_mut(table, "resource")?.as_table_mut();
    let Some(users) = resource_of(users_table) else {
        return;
    };
    if users.contains_key("config") {
        do_not_verify(users);
    }
    if users.contains_key("verify")
        && let Some(resource) = resource_of(table)
    {
        resource.remove("noverify");
    }
}

/// Adds `noverify` to the table `[resource]` of an R that is not the agent's, unless the table has `verify` or
/// `noverify` itself. Such an R may list more cores than a node has. Flux would drain that node, and the job would wait
/// forever.
fn do_not_verify(resource: &mut toml::Table) {
    // Flux ignores `verify` beside `noverify`.
    if !resource.contains_key("verify") {
        resource.entry("noverify").or_insert(true.into());
    }
}

/// The table `[resource]`. If each broker discovers its own resources, the table has only flags, or is left out.
/// Otherwise the lead's table names the file with R for all hosts.
///
/// Flux checks each node against this R and drains a node with fewer cores. So the check is disabled (`noverify`)
/// - if R has the lead's number of cores for several hosts, since their nodes may differ;
/// - if the user declares more cores than there are;
/// - with hostNetwork: Flux compares host names, and these are the nodes' own;
/// - if a snippet may write R.
///
/// The user's parts can enable it again ([`apply_users_verification`]).
fn resource(resolved: &Resolved) -> Option<Resource> {
    let declared = resolved.spec.runner.declared_cores();
    if discovery::is_discovered(resolved) {
        // A check against discovered resources always passes. But R may come from an earlier instance with another
        // node, if Flux is too old to remove that R, or from a snippet.
        let noverify = discovery::may_hold_old_r(resolved) || resolved.may_write_resources();
        let norestrict = declared.is_some_and(|cores| cores > resolved.facts.cores);
        return (noverify || norestrict).then_some(Resource {
            path: None,
            noverify,
            norestrict,
        });
    }
    let noverify = match declared {
        Some(cores) => cores > resolved.facts.cores,
        None => resolved.hosts.size() > 1,
    };
    let noverify = noverify || resolved.spec.network.host_network || resolved.may_write_resources();
    let path = resolved.is_lead().then(|| resolved.paths.resources());
    (path.is_some() || noverify).then_some(Resource {
        path,
        noverify,
        norestrict: false,
    })
}

/// The configuration that makes the lead's broker use an R that a snippet writes.
#[derive(Debug, PartialEq)]
pub enum SnippetRConfig {
    /// broker.toml: it names the file that snippets may write.
    BrokerToml,
    /// Another file beside broker.toml, to be written once a snippet has written R.
    FileBeside { path: String, text: String },
    /// Nothing: the user's own broker.toml names another R, which Flux uses.
    NamesAnotherR,
}

/// How the lead's broker is made to use an R that a snippet writes.
pub fn snippet_r_config(resolved: &Resolved) -> Result<SnippetRConfig, PlanError> {
    let render_error = |why: String| PlanError::Render {
        file: "resources.toml",
        source: SerializationError(why),
    };
    let broker_toml = match &resolved.spec.flux.broker_config {
        Some(users_text) => users_text.clone(),
        None => generate(resolved)?,
    };
    // If the user's text is no TOML, the broker does not start, so the empty table does no harm.
    let table: toml::Table = broker_toml.parse().unwrap_or_default();
    let mut resource = table
        .get("resource")
        .and_then(toml::Value::as_table)
        .cloned()
        .unwrap_or_default();
    let path = resolved.paths.resources();
    if let Some(named) = resource.get("path") {
        // The second path is a link to the first (`paths::VIEW_LINKS`).
        let agents_paths = [path, format!("{}/etc/flux/system/R", resolved.paths.view())];
        return Ok(if agents_paths.iter().any(|path| named.as_str() == Some(path)) {
            SnippetRConfig::BrokerToml
        } else {
            SnippetRConfig::NamesAnotherR
        });
    }
    // The file repeats the whole table: a release of Flux may replace the table in broker.toml by this one.
    resource.insert("path".into(), path.into());
    do_not_verify(&mut resource);
    let file = toml::Table::from_iter([("resource".to_owned(), toml::Value::Table(resource))]);
    let text = toml::to_string(&file).map_err(|error| render_error(error.to_string()))?;
    Ok(SnippetRConfig::FileBeside {
        path: format!("{}/resources.toml", resolved.paths.broker_config_dir()),
        text,
    })
}

fn bootstrap(resolved: &Resolved) -> Bootstrap {
    let spec = resolved.spec;
    let address = resolved.facts.address.as_deref();
    let lead = spec.network.lead.as_ref().map(|lead| lead.address.as_str());
    let is_ipv6 = address
        .into_iter()
        .chain(lead)
        .any(|address| address.contains(':'));
    Bootstrap {
        curve_cert: resolved.needs_curve().then(|| resolved.paths.curve_cert()),
        enable_ipv6: is_ipv6,
        default_port: spec.network.port,
        // Not all addresses: with `flux-agent local`, all pods share one network namespace and this port.
        default_bind: format!("tcp://{}:%p", address.map_or("*".into(), bracketed)),
        default_connect: format!("tcp://%h{}:%p", hosts::suffix(spec, &resolved.domain)),
        hosts: host_entries(resolved),
    }
}

/// The entries for the instance's hosts. A lead in another cluster has an entry of its own with its address and port.
/// That entry comes first, since Flux uses the first entry of a host. (Only the host itself reads its `bind`, so here
/// `bind` only completes the entry.)
fn host_entries(resolved: &Resolved) -> Vec<HostEntry> {
    let all = HostEntry {
        host: resolved.hosts.list.clone(),
        bind: None,
        connect: None,
    };
    match &resolved.spec.network.lead {
        None => vec![all],
        Some(lead) => {
            let connect = format!("tcp://{}:{}", bracketed(&lead.address), lead.port);
            let bind = format!("tcp://*:{}", lead.port);
            vec![
                HostEntry {
                    host: resolved.hosts.name(0).to_owned(),
                    bind: Some(bind),
                    connect: Some(connect),
                },
                all,
            ]
        }
    }
}

/// An address as in a URI: IPv6 in brackets.
fn bracketed(address: &str) -> String {
    if address.contains(':') {
        format!("[{address}]")
    } else {
        address.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use flux_shared::agent_spec::AgentSpec;

    use super::*;
    use crate::facts::Facts;

    fn toml_of(spec: &str, facts: Facts) -> toml::Table {
        let spec = AgentSpec::from_toml(spec).unwrap();
        let resolved = Resolved::new(&spec, &facts).unwrap();
        toml::from_str(&generate(&resolved).unwrap()).unwrap()
    }

    fn at<'a>(table: &'a toml::Table, path: &str) -> Option<&'a toml::Value> {
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        let value = table.get(first)?;
        if rest.is_empty() {
            Some(value)
        } else {
            at(value.as_table()?, rest)
        }
    }

    #[test]
    fn broker_binds_to_pod_address_and_connects_by_host_name() {
        let facts = Facts {
            address: Some("10.1.2.3".into()),
            cluster_domain: Some("corp".into()),
            ..Facts::default()
        };
        let table = toml_of("name='mc'\nsize=4\nnamespace='team'", facts);
        assert_eq!(
            at(&table, "bootstrap/default_bind").unwrap().as_str(),
            Some("tcp://10.1.2.3:%p")
        );
        let connect = at(&table, "bootstrap/default_connect").unwrap().as_str();
        assert_eq!(connect, Some("tcp://%h.flux-service.team.svc.corp:%p"));
        assert!(
            at(&table, "resource").is_none(),
            "each broker discovers its resources"
        );
    }

    #[test]
    fn r_is_unchecked_when_elastic_and_checked_for_one_broker() {
        let table = toml_of("name='mc'\nsize=4\nmax_size=8", Facts::default());
        assert_eq!(
            at(&table, "resource/path").unwrap().as_str(),
            Some("/mnt/flux/config/etc/flux/system/R")
        );
        assert_eq!(at(&table, "resource/noverify").unwrap().as_bool(), Some(true));
        let one = toml_of("name='mc'", Facts::default());
        assert!(at(&one, "resource/path").is_some() && at(&one, "resource/noverify").is_none());
    }

    #[test]
    fn ipv6_is_enabled_when_the_pod_has_an_ipv6_address() {
        let table = toml_of(
            "name='mc'\nsize=2",
            Facts {
                address: Some("fd00::7".into()),
                ..Facts::default()
            },
        );
        assert_eq!(at(&table, "bootstrap/enable_ipv6").unwrap().as_bool(), Some(true));
        assert_eq!(
            at(&table, "bootstrap/default_bind").unwrap().as_str(),
            Some("tcp://[fd00::7]:%p")
        );
    }

    #[test]
    fn only_leads_table_names_r_and_one_broker_has_no_certificate() {
        let follower = Facts {
            index: Some(1),
            ..Facts::default()
        };
        let table = toml_of("name='mc'\nsize=2\nmax_size=3", follower);
        assert!(at(&table, "resource/path").is_none() && at(&table, "resource/noverify").is_some());
        assert!(at(&table, "bootstrap/curve_cert").is_some());
        // Without the mounted certificate that assumed facts have.
        let bare = Facts {
            present: Default::default(),
            ..Facts::default()
        };
        assert!(at(&toml_of("name='mc'", bare), "bootstrap/curve_cert").is_none());
    }

    #[test]
    fn flux_does_not_check_cores_that_are_not_there() {
        let of = |spec: &str| {
            let table = toml_of(&format!("name='mc'\nsize=2\n{spec}"), Facts::default());
            ["resource/path", "resource/noverify", "resource/norestrict"].map(|key| at(&table, key).is_some())
        };
        // Assumed facts have 4 cores.
        let (nothing, noverify) = ([false; 3], [false, true, false]);
        assert_eq!(
            (of("[runner]\ncores=16"), of("[runner]\ncores=2")),
            ([false, false, true], nothing)
        );
        // The state may hold the R of an earlier instance.
        assert_eq!(
            (of("archive='/a.tgz'"), of("restart_policy='OnFailure'")),
            (noverify, noverify)
        );
        // With `max_size`, the agent writes R for hosts that may join later.
        assert_eq!(of("max_size=3\n[runner]\ncores=16"), [true, true, false]);
        assert_eq!(
            (of("max_size=3"), of("max_size=3\n[runner]\ncores=2")),
            ([true, true, false], [true, false, false])
        );
    }

    #[test]
    fn users_r_is_not_checked_unless_the_user_decides() {
        let noverify = |more: &str| {
            let config = "[[resource.config]]\nhosts='mc-[0-1]'\ncores='0-31'";
            let spec = format!("name='mc'\nsize=2\n[flux.configs]\na=\"\"\"{config}\"\"\"\nb='{more}'");
            let table = toml_of(&spec, Facts::default());
            at(&table, "resource/noverify").and_then(toml::Value::as_bool)
        };
        assert_eq!(noverify(""), Some(true));
        assert_eq!(noverify("resource.noverify = false"), Some(false));
        assert_eq!(noverify("resource.verify = true"), None);
        let other = toml_of(
            "name='mc'\nsize=2\n[flux.configs]\na='resource.journal-max = 9'",
            Facts::default(),
        );
        assert!(at(&other, "resource/noverify").is_none());
    }

    /// Flux ignores `verify` beside `noverify`.
    #[test]
    fn agent_adds_no_noverify_to_the_users_verify() {
        let verify = "[resource.verify]\ngpu='ignore'";
        let part = format!("[flux.configs]\na=\"\"\"{verify}\"\"\"");
        let snippet = "[runner.snippets]\npre='true'\n";
        for more in [
            "max_size=3\n",
            "archive='/a.tgz'\n",
            "[network]\nhost_network=true\n",
            snippet,
        ] {
            let table = toml_of(&format!("name='mc'\nsize=2\n{more}{part}"), Facts::default());
            assert!(
                at(&table, "resource/noverify").is_none() && at(&table, "resource/verify/gpu").is_some(),
                "{more}: {table}"
            );
        }
        let whole = format!("[flux]\nbroker_config=\"\"\"{verify}\"\"\"");
        for config in [part, whole] {
            let spec = AgentSpec::from_toml(&format!("name='mc'\nsize=2\n{snippet}{config}")).unwrap();
            let facts = Facts::default();
            let resolved = Resolved::new(&spec, &facts).unwrap();
            let SnippetRConfig::FileBeside { text, .. } = snippet_r_config(&resolved).unwrap() else {
                panic!("{config} names no R");
            };
            assert!(text.contains("gpu") && !text.contains("noverify"), "{text}");
        }
    }

    #[test]
    fn flux_does_not_compare_a_nodes_host_name_with_a_pods() {
        let is_checked = |spec: &str| {
            let table = toml_of(&format!("name='mc'\n{spec}"), Facts::default());
            at(&table, "resource/path").is_some() && at(&table, "resource/noverify").is_none()
        };
        assert!(is_checked("") && !is_checked("[network]\nhost_network=true"));
        let few = "size=2\nmax_size=3\n[runner]\ncores=2\n";
        assert!(is_checked(few) && !is_checked(&format!("{few}[network]\nhost_network=true")));
    }

    #[test]
    fn heartbeat_timeout_is_that_of_flux_unless_the_spec_sets_it() {
        assert!(at(&toml_of("name='mc'\nsize=2", Facts::default()), "heartbeat").is_none());
        let table = toml_of(
            "name='mc'\nsize=2\n[flux]\nheartbeat_timeout='60s'",
            Facts::default(),
        );
        assert_eq!(at(&table, "heartbeat/timeout").unwrap().as_str(), Some("60s"));
    }

    #[test]
    fn a_users_parts_are_merged_over_the_agents_tables() {
        let parts = "name='mc'\nsize=2\n[flux.configs]\na=\"\"\"[queues.debug]\n[access]\nallow-guest-user=false\"\"\"\nb=\"\"\"resource.exclude='0'\"\"\"";
        let table = toml_of(parts, Facts::default());
        assert!(at(&table, "queues/debug").is_some());
        assert_eq!(
            at(&table, "access/allow-guest-user").unwrap().as_bool(),
            Some(false)
        );
        assert_eq!(
            at(&table, "access/allow-root-owner").unwrap().as_bool(),
            Some(true)
        );
        assert_eq!(at(&table, "resource/exclude").unwrap().as_str(), Some("0"));
        assert!(
            at(&table, "resource/path").is_none(),
            "each broker discovers its resources"
        );
        assert!(AgentSpec::from_toml("name='mc'\n[flux.configs]\na='bootstrap.default_port = 1'").is_err());
    }

    #[test]
    fn a_remote_lead_has_an_entry_of_its_own() {
        let spec = "name='burst-0'\nsize=2\n[network]\nlead={address='10.9.9.9',port=30123}";
        let table = toml_of(
            spec,
            Facts {
                index: Some(1),
                ..Facts::default()
            },
        );
        let hosts = at(&table, "bootstrap/hosts").unwrap().as_array().unwrap();
        assert_eq!(hosts[0]["connect"].as_str(), Some("tcp://10.9.9.9:30123"));
        assert_eq!(hosts[1]["host"].as_str(), Some("10.9.9.9,burst-0-[0-1]"));
    }

    #[test]
    fn a_queue_policy_brings_fluxion_if_the_view_has_it() {
        let spec = "name='mc'\n[flux]\nqueue_policy='easy'";
        let table = toml_of(spec, Facts::default());
        assert_eq!(
            at(&table, "sched-fluxion-qmanager/queue-policy")
                .unwrap()
                .as_str(),
            Some("easy")
        );
        assert_eq!(
            at(&table, "modules/alternatives/sched").unwrap().as_str(),
            Some("sched-fluxion-qmanager")
        );
        let mut facts = Facts::default();
        facts.view.fluxion = false;
        assert!(at(&toml_of(spec, facts), "modules").is_none());
    }
}
