//! The certificate: from the mounted Secret to a file that Flux accepts (a Secret's own mode may be too open).

use flux_shared::paths::CURVE_FILE;

use super::{Content, Mode, Planned, Scene, Step};

pub fn step(scene: &Scene) -> Option<Planned> {
    let content = Content::Curve { source: CURVE_FILE.into() };
    let owner = scene.identity.owner;
    let step = Step::File { path: scene.paths.curve_cert(), mode: Mode(0o400), owner, content };
    scene.needs_curve().then(|| Planned::with(&["uid", "curve"], step))
}
