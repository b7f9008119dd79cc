//! The certificate: copied from the mounted Secret to a file that Flux accepts (a Secret's own mode may be
//! too open), or derived from a mounted seed.

use flux_shared::names;
use flux_shared::paths::CURVE_FILE;

use super::{Content, Mode, Resolved, Step};

pub fn step(resolved: &Resolved) -> Option<Step> {
    if !resolved.needs_curve() {
        return None;
    }
    let content = match &resolved.facts.key {
        None => Content::Curve {
            source: CURVE_FILE.into(),
        },
        Some(inputs) => {
            // With the name: a JobSet has one uid, and may have several Jobs, each of which is an instance of its
            // own.
            let name = &resolved.spec.name;
            let values = [name.clone()]
                .into_iter()
                .chain(inputs.job_values.iter().cloned())
                .collect();
            Content::DerivedCurve {
                seed: inputs.seed_file.clone(),
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
