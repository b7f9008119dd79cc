//! Which scheduler Flux is told to load.
//!
//! Said: that one. A queue policy alone: Fluxion, if the view has it. Nothing: whatever Flux comes with.
//! Fluxion is made sure of twice: without its modules there is no plan, and with `[modules] alternatives`
//! (or, before `flux modprobe`, its rc1 script) the broker's start fails where it can't be loaded.

use flux_shared::agent_spec::SchedulerKind;

use super::{PlanError, Scene};

pub fn chosen(scene: &Scene) -> Result<Option<SchedulerKind>, PlanError> {
    let flux = &scene.spec.flux;
    let in_view = scene.spec.view.enabled && scene.facts.view.fluxion;
    match flux.scheduler {
        Some(SchedulerKind::Fluxion) if scene.spec.view.enabled && !in_view => {
            Err(PlanError::FluxionMissing(scene.paths.view()))
        }
        None if flux.queue_policy.is_some() && in_view => Ok(Some(SchedulerKind::Fluxion)),
        said => Ok(said),
    }
}

/// The module that provides the service `sched`.
pub fn module(kind: SchedulerKind) -> &'static str {
    match kind {
        SchedulerKind::Simple => "sched-simple",
        SchedulerKind::Fluxion => "sched-fluxion-qmanager",
    }
}
