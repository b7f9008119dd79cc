//! Notices about a plan, one line each: where the plan differs from what the spec seems to ask for.

use super::{Resolved, accounts, discovery, node_network, scheduler};

/// The notices about the plan of this pod.
pub fn of(resolved: &Resolved) -> Vec<String> {
    let runner = &resolved.spec.runner;
    let mut notices: Vec<String> = resolved.identity.notice.clone().into_iter().collect();
    notices.extend(accounts::notice(resolved));
    notices.extend(accounts::home_notices(resolved));
    if runner.interactive && runner.program.is_from_user() {
        notices.push("interactive: the instance stays up and the command is not run".into());
    }
    notices.extend(scheduler::notices(resolved));
    notices.extend(node_network::notice(resolved));
    notices.extend(discovery::notice(resolved));
    let available = resolved.facts.cores;
    if let Some(declared) = runner.declared_cores().filter(|declared| *declared > available) {
        notices.push(format!(
            "{declared} cores are declared, but there are {available}: tasks share them, unbound"
        ));
    }
    notices
}
