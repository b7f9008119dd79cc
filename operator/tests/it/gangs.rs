//! `spec.gang`: all pods of a MiniCluster start, or none, by whichever gang API the cluster serves. Where no
//! gang is wanted, the operator asks for no such API.

mod rendered;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flux_operator::controller::ControllerSettings;
use flux_operator_core::render::gang::GangApi;
use flux_operator_core::yaml;
use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use test_support::api_server::{
    Call, Calls, Fault, Fixture, Operator, SETTLE, apply, assert_message, condition, kubectl_program, test,
    test_alone, until,
};
use test_support::installation::{Installation, Permission};

/// What switches on Kubernetes' own API, in each version that has one.
const SWITCHED_ON: [(&str, &str); 2] = [
    ("FEATURE_GATES", "GenericWorkload=true"),
    ("RUNTIME_CONFIG", "api/alpha=true,api/beta=true"),
];

/// A CRD like those of scheduler-plugins and Volcano, with only these fields of `spec`.
fn definition(group: &str, version: &str, spec: &Value) -> String {
    let schema =
        json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": spec } } });
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("podgroups.{group}"),
            // The API server requires this annotation for *.k8s.io: who approved the API.
            "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50" },
        },
        "spec": {
            "group": group, "scope": "Namespaced", "names": { "kind": "PodGroup", "plural": "podgroups" },
            "versions": [{ "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    });
    yaml::document(&crd).unwrap()
}

fn gangs(fixture: &Fixture, api: GangApi) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(api.group(), api.version(), GangApi::KIND);
    let resource = ApiResource::from_gvk_with_plural(&kind, GangApi::PLURAL);
    Api::namespaced_with(fixture.client.clone(), &fixture.namespace, &resource)
}

/// The only gang of a MiniCluster.
async fn gang(fixture: &Fixture, api: GangApi, cluster: &str) -> DynamicObject {
    let selector = ListParams::default().labels(&format!("flux-framework.org/minicluster={cluster}"));
    until(&format!("{cluster} has a gang"), async || {
        let all = gangs(fixture, api).list(&selector).await.unwrap().items;
        let mut all = all
            .into_iter()
            .filter(|gang| gang.metadata.deletion_timestamp.is_none());
        match (all.next(), all.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        }
    })
    .await
}

/// The pod of index 0, with fields that no type of ours has.
async fn lead(fixture: &Fixture, cluster: &str, pods: usize) -> Value {
    let name = fixture.pods(cluster, pods).await[&0].name_any();
    let path = format!("/api/v1/namespaces/{}/pods/{name}", fixture.namespace);
    fixture
        .client
        .request(http::Request::get(path).body(Vec::new()).unwrap())
        .await
        .unwrap()
}

/// An operator that may create gangs, with the permissions of an installation for this namespace.
async fn operator(fixture: &Fixture, calls: &Calls) -> Operator {
    fixture
        .operator_installed(
            calls.clone(),
            &json!({ "gang": { "enabled": true } }),
            |settings| settings.options.gang = true,
        )
        .await
}

fn spec(more: Value) -> Value {
    let mut spec = json!({ "size": 2 });
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    spec
}

/// Whether a call asks which APIs exist, or is about an API for gangs.
fn is_about_gangs(call: &Call) -> bool {
    call.resource == "apis" || call.group.starts_with("scheduling.")
}

#[test]
fn operator_asks_for_no_gang_api_unless_a_gang_is_wanted() {
    test("gang-none", async |fixture| {
        // An operator that is installed without gangs.
        let plain = fixture.operator().await;
        fixture.create("auto", spec(json!({}))).await;
        fixture.pods("auto", 2).await;
        let calls = plain.calls.all();
        assert!(calls.len() > 5 && !calls.iter().any(is_about_gangs), "{calls:#?}");
        fixture.create("on", spec(json!({ "gang": "on" }))).await;
        let status = fixture.when_is("on", "reason", "GangUnavailable").await;
        assert_message(&status, "gang.enabled");
        assert!(!plain.calls.all().iter().any(is_about_gangs));
        // Because of `on`, the next operator would ask for the APIs.
        fixture.delete::<MiniCluster>("on").await;
        plain.stop().await;
        // The next operator may create gangs, but no MiniCluster without a Job wants one.
        let calls = Calls::default();
        let operator = operator(&fixture, &calls).await;
        fixture.create("off", spec(json!({ "gang": "off" }))).await;
        fixture.pods("off", 2).await;
        assert!(!calls.all().iter().any(is_about_gangs), "{:#?}", calls.all());
        // The operator asks once, for all MiniClusters.
        for name in ["one", "two"] {
            fixture.create(name, spec(json!({}))).await;
            fixture.pods(name, 2).await;
        }
        assert_eq!(
            calls.all().iter().filter(|call| call.resource == "apis").count(),
            1
        );
        operator.stop().await;
    });
}

/// By default everybody may use discovery, but a cluster may restrict it.
#[test]
fn forbidden_discovery_is_reported_when_a_gang_is_wanted() {
    test("gang-unasked", async |fixture| {
        let calls = Calls::with_faults(|call: &Call| (call.resource == "apis").then_some(Fault::Answer(403)));
        let operator = operator(&fixture, &calls).await;
        fixture.create("auto", spec(json!({}))).await;
        fixture.pods("auto", 2).await;
        fixture.create("on", spec(json!({ "gang": "on" }))).await;
        let status = fixture.when_is("on", "reason", "Forbidden").await;
        assert_message(&status, "system:discovery");
        operator.stop().await;
    });
}

#[test]
fn scheduler_plugins_and_volcano_have_their_own_pod_groups() {
    test("gang-others", async |fixture| {
        // The connection breaks at the first creation of the Job `volcano`, and the API server does not get the call. When the
        // operator tries again, it finds the objects that it created before the Job.
        let is_lost = Arc::new(AtomicBool::new(false));
        let lost = is_lost.clone();
        // While this is true, the Job `volcano` cannot be changed once its gang was. The Job `edited` cannot be deleted,
        // and `edited` has no status, so that the API server accepts edits.
        let is_refused = Arc::new(AtomicBool::new(false));
        let (refused, is_resized) = (is_refused.clone(), AtomicBool::new(false));
        let calls = Calls::with_faults(move |call: &Call| {
            let is_refused = refused.load(Ordering::SeqCst);
            match (call.verb.as_str(), call.resource.as_str(), call.name.as_str()) {
                ("create", "jobs", "volcano") => (!lost.swap(true, Ordering::SeqCst)).then_some(Fault::Lost),
                ("patch", "podgroups", _) => {
                    is_resized.store(is_refused, Ordering::SeqCst);
                    None
                }
                ("patch", "jobs", "volcano") => {
                    (is_refused && is_resized.load(Ordering::SeqCst)).then_some(Fault::Answer(503))
                }
                ("delete", "jobs", "edited") | ("patch", "miniclusters/status", "edited") => {
                    is_refused.then_some(Fault::Answer(503))
                }
                _ => None,
            }
        });
        let operator = operator(&fixture, &calls).await;
        let scheduled = |by: &str, gang: &str| spec(json!({ "gang": gang, "pod": { "schedulerName": by } }));
        fixture.create("volcano", scheduled("volcano", "on")).await;
        fixture
            .create("plugins", scheduled("scheduler-plugins-scheduler", "on"))
            .await;
        fixture.create("auto", scheduled("volcano", "auto")).await;
        for (name, words) in [
            ("volcano", "Volcano's PodGroup"),
            ("plugins", "scheduler-plugins' PodGroup"),
        ] {
            let status = fixture.when_is(name, "reason", "GangUnavailable").await;
            assert_eq!(
                condition(&status, "JobRequested")["status"],
                "False",
                "{status:#}"
            );
            assert_message(&status, words);
            assert!(fixture.find::<Job>(name).await.is_none());
        }
        assert!(
            lead(&fixture, "auto", 2).await["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
                .is_null()
        );

        // The APIs are installed later.
        let count = json!({ "minMember": { "type": "integer" }, "queue": { "type": "string" } });
        apply(&definition("scheduling.volcano.sh", "v1beta1", &count));
        apply(&definition(
            "scheduling.x-k8s.io",
            "v1alpha1",
            &json!({ "minMember": { "type": "integer" } }),
        ));
        let made = gang(&fixture, GangApi::Volcano, "volcano").await;
        let owner = &made.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!(
            Some(&owner.uid),
            fixture.get("volcano").await.metadata.uid.as_ref()
        );
        assert_eq!(made.data["spec"]["minMember"], 2);
        let pod = lead(&fixture, "volcano", 2).await;
        assert_eq!(
            pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"],
            json!(made.name_any())
        );
        assert!(is_lost.load(Ordering::SeqCst), "a Job's creation was lost");
        let made = gang(&fixture, GangApi::Coscheduling, "plugins").await;
        let pod = lead(&fixture, "plugins", 2).await;
        assert_eq!(
            pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"],
            json!(made.name_any())
        );
        let order: Vec<Call> = calls
            .all()
            .into_iter()
            .filter(|call| call.verb == "create")
            .collect();
        // The last call of each: the Job of `auto` was created before any gang.
        let at = |resource: &str| order.iter().rposition(|call| call.resource == resource).unwrap();
        assert!(at("podgroups") < at("jobs"), "{order:#?}");

        for (api, name) in [(GangApi::Volcano, "volcano"), (GangApi::Coscheduling, "plugins")] {
            follows_the_size_and_the_job(&fixture, api, name).await;
        }
        gang_follows_a_size_that_is_taken_back(&fixture, "volcano", &is_refused).await;
        gang_stays_while_its_job_cannot_be_deleted(&fixture, "edited", &is_refused, &calls).await;
        gang_that_only_the_job_names_is_left_alone(&fixture, "auto").await;
        next_operator_deletes_the_gang_of_a_job_it_has_never_seen(&fixture, operator, &calls).await;
        next_operator_fails_job_deleted_unseen_and_deletes_gang(&fixture, &calls).await;
        // Somebody who later installs the operator without gangs removes the permissions. The MiniClusters go
        // on.
        let plain = fixture.operator().await;
        fixture.edit("plugins", json!({ "size": 1 })).await;
        until("it shrinks", async || {
            (fixture.job("plugins").await.spec?.completions == Some(1)).then_some(())
        })
        .await;
        plain.stop().await;
        // `calls` has only the calls of the operators with gangs. They had all permissions that they needed.
        let refused: Vec<Call> = calls
            .all()
            .into_iter()
            .filter(|call| call.status == 403 && is_about_gangs(call))
            .collect();
        assert!(refused.is_empty(), "{refused:#?}");
        let used: Vec<Call> = calls
            .all()
            .into_iter()
            .filter(|call| call.group.contains('.'))
            .collect();
        let used: BTreeSet<_> = used.iter().map(Call::permission).collect();
        let gangs = |is_on: bool| {
            Installation::whole(&json!({ "gang": { "enabled": is_on } })).permissions("flux-operator")
        };
        let granted: BTreeSet<_> = gangs(true).difference(&gangs(false)).cloned().collect();
        assert!(granted.len() > 12, "{granted:?}");
        let unused: Vec<_> = granted.difference(&used).collect();
        // Kubernetes' own API is not served here, so its permissions are not used.
        let is_of_served_api =
            |(group, ..): &&&Permission| group == "scheduling.volcano.sh" || group == "scheduling.x-k8s.io";
        assert_eq!(
            unused.iter().find(is_of_served_api),
            None,
            "permissions that nothing uses"
        );
    });
}

/// A pod of the deleted Job stays until the first operator has stopped. So the next operator creates the next Job,
/// and finds the earlier gang only by a list. The MiniCluster restarts, since the status says that an operator saw the
/// deletion.
async fn next_operator_deletes_the_gang_of_a_job_it_has_never_seen(
    fixture: &Fixture,
    first: Operator,
    calls: &Calls,
) {
    let made = gang(fixture, GangApi::Volcano, "volcano").await.name_any();
    let mut pods = fixture.pods("volcano", 2).await;
    fixture.run_pod(&pods[&0]).await;
    fixture
        .when("volcano", "told of its Job", |status| {
            status["jobUid"].is_string()
        })
        .await;
    let pod = pods.remove(&1).unwrap();
    let hold = async |finalizers: Value| {
        fixture
            .patch::<Pod>(
                &pod.name_any(),
                json!({ "metadata": { "finalizers": finalizers } }),
            )
            .await
            .unwrap();
    };
    hold(json!(["example.com/held"])).await;
    fixture.delete::<Job>("volcano").await;
    fixture.when_is("volcano", "reason", "WaitingForPods").await;
    first.stop().await;
    hold(json!([])).await;
    let next = operator(fixture, calls).await;
    until_another_gang(fixture, GangApi::Volcano, "volcano", &made).await;
    next.stop().await;
}

/// Nobody knows how the program of `auto` ended, so it does not run again, and its gang has no pods any more. (Since
/// `gang_that_only_the_job_names_is_left_alone`, `auto` has size 1 and a gang.)
async fn next_operator_fails_job_deleted_unseen_and_deletes_gang(fixture: &Fixture, calls: &Calls) {
    let first = operator(fixture, calls).await;
    gang(fixture, GangApi::Volcano, "auto").await;
    fixture.run_pods("auto", 1).await;
    fixture
        .when("auto", "told of its Job", |status| status["jobUid"].is_string())
        .await;
    first.stop().await;
    fixture.delete::<Job>("auto").await;
    until("its pods are gone", async || {
        fixture.reap("auto").await;
        let selector = ListParams::default().labels("batch.kubernetes.io/job-name=auto");
        fixture
            .api::<Pod>()
            .list(&selector)
            .await
            .unwrap()
            .items
            .is_empty()
            .then_some(())
    })
    .await;
    let next = operator(fixture, calls).await;
    let status = fixture.when_condition("auto", "Failed", "True").await;
    assert_eq!(status["reason"], "JobDeleted", "{status:#}");
    until("its gang is deleted", async || {
        gangs_of(fixture, GangApi::Volcano, "auto")
            .await
            .is_empty()
            .then_some(())
    })
    .await;
    next.stop().await;
}

/// Somebody who may change a Job, but no gang, cannot make the operator change another gang by what the Job
/// says.
async fn gang_that_only_the_job_names_is_left_alone(fixture: &Fixture, name: &str) {
    let gangs = gangs(fixture, GangApi::Coscheduling);
    let victim = json!({
        "apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": { "name": "victim" },
        "spec": { "minMember": 7 },
    });
    gangs
        .create(&PostParams::default(), &serde_json::from_value(victim).unwrap())
        .await
        .unwrap();
    let lie = json!({ "flux-framework.org/gang": "podgroups.v1alpha1.scheduling.x-k8s.io/victim" });
    let job = fixture
        .patch::<Job>(name, json!({ "metadata": { "annotations": lie } }))
        .await
        .unwrap();
    fixture.edit(name, json!({ "size": 1 })).await;
    until("it shrinks", async || {
        (fixture.job(name).await.spec?.completions == Some(1)).then_some(())
    })
    .await;
    fixture.delete::<Job>(name).await;
    until("another Job is there", async || {
        fixture.reap(name).await;
        let current = fixture.find::<Job>(name).await?;
        (current.uid() != job.uid() && !current.annotations()["flux-framework.org/gang"].ends_with("/victim"))
            .then_some(())
    })
    .await;
    assert_eq!(gangs.get("victim").await.unwrap().data["spec"]["minMember"], 7);
}

/// When a MiniCluster of 2 shrinks and grows again, its gang follows. Another Job gets another gang.
async fn follows_the_size_and_the_job(fixture: &Fixture, api: GangApi, name: &str) {
    // Before the first status, which has the maximum size, the operator recreates the Job after an edit. From then on,
    // it changes the Job.
    fixture.when_is(name, "maximumSize", 2).await;
    let made = gang(fixture, api, name).await.name_any();
    for size in [1, 2] {
        fixture.edit(name, json!({ "size": size })).await;
        until(&format!("its Job has {size}"), async || {
            (fixture.job(name).await.spec?.completions == Some(size)).then_some(())
        })
        .await;
        let now = gang(fixture, api, name).await;
        assert_eq!(now.name_any(), made);
        assert_eq!(count_of(&now), Some(size.into()), "{:#}", now.data);
    }
    // Somebody deletes its Job, and it restarts.
    fixture.delete::<Job>(name).await;
    until_another_gang(fixture, api, name, &made).await;
}

/// The number of pods in a gang.
fn count_of(gang: &DynamicObject) -> Option<i64> {
    // The second place is that of Kubernetes' own API.
    let places = ["/minMember", "/schedulingPolicy/gang/minCount"];
    let found = places
        .into_iter()
        .find_map(|place| gang.data["spec"].pointer(place));
    found.and_then(Value::as_i64)
}

/// The gang of a MiniCluster of 2 has its new size. Then the Job cannot be changed, and the user takes the size back.
async fn gang_follows_a_size_that_is_taken_back(fixture: &Fixture, name: &str, is_refused: &AtomicBool) {
    fixture.when_is(name, "maximumSize", 2).await;
    let has_size = async |size: i64| {
        until(&format!("the gang has {size}"), async || {
            (count_of(&gang(fixture, GangApi::Volcano, name).await) == Some(size)).then_some(())
        })
        .await;
    };
    is_refused.store(true, Ordering::SeqCst);
    fixture.edit(name, json!({ "size": 1 })).await;
    has_size(1).await;
    assert_eq!(fixture.job(name).await.spec.unwrap().completions, Some(2));
    fixture.edit(name, json!({ "size": 2 })).await;
    is_refused.store(false, Ordering::SeqCst);
    has_size(2).await;
    assert_eq!(fixture.job(name).await.spec.unwrap().completions, Some(2));
}

/// The spec is edited before anything has started. The Job cannot be deleted, and the user takes the edit back.
async fn gang_stays_while_its_job_cannot_be_deleted(
    fixture: &Fixture,
    name: &str,
    is_refused: &AtomicBool,
    calls: &Calls,
) {
    is_refused.store(true, Ordering::SeqCst);
    let edited = |which: &str| json!({ "containers": crate::edit::spec(which) });
    let mut first = spec(json!({ "gang": "on", "pod": { "schedulerName": "volcano" } }));
    first["containers"] = edited("first")["containers"].clone();
    fixture.create(name, first).await;
    until("the Job is there", async || {
        (crate::edit::of_job(fixture, name).await.as_deref() == Some("first")).then_some(())
    })
    .await;
    let job = fixture.job(name).await;
    fixture.edit(name, edited("second")).await;
    until("the operator tries to delete the Job", async || {
        let is_deletion = |call: &Call| call.verb == "delete" && call.resource == "jobs" && call.name == name;
        calls.all().iter().any(is_deletion).then_some(())
    })
    .await;
    fixture.edit(name, edited("first")).await;
    tokio::time::sleep(SETTLE).await;
    is_refused.store(false, Ordering::SeqCst);
    fixture.when_is(name, "maximumSize", 2).await;
    assert_eq!(fixture.job(name).await.uid(), job.uid());
    let names = gangs_of(fixture, GangApi::Volcano, name).await;
    assert!(names.len() == 1 && job.annotations()["flux-framework.org/gang"].ends_with(&names[0]));
}

/// The names of a MiniCluster's gangs that are not being deleted.
async fn gangs_of(fixture: &Fixture, api: GangApi, name: &str) -> Vec<String> {
    let selector = ListParams::default().labels(&format!("flux-framework.org/minicluster={name}"));
    let all = gangs(fixture, api).list(&selector).await.unwrap().items;
    all.iter()
        .filter(|gang| gang.metadata.deletion_timestamp.is_none())
        .map(ResourceExt::name_any)
        .collect()
}

/// Another Job has another gang, and the one before is gone.
async fn until_another_gang(fixture: &Fixture, api: GangApi, name: &str, before: &str) {
    until("another Job has another gang", async || {
        fixture.reap(name).await;
        let names = gangs_of(fixture, api, name).await;
        (names.len() == 1 && names[0] != before).then_some(())
    })
    .await;
}

/// Kubernetes' own API, which is off by default, on a control plane of its own. Before 1.37 it is an alpha
/// API.
#[test]
fn kubernetes_gang_api_is_used_when_beta_and_refused_when_alpha() {
    let minor = kubernetes_minor();
    test_alone(&SWITCHED_ON, async |fixture, kubeconfig| {
        let settings = |settings: &mut ControllerSettings| settings.options.gang = true;
        let operator = fixture.operator_as(&kubeconfig, Calls::default(), settings).await;
        fixture.create("mc", spec(json!({ "gang": "on" }))).await;
        match minor {
            ..35 => {
                assert_gang_refused(
                    &fixture,
                    "mc",
                    "does not serve PodGroup of scheduling.k8s.io/v1beta1",
                )
                .await
            }
            35 => {
                assert_gang_refused(
                    &fixture,
                    "mc",
                    "scheduling.k8s.io/v1alpha1, an alpha API that Kubernetes 1.35",
                )
                .await
            }
            36 => {
                assert_gang_refused(
                    &fixture,
                    "mc",
                    "scheduling.k8s.io/v1alpha2, an alpha API that Kubernetes 1.36",
                )
                .await
            }
            _ => assert_gang(&fixture, "mc").await,
        }
        fixture.create("off", spec(json!({ "gang": "off" }))).await;
        let pod = lead(&fixture, "off", 2).await["spec"].clone();
        assert!(
            pod["workloadRef"].is_null() && pod["schedulingGroup"].is_null(),
            "{pod:#}"
        );
        operator.stop().await;
    });
}

/// With `on` no pod is created, and the status says why; with `auto` pods start without a gang.
async fn assert_gang_refused(fixture: &Fixture, name: &str, cause: &str) {
    let status = fixture.when_is(name, "reason", "GangUnavailable").await;
    assert_message(&status, cause);
    assert_message(&status, "Kubernetes 1.37 or newer");
    assert!(fixture.find::<Job>(name).await.is_none());
    fixture.create("auto", spec(json!({}))).await;
    let pod = lead(fixture, "auto", 2).await["spec"].clone();
    assert!(
        pod["workloadRef"].is_null() && pod["schedulingGroup"].is_null(),
        "{pod:#}"
    );
    fixture.edit(name, json!({ "gang": "off" })).await;
    fixture.pods(name, 2).await;
}

async fn assert_gang(fixture: &Fixture, name: &str) {
    let made = gang(fixture, GangApi::Kubernetes, name).await;
    let owner = &made.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!(Some(&owner.uid), fixture.get(name).await.metadata.uid.as_ref());
    let pod = lead(fixture, name, 2).await["spec"].clone();
    assert_eq!(
        pod["schedulingGroup"]["podGroupName"],
        json!(made.name_any()),
        "{pod:#}"
    );
    follows_the_size_and_the_job(fixture, GangApi::Kubernetes, name).await;
}

/// The minor version of the Kubernetes that the tests run on.
pub(crate) fn kubernetes_minor() -> u32 {
    // One program is both kubectl and the API server, so they have the same version.
    let (program, kubectl) = kubectl_program();
    let version = std::process::Command::new(program)
        .args([kubectl, "version", "--client"])
        .output()
        .unwrap();
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    version
        .split("v1.")
        .nth(1)
        .and_then(|rest| rest.split('.').next()?.parse().ok())
        .unwrap()
}
