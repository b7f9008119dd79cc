//! What a person should know about a plan, a line each: where the spec could not be followed as it stands.

use flux_shared::agent_spec::Program;

use super::{Resolved, accounts, node_network, scheduler};

pub fn of(resolved: &Resolved) -> Vec<String> {
    let runner = &resolved.spec.runner;
    let mut notices: Vec<String> = resolved.identity.notice.clone().into_iter().collect();
    notices.extend(accounts::notice(resolved));
    let has_program = !matches!(runner.program, Program::Persistent | Program::Diagnostics);
    if runner.interactive && has_program {
        notices.push("interactive: the instance stays up and the command is not run".into());
    }
    notices.extend(scheduler::notices(resolved));
    notices.extend(node_network::notice(resolved));
    let own = resolved.facts.cores;
    if let Some(cores) = runner.cores.filter(|cores| *cores > own) {
        notices.push(format!(
            "{cores} cores are declared, but there are {own}: tasks share them, unbound"
        ));
    }
    notices
}
