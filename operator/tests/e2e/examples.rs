//! The manifests of `examples/` in real pods, changed only by `adapt`. Each ends as its README says.
//!
//! Examples that are not named here run, if at all, with the commands of their READMEs (`pasted.rs`), or in another test
//! (such as `operator/tests/gang`).

mod consoles;
mod neighbours;
mod of_v1alpha1;
mod readme;
mod volumes;

use std::sync::Arc;

use flux_shared::crd::v1alpha2::MiniCluster;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, LogParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use test_support::node::{Fixture, has_flux_itself, image, is_fake_flux, test};

/// How many run at once. They mostly wait.
const AT_ONCE: usize = 6;

/// The file, the exit code, and how often a line is in the lead's log; `...` stands for any text. The output
/// in the README's consoles is compared as well.
type Expected = (&'static str, i32, &'static [(&'static str, usize)]);

const TO_THE_END: &[Expected] = &[
    (
        "batch/minicluster",
        0,
        &[
            ("hello world 1", 1),
            ("hello world 2", 1),
            ("job ... wrote this", 1),
        ],
    ),
    ("configs/whole", 0, &[("batch...", 1), ("debug...", 1)]),
    ("configs/properties", 0, &[("configs-properties-...", 1)]),
    ("network/connect-timeout", 0, &[("1s", 1)]),
    (
        "curve-cert/minicluster",
        0,
        &[("brokers with this pair have found each other", 1)],
    ),
    (
        "curve-cert/from-secret",
        0,
        &[("brokers with this pair have found each other", 1)],
    ),
    (
        "environment/minicluster",
        0,
        &[("good morning, world", 1), ("*.txt", 1), ("$5", 1), ("worlds", 1)],
    ),
    ("exit-code/minicluster", 7, &[("about to fail", 1)]),
    (
        "users/flux-user",
        0,
        &[("uid=1002(fluence) gid=1002(fluence) groups=1002(fluence)...", 1)],
    ),
    ("users/as-root", 0, &[("root", 1)]),
    ("hello-world/minicluster", 0, &[("hello world", 4)]),
    ("pod-settings/hooks", 0, &[("started-at-...", 1)]),
    (
        "logging/minicluster",
        0,
        &[
            ("FLUXTIME fluxsubmit wall time 0:...", 1),
            ("FLUXTIME fluxstart wall time 0:...", 1),
        ],
    ),
    ("logging/debug", 0, &[("hello world", 1)]),
    (
        "logging/not-strict",
        0,
        &[("ls: ...No such file or directory", 1), ("hello world", 1)],
    ),
    ("logging/zeromq", 0, &[("hello world", 1)]),
    ("elasticity/min-size", 0, &[("2", 1)]),
    ("network/minimal-service", 0, &[("minimal-service-...", 4)]),
    ("curve-cert/munge", 0, &[("munge.key", 1)]),
    // The first process is that of the node, not the agent.
    ("pod-settings/host-namespaces", 0, &[("flux-agent", 0)]),
    ("pod-settings/minicluster", 0, &[("ca.crt...", 1)]),
    ("pod-template/host-network", 0, &[("on the network of ...", 1)]),
    ("pod-template/minicluster", 0, &[("on node ...", 1)]),
    ("pod-template/services", 0, &[("services-template-0", 1)]),
    ("snippets/prefix", 0, &[("hello", 2)]),
    ("restarts/on-failure", 0, &[("second attempt", 1)]),
    ("users/any-uid", 0, &[("4711", 2), ("/home/flux-operator", 2)]),
    (
        "script/minicluster",
        0,
        &[
            ("task 3 of 4 on ...", 1),
            ("PIPES | AND && AND 'QUOTES' WORK: THIS IS A REAL SCRIPT", 4),
        ],
    ),
    (
        "environment/secrets",
        0,
        &[("me has a password of 13 characters", 1)],
    ),
    ("security-context/capabilities", 0, &[("CapEff:...", 1)]),
    (
        "snippets/minicluster",
        0,
        &[
            ("preCommand runs before pre", 1),
            ("green", 2),
            ("round, says the lead", 2),
            ("done in /tmp after ...", 1),
        ],
    ),
    ("tasks/flags", 0, &[("...hello", 4)]),
    ("tasks/minicluster", 0, &[("tasks-...", 6)]),
    ("tasks/fewer-than-nodes", 0, &[("tasks-fewer-than-nodes-...", 2)]),
    ("tasks/nodes-only", 0, &[("tasks-nodes-only-...", 2)]),
    ("tasks/unset", 0, &[("tasks-unset-...", 1)]),
    (
        "view/custom",
        0,
        &[("/flux/view/lib/python3.13/site-packages:/opt/mine", 1)],
    ),
    ("view/disabled", 0, &[]),
    (
        "users/minicluster",
        0,
        &[("uid=1001(ada) gid=1001(ada) groups=1001(ada)...", 2)],
    ),
    (
        "volumes/config-map-and-secret",
        0,
        &[("colour = green", 1), ("tls.crt...", 1)],
    ),
    ("volumes/empty-dir", 0, &[("Filesystem ...", 1)]),
    ("volumes/shared-memory", 0, &[("tmpfs ...", 1)]),
];

/// Examples with the older field names of the Go operator's documents, in `shared/tests/spellings`. No README
/// shows their output.
const TWINS: &[Expected] = &[
    // Neither the value of `network/connect-timeout` nor the operator's default: the broker gets no option.
    ("spellings/connect-timeout-none", 0, &[("1s", 0), ("5s", 0)]),
    ("spellings/flux-user-disabled", 0, &[("root", 1)]),
    ("spellings/flux-user", 0, &[("1003", 1)]),
    (
        "spellings/launcher-spec-level",
        0,
        &[("launcher-spec-level-...", 2)],
    ),
    ("spellings/as-flux", 0, &[("1", 2)]),
    (
        "spellings/snippets",
        0,
        &[("hello I am the lead broker", 1), ("hello I am a worker", 0)],
    ),
];

/// Examples that run only with the real Flux: the fake one has no `flux archive`, and shows no tree of brokers.
const WITH_FLUX: &[Expected] = &[
    ("batch/raw", 0, &[("data of the day", 2)]),
    ("network/topology", 0, &[("0 topology-0: full", 1)]),
    ("snippets/wrap", 0, &[]),
];

/// Examples whose consoles show what only the real Flux prints: ids, its queues, labels of tasks, its own place
/// on the PATH.
const ONLY_FLUX_PRINTS: &[&str] = &[
    "batch/minicluster",
    "configs/whole",
    "elasticity/min-size",
    "pod-settings/minicluster",
    "tasks/flags",
    "view/custom",
];

fn is_twin(file: &str) -> bool {
    file.starts_with("spellings/")
}

fn documents(fixture: &Fixture, file: &str) -> Vec<Value> {
    let folder = if is_twin(file) { "shared/tests" } else { "examples" };
    let path = format!("{}/../{folder}/{file}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    adapt(fixture, &text, file.starts_with("v1alpha1/"))
}

/// An example's documents, changed to this namespace, its folder on the node, and images that exist here. Those of
/// v1alpha1 are not cleaned up, so that their logs can be read.
pub fn adapt(fixture: &Fixture, text: &str, is_older: bool) -> Vec<Value> {
    let folder = volumes::folder_on_the_node(fixture);
    let text = text
        .replace(".default.svc.", &format!(".{}.svc.", fixture.namespace))
        .replace("hostPath: /data\n", &format!("hostPath: {folder}\n"))
        .replace(
            "hostPath:\n    path: /data\n",
            &format!("hostPath:\n    path: {folder}\n"),
        )
        .replace("path: /tmp/data\n", &format!("path: {folder}\n"));
    let mut documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    for document in &mut documents {
        if is_older {
            document["spec"]["cleanup"] = json!(false);
        }
        if let Some(metadata) = document.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("namespace");
        }
        for list in ["containers", "services"] {
            let containers = document
                .pointer_mut(&format!("/spec/{list}"))
                .and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                let own = container["image"].as_str().unwrap_or_default().to_owned();
                // MiniClusters of v1alpha1 use the Flux of the image, unless they name a view.
                let has_flux = is_older || own.starts_with("fluxrm/");
                container["image"] = json!(image(if has_flux {
                    "E2E_FLUX_IMAGE"
                } else {
                    "E2E_APP_IMAGE"
                }));
                // The nginx image starts a server by itself, so its replacement gets a command for one.
                if own == "nginx" {
                    container["command"] = json!(NGINX);
                }
            }
        }
        if let Some(view) = document.pointer_mut("/spec/flux/container/image") {
            *view = json!(image("E2E_VIEW_IMAGE"));
            // There may be no registry to pull from.
            document
                .pointer_mut("/spec/flux/container")
                .and_then(Value::as_object_mut)
                .unwrap()
                .remove("pullAlways");
        }
    }
    documents
}

/// A server that answers as the configuration of `services/nginx-conf.yaml` says, for images without nginx.
const NGINX: &str = r#"sh -c "mkdir /tmp/www; sed -n 's/.*return 200 .\(.*\)[\\]n.*/\1/p' /etc/nginx/conf.d/flux.conf > /tmp/www/index.html; httpd -f -p 80 -h /tmp/www""#;

/// Applies an example as a user does. Returns the name of its first object.
pub fn apply(fixture: &Fixture, file: &str) -> String {
    let documents = documents(fixture, file);
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": documents });
    fixture.kubectl(&["apply", "-f", "-"], &list.to_string());
    documents[0]["metadata"]["name"].as_str().unwrap().to_owned()
}

async fn log(fixture: &Fixture, pod: &Pod, container: Option<&str>) -> String {
    let parameters = LogParams {
        container: container.map(str::to_owned),
        ..LogParams::default()
    };
    fixture
        .api::<Pod>()
        .logs(&pod.name_any(), &parameters)
        .await
        .unwrap()
}

/// Runs an example to its end. Returns what is wrong with it, if anything.
async fn to_the_end(fixture: Arc<Fixture>, (file, code, lines): Expected) -> Option<String> {
    let name = apply(&fixture, file);
    let status = fixture.when_finished(&name).await;
    let log = log(&fixture, &fixture.lead(&name).await.unwrap(), None).await;
    let count = |pattern: &str| {
        log.lines()
            .filter(|line| consoles::matches(pattern, line.trim_end()))
            .count()
    };
    let mut wrong: Vec<String> = lines
        .iter()
        .filter(|(pattern, times)| count(pattern) != *times)
        .map(|(pattern, times)| format!("`{pattern}` is there {} times, not {times}", count(pattern)))
        .collect();
    if status["exitCode"] != code {
        wrong.push(format!(
            "the exit code is {}, not {code}: {}",
            status["exitCode"], status["message"]
        ));
    }
    let is_not_shown = is_twin(file) || is_fake_flux() && ONLY_FLUX_PRINTS.contains(&file);
    if !is_not_shown {
        let (namespace, name) = (fixture.namespace.clone(), name.clone());
        let differences = tokio::task::spawn_blocking(move || consoles::differences(file, &name, &namespace));
        wrong.extend(differences.await.unwrap());
    }
    fixture
        .api::<MiniCluster>()
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    (!wrong.is_empty()).then(|| format!("{file}: {}\n{log}", wrong.join(", ")))
}

/// Creates what the READMEs tell the reader to create first.
fn prepare(fixture: &Fixture) {
    let pair = &documents(fixture, "curve-cert/minicluster")[0]["spec"]["flux"]["curveCert"];
    let secret = |name: &str, data: Value| json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data });
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
        secret("my-curve", json!({ "curve.cert": pair })),
        secret("munge-key", json!({ "munge.key": "key" })),
        secret("database", json!({ "user": "me", "password": "correct-horse" })),
        secret("certs", json!({ "tls.crt": "public", "tls.key": "private" })),
        { "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "my-settings" },
          "data": { "production": "colour = green\n" } },
        documents(fixture, "pod-settings/service-account")[0],
    ]});
    fixture.kubectl(&["apply", "-f", "-"], &objects.to_string());
}

async fn all_to_the_end(fixture: &Arc<Fixture>, examples: &[Expected]) {
    for (file, _, lines) in examples {
        let name = documents(fixture, file)[0]["metadata"]["name"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(
            !lines.is_empty() || consoles::shows(file, &name),
            "{file}: nothing of what it prints is checked"
        );
    }
    let all = futures::stream::iter(examples).map(|example| to_the_end(fixture.clone(), *example));
    let wrong: Vec<String> = all
        .buffer_unordered(AT_ONCE)
        .filter_map(async |wrong| wrong)
        .collect()
        .await;
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        examples.len(),
        wrong.join("\n\n")
    );
}

#[test]
fn examples_end_as_their_readmes_say() {
    test("examples", async |fixture| {
        prepare(&fixture);
        all_to_the_end(&fixture, &[TO_THE_END, TWINS].concat()).await;
    });
}

#[test]
fn quiet_log_has_only_the_output_of_the_job() {
    test("quiet", async |fixture| {
        let name = apply(&fixture, "logging/quiet");
        fixture.when_finished(&name).await;
        assert_eq!(
            log(&fixture, &fixture.lead(&name).await.unwrap(), None).await,
            "hello world\n"
        );
    });
}

#[test]
fn interactive_cluster_can_be_entered_when_ready_and_shut_down() {
    test("enter", async |fixture| {
        for file in ["interactive/persistent", "interactive/minicluster"] {
            let name = apply(&fixture, file);
            fixture.when_condition(&name, "Ready").await;
            let lead = fixture.lead(&name).await.unwrap().name_any();
            let overlay = inside(&fixture, &lead, "flux overlay status");
            assert!(overlay.starts_with(&format!("0 {name}-0: full\n")), "{overlay}");
            // The command ends its own pod, usually before it can report success.
            let output = try_inside(&fixture, &lead, "flux shutdown");
            let status = fixture.when_finished(&name).await;
            assert_eq!(status["exitCode"], 0, "{file}: {output:?} {status:#}");
        }
    });
}

#[test]
fn diagnostics_are_printed_and_the_cluster_keeps_running() {
    test("diagnostics", async |fixture| {
        let name = apply(&fixture, "diagnostics/minicluster");
        fixture.when_condition(&name, "Ready").await;
        fixture
            .until("the diagnostics are shown", async || {
                let log = log(&fixture, &fixture.lead(&name).await?, None).await;
                assert!(!log.contains("this is not run"), "{log}");
                // A line of `flux overlay status -v`.
                log.lines()
                    .any(|line| consoles::matches("0 diagnostics-0: full for ...s", line))
                    .then_some(())
            })
            .await;
        let status = fixture.when_condition(&name, "Ready").await;
        assert_eq!(status["phase"], "Running", "{status:#}");
    });
}

#[test]
fn a_cluster_grows_and_shrinks() {
    test("elasticity", async |fixture| {
        let name = apply(&fixture, "elasticity/minicluster");
        fixture.when_condition(&name, "Ready").await;
        for size in [4, 3] {
            fixture.kubectl(
                &[
                    "scale",
                    &format!("minicluster/{name}"),
                    &format!("--replicas={size}"),
                ],
                "",
            );
            fixture
                .until(&format!("{size} are ready"), async || {
                    let cluster = fixture.api::<MiniCluster>().get_scale(&name).await.unwrap();
                    let pods = fixture.pods(&name).await.len();
                    let ready = fixture.status(&name).await["readySize"] == size;
                    (cluster.status?.replicas == size && pods == size as usize && ready).then_some(())
                })
                .await;
        }
        let beyond = fixture
            .api::<MiniCluster>()
            .patch_scale(
                &name,
                &PatchParams::default(),
                &Patch::Merge(json!({ "spec": { "replicas": 5 } })),
            )
            .await;
        let refusal = beyond.unwrap_err().to_string();
        assert!(refusal.contains("size is 5, but cannot exceed 4"), "{refusal}");
    });
}

#[test]
fn a_follower_that_was_told_to_complete_is_not_started_again() {
    test("complete-workers", async |fixture| {
        let name = apply(&fixture, "elasticity/complete-workers");
        fixture.when_condition(&name, "Ready").await;
        let follower = fixture.pod(&name, "2").await.unwrap();
        // The broker's process is called `flux-broker` and its rank; with the fake Flux, `flux`.
        let kill = "kill $(grep -lE '^flux(-broker.*)?$' /proc/[0-9]*/comm | cut -d/ -f3)";
        fixture.kubectl(&["exec", &follower.name_any(), "--", "sh", "-c", kill], "");
        fixture
            .until("the follower has completed", async || {
                let pod = fixture.api::<Pod>().get(&follower.name_any()).await.unwrap();
                (pod.status?.phase? == "Succeeded").then_some(())
            })
            .await;
        fixture
            .until("the other two run on", async || {
                let status = fixture.status(&name).await;
                (status["phase"] == "Running" && status["readySize"] == 2).then_some(())
            })
            .await;
        assert_eq!(fixture.pods(&name).await.len(), 3, "the follower is not replaced");
    });
}

#[test]
fn a_sidecar_submits_to_the_instance_and_ends_with_it() {
    test("sidecar", async |fixture| {
        let name = apply(&fixture, "sidecar/minicluster");
        fixture.when_condition(&name, "Ready").await;
        let lead = fixture.lead(&name).await.unwrap();
        fixture
            .until("the sidecar's job has run", async || {
                let log = log(&fixture, &lead, Some("helper")).await;
                (log.contains("waiting for the broker\n")
                    && log.contains("\nsidecar-0\n")
                    && log.contains("\nsidecar-1\n"))
                .then_some(())
            })
            .await;
        let name = apply(&fixture, "sidecar/no-wait");
        let status = fixture.when_finished(&name).await;
        assert_eq!(status["exitCode"], 0, "{status:#}");
        let log = log(&fixture, &fixture.lead(&name).await.unwrap(), Some("impatient")).await;
        assert!(log.lines().any(|line| line == "started at once"), "{log}");
    });
}

#[test]
fn cluster_runs_in_a_namespace_with_the_restricted_standard() {
    test("restricted", async |fixture| {
        let labels = &documents(&fixture, "security-context/namespace")[0]["metadata"]["labels"];
        let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
        let namespaces: Api<Namespace> = Api::all(fixture.client.clone());
        namespaces
            .patch(&fixture.namespace, &PatchParams::default(), &patch)
            .await
            .unwrap();
        let wrong = to_the_end(
            fixture.clone(),
            ("security-context/minicluster", 0, &[("1000", 2)]),
        )
        .await;
        assert_eq!(wrong, None);
    });
}

#[test]
fn suspended_cluster_waits_until_it_is_resumed() {
    test("suspend", async |fixture| {
        let name = apply(&fixture, "suspend/minicluster");
        fixture
            .until("it is suspended", async || {
                (fixture.status(&name).await["phase"] == "Suspended").then_some(())
            })
            .await;
        assert!(fixture.pods(&name).await.is_empty());
        fixture.kubectl(
            &[
                "patch",
                "minicluster",
                &name,
                "--type=merge",
                "-p",
                r#"{"spec":{"suspend":false}}"#,
            ],
            "",
        );
        let status = fixture.when_finished(&name).await;
        assert_eq!(status["exitCode"], 0, "{status:#}");
    });
}

#[test]
fn cleanup_deletes_minicluster_or_pods_when_finished() {
    test("cleanup", async |fixture| {
        let (whole, pods) = (
            apply(&fixture, "cleanup-and-ttl/cleanup"),
            apply(&fixture, "cleanup-and-ttl/cleanup-pods"),
        );
        fixture
            .until("the MiniCluster is gone", async || {
                fixture
                    .api::<MiniCluster>()
                    .get_opt(&whole)
                    .await
                    .unwrap()
                    .is_none()
                    .then_some(())
            })
            .await;
        let status = fixture.when_finished(&pods).await;
        assert_eq!(status["exitCode"], 0, "{status:#}");
        fixture
            .until("its pods are gone", async || {
                fixture.pods(&pods).await.is_empty().then_some(())
            })
            .await;
        assert_eq!(fixture.status(&pods).await["phase"], "Completed");
    });
}

#[test]
fn a_view_is_mounted_and_nothing_is_copied() {
    test("view", async |fixture| {
        let name = apply(&fixture, "view/minicluster");
        let status = fixture.when_finished(&name).await;
        assert_eq!(status["exitCode"], 0, "{status:#}");
        let mounted = status["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|condition| condition["type"] == "ViewMounted")
            .unwrap();
        assert_eq!(mounted["status"], "True", "{status:#}");
        let lead = fixture.lead(&name).await.unwrap();
        let log = log(&fixture, &lead, None).await;
        assert!(log.contains("/mnt/flux-image/opt/views/._view/"), "{log}");
        // A copy would need two more init containers.
        let init = lead.spec.unwrap().init_containers.unwrap();
        assert_eq!(
            init.iter()
                .map(|container| container.name.as_str())
                .collect::<Vec<_>>(),
            ["flux-agent"]
        );
    });
}

/// Runs a program in the lead's instance, as in the READMEs.
fn inside(fixture: &Fixture, lead: &str, program: &str) -> String {
    try_inside(fixture, lead, program).unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn try_inside(fixture: &Fixture, lead: &str, program: &str) -> Result<String, String> {
    let script = format!(". /mnt/flux/flux-view.sh && flux proxy $fluxsocket {program}");
    fixture.try_kubectl(&["exec", lead, "--", "sh", "-c", &script], "")
}

#[test]
fn examples_that_need_real_flux_end_as_their_readmes_say() {
    // Also named in the notice: the examples whose consoles `to_the_end` does not compare with the fake Flux.
    let names: Vec<&str> = WITH_FLUX
        .iter()
        .map(|(file, ..)| *file)
        .chain(ONLY_FLUX_PRINTS.iter().copied())
        .collect();
    if !has_flux_itself(&format!("consoles of {}", names.join(", "))) {
        return;
    }
    test("examples-flux", async |fixture| {
        all_to_the_end(&fixture, WITH_FLUX).await
    });
}
