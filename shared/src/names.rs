//! Names of objects and hosts, and their limits.

/// Environment variable with the completion index of a pod of an Indexed Job. The Job controller sets it unless the
/// pod template does.
pub const COMPLETION_INDEX: &str = "JOB_COMPLETION_INDEX";
/// The message if a user sets [`COMPLETION_INDEX`].
pub const COMPLETION_INDEX_IS_SET: &str =
    "is set by Kubernetes: the agent of the pod with index 0 runs the program";
/// Name of the init container that installs the agent.
pub const AGENT_CONTAINER: &str = "flux-agent";
/// Name of the init container that fills the volume of `/opt/software`.
pub const SOFTWARE_CONTAINER: &str = "flux-software";
/// Labels of the Job and of most other objects that the operator creates; they override a user's.
pub const OWN_LABELS: [&str; 3] = [
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/name",
    "flux-framework.org/minicluster",
];
/// Labels of pods that override a user's.
pub const OWN_POD_LABELS: [&str; 8] = [
    "app",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/name",
    "flux-framework.org/headless",
    "flux-framework.org/minicluster",
    "hpa-selector",
    "job-index",
    "namespace",
];
/// Labels that the API server adds to a Job's pod template: it rejects a Job that has other values of them there.
pub const JOB_LABELS: [&str; 4] = [
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    "controller-uid",
    "job-name",
];
/// Environment variable of the runner's container with the number of earlier pods of its index that failed, and the
/// annotation of the pod that it is taken from (downward API). The Job controller sets the annotation if failures count
/// per index. Empty or missing means 0. The agent does not pass the variable on to programs.
pub const INDEX_FAILURES: (&str, &str) = (
    "FLUX_AGENT_INDEX_FAILURES",
    "batch.kubernetes.io/job-index-failure-count",
);
/// The same as [`INDEX_FAILURES`] for earlier pods of the index that were removed (evicted, for example). The Job's
/// failure policy ignores their failures: hence the annotation's name.
pub const INDEX_DISRUPTIONS: (&str, &str) = (
    "FLUX_AGENT_INDEX_DISRUPTIONS",
    "batch.kubernetes.io/job-index-ignored-failure-count",
);
/// The message if a user sets this annotation of the pods. None: users may set it.
pub fn reserved_annotation(key: &str) -> Option<&'static str> {
    if key.starts_with("batch.kubernetes.io/") {
        return Some("is set by Kubernetes: it ensures that a program starts once");
    }
    key.starts_with("flux-framework.org/")
        .then_some("is set by the operator: the status relies on it")
}

/// Environment variable with the pod's IP address, which is one of the node's, and the field of the pod that it is
/// taken from. Set with host networking only.
pub const POD_ADDRESS: (&str, &str) = ("FLUX_AGENT_POD_ADDRESS", "status.podIP");
/// Option of `flux-agent run`: how often the MiniCluster may still restart.
pub const RESTARTS_LEFT: &str = "--restarts-left";
/// Option of `flux-agent run`: the pod's terminationGracePeriodSeconds.
pub const GRACE_PERIOD: &str = "--grace-period";
/// Kubernetes' default of terminationGracePeriodSeconds.
pub const DEFAULT_GRACE_PERIOD: u64 = 30;
/// The longest termination grace period that a MiniCluster can have, in seconds: 68 years, which the kubelet can still
/// count in nanoseconds (64 bits).
pub const LONGEST_GRACE_PERIOD: u64 = i32::MAX as u64;
/// The pod's fsGroup by which a container may read Secrets that Flux's user may not read. The agent does not pass this
/// group on to Flux's user. It is neither a usual group of an image nor larger than 65535, the largest id in a pod with
/// a user namespace.
pub const SECRETS_GROUP: u32 = 65531;
/// Suffixes that an archive may have: formats that Flux (libarchive) writes and reads back, and in which a
/// truncated file is noticed.
pub const ARCHIVE_SUFFIXES: [&str; 6] = [".tar.gz", ".tar.bz2", ".tar.xz", ".tgz", ".tar", ".zip"];

/// The suffix of an archive's path, which selects the format. None: no supported suffix.
pub fn archive_suffix(path: &str) -> Option<&'static str> {
    let name = path.rsplit('/').next().unwrap_or_default();
    ARCHIVE_SUFFIXES
        .into_iter()
        .find(|suffix| name.len() > suffix.len() && name.ends_with(suffix))
}

/// Length limit of a DNS label (RFC 1123), and so of a pod's host name.
pub const LABEL_MAX: usize = 63;

/// Whether `text` is a DNS label: at most 63 lower case letters, digits and `-`, with no `-` at either end.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= LABEL_MAX && is_label_of_any_length(text)
}

fn is_label_of_any_length(text: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(is_allowed) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether `text` is a DNS subdomain to Kubernetes: labels of any length with dots between, 253 characters at most.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label_of_any_length)
}

/// Whether `text` can name a Service (RFC 1035 label: begins with a letter).
pub fn is_service_name(text: &str) -> bool {
    is_dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

/// Whether `text` can name an environment variable.
pub fn is_env_name(text: &str) -> bool {
    !text.is_empty() && !text.contains('=') && text.chars().all(|c| c.is_ascii_graphic())
}

/// Whether `text` can be a label's value: empty, or at most 63 letters, digits, `-`, `_` and `.`, with a letter or
/// digit at both ends.
pub fn is_label_value(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.is_empty()
        || (text.len() <= LABEL_MAX
            && text.bytes().all(inner)
            && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
            && text.as_bytes().last().is_some_and(u8::is_ascii_alphanumeric))
}

/// Whether `text` can be a label's key: an optional DNS prefix and `/`, then a name like a label's value.
pub fn is_label_key(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    !name.is_empty() && is_label_value(name) && prefix.is_none_or(is_dns_subdomain)
}

/// Whether `text` can be an annotation's key: as for labels, but the API server ignores the case.
pub fn is_annotation_key(text: &str) -> bool {
    is_label_key(&text.to_ascii_lowercase())
}

/// Length limit of a MiniCluster's name: the names of its hosts, `<name>-0` to `<name>-<hosts - 1>`, and of its
/// services pod must be DNS labels.
pub fn cluster_name_max(hosts: u32) -> usize {
    // The last index is `hosts` - 1. One character is the `-` before it.
    let digits = hosts.saturating_sub(1).to_string().len();
    (LABEL_MAX - 1 - digits).min(LABEL_MAX - "-services".len())
}

/// The pod's host name in Flux and, without host networking, its own: `<cluster>-<index>`.
pub fn host(cluster: &str, index: u32) -> String {
    format!("{cluster}-{index}")
}

/// Name of the ConfigMap with the AgentSpec.
pub fn config_map(cluster: &str) -> String {
    format!("{cluster}-agent")
}

/// Name of the Secret with the curve certificate, of the MiniCluster with this uid.
pub fn curve_secret(cluster: &str, uid: Option<&str>) -> String {
    of_uid(format!("{cluster}-curve"), uid)
}

/// Appends a hash (FNV-1a) of the MiniCluster's uid to a Secret's name, so that no other MiniCluster's Secret has this
/// name: if a Secret of this name exists, its owner need not be checked. Without a uid: the name as shown to people.
fn of_uid(name: String, uid: Option<&str>) -> String {
    let Some(uid) = uid else { return name };
    // The two constants are FNV-1a's prime and its initial hash.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{name}-{:016x}", uid.bytes().fold(0xcbf2_9ce4_8422_2325, mix))
}

/// Name of the NetworkPolicy of the brokers.
pub fn network_policy(cluster: &str) -> String {
    format!("{cluster}-brokers")
}

/// Name of the pod of `spec.services`.
pub fn services_pod(cluster: &str) -> String {
    format!("{cluster}-services")
}

/// Name of the Secret with the passwords of `spec.users`.
pub fn users_secret(cluster: &str, uid: Option<&str>) -> String {
    of_uid(format!("{cluster}-users"), uid)
}

/// Name of the Secret with the Flux RESTful API's key, user and token.
pub fn restful_secret(cluster: &str, uid: Option<&str>) -> String {
    of_uid(format!("{cluster}-restful"), uid)
}

/// Name of the claim on the volume `key` of `spec.volumes`. A cluster's name has no dots, so no two clusters share a
/// claim.
pub fn volume_claim(cluster: &str, key: &str) -> String {
    format!("{cluster}.{key}")
}

/// Name of the PersistentVolume of the volume `key` of `spec.volumes`. PersistentVolumes have no namespace, so the
/// cluster's is in the name. None of the three parts has dots, so the name is unique.
pub fn persistent_volume(namespace: &str, cluster: &str, key: &str) -> String {
    format!("{namespace}.{cluster}.{key}")
}

/// The message for a name that [`is_user_name`] rejects.
pub const USER_NAME_RULE: &str = "must be a user's name: lower case letters, digits, `-`, `_`, `.`, 32 at most, beginning with a letter or `_`";

/// Whether `text` can name a user, by [`USER_NAME_RULE`].
pub fn is_user_name(text: &str) -> bool {
    text.len() <= 32
        && text.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotation_keys_may_have_capital_letters_in_the_prefix() {
        assert!(is_annotation_key("Example.com/x") && !is_annotation_key("my key"));
        assert!(!is_label_key("Example.com/x"));
    }

    #[test]
    fn labels_follow_rfc_1123() {
        assert!(is_dns_label("flux-sample") && is_dns_label("0a"));
        for bad in ["", "-a", "a-", "A", "a_b", "a.b", &"a".repeat(64)] {
            assert!(!is_dns_label(bad), "{bad}");
        }
    }

    #[test]
    fn user_name_follows_the_rule_in_its_message() {
        for good in ["a", "_a", "a.b-c_1", &"a".repeat(32)] {
            assert!(is_user_name(good), "{good}");
        }
        for bad in ["", "A", "1a", "-a", ".a", "a b", &"a".repeat(33)] {
            assert!(!is_user_name(bad), "{bad}");
        }
        for part in ["`-`, `_`, `.`", "32 at most", "beginning with a letter or `_`"] {
            assert!(USER_NAME_RULE.contains(part), "{part}");
        }
    }

    #[test]
    fn the_longest_name_leaves_room_for_every_host() {
        for hosts in [1, 10, 11, 1000, 100_000] {
            let name = "a".repeat(cluster_name_max(hosts));
            assert!(is_dns_label(&host(&name, hosts - 1)));
            assert!(is_dns_label(&services_pod(&name)));
        }
    }

    #[test]
    fn labels_of_a_subdomain_have_any_length() {
        assert!(is_dns_subdomain(&"a".repeat(253)) && !is_dns_subdomain(&"a".repeat(254)));
        assert!(!is_dns_subdomain("a.-b") && !is_dns_subdomain("a..b"));
    }

    #[test]
    fn the_longest_names_of_volumes_are_names_of_objects() {
        let (namespace, cluster, key) = ("n".repeat(63), "c".repeat(54), "k".repeat(63));
        assert!(is_dns_subdomain(&persistent_volume(&namespace, &cluster, &key)));
        assert!(is_dns_subdomain(&volume_claim(&cluster, &key)));
        assert_ne!(
            persistent_volume("a", "b-c", "d"),
            persistent_volume("a-b", "c", "d")
        );
    }
}
