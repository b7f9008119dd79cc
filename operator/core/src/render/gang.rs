//! Gangs (all pods start or none): the gang's object, in one of three APIs, and the reference to it in the pods. The
//! operator asks which APIs are served (`lookups::gangs`), and never infers it from a version.
//!
//! | API | object | reference in the pods |
//! | --- | --- | --- |
//! | Kubernetes 1.37 | `scheduling.k8s.io/v1beta1` PodGroup | `spec.schedulingGroup` |
//! | scheduler-plugins | `scheduling.x-k8s.io/v1alpha1` PodGroup | a label |
//! | Volcano | `scheduling.volcano.sh/v1beta1` PodGroup | an annotation |
//!
//! Kubernetes 1.35, 1.36 and 1.37 each also have an alpha API ([`Alpha`]), which no other version serves. The operator
//! does not use them.

use std::collections::BTreeMap;

use flux_shared::validate::{Gang, Problem, ValidMiniCluster};
use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};

use super::overlaid::Overlaid;
use super::{RenderError, RenderFacts, hash, metadata};
use crate::labels;
use crate::observe::pod::DEFAULT_SCHEDULER;

/// Annotation or label of pods with the name of their queue in Volcano.
const VOLCANO_QUEUE: &str = "scheduling.volcano.sh/queue-name";

/// An API for gangs. The object's kind is PodGroup in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GangApi {
    /// Kubernetes' own.
    Kubernetes,
    /// The one of scheduler-plugins (coscheduling).
    Coscheduling,
    Volcano,
}

/// Names of the schedulers that are known to have an API of their own.
const VOLCANO_SCHEDULER: &str = "volcano";
const COSCHEDULER: &str = "scheduler-plugins-scheduler";

impl GangApi {
    pub const ALL: [GangApi; 3] = [GangApi::Kubernetes, GangApi::Coscheduling, GangApi::Volcano];
    pub const KIND: &str = "PodGroup";
    pub const PLURAL: &str = "podgroups";

    pub const fn group(self) -> &'static str {
        match self {
            GangApi::Coscheduling => "scheduling.x-k8s.io",
            GangApi::Volcano => "scheduling.volcano.sh",
            GangApi::Kubernetes => "scheduling.k8s.io",
        }
    }

    pub const fn version(self) -> &'static str {
        match self {
            GangApi::Kubernetes | GangApi::Volcano => "v1beta1",
            GangApi::Coscheduling => "v1alpha1",
        }
    }

    /// The part of the gang's object with the number of pods. It is also a merge patch.
    pub fn with_count(self, count: u32) -> Value {
        match self {
            GangApi::Coscheduling | GangApi::Volcano => json!({ "spec": { "minMember": count } }),
            GangApi::Kubernetes => {
                json!({ "spec": { "schedulingPolicy": { "gang": { "minCount": count } } } })
            }
        }
    }
}

/// An alpha form of Kubernetes' own API. Each is served by one version of Kubernetes only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alpha {
    V1alpha3,
    V1alpha2,
    V1alpha1,
}

impl Alpha {
    /// The newest first.
    pub const ALL: [Alpha; 3] = [Alpha::V1alpha3, Alpha::V1alpha2, Alpha::V1alpha1];

    pub const fn version(self) -> &'static str {
        match self {
            Alpha::V1alpha3 => "v1alpha3",
            Alpha::V1alpha2 => "v1alpha2",
            Alpha::V1alpha1 => "v1alpha1",
        }
    }

    /// The version of Kubernetes that serves it.
    const fn kubernetes(self) -> &'static str {
        match self {
            Alpha::V1alpha3 => "1.37",
            Alpha::V1alpha2 => "1.36",
            Alpha::V1alpha1 => "1.35",
        }
    }
}

/// Which APIs the cluster serves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    pub kubernetes: bool,
    pub coscheduling: bool,
    pub volcano: bool,
    /// The newest alpha form of Kubernetes' API that is served. It is not used, only named by `why_no_gang`.
    pub alpha: Option<Alpha>,
}

impl Served {
    /// Each API in the form that the operator uses.
    pub const ALL: Served = Served {
        kubernetes: true,
        coscheduling: true,
        volcano: true,
        alpha: None,
    };

    /// The API for pods of this scheduler (None: the default one), if it is served. A scheduler with an unknown name is
    /// taken for a kube-scheduler with plugins: its API is that of scheduler-plugins if served, else Kubernetes' own.
    pub fn for_scheduler(self, name: Option<&str>) -> Option<GangApi> {
        let kubernetes = self.kubernetes.then_some(GangApi::Kubernetes);
        let volcano = self.volcano.then_some(GangApi::Volcano);
        let coscheduling = self.coscheduling.then_some(GangApi::Coscheduling);
        match name {
            None | Some(DEFAULT_SCHEDULER) => kubernetes,
            Some(VOLCANO_SCHEDULER) => volcano,
            Some(COSCHEDULER) => coscheduling,
            Some(_) => coscheduling.or(kubernetes),
        }
    }
}

/// The object that makes a gang of the pods.
#[derive(Debug, Clone, PartialEq)]
pub struct GangObject {
    pub at: GangRef,
    /// The whole object, as it is sent.
    pub body: Value,
}

/// API and name of the gang's object; as text on the Job: `podgroups.v1beta1.scheduling.k8s.io/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangRef {
    pub api: GangApi,
    pub name: String,
}

impl std::fmt::Display for GangRef {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let GangRef { api, name } = self;
        write!(
            formatter,
            "{}.{}.{}/{name}",
            GangApi::PLURAL,
            api.version(),
            api.group()
        )
    }
}

impl GangRef {
    /// Parses the text on a Job. None: it is not ours, or of a later version.
    pub fn read(text: &str) -> Option<GangRef> {
        let (_, name) = text.split_once('/')?;
        let mut all = GangApi::ALL.into_iter().map(|api| GangRef {
            api,
            name: name.to_owned(),
        });
        all.find(|gang| gang.to_string() == text)
    }
}

/// The result of `spec.gang`.
#[derive(Debug, Clone, PartialEq)]
pub enum GangOf {
    /// No gang: each pod starts when there is room for it.
    None,
    /// A gang is required, but cannot be made. The problem says why.
    Unserved(Problem),
    Object(Box<GangObject>),
}

/// The scheduler of a cluster's pods; the pod template may override it.
fn scheduler(cluster: &ValidMiniCluster) -> Option<&str> {
    let overlaid = cluster
        .pod_template
        .as_ref()
        .and_then(|overlay| overlay.value().pointer("/spec/schedulerName"));
    overlaid.map_or(cluster.pod.scheduler_name.as_deref(), Value::as_str)
}

/// The API for a cluster's gang. None: none is served for it, or no gang is wanted.
pub fn api_for(cluster: &ValidMiniCluster, served: Served) -> Option<GangApi> {
    if cluster.gang == Gang::Off {
        return None;
    }
    served.for_scheduler(scheduler(cluster))
}

/// How many pods have to be scheduled at once. `least`: how many brokers the command waits for; None: for all.
pub fn count(least: Option<u32>, size: u32) -> u32 {
    least.map_or(size, |least| least.min(size))
}

/// Renders the gang's object, if a gang is wanted and possible. `is_installed`: the installation allows gangs.
pub(super) fn build(cluster: &ValidMiniCluster, is_installed: bool, facts: &RenderFacts) -> GangOf {
    match api_for(cluster, facts.gangs) {
        Some(api) if is_installed => GangOf::Object(Box::new(object(cluster, api, facts))),
        _ if cluster.gang == Gang::On => GangOf::Unserved(Problem::new(
            "spec.gang",
            why_no_gang(cluster, is_installed, facts.gangs.alpha),
        )),
        _ => GangOf::None,
    }
}

/// Why the gang cannot be made, and the remedy.
fn why_no_gang(cluster: &ValidMiniCluster, is_installed: bool, alpha: Option<Alpha>) -> String {
    let remedy = "set gang: auto to start without a gang";
    if !is_installed {
        return format!(
            "the operator was installed without gangs: install it with gang.enabled=true, or {remedy}"
        );
    }
    let scheduler = scheduler(cluster).unwrap_or(DEFAULT_SCHEDULER);
    let missing = match (scheduler, alpha) {
        (VOLCANO_SCHEDULER, _) => "Volcano's PodGroup (scheduling.volcano.sh/v1beta1)".to_owned(),
        (COSCHEDULER, _) => "scheduler-plugins' PodGroup (scheduling.x-k8s.io/v1alpha1)".to_owned(),
        (_, Some(alpha)) => return why_no_gang_by_alpha(alpha, scheduler),
        (_, None) => "PodGroup of scheduling.k8s.io/v1beta1 (Kubernetes 1.37 or newer with the feature gate GenericWorkload and this API enabled)".to_owned(),
    };
    format!(
        "the cluster does not serve {missing}, which scheduler {scheduler} needs to schedule all pods or none: enable it, or {remedy}"
    )
}

/// Why the gang cannot be made if Kubernetes serves only an alpha API, and the remedy.
fn why_no_gang_by_alpha(alpha: Alpha, scheduler: &str) -> String {
    let (version, kubernetes) = (alpha.version(), alpha.kubernetes());
    let enable = match alpha {
        Alpha::V1alpha3 => "enable scheduling.k8s.io/v1beta1 as well",
        Alpha::V1alpha2 | Alpha::V1alpha1 => {
            "upgrade to Kubernetes 1.37 or newer and enable scheduling.k8s.io/v1beta1"
        }
    };
    format!(
        "for scheduler {scheduler} the cluster serves only scheduling.k8s.io/{version}, an alpha API that Kubernetes {kubernetes} alone has, and the operator needs PodGroup of v1beta1 (Kubernetes 1.37 or newer): {enable}, use scheduler-plugins (pod.schedulerName: {COSCHEDULER}), or set gang: auto or off to start without a gang"
    )
}

fn object(cluster: &ValidMiniCluster, api: GangApi, facts: &RenderFacts) -> GangObject {
    let count = count(cluster.min_size, cluster.size);
    // A new name for each Job: the previous object may still exist, and have other values in fields that cannot be
    // changed. The Job is recreated for a restart (`attempt`), after an edit of the spec (`spec_hash`), and if its pods
    // could not mount the view's image. `create_gang` takes an existing object of this name as it is. So the name also
    // depends on the count (`size` may be edited before the Job exists) and on the API's version (an earlier operator may
    // have used another one).
    let identity = (
        facts.uid.as_deref(),
        facts.attempt,
        &facts.spec_hash,
        facts.image_volume_failed,
        count,
        api.version(),
    );
    let name = format!("{}-{}", cluster.name, &hash(&identity)[..8]);
    object_with_count(cluster, &GangRef { api, name }, facts, count)
}

/// The gang's object with this name and this number of pods.
pub fn object_with_count(
    cluster: &ValidMiniCluster,
    at: &GangRef,
    facts: &RenderFacts,
    count: u32,
) -> GangObject {
    let api = at.api;
    let mut metadata = metadata(at.name.clone(), cluster, facts);
    // Kubernetes removes a PodGroup only some time after its last pod. A foreground deletion of the MiniCluster waits for
    // the Job and its pods; without this field it does not wait for the PodGroup, too.
    for owner in metadata.owner_references.iter_mut().flatten() {
        owner.block_owner_deletion = None;
    }
    let mut body = json!({
        "apiVersion": format!("{}/{}", api.group(), api.version()), "kind": GangApi::KIND, "metadata": metadata,
    });
    body["spec"] = api.with_count(count)["spec"].take();
    let priority = template_text(cluster, "/spec/priorityClassName");
    match api {
        // This PodGroup has neither a queue nor a priority.
        GangApi::Coscheduling => {}
        GangApi::Volcano => {
            let queue_of = |map: &BTreeMap<String, String>| map.get(VOLCANO_QUEUE).map(|queue| json!(queue));
            let queue = queue_of(&cluster.pod.annotations).or_else(|| queue_of(&cluster.pod.labels));
            for (field, value) in [("queue", queue), ("priorityClassName", priority)] {
                if let Some(value) = value {
                    body["spec"][field] = value;
                }
            }
        }
        GangApi::Kubernetes => {
            if let Some(name) = priority {
                body["spec"]["priorityClassName"] = name;
            }
        }
    }
    GangObject { at: at.clone(), body }
}

/// The text at a JSON pointer in the spec's pod template.
fn template_text(cluster: &ValidMiniCluster, pointer: &str) -> Option<Value> {
    cluster
        .pod_template
        .as_ref()?
        .value()
        .pointer(pointer)
        .filter(|value| value.is_string())
        .cloned()
}

/// The Job, with a reference to the gang's object in its pods and in its own annotation.
pub(super) fn with_reference(mut job: Overlaid<Job>, at: &GangRef) -> Result<Overlaid<Job>, RenderError> {
    job.rendered
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(labels::GANG.into(), at.to_string());
    let name = json!(at.name);
    let (parent, key, value) = match at.api {
        GangApi::Coscheduling => ("metadata/labels", "scheduling.x-k8s.io/pod-group", name),
        GangApi::Volcano => ("metadata/annotations", "scheduling.k8s.io/group-name", name),
        GangApi::Kubernetes => ("spec", "schedulingGroup", json!({ "podGroupName": name })),
    };
    let fields = [
        // An overlay was applied to `rendered` before it got the annotation above. So the object that is sent lacks it.
        (
            "/metadata/annotations".to_owned(),
            labels::GANG,
            json!(at.to_string()),
        ),
        (format!("/spec/template/{parent}"), key, value),
    ];
    job.with_fields(fields).map_err(RenderError::Overlay)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheduler_has_its_api_and_others_are_kube_schedulers() {
        let all = Served {
            kubernetes: true,
            coscheduling: true,
            volcano: true,
            alpha: None,
        };
        let of =
            |served: Served, name: &str| served.for_scheduler(Some(name).filter(|name| !name.is_empty()));
        for name in ["", "default-scheduler"] {
            assert_eq!(of(all, name), Some(GangApi::Kubernetes));
        }
        assert_eq!(of(all, "volcano"), Some(GangApi::Volcano));
        assert_eq!(of(all, "mine"), Some(GangApi::Coscheduling));
        let own = Served {
            coscheduling: false,
            volcano: false,
            ..all
        };
        assert_eq!(of(own, "mine"), Some(GangApi::Kubernetes));
        assert_eq!(
            (of(own, "volcano"), of(own, "scheduler-plugins-scheduler")),
            (None, None)
        );
        let others = Served {
            kubernetes: false,
            ..all
        };
        assert_eq!(of(others, ""), None, "the default scheduler does not know it");
    }

    #[test]
    fn reference_to_the_gangs_object_is_read_back_from_its_text() {
        for api in GangApi::ALL {
            let at = GangRef {
                api,
                name: "mc-0123".into(),
            };
            assert_eq!(GangRef::read(&at.to_string()), Some(at.clone()), "{at}");
        }
        let of = |api: GangApi| {
            GangRef {
                api,
                name: "mc".into(),
            }
            .to_string()
        };
        assert_eq!(of(GangApi::Kubernetes), "podgroups.v1beta1.scheduling.k8s.io/mc");
        for unknown in [
            "podgroups.v9.scheduling.k8s.io/mc",
            "workloads.v1alpha1.scheduling.k8s.io/mc",
        ] {
            assert_eq!(GangRef::read(unknown), None, "{unknown}");
        }
    }

    /// JSON pointer to the number of pods in the gang's object of an API.
    fn count_at(api: GangApi) -> &'static str {
        match api {
            GangApi::Coscheduling | GangApi::Volcano => "/spec/minMember",
            GangApi::Kubernetes => "/spec/schedulingPolicy/gang/minCount",
        }
    }

    #[test]
    fn gang_count_is_at_the_path_of_each_api() {
        for api in GangApi::ALL {
            let cluster = crate::testing::cluster("size: 4\nminSize: 3\ngang: auto");
            let facts = RenderFacts {
                uid: Some("uid".into()),
                ..RenderFacts::default()
            };
            let three = object(&cluster, api, &facts);
            assert_eq!(three.body.pointer(count_at(api)), Some(&json!(3)), "{api:?}");
            let two = object_with_count(&cluster, &three.at, &facts, 2);
            assert_eq!(two.body.pointer(count_at(api)), Some(&json!(2)), "{api:?}");
            assert_eq!(two.body["metadata"], three.body["metadata"]);
        }
    }

    #[test]
    fn gang_is_refused_with_remedy_when_only_alpha_api_is_served() {
        let of = |gang: &str, scheduler: &str, alpha, kubernetes| {
            let cluster =
                crate::testing::cluster(&format!("gang: {gang}\npod: {{schedulerName: {scheduler}}}"));
            let gangs = Served {
                alpha,
                kubernetes,
                ..Served::default()
            };
            super::build(
                &cluster,
                true,
                &RenderFacts {
                    uid: Some("uid".into()),
                    gangs,
                    ..RenderFacts::default()
                },
            )
        };
        for (alpha, kubernetes, remedy) in [
            (
                Alpha::V1alpha1,
                "Kubernetes 1.35 alone",
                "upgrade to Kubernetes 1.37",
            ),
            (
                Alpha::V1alpha2,
                "Kubernetes 1.36 alone",
                "upgrade to Kubernetes 1.37",
            ),
            (
                Alpha::V1alpha3,
                "Kubernetes 1.37 alone",
                "enable scheduling.k8s.io/v1beta1 as well",
            ),
        ] {
            let GangOf::Unserved(why) = of("\"on\"", "default-scheduler", Some(alpha), false) else {
                panic!("{alpha:?} is not used")
            };
            for part in [
                alpha.version(),
                kubernetes,
                remedy,
                "scheduler-plugins",
                "gang: auto",
            ] {
                assert!(why.to_string().contains(part), "{part}: {why}");
            }
            assert_eq!(
                of("auto", "default-scheduler", Some(alpha), false),
                GangOf::None,
                "pods start one by one"
            );
            assert!(matches!(
                of("\"on\"", "default-scheduler", Some(alpha), true),
                GangOf::Object(_)
            ));
        }
        let GangOf::Unserved(why) = of("\"on\"", "volcano", Some(Alpha::V1alpha2), false) else {
            panic!()
        };
        assert!(why.to_string().contains("Volcano's PodGroup"), "{why}");
    }

    #[test]
    fn each_job_has_a_gang_object_of_its_own() {
        let cluster = crate::testing::cluster("size: 4");
        let named = |facts: RenderFacts| object(&cluster, GangApi::Kubernetes, &facts).at.name;
        let first = RenderFacts {
            uid: Some("a".into()),
            ..RenderFacts::default()
        };
        assert_eq!(
            named(first.clone()),
            named(first.clone()),
            "an operator that replaces a killed one finds the object"
        );
        let others = [
            RenderFacts {
                attempt: 1,
                ..first.clone()
            },
            RenderFacts {
                image_volume_failed: true,
                ..first.clone()
            },
            RenderFacts {
                spec_hash: Some("other".into()),
                ..first.clone()
            },
            RenderFacts {
                uid: Some("b".into()),
                ..first.clone()
            },
        ];
        for other in others {
            assert_ne!(named(other.clone()), named(first.clone()), "{other:?}");
        }
    }
}
