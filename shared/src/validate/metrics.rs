//! Checks the port on which the lead serves the instance's metrics: nothing else in the pod may use it.

use super::ValidRestful;
use super::report::Report;
use crate::crd::v1alpha2::{Flux, MiniClusterSpec};

pub(super) const FIELD: &str = "spec.flux.metricsPort";

/// The port for metrics, checked; None if no metrics are served.
pub(super) fn port(
    spec: &MiniClusterSpec,
    flux: &Flux,
    lead_is_elsewhere: bool,
    report: &mut Report,
) -> Option<u16> {
    let given = flux.metrics_port?;
    let Some(port) = u16::try_from(given).ok().filter(|port| *port > 0) else {
        report.problem(FIELD, "must be 1 to 65535");
        return None;
    };
    let without_effect = if flux.disable_socket {
        Some("the broker cannot be asked without its socket (disableSocket)")
    } else if lead_is_elsewhere {
        Some("the lead broker is in another cluster")
    } else {
        None
    };
    if let Some(why) = without_effect {
        report.notice(FIELD, format!("has no effect: {why}"));
        return None;
    }
    for (i, _) in spec
        .containers
        .iter()
        .enumerate()
        .filter(|(_, container)| container.ports.contains(&given))
    {
        let why =
            format!("{port} is a port of spec.containers[{i}] as well, in the same pod: choose another");
        report.problem(FIELD, why);
    }
    Some(port)
}

/// Reports the port for metrics if the Flux RESTful API has it too. `restful`: None if this cluster does not serve it.
pub(super) fn check_restful(port: Option<u16>, restful: Option<&ValidRestful>, report: &mut Report) {
    if let (Some(port), Some(restful)) = (port, restful)
        && restful.port == port
    {
        report.problem(
            FIELD,
            format!("{port} is the port of spec.fluxRestful as well: choose another"),
        );
    }
}
