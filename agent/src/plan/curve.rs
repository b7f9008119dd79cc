//! The certificate: from the mounted Secret to a file that Flux accepts (a Secret's own mode may be too open).

use flux_shared::paths::CURVE_FILE;

use super::{Content, Mode, Planned, Resolved, Step};

pub fn step(resolved: &Resolved) -> Option<Planned> {
    let content = Content::Curve { source: CURVE_FILE.into() };
    let owner = resolved.identity.owner;
    let step = Step::File { path: resolved.paths.curve_cert(), mode: Mode(0o400), owner, content };
    resolved.needs_curve().then(|| Planned::with(&["uid", "curve"], step))
}
