//! The installation on a real API server: what it admits, and that permissions in one namespace are enough to
//! serve one namespace.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use flux_operator::api::lease::Candidate;
use flux_operator_core::labels::OPERATOR;
use flux_operator_core::render::HeadlessName;
use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use test_support::api_server::{Call, Calls, Fixture, apply, crd_without_conversion, test, until};
use test_support::call::of_all_parts;
use test_support::control_plane::ControlPlane;
use test_support::helm::built;
use test_support::installation::{Installation, NAMESPACE};
use test_support::pages::{self, repository};
use test_support::waiting::may;

const DIGEST: &str = "@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

/// What a test waits for: the API server begins to use a policy a little after it has been applied.
const POLICY_IN_FORCE: &str = "the admission policy is in force";

async fn pods(api: &Api<Pod>, selector: &str) -> Vec<Pod> {
    api.list(&ListParams::default().labels(selector))
        .await
        .unwrap()
        .items
}

#[test]
fn namespaced_installation_has_no_permission_elsewhere() {
    test("one-namespace", async |fixture| {
        let installed = Installation::of_namespace(&fixture.namespace, &json!({}));
        let is_outside = |object: &&Value| object["metadata"]["namespace"] != fixture.namespace.as_str();
        assert_eq!(installed.objects.iter().find(is_outside), None);
        let deployment = installed
            .objects
            .iter()
            .find(|object| object["kind"] == "Deployment")
            .unwrap();
        assert!(
            deployment
                .to_string()
                .contains(&format!("--namespace={}", fixture.namespace))
        );
        assert!(deployment.to_string().contains("--without-volumes"));
        // The operator runs in this process.
        apply(&installed.without("Deployment").text());
        let kubeconfig = fixture.kubeconfig_of(OPERATOR);
        let calls = Calls::default();
        // The operator has a Lease as in the chart, so the test covers the permissions for it.
        let (namespace, identity) = (fixture.namespace.clone(), "one".to_owned());
        let candidate = Candidate {
            namespace,
            identity,
            duration: Duration::from_secs(3),
        };
        let operator = fixture
            .operator_as(&kubeconfig, calls.clone(), |settings| {
                settings.candidate = Some(candidate);
                settings.options.volumes = false;
            })
            .await;

        let mut spec = of_all_parts();
        // With these fields, the operator also deletes pods and the MiniCluster.
        (spec["cleanupPods"], spec["ttlSecondsAfterFinished"]) = (json!(true), json!(0));
        fixture.create("mc", spec).await;
        fixture.pods("mc", 1).await;
        fixture.when_is("mc", "maximumSize", 2).await;
        fixture.edit("mc", json!({ "size": 2 })).await;
        let pods = fixture.run_pods("mc", 2).await;
        fixture.when_condition("mc", "Ready", "True").await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        until("the operator has deleted it", async || {
            fixture.reap("mc").await;
            fixture.find::<MiniCluster>("mc").await.is_none().then_some(())
        })
        .await;

        let volumes = json!({
            "size": 1, "volumes": { "data": { "path": "/tmp/data" } },
            "containers": [{ "image": "app:1", "command": "ls", "volumes": { "data": { "path": "/data" } } }],
        });
        refuses(
            &fixture,
            "volumes",
            volumes,
            "spec.volumes: ",
            "namespaced is true",
        )
        .await;
        operator.stop().await;

        let calls = calls.all();
        let refused = calls.iter().filter(|call| call.status == 403);
        let refused: BTreeSet<_> = refused.map(Call::permission).collect();
        // The operator tries to list nodes, and goes on without them.
        let nodes = (String::new(), "nodes".into(), "list".into());
        assert_eq!(refused, BTreeSet::from([nodes]));
        let account = format!("--as=system:serviceaccount:{}:{}", fixture.namespace, OPERATOR);
        for (verb, resource, is_allowed) in [
            ("list", "pods", true),
            ("create", "secrets", true),
            ("list", "secrets", false),
        ] {
            let can = |namespace: &str| {
                fixture.kubectl(&[
                    "auth",
                    "can-i",
                    &account,
                    verb,
                    resource,
                    "--namespace",
                    namespace,
                ])
            };
            assert_eq!(can(&fixture.namespace).is_ok(), is_allowed, "{verb} {resource}");
            assert!(can("default").is_err(), "{verb} {resource} elsewhere");
        }
    });
}

#[test]
fn the_operators_pods_are_admitted_where_pods_are_restricted() {
    test("restricted", async |fixture| {
        // The installation for all namespaces has set the label (below) on its own namespace.
        let all: Api<Pod> = Api::namespaced(fixture.client.clone(), NAMESPACE);
        let (operators, webhooks) = (
            "app.kubernetes.io/component=operator",
            "app.kubernetes.io/component=webhook",
        );
        for selector in [operators, webhooks] {
            until("both replicas are there", async || {
                (pods(&all, selector).await.len() == 2).then_some(())
            })
            .await;
        }

        let label =
            json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
        let namespaces: Api<Namespace> = Api::all(fixture.client.clone());
        namespaces
            .patch(&fixture.namespace, &PatchParams::default(), &Patch::Merge(label))
            .await
            .unwrap();
        apply(&Installation::of_namespace(&fixture.namespace, &json!({})).text());
        let mut migration = Installation::of_text(include_str!("../../manifests/migrate/migrate.yaml"));
        for object in &mut migration.objects {
            if object["metadata"]["namespace"].is_string() {
                object["metadata"]["namespace"] = json!(fixture.namespace);
            }
        }
        apply(&migration.text());
        for selector in [operators, "batch.kubernetes.io/job-name=flux-operator-migrate"] {
            let what = format!("{selector} has a pod");
            until(&what, async || {
                (pods(&fixture.api(), selector).await.len() == 1).then_some(())
            })
            .await;
        }

        let plain = json!({ "metadata": { "name": "plain" }, "spec": { "containers": [{ "name": "a", "image": "a" }] } });
        let plain: Pod = serde_json::from_value(plain).unwrap();
        for api in [all, fixture.api()] {
            let error = api
                .create(&PostParams::default(), &plain)
                .await
                .unwrap_err()
                .to_string();
            assert!(error.contains("violates PodSecurity \"restricted"), "{error}");
        }
    });
}

/// Whether `kubectl auth can-i` says yes for a new account with one of Kubernetes' own roles in the fixture's
/// namespace.
fn can(fixture: &Fixture, role: &str, verb: &str, resource: &str) -> bool {
    let account = format!("system:serviceaccount:{}:{role}", fixture.namespace);
    may(|arguments| fixture.kubectl(arguments), &account, verb, resource)
}

#[test]
fn kubernetes_own_roles_grant_rights_on_miniclusters() {
    test("aggregated", async |fixture| {
        for role in ["view", "edit", "admin"] {
            let account = format!("--serviceaccount={}:{role}", fixture.namespace);
            fixture
                .kubectl(&[
                    "create",
                    "rolebinding",
                    role,
                    &format!("--clusterrole={role}"),
                    &account,
                ])
                .unwrap();
        }
        until("the roles are put together", async || {
            can(&fixture, "admin", "create", "miniclusters").then_some(())
        })
        .await;
        for (role, verb, resource, is_allowed) in [
            ("view", "watch", "miniclusters", true),
            ("view", "get", "miniclusters/scale", true),
            ("view", "create", "miniclusters", false),
            ("view", "get", "secrets", false),
            ("edit", "create", "miniclusters", true),
            ("edit", "deletecollection", "miniclusters", true),
            ("edit", "patch", "miniclusters/scale", true),
            ("edit", "patch", "miniclusters/status", false),
            ("admin", "delete", "miniclusters", true),
        ] {
            assert_eq!(
                can(&fixture, role, verb, resource),
                is_allowed,
                "{role}: {verb} {resource}"
            );
        }
        // The operator itself has no access to anybody's Secrets, nor to the CRD.
        let operator = "--as=system:serviceaccount:flux-operator:flux-operator";
        for verb in ["get", "list", "watch", "update", "patch", "delete"] {
            assert!(
                fixture
                    .kubectl(&["auth", "can-i", operator, verb, "secrets"])
                    .is_err(),
                "{verb}"
            );
            assert!(
                fixture
                    .kubectl(&["auth", "can-i", operator, verb, "customresourcedefinitions"])
                    .is_err(),
                "{verb}"
            );
        }
    });
}

#[test]
fn installation_without_v1alpha1_has_no_webhook() {
    let of_webhook = |documents: &[Value]| -> Vec<String> {
        // The definition keeps `conversion`, since server-side apply could not remove all of it (chart/templates/crd.yaml).
        let of_it = documents.iter().filter(|document| {
            document.to_string().contains("operator-webhook")
                && document["kind"] != "CustomResourceDefinition"
        });
        of_it
            .map(|document| format!("{} {}", document["kind"], document["metadata"]["name"]))
            .collect()
    };
    assert!(of_webhook(&Installation::whole(&json!({})).objects).len() > 8);
    let without = Installation::whole(&json!({ "v1alpha1": { "enabled": false } })).objects;
    assert_eq!(of_webhook(&without), Vec::<String>::new());
    let crd = without
        .iter()
        .find(|document| document["kind"] == "CustomResourceDefinition")
        .unwrap();
    assert_eq!(crd["spec"]["versions"].as_array().unwrap().len(), 1);
    let rules = |documents: &[Value]| {
        documents
            .iter()
            .map(|document| document["rules"].to_string())
            .collect::<String>()
    };
    assert!(!rules(&without).contains("customresourcedefinitions"));
    // With cert-manager the webhook needs no permissions either.
    let with = Installation::whole(&json!({ "certManager": { "enabled": true } })).objects;
    assert!(
        !rules(&with).contains("customresourcedefinitions")
            && !rules(&with).contains("flux-operator-webhook")
    );
    let crd = with
        .iter()
        .find(|document| document["kind"] == "CustomResourceDefinition")
        .unwrap();
    assert_eq!(
        crd["metadata"]["annotations"]["cert-manager.io/inject-ca-from"],
        "flux-operator/flux-operator-webhook"
    );
}

/// FluxCD's operator is called flux-operator too.
#[test]
fn cluster_wide_objects_have_names_of_this_operator_only() {
    let documents = Installation::whole(&json!({})).objects;
    let of_all = documents
        .iter()
        .filter(|document| document["metadata"]["namespace"].is_null() && document["kind"] != "Namespace");
    let names: Vec<&str> = of_all
        .map(|document| document["metadata"]["name"].as_str().unwrap())
        .collect();
    assert!(names.len() > 8, "{names:?}");
    let is_ours = |name: &&str| name.starts_with("flux-framework-") || name.ends_with(".flux-framework.org");
    assert!(names.iter().all(is_ours), "{names:?}");
}

#[test]
fn network_policy_admits_only_a_clusters_own_pods() {
    test("policy", async |fixture| {
        let values = json!({ "networkPolicy": { "miniclusters": true } });
        let installed = Installation::of_namespace(&fixture.namespace, &values);
        assert!(installed.text().contains("FLUX_MINICLUSTER_NETWORK_POLICY"));
        apply(&installed.without("Deployment").text());
        let kubeconfig = fixture.kubeconfig_of(OPERATOR);
        let calls = Calls::default();
        let operator = fixture
            .operator_as(&kubeconfig, calls.clone(), |settings| {
                settings.options.network_policy = true
            })
            .await;
        fixture.create("mc", json!({ "size": 1 })).await;
        fixture.pods("mc", 1).await;
        let policy = fixture.api::<NetworkPolicy>().get("mc-brokers").await.unwrap();
        let uid = fixture.get("mc").await.metadata.uid.unwrap();
        assert_eq!(policy.metadata.owner_references.unwrap()[0].uid, uid);
        let spec = serde_json::to_value(policy.spec.unwrap()).unwrap();
        let own = json!({ "matchLabels": { "flux-framework.org/minicluster": "mc" } });
        assert_eq!(
            (
                &spec["podSelector"],
                &spec["ingress"][0]["from"][0]["podSelector"]
            ),
            (&own, &own)
        );
        let takes_8050 = |port: &&Value| {
            port["protocol"] == "TCP"
                && port["port"].as_i64() <= Some(8050)
                && port["endPort"].as_i64() >= Some(8050)
        };
        // All ports but TCP 8050: those below and above it, all of UDP, and all of SCTP.
        let ports = spec["ingress"][1]["ports"].as_array().unwrap();
        assert_eq!((ports.len(), ports.iter().find(takes_8050)), (4, None));
        // An object of the same name that belongs to somebody else stays.
        let other = json!({ "metadata": { "name": "two-brokers" }, "spec": { "podSelector": {} } });
        fixture.add::<NetworkPolicy>(other).await;
        fixture.create("two", json!({ "size": 1 })).await;
        fixture.when_is("two", "reason", "NameTaken").await;
        operator.stop().await;
        let used: BTreeSet<Call> = calls
            .all()
            .into_iter()
            .filter(|call| call.resource == "networkpolicies")
            .collect();
        // For `mc` it creates the policy. For `two`, the creation fails (409), and it gets the object of that name.
        assert_eq!(used.len(), 3, "{used:?}");
        assert!(used.iter().all(|call| call.status != 403), "{used:?}");

        let page = std::fs::read_to_string(repository().join("docs/tasks/teams.md")).unwrap();
        let command = page
            .split('`')
            .find(|code| code.starts_with("kubectl delete networkpolicies "));
        let command = command.expect("teams.md has the command that deletes the policies");
        // Only in the namespace of this test.
        let words = command
            .split_whitespace()
            .skip(1)
            .filter(|word| *word != "--all-namespaces");
        fixture.kubectl(&words.collect::<Vec<_>>()).unwrap();
        assert!(fixture.find::<NetworkPolicy>("mc-brokers").await.is_none());
        assert!(fixture.find::<NetworkPolicy>("two-brokers").await.is_some());
    });
}

async fn images(fixture: &Fixture, cluster: &str) -> BTreeSet<String> {
    let pod = serde_json::to_value(&fixture.pods(cluster, 1).await[&0]).unwrap();
    let lists = [&pod["spec"]["initContainers"], &pod["spec"]["containers"]];
    let all = lists.into_iter().filter_map(Value::as_array).flatten();
    all.filter_map(|container| container["image"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn every_image_can_be_given_by_its_digest() {
    test("digest", async |fixture| {
        for (cluster, tag) in [("digest", ""), ("tag-and-digest", "1")] {
            let colon = if tag.is_empty() { "" } else { ":" };
            let [operator, agent, view, own_view, app] = ["operator", "agent", "view", "own-view", "app"]
                .map(|name| format!("r.example:5000/{name}{colon}{tag}{DIGEST}"));
            let image = |name: &str| json!({ "repository": format!("r.example:5000/{name}"), "tag": tag, "digest": DIGEST.trim_start_matches('@') });
            let values = json!({
                "image": image("operator"), "agent": { "image": image("agent") }, "view": { "image": image("view") },
            });
            let manifests = Installation::whole(&values).objects;
            let deployment = manifests
                .iter()
                .find(|document| document["kind"] == "Deployment")
                .unwrap();
            let container = &deployment["spec"]["template"]["spec"]["containers"][0];
            assert_eq!(container["image"], operator.as_str());
            for (name, image) in [("FLUX_AGENT_IMAGE", &agent), ("FLUX_VIEW_IMAGE", &view)] {
                let variables = container["env"].as_array().unwrap();
                assert!(
                    variables.contains(&json!({ "name": name, "value": image })),
                    "{variables:#?}"
                );
            }

            let running = fixture.operator_of(Calls::default(), |settings| {
                (settings.options.agent_image, settings.options.view_image) = (agent.clone(), view.clone());
            });
            let running = running.await;
            let containers = json!([{ "image": app, "command": "hostname" }]);
            let own = json!({ "container": { "image": own_view } });
            for (name, flux, view) in [
                (cluster.to_owned(), json!({}), view),
                (format!("{cluster}-own"), own, own_view),
            ] {
                let spec = json!({ "size": 1, "flux": flux, "containers": containers });
                fixture.create(&name, spec).await;
                let expected = BTreeSet::from([agent.clone(), view, app.clone()]);
                assert_eq!(images(&fixture, &name).await, expected);
            }
            running.stop().await;
        }
    });
}

/// Creates a MiniCluster that the operator's settings rule out, and checks why it is refused.
async fn refuses(fixture: &Fixture, name: &str, spec: Value, field: &str, value: &str) {
    fixture.create(name, spec).await;
    let status = fixture.when_is(name, "phase", "Invalid").await;
    let message = status["message"].as_str().unwrap();
    assert!(message.starts_with(field) && message.contains(value), "{message}");
}

#[test]
fn installation_without_volumes_and_services_refuses_them() {
    let without = json!({ "volumes": { "enabled": false }, "services": { "enabled": false } });
    test("without-parts", async |fixture| {
        let operator = fixture
            .operator_installed(Calls::default(), &without, |settings| {
                (settings.options.volumes, settings.options.services) = (false, false);
            })
            .await;
        let volumes = json!({
            "size": 1, "volumes": { "data": { "path": "/tmp/data" } },
            "containers": [{ "image": "app:1", "command": "ls", "volumes": { "data": { "path": "/data" } } }],
        });
        refuses(&fixture, "volumes", volumes, "spec.volumes: ", "volumes.enabled").await;
        let services = json!({ "size": 1, "services": [{ "image": "cache:1", "name": "cache" }] });
        refuses(
            &fixture,
            "services",
            services,
            "spec.services: ",
            "services.enabled",
        )
        .await;
        fixture
            .create("plain", json!({ "size": 1, "cleanupPods": true }))
            .await;
        let pods = fixture.pods("plain", 1).await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        fixture.when_condition("plain", "CleanedUp", "True").await;
        let calls = operator.calls.all();
        operator.stop().await;
        let storage =
            |call: &&Call| call.resource.starts_with("persistentvolume") || call.resource == "storageclasses";
        assert_eq!(calls.iter().find(storage), None);
        // This operator is installed for one namespace, and nodes are in none: it may not list them.
        let refused = |call: &&Call| call.status == 403 && call.resource != "nodes";
        assert_eq!(
            calls.iter().find(refused),
            None,
            "a permission that was removed is needed"
        );
        let account = format!("--as=system:serviceaccount:{}:{}", fixture.namespace, OPERATOR);
        for (verb, resource) in [
            ("create", "pods"),
            ("delete", "pods"),
            ("create", "persistentvolumeclaims"),
        ] {
            assert!(
                fixture
                    .kubectl(&["auth", "can-i", &account, verb, resource])
                    .is_err(),
                "{verb} {resource}"
            );
        }
    });
    let all = Installation::whole(&without).without("CustomResourceDefinition");
    // Who may set `spec.volumes` is checked nevertheless: an operator may serve the MiniCluster later.
    let is_policy = |object: &&Value| is_volumes_policy(object);
    let usual = Installation::whole(&json!({}));
    let policy: Vec<&Value> = usual.objects.iter().filter(is_policy).collect();
    assert_eq!(policy.len(), 2, "the policy and its binding");
    assert_eq!(all.objects.iter().filter(is_policy).collect::<Vec<_>>(), policy);
    let mut others = all;
    others.objects.retain(|object| !is_volumes_policy(object));
    let others = others.text();
    assert!(
        !others.contains("persistentvolume") && !others.contains("flux-operator-volumes"),
        "{others}"
    );
    assert!(others.contains("--without-volumes") && others.contains("--without-services"));
}

fn is_volumes_policy(object: &Value) -> bool {
    object["kind"]
        .as_str()
        .unwrap()
        .starts_with("ValidatingAdmissionPolicy")
        && object["metadata"]["name"] == "flux-framework-flux-operator-volumes"
}

#[test]
fn headless_service_has_the_miniclusters_name_when_chosen() {
    test("own-service", async |fixture| {
        let operator = fixture
            .operator_of(Calls::default(), |settings| {
                settings.options.headless = HeadlessName::Own
            })
            .await;
        let named = json!({ "size": 1, "network": { "headlessName": "team" } });
        for (name, spec, service) in [
            ("one", json!({ "size": 1 }), "one"),
            // This `network` has no `headlessName`.
            (
                "two",
                json!({ "size": 1, "network": { "disableAffinity": true } }),
                "two",
            ),
            ("named", named, "team"),
            // A Service cannot have this name.
            ("2024-run", json!({ "size": 1 }), "flux-service"),
        ] {
            fixture.create(name, spec).await;
            let pods = fixture.pods(name, 1).await;
            assert_eq!(
                pods[&0].spec.as_ref().unwrap().subdomain.as_deref(),
                Some(service)
            );
            let made = fixture.api::<Service>().get(service).await.unwrap();
            let owners = made.metadata.owner_references.unwrap();
            assert_eq!(
                owners.iter().map(|owner| owner.name.as_str()).collect::<Vec<_>>(),
                [name]
            );
        }
        // A sidecar with ports gets a Service of its name: here the name of the headless Service.
        let same = json!({
            "size": 1,
            "containers": [
                { "image": "app:1", "name": "work", "command": "hostname", "runFlux": true },
                { "image": "db:1", "name": "taken", "ports": [5432] },
            ],
        });
        refuses(
            &fixture,
            "taken",
            same,
            "spec.containers[].name: ",
            "headlessService.name",
        )
        .await;
        operator.stop().await;
    });
}

/// The webhook's permission is for the whole object, and the webhook listens on the network.
#[test]
fn webhook_may_change_only_the_ca_bundle_of_the_definition() {
    test("webhook-policy", async |fixture| {
        let account = format!("system:serviceaccount:{NAMESPACE}:flux-operator-webhook");
        let webhook: Api<CustomResourceDefinition> = Api::all(fixture.client_as(&account).await);
        let admin: Api<CustomResourceDefinition> = Api::all(fixture.client.clone());
        let name = "miniclusters.flux-framework.org";
        let patch = async |change: Value, parameters: PatchParams| {
            webhook.patch(name, &parameters, &Patch::Merge(change)).await
        };
        let try_patch = async |change: &Value| {
            let dry_run = PatchParams {
                dry_run: true,
                ..PatchParams::default()
            };
            patch(change.clone(), dry_run).await
        };
        let annotated = json!({ "metadata": { "annotations": { "evil": "true" } } });
        until(POLICY_IN_FORCE, async || try_patch(&annotated).await.err()).await;
        let bundle = |text: &str| json!({ "spec": { "conversion": { "webhook": { "clientConfig": { "caBundle": text } } } } });
        let before = admin.get(name).await.unwrap();
        let mut versions = before.spec.versions.clone();
        versions[0].deprecated = Some(true);
        let elsewhere = json!({ "service": { "namespace": "default", "name": "evil" } });
        for change in [
            json!({ "spec": { "versions": versions } }),
            json!({ "spec": { "conversion": { "webhook": { "clientConfig": elsewhere } } } }),
            json!({ "spec": { "names": { "shortNames": ["evil"] } } }),
            json!({ "metadata": { "finalizers": ["example.com/evil"] } }),
            annotated,
        ] {
            let refused = try_patch(&change).await.map(drop).unwrap_err().to_string();
            assert!(refused.contains("caBundle"), "{change}: {refused}");
        }
        let own = before
            .spec
            .conversion
            .unwrap()
            .webhook
            .unwrap()
            .client_config
            .unwrap()
            .ca_bundle;
        let own = serde_json::to_value(own).unwrap();
        let own = own.as_str().unwrap_or_default();
        // The bundle stays as it is: the tests in `operator/tests/versions` let this account change it.
        patch(bundle(own), PatchParams::default())
            .await
            .expect("its own bundle");
    });
}

/// A Secret of type service-account-token gets the token of the account that it names.
#[test]
fn webhook_may_create_only_the_secret_of_its_certificate() {
    test("webhook-secret", async |fixture| {
        let account = format!("system:serviceaccount:{NAMESPACE}:flux-operator-webhook");
        let secrets: Api<Secret> = Api::namespaced(fixture.client_as(&account).await, NAMESPACE);
        let create = async |name: &str, type_: &str| {
            let secret = json!({
                "metadata": {
                    "name": name,
                    "annotations": { "kubernetes.io/service-account.name": "flux-operator" },
                },
                "type": type_,
                "data": { "tls.crt": "", "tls.key": "" },
            });
            let dry_run = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            let created = secrets
                .create(&dry_run, &serde_json::from_value(secret).unwrap())
                .await;
            match created {
                Ok(_) => 201,
                Err(kube::Error::Api(status)) => status.code,
                Err(error) => panic!("{error}"),
            }
        };
        let (own, tls, token) = (
            "flux-operator-webhook",
            "kubernetes.io/tls",
            "kubernetes.io/service-account-token",
        );
        until(POLICY_IN_FORCE, async || {
            (create(own, token).await == 403).then_some(())
        })
        .await;
        assert_eq!(create("another", token).await, 403);
        assert_eq!(create("another", tls).await, 403);
        assert_eq!(create(own, "Opaque").await, 403);
        // 409: the Secret exists.
        let code = create(own, tls).await;
        assert!([201, 409].contains(&code), "{code}");
    });
}

/// Runs the chart's own commands. Both kubectl and Helm then own the fields, so `helm upgrade` could report a conflict.
#[test]
fn helm_upgrades_and_reinstalls_what_kubectl_installed() {
    let plane = ControlPlane::start(&crd_without_conversion()).unwrap();
    let repository = repository();
    let blocks = pages::blocks(&repository.join("chart/README.md"));
    let documented = |beginning: &str| {
        let block = blocks.iter().find(|block| block.text.starts_with(beginning));
        block.unwrap().text.trim_end()
    };
    let install = documented("helm install flux-framework chart --namespace flux-operator --take-ownership");
    let upgrade = documented("helm upgrade");

    // Like the reader's own values, these differ from what `operator/manifests` has applied.
    let values = json!({
        "image": { "repository": "registry.example/flux-operator" },
        "agent": { "image": { "repository": "registry.example/flux-agent" } },
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("values.yaml"), values.to_string()).unwrap();
    std::os::unix::fs::symlink(repository.join("chart"), folder.path().join("chart")).unwrap();
    // Only Helm 4 knows `--server-side`.
    let helm = built("helm/build", &["4"]);
    // The patch stands for the CRD of an earlier version, which stays when the release is uninstalled.
    let script = format!(
        r#"
helm() {{ {helm} "$@" >&2; }}
kubectl() {{ {node} kubectl "$@"; }}
groups() {{ kubectl get clusterrole flux-framework-flux-operator --output jsonpath='{{.rules[*].apiGroups}}{{"\n"}}'; }}
kubectl apply --server-side -k {manifests} >&2
{install}
TAG=next
{upgrade} --set gang.enabled=true,logLevel=debug
groups
{upgrade} --set gang.enabled=false,logLevel=info
groups
helm uninstall flux-framework --namespace flux-operator
kubectl patch crd miniclusters.flux-framework.org --type=json --patch \
  '[{{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/description", "value": "earlier"}}]' >&2
{install}
"#,
        helm = helm.display(),
        node = plane.binary().display(),
        manifests = repository.join("operator/manifests").display(),
    );
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .current_dir(folder.path())
        .env("KUBECONFIG", plane.kubeconfig_path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let groups = String::from_utf8(output.stdout).unwrap();
    let has_gangs: Vec<bool> = groups
        .lines()
        .map(|line| line.contains("scheduling.volcano.sh"))
        .collect();
    assert_eq!(has_gangs, [true, false], "{groups}");
}
