//! Notices about a plan, one line each: where the plan differs from what the spec seems to ask for.

use super::{Resolved, accounts, node_network, scheduler};

pub fn of(resolved: &Resolved) -> Vec<String> {
    let runner = &resolved.spec.runner;
    let mut notices: Vec<String> = resolved.identity.notice.clone().into_iter().collect();
    notices.extend(accounts::notice(resolved));
    if runner.interactive && runner.program.is_from_user() {
        notices.push("interactive: the instance stays up and the command is not run".into());
    }
    notices.extend(scheduler::notices(resolved));
    notices.extend(node_network::notice(resolved));
    let present = resolved.facts.cores;
    if let Some(declared) = runner.cores.filter(|declared| *declared > present) {
        notices.push(format!(
            "{declared} cores are declared, but there are {present}: tasks share them, unbound"
        ));
    }
    notices
}
