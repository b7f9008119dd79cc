//! The gang object of each API, and the Job's fields for it.

use std::path::Path;

use flux_operator_core::render::gang::{GangApi, GangOf, Served};
use flux_operator_core::render::{self, Options, RenderFacts};
use flux_operator_core::yaml;
use serde_json::{Value, json};

use test_support::committed::same;
use test_support::rendering;

fn rendered(spec: Value, served: Served) -> render::Objects {
    let document = json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "mc" }, "spec": spec,
    });
    let options = Options {
        gang: true,
        ..Options::default()
    };
    let facts = RenderFacts {
        uid: Some("uid".into()),
        gangs: served,
        ..RenderFacts::default()
    };
    rendering::rendered(&document, &options, &facts)
}

/// The object, and the Job's fields for it.
fn parts(objects: &render::Objects) -> Option<Vec<Value>> {
    let GangOf::Object(gang) = &objects.gang else {
        return None;
    };
    let with = serde_json::to_value(&objects.job).unwrap();
    let template = &with["spec"]["template"];
    let ties = json!({
        "annotations": { "flux-framework.org/gang": with["metadata"]["annotations"]["flux-framework.org/gang"] },
        "template": {
            "metadata": {
                "labels": { "scheduling.x-k8s.io/pod-group": template["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] },
                "annotations": { "scheduling.k8s.io/group-name": template["metadata"]["annotations"]["scheduling.k8s.io/group-name"] },
            },
            "spec": {
                "schedulerName": template["spec"]["schedulerName"],
                "schedulingGroup": template["spec"]["schedulingGroup"],
            },
        },
    });
    Some(vec![gang.body.clone(), ties])
}

#[test]
fn the_objects_of_each_api_are_as_committed() {
    // A gang counts `minSize` pods. Volcano's also takes the queue and the priority class, Kubernetes' only the latter.
    let spec = |scheduler: &str| {
        json!({
            "size": 4, "minSize": 3, "gang": "on", "containers": [{ "image": "app:1", "command": "hostname" }],
            "pod": { "schedulerName": scheduler, "labels": { "mine": "1" }, "annotations": { "scheduling.volcano.sh/queue-name": "team" } },
            "podTemplate": { "spec": { "priorityClassName": "high" } },
        })
    };
    for api in GangApi::ALL {
        let (scheduler, served) = match api {
            GangApi::Coscheduling => (
                "scheduler-plugins-scheduler",
                Served {
                    coscheduling: true,
                    ..Served::default()
                },
            ),
            GangApi::Volcano => (
                "volcano",
                Served {
                    volcano: true,
                    ..Served::default()
                },
            ),
            GangApi::Kubernetes => (
                "",
                Served {
                    kubernetes: true,
                    ..Served::default()
                },
            ),
        };
        let documents = parts(&rendered(spec(scheduler), served)).unwrap();
        let text = yaml::stream(documents.iter().map(|document| yaml::document(document).unwrap()));
        let file = format!("tests/it/golden/gang/{}.{}.yaml", api.version(), api.group());
        same(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file), &text);
    }
}

#[test]
fn gang_off_or_own_group_creates_no_gang() {
    let served = Served {
        kubernetes: true,
        ..Served::default()
    };
    let spec = |more: Value| {
        let mut spec = json!({ "size": 2, "containers": [{ "image": "app:1", "command": "hostname" }] });
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        spec
    };
    let job = |objects: &render::Objects| serde_json::to_value(&objects.job).unwrap();
    let plain = rendered(spec(json!({})), Served::default());
    let off = rendered(spec(json!({ "gang": "off" })), served);
    assert_eq!((&off.gang, job(&off)), (&GangOf::None, job(&plain)));
    assert_eq!(
        rendered(spec(json!({ "gang": "auto" })), Served::default()).gang,
        GangOf::None
    );
    let own = json!({ "podTemplate": { "spec": { "schedulingGroup": { "podGroupName": "mine" } } } });
    let own = rendered(spec(own), served);
    assert_eq!(own.gang, GangOf::None);
    assert_eq!(
        job(&own)["spec"]["template"]["spec"]["schedulingGroup"]["podGroupName"],
        "mine"
    );
    let labelled = json!({
        "pod": { "schedulerName": "scheduler-plugins-scheduler", "labels": { "scheduling.x-k8s.io/pod-group": "mine" } },
    });
    let labelled = rendered(
        spec(labelled),
        Served {
            coscheduling: true,
            ..Served::default()
        },
    );
    assert_eq!(labelled.gang, GangOf::None);
    assert_eq!(
        job(&labelled)["spec"]["template"]["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"],
        "mine"
    );
    // The overlay removes the name of Volcano's scheduler. So Kubernetes' own API makes the gang.
    let back = json!({ "pod": { "schedulerName": "volcano" }, "podTemplate": { "spec": { "schedulerName": null } } });
    assert!(
        matches!(rendered(spec(back), served).gang, GangOf::Object(_)),
        "the default scheduler's"
    );
    // An overlay with other fields keeps ours.
    let both = rendered(
        spec(json!({ "podTemplate": { "spec": { "hostNetwork": true } } })),
        served,
    );
    let pods = job(&both)["spec"]["template"]["spec"].clone();
    assert!(
        pods["hostNetwork"] == true && pods["schedulingGroup"]["podGroupName"].is_string(),
        "{pods:#}"
    );
}
