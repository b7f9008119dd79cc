//! The NetworkPolicy of a MiniCluster: only its brokers' pods reach the brokers' port. Other ports stay open to all,
//! even where another policy denies everything, since NetworkPolicies add up.

use flux_shared::names;
use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::services::BROKER_PORT;
use super::{RenderFacts, metadata};
use crate::labels;

/// The NetworkPolicy for the brokers. None: brokers of other clusters may belong to the same instance (bursting).
pub(super) fn policy(cluster: &ValidMiniCluster, facts: &RenderFacts) -> Option<NetworkPolicy> {
    if cluster.flux.hostlist.is_some() || cluster.flux.lead.is_some() {
        return None;
    }
    let brokers = LabelSelector {
        match_labels: Some([(labels::CLUSTER.to_owned(), cluster.name.clone())].into()),
        ..LabelSelector::default()
    };
    let ports = |protocol: &str, first: i32, last: i32| NetworkPolicyPort {
        protocol: Some(protocol.into()),
        port: Some(IntOrString::Int(first)),
        end_port: Some(last),
    };
    let from_brokers = NetworkPolicyPeer {
        pod_selector: Some(brokers.clone()),
        ..NetworkPolicyPeer::default()
    };
    // All ports but the broker's, which uses TCP.
    let others = [
        ports("TCP", 1, BROKER_PORT - 1),
        ports("TCP", BROKER_PORT + 1, 65535),
        ports("UDP", 1, 65535),
        ports("SCTP", 1, 65535),
    ];
    Some(NetworkPolicy {
        metadata: metadata(names::network_policy(&cluster.name), cluster, facts),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(brokers),
            policy_types: Some(vec!["Ingress".into()]),
            ingress: Some(vec![
                NetworkPolicyIngressRule {
                    from: Some(vec![from_brokers]),
                    ports: None,
                },
                NetworkPolicyIngressRule {
                    from: None,
                    ports: Some(others.into()),
                },
            ]),
            ..NetworkPolicySpec::default()
        }),
    })
}
