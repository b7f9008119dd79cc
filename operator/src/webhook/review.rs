//! A ConversionReview and its answer. Pure and total: any bytes get an answer.
//!
//! Objects are converted one after the other, and their text is written out at once: memory is bounded by the size of the
//! request and the answer, whatever the objects hold.

use flux_shared::crd::convert::{Version, convert};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

/// What goes back to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP's status code.
    pub status: u16,
    pub body: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Deserialize)]
struct Request<'a> {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired: String,
    #[serde(borrow, default)]
    objects: Vec<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Reply<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    result: Value,
    converted_objects: Vec<Box<RawValue>>,
}

/// The answer to any request. Without a review in it there is nobody to answer: that is an error of HTTP.
pub fn answer(body: &[u8]) -> Answer {
    let review: Review = match serde_json::from_slice(body) {
        Ok(review) => review,
        Err(error) => return refusal(&format!("failed to read the {KIND}: {error}")),
    };
    if review.api_version != API_VERSION || review.kind != KIND {
        let (version, kind) = (review.api_version, review.kind);
        return refusal(&format!("is `{version}` `{kind}`, must be {API_VERSION} {KIND}"));
    }
    let Some(request) = review.request else { return refusal("the review has no request") };
    let (result, converted_objects) = match convert_all(&request) {
        Ok(objects) => (json!({ "status": "Success" }), objects),
        Err(message) => (json!({ "status": "Failure", "message": message }), Vec::new()),
    };
    let response = Response { uid: &request.uid, result, converted_objects };
    match serde_json::to_vec(&Reply { api_version: API_VERSION, kind: KIND, response }) {
        Ok(body) => Answer { status: 200, body },
        Err(error) => Answer { status: 500, body: error.to_string().into_bytes() },
    }
}

fn refusal(message: &str) -> Answer {
    Answer { status: 400, body: format!("{message}\n").into_bytes() }
}

fn convert_all(request: &Request) -> Result<Vec<Box<RawValue>>, String> {
    let to = Version::of(&request.desired)
        .ok_or_else(|| format!("failed to convert to `{}`: v1alpha1 and v1alpha2 are known", request.desired))?;
    let all = request.objects.iter().enumerate();
    all.map(|(i, text)| convert_one(text, to).map_err(|error| format!("object {i}: {error}"))).collect()
}

fn convert_one(text: &RawValue, to: Version) -> Result<Box<RawValue>, String> {
    let object: Value = serde_json::from_str(text.get()).map_err(|error| error.to_string())?;
    let named = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let place = format!("{}/{}", named("namespace"), named("name"));
    let converted = convert(object, to).map_err(|error| format!("{place}: {error}"))?;
    serde_json::value::to_raw_value(&converted).map_err(|error| format!("{place}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(objects: &[Value], desired: &str) -> Vec<u8> {
        let request = json!({ "uid": "u-1", "desiredAPIVersion": desired, "objects": objects });
        serde_json::to_vec(&json!({ "apiVersion": API_VERSION, "kind": KIND, "request": request })).unwrap()
    }

    fn cluster(name: &str, version: &str) -> Value {
        json!({
            "apiVersion": format!("flux-framework.org/{version}"), "kind": "MiniCluster",
            "metadata": { "name": name, "namespace": "ns", "uid": name, "labels": { "a": "b" } },
            "spec": { "size": 2, "containers": [{ "image": "app:1", "command": "work" }] },
        })
    }

    fn read(answer: &Answer) -> Value {
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        serde_json::from_slice(&answer.body).unwrap()
    }

    #[test]
    fn a_thousand_objects_are_converted_in_order() {
        let objects: Vec<Value> = (0..1000).map(|i| cluster(&format!("mc-{i}"), "v1alpha2")).collect();
        let answer = read(&answer(&review(&objects, "flux-framework.org/v1alpha1")));
        assert_eq!(answer["response"]["uid"], "u-1");
        assert_eq!(answer["response"]["result"], json!({ "status": "Success" }));
        let converted = answer["response"]["convertedObjects"].as_array().unwrap();
        assert_eq!(converted.len(), 1000);
        for (i, object) in converted.iter().enumerate() {
            assert_eq!(object["apiVersion"], "flux-framework.org/v1alpha1");
            assert_eq!(object["metadata"], objects[i]["metadata"]);
        }
    }

    #[test]
    fn one_object_that_is_none_fails_the_review_by_its_name() {
        let mut strange = cluster("odd", "v1alpha1");
        strange["apiVersion"] = json!("flux-framework.org/v7");
        let answer = read(&answer(&review(&[cluster("a", "v1alpha1"), strange], "flux-framework.org/v1alpha2")));
        assert_eq!(answer["response"]["result"]["status"], "Failure");
        let message = answer["response"]["result"]["message"].as_str().unwrap();
        assert!(message.starts_with("object 1: ns/odd: ") && message.contains("v7"), "{message}");
        assert_eq!(answer["response"]["convertedObjects"], json!([]));
    }

    #[test]
    fn a_version_that_is_not_known_is_named() {
        let answer = read(&answer(&review(&[cluster("a", "v1alpha1")], "flux-framework.org/v2")));
        assert!(answer["response"]["result"]["message"].as_str().unwrap().contains("flux-framework.org/v2"));
    }

    #[test]
    fn a_body_that_is_cut_off_anywhere_is_answered() {
        let whole = review(&[cluster("a", "v1alpha1")], "flux-framework.org/v1alpha2");
        for end in 0..whole.len() {
            assert_eq!(answer(&whole[..end]).status, 400, "{end}");
        }
        let deep = "[".repeat(1_000_000);
        assert_eq!(answer(deep.as_bytes()).status, 400);
        assert_eq!(answer(br#"{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"ConversionReview"}"#).status, 400);
    }

    #[test]
    fn a_deep_object_is_answered() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let whole = String::from_utf8(review(&[json!("HERE")], "flux-framework.org/v1alpha2")).unwrap();
        let answer = answer(whole.replace("\"HERE\"", &deep).as_bytes());
        assert!(matches!(answer.status, 200 | 400));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let _ = answer(&bytes);
        }

        #[test]
        fn any_change_of_a_byte_is_answered(at in 0usize..400, byte in proptest::num::u8::ANY) {
            let mut whole = review(&[cluster("a", "v1alpha1")], "flux-framework.org/v1alpha2");
            let at = at % whole.len();
            whole[at] = byte;
            let _ = answer(&whole);
        }
    }
}
