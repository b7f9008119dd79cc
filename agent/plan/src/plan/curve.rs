//! The step that writes the curve certificate. It is copied from the mounted Secret, whose mode may be too open
//! for Flux, or derived from a mounted seed.

use flux_shared::names;
use flux_shared::paths::CURVE_FILE;

use super::{Content, Mode, Resolved, Step};

/// The step that writes the certificate. None: the instance needs no certificate.
pub fn step(resolved: &Resolved) -> Option<Step> {
    if !resolved.needs_curve() {
        return None;
    }
    let content = match &resolved.facts.key {
        None => Content::Curve {
            source: CURVE_FILE.into(),
        },
        Some(inputs) => {
            // Each Job of a JobSet is an instance of its own, but all of them may pass the same values: the JobSet's
            // uid and attempt. So the cluster's name, which is the Job's, is one of the values.
            let name = &resolved.spec.name;
            let values = [name.clone()]
                .into_iter()
                .chain(inputs.job_values.iter().cloned())
                .collect();
            Content::DerivedCurve {
                seed: inputs.seed_file.clone(),
                // Brokers with children need a name, which Flux only logs. The operator's own certificates have this
                // one, too: that of the lead's host.
                name: names::host(name, 0),
                of: values,
            }
        }
    };
    Some(Step::File {
        path: resolved.paths.curve_cert(),
        mode: Mode(0o400),
        owner: resolved.identity.owner,
        content,
    })
}
