//! The Services: one headless for the pods' names, shared by the MiniClusters that name it, and one for each
//! sidecar with ports.

use std::collections::BTreeMap;

use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{RenderFacts, hash, metadata, none_if_empty, owner};
use crate::labels;

/// `ipFamilyPolicy`: IPv4 and IPv6 if the Kubernetes cluster has both, else the one that it has.
const BOTH_FAMILIES: &str = "PreferDualStack";
/// The broker's port.
pub(super) const BROKER_PORT: i32 = 8050;

/// A MiniCluster whose pods are named by the headless Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    pub name: String,
    pub uid: String,
    /// Only the lead needs a name (`minimalService`).
    pub minimal: bool,
}

/// The member of the headless Service for this cluster alone.
pub(super) fn members_of_one(cluster: &ValidMiniCluster, facts: &RenderFacts) -> Vec<Member> {
    vec![Member {
        name: cluster.name.clone(),
        uid: facts.uid.clone().unwrap_or_default(),
        minimal: cluster.flux.minimal_service,
    }]
}

/// The headless Service of `members`. All of them own it, so it is deleted with the last one.
///
/// Not-ready addresses are published, since brokers find each other before anything is ready. If every member has
/// `minimalService`, only pods of index 0 are selected: the leads can be resolved by their usual names, and the
/// followers cannot.
pub fn headless(namespace: &str, name: &str, members: &[Member]) -> Service {
    let mut members = members.to_vec();
    members.sort();
    let mut selector: BTreeMap<String, String> = [(labels::HEADLESS.to_owned(), name.to_owned())].into();
    if members.iter().all(|member| member.minimal) {
        selector.insert(labels::COMPLETION_INDEX.into(), "0".into());
    }
    // A member has no uid if the Service is rendered for output to a person.
    let owners = members.iter().filter(|member| !member.uid.is_empty());
    let owners = owners.map(|member| OwnerReference {
        // Only one owner of an object can be its controller.
        controller: None,
        ..owner(&member.name, &member.uid)
    });
    let spec = ServiceSpec {
        cluster_ip: Some("None".into()),
        ports: Some(vec![port("flux", BROKER_PORT)]),
        ip_family_policy: Some(BOTH_FAMILIES.into()),
        publish_not_ready_addresses: Some(true),
        selector: Some(selector),
        ..ServiceSpec::default()
    };
    let labels: BTreeMap<String, String> = [
        (labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned()),
        (labels::HEADLESS.to_owned(), name.to_owned()),
    ]
    .into();
    Service {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels),
            annotations: Some([(labels::RENDERED_HASH.to_owned(), hash(&spec))].into()),
            owner_references: none_if_empty(owners.collect()),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        ..Service::default()
    }
}

/// A Service for each sidecar with ports, with the sidecar's name.
///
/// Not-ready addresses are published: a pod is not ready before its broker has joined, and snippets or other
/// sidecars may wait for this one before that.
pub(super) fn of_sidecars(cluster: &ValidMiniCluster, facts: &RenderFacts) -> Vec<Service> {
    let containers = cluster.sidecars.iter().map(|sidecar| &sidecar.container);
    let with_ports = containers.filter(|container| !container.ports.is_empty());
    let service = |container: &flux_shared::validate::ValidContainer| Service {
        metadata: with_headless_label(
            metadata(container.name.clone(), cluster, facts),
            &cluster.headless_name,
        ),
        spec: Some(ServiceSpec {
            ports: Some(
                container
                    .ports
                    .iter()
                    .map(|p| port(&format!("port-{p}"), i32::from(*p)))
                    .collect(),
            ),
            ip_family_policy: Some(BOTH_FAMILIES.into()),
            publish_not_ready_addresses: Some(true),
            selector: Some([(labels::CLUSTER.to_owned(), cluster.name.clone())].into()),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    };
    with_ports.map(service).collect()
}

/// Adds the label by which the watch of Services selects.
fn with_headless_label(mut metadata: ObjectMeta, headless: &str) -> ObjectMeta {
    metadata
        .labels
        .get_or_insert_default()
        .insert(labels::HEADLESS.into(), headless.to_owned());
    metadata
}

fn port(name: &str, number: i32) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: number,
        target_port: Some(IntOrString::Int(number)),
        protocol: Some("TCP".into()),
        ..ServicePort::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, minimal: bool) -> Member {
        Member {
            name: name.into(),
            uid: format!("uid-{name}"),
            minimal,
        }
    }

    #[test]
    fn headless_service_selects_all_pods_if_one_member_needs_it() {
        let all = headless("ns", "flux-service", &[member("b", true), member("a", false)]);
        let selector = all.spec.unwrap().selector.unwrap();
        assert_eq!(selector.keys().collect::<Vec<_>>(), [labels::HEADLESS]);
        let minimal = headless("ns", "flux-service", &[member("b", true)]);
        assert_eq!(
            minimal.spec.unwrap().selector.unwrap()[labels::COMPLETION_INDEX],
            "0"
        );
    }

    #[test]
    fn headless_service_ignores_member_order_and_has_no_controller() {
        let one = headless("ns", "s", &[member("b", true), member("a", false)]);
        assert_eq!(one, headless("ns", "s", &[member("a", false), member("b", true)]));
        let owners = one.metadata.owner_references.unwrap();
        assert_eq!(owners.len(), 2);
        assert!(owners.iter().all(|owner| owner.controller.is_none()));
    }

    #[test]
    fn sidecar_is_reached_before_flux_has_started() {
        let spec = "containers: [{image: a, runFlux: true, commands: {pre: wait-for db}}, {image: b, name: db, ports: [5432]}]";
        let services = of_sidecars(&crate::testing::cluster(spec), &RenderFacts::default());
        let [service] = services.as_slice() else {
            panic!("{services:?}");
        };
        let spec = service.spec.as_ref().unwrap();
        assert_eq!(spec.publish_not_ready_addresses, Some(true));
    }
}
