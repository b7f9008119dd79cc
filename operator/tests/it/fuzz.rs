//! What validation accepts can be rendered, whatever the user wrote: no panic, no error, no endless time.

use flux_operator::render::{self, Facts, Options};
use flux_shared::curve::Certificate;
use flux_shared::{manifest, validate};

#[path = "../../../shared/tests/fuzz/mutate.rs"]
mod mutate;

#[test]
fn what_is_accepted_can_be_rendered() {
    let examples = mutate::miniclusters();
    let mut rendered = 0;
    mutate::for_a_while(4, |dice| {
        let document = mutate::spoilt(&examples, dice);
        let Ok(cluster) = manifest::from_value(&document).and_then(|manifest| validate::validate(&manifest)) else {
            return;
        };
        let certificate = Certificate::from_keys("fuzz", &[1; 32], &[2; 32]);
        let facts = Facts { uid: Some("uid".into()), initial_size: Some(2), maximum_size: Some(3), ..Facts::default() };
        let objects = render::objects(&cluster, &Options::default(), &facts, certificate).unwrap();
        serde_json::to_string(&objects.job).unwrap();
        rendered += 1;
    });
    assert!(rendered > 5, "only {rendered} were rendered");
}
