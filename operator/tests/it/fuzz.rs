//! Whatever validation accepts can be rendered: no panic, no error, no endless run. The webhook answers any review,
//! also a corrupted one.

use flux_operator::webhook::review;
use flux_operator_core::render::{self, Options, RenderFacts};
use flux_shared::curve::Certificate;
use flux_shared::{manifest, validate};
use test_support::mutate;

#[test]
fn accepted_manifest_can_be_rendered() {
    let examples = mutate::miniclusters();
    let mut rendered = 0;
    mutate::for_a_while(4, |dice| {
        let document = mutate::spoilt(&examples, dice);
        let Ok(cluster) = manifest::from_value(&document).and_then(|manifest| validate::validate(&manifest))
        else {
            return;
        };
        let certificate = Certificate::from_keys("fuzz", &[1; 32], &[2; 32]);
        // Rendering uses these recorded sizes, not those of the spec.
        let facts = RenderFacts {
            uid: Some("uid".into()),
            initial_size: Some(2),
            maximum_size: Some(3),
            ..RenderFacts::default()
        };
        let objects = render::objects(&cluster, &Options::default(), &facts, certificate).unwrap();
        serde_json::to_string(&objects.job).unwrap();
        rendered += 1;
    });
    assert!(rendered > 5, "only {rendered} were rendered");
}

/// A review whose text is corrupted in a few places.
fn spoilt_review(examples: &[serde_json::Value], dice: &mut mutate::Dice) -> Vec<u8> {
    let version = ["v1alpha1", "v1alpha2", "v1", ""][dice.roll(4)];
    let objects: Vec<_> = (0..dice.roll(4))
        .map(|_| mutate::spoilt(examples, dice))
        .collect();
    let review = serde_json::json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": { "uid": "u", "desiredAPIVersion": format!("flux-framework.org/{version}"), "objects": objects },
    });
    let mut bytes = review.to_string().into_bytes();
    for _ in 0..dice.roll(4) {
        let (at, from) = (dice.roll(bytes.len()), dice.roll(bytes.len()));
        match dice.roll(5) {
            0 => bytes.truncate(at),
            1 => bytes[at] = *dice.pick(&[b'{', b'[', b'"', b'\\', b',', b'0', 0, 0xff]),
            2 => drop(bytes.drain(at.min(from)..at.max(from))),
            3 => {
                let piece = bytes[at.min(from)..at.max(from)].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let many = *dice.pick(&["[", "{\"a\":", "0,", "\\u003c"]);
                bytes.splice(at..at, many.repeat(1 << dice.roll(19)).into_bytes());
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

#[test]
fn webhook_answers_any_review() {
    let examples = mutate::miniclusters();
    let mut converted = 0;
    mutate::for_a_while(4, |dice| {
        let answer = review::answer(&spoilt_review(&examples, dice));
        assert!(matches!(answer.status, 200 | 400), "{}", answer.status);
        if answer.status == 200 {
            let answer: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            let verdict = answer["response"]["result"]["status"].as_str().unwrap();
            let objects = answer["response"]["convertedObjects"].as_array().unwrap();
            assert!(verdict == "Success" || objects.is_empty(), "{verdict}");
            converted += usize::from(verdict == "Success" && !objects.is_empty());
        }
    });
    assert!(converted > 5, "only {converted} were converted");
}
