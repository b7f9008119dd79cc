//! The steps of a follower: its broker joins its parent, and the pod ends when the instance does.

use flux_shared::agent_spec::RestartPolicy;
use flux_shared::command_words::Word;
use flux_shared::topology;

use super::hosts::BrokerAddresses;
use super::resolved::hold_stop;
use super::{
    AtEnd, BrokerAddress, InstancePart, Launch, PlanError, Resolved, Stdout, Step, node_network, options,
    python, runner, search_paths, snippets, user,
};

/// How many times in a row a follower's broker is restarted before the pod fails: with the pauses, for three minutes.
const RESTART_LIMIT: u32 = 10;
/// Name of Flux's process that runs a job's tasks on a node.
const JOB_SHELL: &str = "flux-shell";

pub fn steps(resolved: &Resolved) -> Result<Vec<Step>, PlanError> {
    let mut steps = runner::prepare(resolved)?;
    steps.extend(snippets::step(
        resolved,
        "workerPre",
        resolved.spec.runner.snippets.worker_pre.as_ref(),
    ));
    let parent = parent(resolved)?;
    // Flux's broker waits for its parent, too. The agent waits first: it says what is missing, keeps `parent_deadline`,
    // and ends at once at a stop.
    let wait = parent.clone().map(Step::WaitParent);
    steps.extend(wait);
    steps.push(launch(resolved, parent)?);
    steps.extend(snippets::post(
        resolved,
        resolved.spec.runner.snippets.post.as_ref(),
    ));
    Ok(steps)
}

/// The parent of this pod's broker. None with the user's own broker.toml: the parent is unknown.
pub(super) fn parent(resolved: &Resolved) -> Result<Option<BrokerAddress>, PlanError> {
    let topology = resolved.spec.flux.topology.as_deref();
    let rank = topology::parent(topology, resolved.rank, resolved.hosts.size())?;
    Ok(address_of(resolved, rank))
}

/// The address on which the broker of `rank` listens. None with the user's own broker.toml, which may name other hosts
/// and ports. Then only Flux waits for the parent, not the agent.
fn address_of(resolved: &Resolved, rank: u32) -> Option<BrokerAddress> {
    if resolved.spec.flux.broker_config.is_some() {
        return None;
    }
    let addresses = BrokerAddresses::of(resolved.spec, &resolved.domain);
    Some(addresses.of_rank(rank, resolved.hosts.name(rank)))
}

/// What follows the end of the follower's broker. In a MiniCluster whose lead is in another cluster, index 0 never
/// completes before the lead has ended: its success is that of the Job, which would end the other followers.
fn at_end(resolved: &Resolved) -> AtEnd {
    let lead_can_restart = resolved.spec.restart_policy == RestartPolicy::OnFailure;
    let decides_job = resolved.spec.network.lead.is_some() && resolved.index() == 0;
    if resolved.spec.flux.complete_workers && !decides_job {
        AtEnd::Complete { lead_can_restart }
    } else {
        AtEnd::RestartFollower {
            limit: RESTART_LIMIT,
            lead_can_restart,
        }
    }
}

/// Whether this pod exits once the lead's DNS name was missing for `lead_gone`. This limit counts only while the agent
/// waits for the parent before it restarts a failed broker. With the user's own broker.toml, it does not wait, since
/// the parent is unknown. With `Complete`, it restarts no broker unless the lead can restart. If the lead can restart,
/// its name may be missing for a while, so the pod stays.
pub(super) fn ends_with_lead(resolved: &Resolved) -> bool {
    resolved.spec.flux.broker_config.is_none()
        && matches!(
            at_end(resolved),
            AtEnd::RestartFollower {
                lead_can_restart: false,
                ..
            }
        )
}

fn launch(resolved: &Resolved, parent: Option<BrokerAddress>) -> Result<Step, PlanError> {
    let runner = &resolved.spec.runner;
    let mut argv: Vec<Word> = runner
        .prefix
        .iter()
        .cloned()
        .chain(runner::flux_start(resolved)?.into_iter().map(Word::Literal))
        .collect();
    // Snippets may change these options (`$brokerOptions`), so the launch has their range.
    let options_start = argv.len();
    argv.extend(
        options::broker(resolved, runner.interactive)
            .into_iter()
            .map(Word::Literal),
    );
    let run_as = user::run_as(resolved);
    // At a stop, the agent holds the signal back. The hold needs a parent, which the agent watches. If the lead stays,
    // the agent drains this rank and those below it, for which it needs the broker's socket. If a job shell still runs
    // when the hold is over, it kills the broker.
    let can_drain = parent.is_some() && runner::socket(resolved).is_some();
    let drain = can_drain.then_some(resolved.rank);
    let below = drain.map(|rank| {
        topology::below(
            resolved.spec.flux.topology.as_deref(),
            rank,
            resolved.hosts.size(),
        )
    });
    let mut environment = search_paths::changes(resolved);
    environment.extend(
        [python::variable(resolved), node_network::variable(resolved)]
            .into_iter()
            .flatten(),
    );
    let launch = Launch {
        label: "fluxstart",
        part: InstancePart::Follower,
        options: Some(options_start..argv.len()),
        flux: resolved.flux_lookup(runner.prefix.len()),
        argv,
        program: Vec::new(),
        run_as,
        environment,
        stdout: Stdout::Inherit,
        signals: runner::signals(resolved, &runner.prefix),
        drain,
        job_shell: can_drain.then_some(JOB_SHELL),
        below: below.transpose()?.unwrap_or_default(),
        socket: runner::socket(resolved),
        hold_stop: parent.is_some().then(|| hold_stop(resolved.facts)),
        // Where the parent is not the lead, the agent asks the lead, too: has the whole instance ended, or only the
        // parent?
        lead: address_of(resolved, 0).filter(|lead| parent.as_ref() != Some(lead)),
        parent,
        metrics: None,
        result: None,
        record: None,
        needs_instance: false,
        at_end: at_end(resolved),
    };
    Ok(Step::Launch(launch.into()))
}
