//! Who may use the cluster: the users of its pods, and the Flux RESTful API.

use super::fields::{given, is_given};
use super::report::Report;
use super::{ValidRestful, ValidRunner, ValidUser};
use crate::agent_spec::{Program, RESTFUL_BRANCH, RESTFUL_PORT};
use crate::crd::v1alpha2::{FluxRestful, MiniClusterSpec};
use crate::names;

/// Most characters of a password that a user chooses, as the Go operator documented it. Generated ones have 26.
const PASSWORD_MAX: usize = 8;

/// Checks `spec.users`.
pub(super) fn users(
    spec: &MiniClusterSpec,
    runner: Option<&ValidRunner>,
    report: &mut Report,
) -> Vec<ValidUser> {
    let flux_user = runner
        .and_then(|runner| runner.user.as_ref())
        .map(|user| user.name.as_str());
    let mut users: Vec<ValidUser> = Vec::new();
    for (i, user) in spec.users.iter().enumerate() {
        let field = format!("spec.users[{i}]");
        if !names::is_user_name(&user.name) {
            report.problem(format!("{field}.name"), names::USER_NAME_RULE);
        } else if user.name == "root" || flux_user == Some(user.name.as_str()) {
            report.problem(
                format!("{field}.name"),
                format!("{} exists anyway: leave it out", user.name),
            );
        }
        if users.iter().any(|other| other.name == user.name) {
            report.problem(format!("{field}.name"), format!("{} is listed twice", user.name));
        }
        let password = user.password.clone().filter(|password| !password.is_empty());
        if let Some(password) = &password {
            if password.chars().count() > PASSWORD_MAX {
                report.problem(
                    format!("{field}.password"),
                    "must have 8 characters at most; leave it out for a random one",
                );
            }
            if password.chars().any(char::is_control) {
                report.problem(format!("{field}.password"), "must have no control characters");
            }
        }
        users.push(ValidUser {
            name: user.name.clone(),
            password,
        });
    }
    users
}

/// Checks the Flux RESTful API. None if this cluster does not serve it. If it does, its port is added to the runner's
/// ports.
pub(super) fn restful(
    spec: &MiniClusterSpec,
    runner: Option<&mut ValidRunner>,
    lead_is_elsewhere: bool,
    report: &mut Report,
) -> Option<ValidRestful> {
    let block = spec.flux_restful.as_ref().filter(|restful| !restful.disable)?;
    let restful = check(block, report);
    let runner = runner?;
    if spec.interactive || lead_is_elsewhere || runner.program != Program::Persistent {
        let why = match (spec.interactive, lead_is_elsewhere) {
            (true, _) => "the cluster is interactive",
            (_, true) => "the lead broker is in another cluster",
            _ => "the cluster has a command",
        };
        if has_values(block) {
            report.notice("spec.fluxRestful", format!("has no effect: {why}"));
        }
        return None;
    }
    let restful = restful?;
    for (i, container) in spec.containers.iter().enumerate() {
        if !spec.runs_flux(i) && container.ports.contains(&i32::from(restful.port)) {
            report.problem(
                "spec.fluxRestful.port",
                format!(
                    "{} is a port of spec.containers[{i}] as well, in the same pod: choose another",
                    restful.port
                ),
            );
        }
    }
    if !runner.container.ports.contains(&restful.port) {
        runner.container.ports.push(restful.port);
    }
    Some(restful)
}

/// Whether the block has other values than the defaults. Clients with Go types for v1alpha1 always send the block.
fn has_values(block: &FluxRestful) -> bool {
    let is_usual_branch = given(&block.branch).is_none_or(|branch| branch == RESTFUL_BRANCH);
    let is_usual_port = block.port.is_none_or(|port| port == i32::from(RESTFUL_PORT));
    !is_usual_branch
        || !is_usual_port
        || [&block.secret_key, &block.username, &block.token]
            .into_iter()
            .any(is_given)
}

/// Checks the values of the block. None: the port cannot be used.
fn check(block: &FluxRestful, report: &mut Report) -> Option<ValidRestful> {
    let branch = given(&block.branch).unwrap_or_else(|| RESTFUL_BRANCH.into());
    let is_branch = !branch.starts_with('-')
        && !branch.contains("..")
        && branch
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '+'));
    if !is_branch {
        report.problem("spec.fluxRestful.branch", "must be the name of a branch or tag");
    }
    let port = u16::try_from(block.port.unwrap_or(RESTFUL_PORT.into()))
        .ok()
        .filter(|port| *port > 0);
    if port.is_none() {
        report.problem("spec.fluxRestful.port", "must be 1 to 65535");
    }
    let username = given(&block.username).unwrap_or_else(|| "flux".into());
    for (name, value) in [
        ("secretKey", &block.secret_key),
        ("username", &Some(username.clone())),
        ("token", &block.token),
    ] {
        if value.as_deref().unwrap_or_default().chars().any(char::is_control) {
            report.problem(
                format!("spec.fluxRestful.{name}"),
                "must have no control characters",
            );
        }
    }
    Some(ValidRestful {
        branch,
        port: port?,
        secret_key: given(&block.secret_key),
        username,
        token: given(&block.token),
    })
}
