//! What the operator renders for a MiniCluster, with a fixed key.

use flux_operator_core::render::{self, Objects, Options, RenderFacts};
use flux_shared::curve::Certificate;
use flux_shared::manifest;
use flux_shared::validate::validate;
use serde_json::Value;

/// The objects of a valid MiniCluster.
pub fn rendered(minicluster: &Value, options: &Options, facts: &RenderFacts) -> Objects {
    let cluster = validate(&manifest::from_value(minicluster).unwrap()).unwrap();
    let certificate = Certificate::from_keys("mc-0", &[1; 32], &[2; 32]);
    render::objects(&cluster, options, facts, certificate).unwrap()
}
