//! Chooses the scheduler that Flux loads.
//!
//! - If the spec names one: that one.
//! - Else, without a view: the default of the image's Flux.
//! - Else Fluxion, if the view has it and the spec has a queue policy (which only Fluxion supports), a part of
//!   broker.toml has a table of Fluxion, or there are GPUs. With the user's own broker.toml, a queue policy has no
//!   effect, so it selects nothing.
//! - Else the simple scheduler.
//!
//! If the spec names Fluxion and the view lacks it, planning fails. If the broker cannot load Fluxion, it fails to
//! start, because of `[modules] alternatives` in broker.toml or, in releases before `flux modprobe`, because of
//! Fluxion's rc1 script.

use flux_shared::agent_spec::SchedulerKind;

use super::{PlanError, Resolved, broker};

/// The scheduler that the agent makes Flux load. None: Flux loads its own default.
pub fn chosen(resolved: &Resolved) -> Result<Option<SchedulerKind>, PlanError> {
    let flux = &resolved.spec.flux;
    let view_has_fluxion = resolved.spec.view.enabled && resolved.facts.view.fluxion;
    let has_policy =
        flux.broker_config.is_none() && (flux.queue_policy.is_some() || has_fluxions_table(resolved));
    match flux.scheduler {
        Some(SchedulerKind::Fluxion) if resolved.spec.view.enabled && !view_has_fluxion => {
            Err(PlanError::FluxionMissing(resolved.paths.view()))
        }
        None if view_has_fluxion && (has_policy || has_gpus(resolved)) => Ok(Some(SchedulerKind::Fluxion)),
        // The simple scheduler is named only in a view with Fluxion. Without Fluxion, Flux loads the simple one anyway.
        None => Ok(view_has_fluxion.then_some(SchedulerKind::Simple)),
        named => Ok(named),
    }
}

/// Whether one of the user's parts of broker.toml (`flux.configs`) has a table that only Fluxion reads.
fn has_fluxions_table(resolved: &Resolved) -> bool {
    broker::users_tables(resolved).any(|table| table.keys().any(|key| key.starts_with("sched-fluxion-")))
}

/// Whether the runner requests GPUs, or this pod has some without a request: from a resource claim, from a limit in the
/// pod template, or because the runtime shows a privileged container all GPUs of the node. R counts these GPUs, so the
/// scheduler must be able to schedule them.
fn has_gpus(resolved: &Resolved) -> bool {
    resolved.spec.runner.gpus || resolved.facts.gpus > 0
}

/// Notices about the choice. Only on the lead: no other broker loads a scheduler.
pub fn notices(resolved: &Resolved) -> Vec<String> {
    let flux = &resolved.spec.flux;
    // `broker_config`, the user's own broker.toml, may choose the scheduler.
    if !resolved.spec.view.enabled || !resolved.is_lead() || flux.broker_config.is_some() {
        return Vec::new();
    }
    let mut notices = Vec::new();
    let has_fluxion = resolved.facts.view.fluxion;
    if flux.queue_policy.is_some() && !has_fluxion {
        notices.push("the view has no Fluxion: the queue policy has no effect".into());
    }
    let has_table = has_fluxions_table(resolved);
    if has_table && (!has_fluxion || flux.scheduler == Some(SchedulerKind::Simple)) {
        notices.push(
            "flux.configs has tables of Fluxion, which is not loaded: they have no effect (set flux.scheduler.simple: \
             false, with a view that has Fluxion)"
                .into(),
        );
    }
    if has_gpus(resolved) && flux.scheduler.is_none() && flux.queue_policy.is_none() && !has_table {
        notices.push(if has_fluxion {
            "the scheduler is Fluxion, since the pods have GPUs (flux.scheduler.simple: true selects the simple one)"
                .into()
        } else {
            "the pods have GPUs, but the view has no Fluxion: the scheduler is the simple one".to_owned()
        });
    }
    notices
}

/// The module that provides the service `sched`.
pub fn module(kind: SchedulerKind) -> &'static str {
    match kind {
        SchedulerKind::Simple => "sched-simple",
        SchedulerKind::Fluxion => "sched-fluxion-qmanager",
    }
}

#[cfg(test)]
mod tests {
    use flux_shared::agent_spec::AgentSpec;

    use super::*;
    use crate::facts::{Facts, ViewFacts};

    #[test]
    fn fluxion_is_loaded_for_queue_policy_or_gpus() {
        let with_gpus = |spec: &str, fluxion: bool, gpus: u32| {
            let spec = AgentSpec::from_toml(&format!("name = 'mc'\n{spec}")).unwrap();
            let facts = Facts {
                view: ViewFacts {
                    fluxion,
                    ..ViewFacts::default()
                },
                gpus,
                ..Facts::default()
            };
            let resolved = Resolved::new(&spec, &facts).unwrap();
            (chosen(&resolved).ok(), notices(&resolved).len())
        };
        let of = |spec: &str, fluxion: bool| with_gpus(spec, fluxion, 0);
        let (simple, fluxion) = (
            Some(Some(SchedulerKind::Simple)),
            Some(Some(SchedulerKind::Fluxion)),
        );
        let gpus = "[runner]\ngpus = true\n";
        assert_eq!((of("", true), of("", false)), ((simple, 0), (Some(None), 0)));
        assert_eq!((of(gpus, true), of(gpus, false)), ((fluxion, 1), (Some(None), 1)));
        // Not requested by the runner's limits, but the pod has one.
        assert_eq!(
            (with_gpus("", true, 1), with_gpus("", false, 1)),
            ((fluxion, 1), (Some(None), 1))
        );
        let policy = "[flux]\nqueue_policy = 'easy'";
        assert_eq!(
            (of(policy, true), of(policy, false)),
            ((fluxion, 0), (Some(None), 1))
        );
        let table = "[flux.configs]\na = 'sched-fluxion-qmanager.queue-policy = \"easy\"'\n";
        assert_eq!(
            (of(table, true), of(table, false)),
            ((fluxion, 0), (Some(None), 1))
        );
        assert_eq!(
            of(&format!("[flux]\nscheduler = 'simple'\n{table}"), true),
            (simple, 1)
        );
        let own = "broker_config = ''";
        assert_eq!(
            of(&format!("{policy}\n{own}"), true),
            (simple, 0),
            "the policy has no effect"
        );
        assert_eq!(of(&format!("{gpus}[flux]\n{own}"), true), (fluxion, 0));
        let named = "[flux]\nscheduler = 'simple'\n";
        assert_eq!(of(&format!("{gpus}{named}"), true), (simple, 0));
        assert_eq!(of("[flux]\nscheduler = 'fluxion'", false), (None, 0));
        assert_eq!(
            of(&format!("[view]\nenabled = false\n{gpus}"), true),
            (Some(None), 0),
            "the image's own"
        );
    }
}
