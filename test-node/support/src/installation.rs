//! The installation that tests apply: images that nothing pulls, and a repository that nothing clones.

use flux_operator::install::{Installation, NAME};

pub fn installation() -> Installation {
    Installation {
        image: "operator:test".into(),
        agent_image: "agent:test".into(),
        view_image: "view:test".into(),
        restful_repository: "repository:test".into(),
        ..Installation::usual(NAME).unwrap()
    }
}
