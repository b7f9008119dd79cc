//! Answers a ConversionReview. Pure. Any bytes get an answer, and none make it panic.
//!
//! Each object is converted when it is read, and its text is written to the answer at once. So memory is bounded by
//! the sizes of the request and the answer, and by the largest object that is accepted.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use flux_shared::crd::convert::{Version, convert};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";
/// Longest text of an object, in bytes. The API server stores at most 1.5 MiB. But Go's JSON writes some characters as
/// six (`<` as `\u003c`).
const OBJECT_MAX: usize = 10 << 20;
/// Most values of an object. A value may have only two bytes of text, but takes more than a hundred bytes of memory
/// when it is parsed. A list or map with one member takes at least four times as much, so `[` counts as three values,
/// `{` as two, and each name in a map as one.
const VALUES_MAX: usize = 200_000;
/// Longest uid and desired version of a review, in bytes. Longest name in a message, in characters.
const NAME_MAX: usize = 256;
/// Longest message, in characters.
const MESSAGE_MAX: usize = 2000;
/// Largest answer, as a multiple of the size of the request's objects.
const GROWTH_MAX: usize = 4;
/// Largest answer, in bytes.
const ANSWER_MAX: usize = 40 << 20;
/// Bytes of room beyond the size of the objects: in the answer's buffer, and in the limit by `GROWTH_MAX`.
const SPARE: usize = 64 << 10;

/// The HTTP answer to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status code.
    pub status: u16,
    /// Whether all objects were converted.
    pub is_success: bool,
    pub body: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    request: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow, rename = "desiredAPIVersion")]
    desired: Cow<'a, str>,
    /// The text of the list of objects. It is parsed one object at a time, when the desired version is known.
    #[serde(borrow, default)]
    objects: Option<&'a RawValue>,
}

/// The members of the response that follow the list of converted objects.
#[derive(Serialize)]
struct ResponseTail<'a> {
    uid: &'a str,
    result: Value,
}

/// The answer to a request with this body. If the body is no ConversionReview, it is an HTTP error (400).
pub fn answer(body: &[u8]) -> Answer {
    let review: Review = match read_object(body) {
        Ok(review) => review,
        Err(error) => return refusal(&format!("failed to read the {KIND}: {error}")),
    };
    if review.api_version != API_VERSION || review.kind != KIND {
        let (version, kind) = (
            short(&review.api_version, NAME_MAX),
            short(&review.kind, NAME_MAX),
        );
        return refusal(&format!(
            "the request is a `{kind}` of `{version}`, expected {KIND} of {API_VERSION}"
        ));
    }
    let Some(request) = review.request else {
        return refusal("the review has no request");
    };
    let request: Request = match read_object(request.get().as_bytes()) {
        Ok(request) => request,
        Err(error) => return refusal(&format!("failed to read the review's request: {error}")),
    };
    if request.uid.len() > NAME_MAX || request.desired.len() > NAME_MAX {
        return refusal("the review's uid or desired version is too long");
    }
    // `convertedObjects` is written before `result`, which is known only after the last object.
    let text = format!(
        "{{\"apiVersion\":\"{API_VERSION}\",\"kind\":\"{KIND}\",\"response\":{{\"convertedObjects\":["
    );
    let mut out = text.into_bytes();
    let begin = out.len();
    out.reserve_exact(body.len() + SPARE);
    let converted = convert_all(&request, &mut out);
    let is_success = converted.is_ok();
    let result = match converted {
        Ok(()) => json!({ "status": "Success" }),
        Err(message) => {
            out.truncate(begin);
            json!({ "status": "Failure", "message": short(&message, MESSAGE_MAX) })
        }
    };
    let tail = serde_json::to_vec(&ResponseTail {
        uid: &request.uid,
        result,
    });
    match tail {
        Ok(tail) => {
            out.extend_from_slice(b"],");
            // The tail without its `{`: its members follow the list. Its `}` ends the response.
            out.extend_from_slice(tail.get(1..).unwrap_or_default());
            out.push(b'}');
            Answer {
                status: 200,
                is_success,
                body: out,
            }
        }
        Err(error) => Answer {
            status: 500,
            is_success: false,
            body: error.to_string().into_bytes(),
        },
    }
}

/// Reads a JSON object into a struct. Anything else is rejected before serde reads it: serde's error would quote a
/// string with up to six bytes for each of its own, and serde would accept a list of the fields' values.
fn read_object<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, String> {
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err("it is not an object".to_owned());
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// The first `length` characters of a text.
fn short(text: &str, length: usize) -> &str {
    text.char_indices()
        .nth(length)
        .map_or(text, |(end, _)| text.get(..end).unwrap_or_default())
}

/// An HTTP error with this message.
fn refusal(message: &str) -> Answer {
    Answer {
        status: 400,
        is_success: false,
        body: format!("{}\n", short(message, MESSAGE_MAX)).into_bytes(),
    }
}

/// Writes the converted objects to `out`, with commas between them. After an error, `out` has a part of them.
fn convert_all(request: &Request, out: &mut Vec<u8>) -> Result<(), String> {
    let to = Version::of(&request.desired).ok_or_else(|| {
        format!(
            "failed to convert to `{}`: v1alpha1 and v1alpha2 are known",
            request.desired
        )
    })?;
    let Some(objects) = request.objects else {
        return Ok(());
    };
    // serde's error would quote a string (see `read_object`).
    if !objects.get().starts_with('[') {
        return Err("the review's `objects` is not a list".to_owned());
    }
    let bytes_max = (GROWTH_MAX * objects.get().len() + SPARE).min(ANSWER_MAX);
    let converter = ObjectConverter { to, out, bytes_max };
    serde_json::Deserializer::from_str(objects.get())
        .deserialize_seq(converter)
        .map_err(|error| error.to_string())
}

/// Converts each object of a list as it is read.
struct ObjectConverter<'a> {
    to: Version,
    out: &'a mut Vec<u8>,
    /// Largest answer, in bytes.
    bytes_max: usize,
}

impl<'de> Visitor<'de> for ObjectConverter<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut number = 0;
        while let Some(text) = list.next_element::<&RawValue>()? {
            if number > 0 {
                self.out.push(b',');
            }
            // Room for the converted object, to which conversion may add fields. `Vec` itself would double its
            // capacity, which is too much for a large answer.
            if self.out.capacity() - self.out.len() < text.get().len() + SPARE / 2 {
                self.out.reserve_exact(2 * text.get().len() + SPARE);
            }
            convert_one(text.get(), self.to, self.out)
                .map_err(|error| A::Error::custom(format_args!("object {number}: {error}")))?;
            if self.out.len() > self.bytes_max {
                return Err(A::Error::custom(
                    "the converted objects are too large: list fewer at once",
                ));
            }
            number += 1;
        }
        Ok(())
    }
}

/// Converts the text of one object, and writes the result to `out`.
fn convert_one(text: &str, to: Version, out: &mut Vec<u8>) -> Result<(), String> {
    let too_large = || {
        format!("is larger than a MiniCluster can be: more than {OBJECT_MAX} bytes, or {VALUES_MAX} values")
    };
    if text.len() > OBJECT_MAX {
        return Err(too_large());
    }
    let verbatim = verbatim_members(text);
    // Values of members that are copied as text do not count, since they are not parsed.
    let verbatim_values: usize = verbatim.iter().map(|member| count_values(member.text)).sum();
    if count_values(text).saturating_sub(verbatim_values) > VALUES_MAX {
        return Err(too_large());
    }
    let object = if verbatim.is_empty() {
        serde_json::from_str(text)
    } else {
        parse_without(text, &verbatim)
    };
    let object = object.map_err(|error| error.to_string())?;
    let metadata =
        |field: &str| short(object["metadata"][field].as_str().unwrap_or_default(), NAME_MAX).to_owned();
    let full_name = format!("{}/{}", metadata("namespace"), metadata("name"));
    let converted = convert(object, to).map_err(|error| format!("{full_name}: {error}"))?;
    write(&converted, &verbatim, out).map_err(|error| format!("{full_name}: {error}"))
}

/// The parents of the members that are copied as text. (serde skips other members, however many, without storing them.)
#[derive(Default, Deserialize)]
struct Parents<'a> {
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
}

/// Members of `metadata` that are copied as text, since they are the same in both versions. Their depth and number of
/// values are not limited: if such an object were rejected, nobody could list any MiniCluster. (Annotations are not
/// among them, since conversion writes one.)
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VerbatimMetadata<'a> {
    #[serde(borrow)]
    finalizers: Option<&'a RawValue>,
    #[serde(borrow)]
    labels: Option<&'a RawValue>,
    #[serde(borrow)]
    managed_fields: Option<&'a RawValue>,
    #[serde(borrow)]
    owner_references: Option<&'a RawValue>,
}

/// Members of `spec` that are copied as text, for the same reason.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VerbatimSpec<'a> {
    #[serde(borrow)]
    pod_template: Option<&'a RawValue>,
    #[serde(borrow)]
    services_pod_template: Option<&'a RawValue>,
}

/// A member that is copied as text.
struct VerbatimMember<'a> {
    parent: &'static str,
    name: &'static str,
    text: &'a str,
}

/// The members of an object that are copied as text.
fn verbatim_members(text: &str) -> Vec<VerbatimMember<'_>> {
    fn read<'a, T: Default + Deserialize<'a>>(object: Option<&'a RawValue>) -> T {
        object
            .and_then(|object| read_object(object.get().as_bytes()).ok())
            .unwrap_or_default()
    }
    let parents: Parents = read_object(text.as_bytes()).unwrap_or_default();
    let metadata: VerbatimMetadata = read(parents.metadata);
    let spec: VerbatimSpec = read(parents.spec);
    let members = [
        ("metadata", "finalizers", metadata.finalizers),
        ("metadata", "labels", metadata.labels),
        ("metadata", "managedFields", metadata.managed_fields),
        ("metadata", "ownerReferences", metadata.owner_references),
        ("spec", "podTemplate", spec.pod_template),
        ("spec", "servicesPodTemplate", spec.services_pod_template),
    ];
    let members = members.into_iter().filter_map(|(parent, name, raw)| {
        let text = raw?.get();
        Some(VerbatimMember { parent, name, text })
    });
    members.collect()
}

/// The members of a JSON object, as text. As a key, each name is a copy: only for an object within the limits.
type Members<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

/// Parses an object without its verbatim members.
fn parse_without(text: &str, verbatim: &[VerbatimMember]) -> Result<Value, serde_json::Error> {
    let mut object = Map::new();
    for (key, raw) in serde_json::from_str::<Members>(text)? {
        let is_parent = verbatim.iter().any(|member| member.parent == key);
        let value = if is_parent {
            let mut rest: Members = serde_json::from_str(raw.get())?;
            rest.retain(|name, _| {
                !verbatim
                    .iter()
                    .any(|member| member.parent == key && member.name == name)
            });
            let rest = rest
                .into_iter()
                .map(|(name, raw)| Ok((name.into_owned(), serde_json::from_str(raw.get())?)));
            Value::Object(rest.collect::<Result<_, serde_json::Error>>()?)
        } else {
            serde_json::from_str(raw.get())?
        };
        object.insert(key.into_owned(), value);
    }
    Ok(Value::Object(object))
}

/// Writes an object, with the verbatim members back in their parents.
fn write(object: &Value, verbatim: &[VerbatimMember], out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
    let (Some(members), false) = (object.as_object(), verbatim.is_empty()) else {
        return serde_json::to_writer(out, object);
    };
    for (i, (key, value)) in members.iter().enumerate() {
        out.push(if i == 0 { b'{' } else { b',' });
        serde_json::to_writer(&mut *out, key)?;
        out.push(b':');
        serde_json::to_writer(&mut *out, value)?;
        let own_verbatim = verbatim.iter().filter(|member| member.parent == key);
        // The first member of an empty parent needs no comma before it.
        let mut comma = if value.as_object().is_some_and(Map::is_empty) {
            ""
        } else {
            ","
        };
        for VerbatimMember { name, text, .. } in own_verbatim {
            // The `}` that ends the parent: it is written again after the member.
            out.pop();
            out.extend_from_slice(format!("{comma}\"{name}\":{text}}}").as_bytes());
            comma = ",";
        }
    }
    out.push(b'}');
    Ok(())
}

/// At least the number of values in a JSON text, with weights for what takes more memory (see `VALUES_MAX`).
fn count_values(text: &str) -> usize {
    let (mut number, mut in_string, mut escaped) = (1, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b':' if !in_string => number += 1,
            b'{' if !in_string => number += 2,
            b'[' if !in_string => number += 3,
            _ => {}
        }
    }
    number
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
        let objects: Vec<Value> = (0..1000)
            .map(|i| cluster(&format!("mc-{i}"), "v1alpha2"))
            .collect();
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
    fn review_fails_and_names_the_object_of_unknown_version() {
        let mut strange = cluster("odd", "v1alpha1");
        strange["apiVersion"] = json!("flux-framework.org/v7");
        let answer = read(&answer(&review(
            &[cluster("a", "v1alpha1"), strange],
            "flux-framework.org/v1alpha2",
        )));
        assert_eq!(answer["response"]["result"]["status"], "Failure");
        let message = answer["response"]["result"]["message"].as_str().unwrap();
        assert!(
            message.starts_with("object 1: ns/odd: ") && message.contains("v7"),
            "{message}"
        );
        assert_eq!(answer["response"]["convertedObjects"], json!([]));
    }

    #[test]
    fn message_names_a_desired_version_that_is_unknown() {
        let answer = read(&answer(&review(
            &[cluster("a", "v1alpha1")],
            "flux-framework.org/v2",
        )));
        assert!(
            answer["response"]["result"]["message"]
                .as_str()
                .unwrap()
                .contains("flux-framework.org/v2")
        );
    }

    #[test]
    fn truncated_body_is_answered_with_400() {
        let whole = review(&[cluster("a", "v1alpha1")], "flux-framework.org/v1alpha2");
        for end in 0..whole.len() {
            assert_eq!(answer(&whole[..end]).status, 400, "{end}");
        }
        let deep = "[".repeat(1_000_000);
        assert_eq!(answer(deep.as_bytes()).status, 400);
        assert_eq!(
            answer(br#"{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"ConversionReview"}"#).status,
            400
        );
    }

    #[test]
    fn deeply_nested_object_is_answered() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let whole = String::from_utf8(review(&[json!("HERE")], "flux-framework.org/v1alpha2")).unwrap();
        let answer = answer(whole.replace("\"HERE\"", &deep).as_bytes());
        assert!(matches!(answer.status, 200 | 400));
    }

    /// The API server stores overlays of any depth. A list of all objects fails if one of them cannot be converted.
    #[test]
    fn conversion_keeps_overlays_of_any_depth_or_width() {
        let deep = format!("{}{}", "{\"a\":[".repeat(5000), "]}".repeat(5000));
        let wide = format!("{{\"spec\":[{}0]}}", "0,".repeat(VALUES_MAX));
        for (from, to) in [("v1alpha2", "v1alpha1"), ("v1alpha1", "v1alpha2")] {
            let mut object = cluster("a", from);
            object["spec"]["podTemplate"] = json!("DEEP");
            object["spec"]["servicesPodTemplate"] = json!("WIDE");
            let whole = String::from_utf8(review(&[object], &format!("flux-framework.org/{to}"))).unwrap();
            let body = whole.replace("\"DEEP\"", &deep).replace("\"WIDE\"", &wide);
            let text = String::from_utf8(answer(body.as_bytes()).body).unwrap();
            let plain = text.replace(&deep, "\"DEEP\"").replace(&wide, "\"WIDE\"");
            let read: Value = serde_json::from_str(&plain).unwrap();
            let converted = &read["response"]["convertedObjects"][0];
            assert_eq!(converted["apiVersion"], format!("flux-framework.org/{to}"));
            assert_eq!(
                (
                    &converted["spec"]["podTemplate"],
                    &converted["spec"]["servicesPodTemplate"]
                ),
                (&json!("DEEP"), &json!("WIDE"))
            );
            assert_eq!(converted["spec"]["containers"][0]["image"], "app:1");
        }
    }

    /// If one object is refused, every list that needs its conversion fails.
    #[test]
    fn conversion_keeps_metadata_of_any_size() {
        let mut object = cluster("a", "v1alpha2");
        let labels: Map<String, Value> = (0..70_000).map(|i| (format!("l{i}"), json!(""))).collect();
        let owned: Map<String, Value> = labels.keys().map(|key| (format!("f:{key}"), json!({}))).collect();
        object["metadata"]["labels"] = Value::Object(labels);
        object["metadata"]["finalizers"] = json!(["a/b", "c/d"]);
        object["metadata"]["managedFields"] =
            json!([{ "fieldsV1": { "f:metadata": { "f:labels": owned } } }]);
        let metadata = object["metadata"].clone();
        let answer = read(&answer(&review(&[object], "flux-framework.org/v1alpha1")));
        assert_eq!(answer["response"]["result"], json!({ "status": "Success" }));
        assert_eq!(answer["response"]["convertedObjects"][0]["metadata"], metadata);
    }

    #[test]
    fn object_larger_than_api_server_stores_is_not_parsed() {
        let whole = String::from_utf8(review(&[json!("HERE")], "flux-framework.org/v1alpha2")).unwrap();
        let zeros = format!("{{\"spec\":[{}0]}}", "0,".repeat(VALUES_MAX));
        for large in [zeros, format!("\"{}\"", "x".repeat(OBJECT_MAX))] {
            let answer = read(&answer(whole.replace("\"HERE\"", &large).as_bytes()));
            let message = answer["response"]["result"]["message"].as_str().unwrap();
            assert!(message.starts_with("object 0: is larger"), "{message}");
        }
        // The largest that is stored, 1.5 MiB, of characters that Go writes as six.
        let mut script = cluster("a", "v1alpha2");
        script["spec"]["containers"][0]["command"] = json!("HERE");
        let whole = String::from_utf8(review(&[script], "flux-framework.org/v1alpha1")).unwrap();
        let body = whole.replace("HERE", &"\\u003c".repeat(3 << 19));
        assert_eq!(
            read(&answer(body.as_bytes()))["response"]["result"]["status"],
            "Success"
        );
    }

    #[test]
    fn string_instead_of_object_or_list_is_not_quoted() {
        let string = format!("\"{}\"", "\u{7f}".repeat(100_000));
        let request =
            format!("{{\"apiVersion\":\"{API_VERSION}\",\"kind\":\"{KIND}\",\"request\":{string}}}");
        for body in [&string, "[]", &request] {
            let answer = answer(body.as_bytes());
            assert_eq!(answer.status, 400);
            let text = String::from_utf8(answer.body).unwrap();
            assert!(text.ends_with("it is not an object\n"), "{text}");
        }
        let whole = String::from_utf8(review(&[], "flux-framework.org/v1alpha2")).unwrap();
        let answer = read(&answer(whole.replace("[]", &string).as_bytes()));
        assert_eq!(
            answer["response"]["result"]["message"],
            "the review's `objects` is not a list"
        );
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
