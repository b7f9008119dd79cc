//! Secrets may appear in their Secret objects and nowhere else. The test searches every object, the
//! operator's log at its most verbose level, its metrics, and the output for users. It looks for the curve
//! key, passwords and tokens.

use std::io::Write;
use std::process::{Command, Stdio};

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DynamicObject, ListParams};
use kube::discovery::{Discovery, verbs};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::operator_process;
use test_support::api_server::{Fixture, test};

/// All secret values in the Secrets of a MiniCluster, each with its place. Of a certificate, only the secret key is
/// secret.
async fn secrets(fixture: &Fixture, cluster: &str) -> Vec<(String, String)> {
    let all = fixture.all::<Secret>().await;
    let mine = all
        .into_iter()
        .filter(|secret| secret.name_any().starts_with(&format!("{cluster}-")));
    let mut found = Vec::new();
    for secret in mine {
        for (key, value) in secret.data.iter().flatten() {
            let place = format!("{}/{key}", secret.name_any());
            let text = String::from_utf8(value.0.clone()).unwrap();
            match text
                .lines()
                .find_map(|line| line.trim().strip_prefix("secret-key = "))
            {
                Some(key) => found.push((place, key.trim_matches('"').to_owned())),
                None if text.len() >= 8 => found.push((place, text)),
                // Only the user name of the API (`flux`) is so short. It is not secret.
                None => {}
            }
        }
    }
    found
}

/// Every object that an administrator can list, as text, except Secrets. The MiniClusters are without `curveCert`, into
/// which an author may write a key.
async fn everything(fixture: &Fixture) -> Vec<(String, String)> {
    let discovery = Discovery::new(fixture.client.clone()).run().await.unwrap();
    let mut all = Vec::new();
    for (resource, capabilities) in discovery.groups().flat_map(|group| group.recommended_resources()) {
        if resource.kind == "Secret" || !capabilities.supports_operation(verbs::LIST) {
            continue;
        }
        let api: Api<DynamicObject> = Api::all_with(fixture.client.clone(), &resource);
        let list = match api.list(&ListParams::default()).await {
            Ok(list) => list,
            // Discovery names kinds that cannot be listed, and CRDs may be deleted meanwhile.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 405) => continue,
            Err(error) => panic!("{}: {error}", resource.kind),
        };
        for mut object in list.items {
            if resource.kind == "MiniCluster" {
                object.data["spec"]["flux"]["curveCert"].take();
            }
            let place = format!("{} {}", resource.kind, object.name_any());
            all.push((place, serde_json::to_string(&object).unwrap()));
        }
    }
    all
}

/// The curve key in the spec of the MiniCluster `given`.
const GIVEN_KEY: &str = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";

#[test]
fn secrets_are_seen_in_their_secrets_only() {
    test("canary", async |fixture| {
        let mut operator = operator_process::start(&fixture.namespace, "trace", Stdio::piped());
        let log = operator.log();
        run_until_failed(&fixture).await;
        // One letter is missing, so the key is refused.
        let typo = &GIVEN_KEY[1..];
        give_keys(&fixture, typo).await;

        let mut needles = secrets(&fixture, "made").await;
        // The curve key, two passwords, and the API's key and token.
        assert!(
            needles.len() >= 5,
            "{:?}",
            needles.iter().map(|(place, _)| place).collect::<Vec<_>>()
        );
        needles.extend([
            ("given".to_owned(), GIVEN_KEY.to_owned()),
            ("typo".to_owned(), typo.to_owned()),
        ]);
        let mut places = everything(&fixture).await;
        for kind in ["Event ", "ConfigMap made-agent"] {
            let is_searched = places.iter().any(|(place, _)| place.starts_with(kind));
            assert!(is_searched, "{kind}");
        }
        let metrics = operator.metrics();
        assert!(metrics.contains("leader_election_master_status{name=\"flux-framework-flux-operator\"} 1"));
        places.push(("the metrics".into(), metrics));
        places.push(("what is rendered".into(), render(&fixture, "given").await));
        fixture.delete::<MiniCluster>("made").await;
        // The log then has what the operator says about a deletion.
        fixture.until_gone::<MiniCluster>("made").await;
        drop(operator);
        let log = log.join().unwrap();
        assert!(
            log.contains("created the Job") && log.contains("TRACE"),
            "the log is searched"
        );
        places.push(("the log".into(), log));
        for (name, needle) in &needles {
            assert_eq!(seen(needle, &places), Vec::<&str>::new(), "{name} is seen");
        }
    });
}

/// Runs the MiniCluster `made` until its job fails. The operator creates and writes as much for it as possible.
async fn run_until_failed(fixture: &Fixture) {
    let containers = json!([
        { "image": "app:1", "runFlux": true },
        { "image": "db:1", "name": "db", "ports": [5432] },
    ]);
    let spec = json!({
        "size": 2, "maxSize": 3, "containers": containers, "users": [{ "name": "ada" }, { "name": "bob" }],
        "fluxRestful": {}, "services": [{ "image": "cache:1", "name": "cache" }],
    });
    fixture.create("made", spec).await;
    let pods = fixture.run_pods("made", 2).await;
    fixture.when_condition("made", "Ready", "True").await;
    fixture.edit("made", json!({ "size": 3 })).await;
    fixture.pods("made", 3).await;
    fixture
        .end_pod(&pods[&0], 7, "Error", "the job's own words")
        .await;
    let status = fixture.when_finished("made", "Failed").await;
    assert_eq!(status["exitCode"], 7);
}

/// Two MiniClusters whose author wrote a certificate: one with a valid key, one with a typo in it.
async fn give_keys(fixture: &Fixture, typo: &str) {
    for (name, key) in [("given", GIVEN_KEY), ("typo", typo)] {
        let cert = format!(
            "metadata\n    name = \"mc\"\ncurve\n    public-key = \"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{{hID\"\n    secret-key = \"{key}\"\n"
        );
        let spec = json!({ "size": 1, "flux": { "curveCert": cert } });
        fixture.create(name, spec).await;
    }
    fixture.when_is("typo", "phase", "Invalid").await;
    fixture.pods("given", 1).await;
}

/// Where a text appears: as it is, as JSON quotes it, or in base64 as in a Secret.
fn seen<'a>(needle: &str, places: &'a [(String, String)]) -> Vec<&'a str> {
    let quoted = Value::from(needle).to_string();
    let mut forms = vec![needle.to_owned(), quoted.trim_matches('"').to_owned()];
    forms.extend((0..3).map(|before| base64_after(before, needle)));
    let seen = places
        .iter()
        .filter(|(_, text)| forms.iter().any(|form| text.contains(form)));
    seen.map(|(place, _)| place.as_str()).collect()
}

/// The base64 letters that depend on `needle` alone, with this many other bytes (modulo 3) before it: a curve
/// key is in the middle of a certificate.
fn base64_after(before: usize, needle: &str) -> String {
    let bytes = [vec![0; before], needle.as_bytes().to_vec()].concat();
    let letters = (before * 8).div_ceil(6)..bytes.len() * 8 / 6;
    let encoded = serde_json::to_value(ByteString(bytes)).unwrap();
    encoded.as_str().unwrap()[letters].to_owned()
}

#[test]
fn secret_is_seen_plain_quoted_and_at_any_place_of_base64() {
    let needle = "say \"secret\"";
    for place in [
        format!("x{needle}y"),
        json!({ "key": needle }).to_string(),
        json!(ByteString(needle.into())).to_string(),
        json!(ByteString(format!("a{needle}").into())).to_string(),
        json!(ByteString(format!("ab{needle}cd").into())).to_string(),
    ] {
        let places = [
            ("here".to_owned(), place),
            ("there".to_owned(), "secret".to_owned()),
        ];
        assert_eq!(seen(needle, &places), ["here"], "{}", places[0].1);
    }
}

/// What `flux-operator render` prints for a MiniCluster.
async fn render(fixture: &Fixture, name: &str) -> String {
    let cluster = serde_json::to_string(&fixture.get(name).await).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_flux-operator"))
        .args(["render", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(cluster.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("kind: Secret"), "{text}");
    text
}
