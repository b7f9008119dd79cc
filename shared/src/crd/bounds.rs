//! Upper bounds for the lengths of values, by the name of the field. For an item of a list or a value of a map, this is
//! the name of the list or map. The numbers are arbitrary, but the API server estimates by them what the rules cost, and
//! rejects a definition with too expensive ones.

/// The most containers, and the most services, that a MiniCluster can have.
const MOST_CONTAINERS: usize = 24;

/// The most characters of a quantity.
pub(super) const LONGEST_QUANTITY: usize = 64;

/// The most characters of a text.
pub(super) fn longest(name: &str) -> usize {
    match name {
        "command" | "script" | "init" | "pre" | "post" | "preCommand" | "brokerPre" | "preBroker"
        | "workerPre" | "preWorker" | "servicePre" | "brokerConfig" => 1_000_000,
        "environment" | "hostlist" | "message" | "configs" => 65_536,
        // As in Kubernetes' Jobs.
        "managedBy" => 63,
        "annotations" | "csiDriverAttributes" | "curveCert" => 16_384,
        _ => 4096,
    }
}

/// The most items of a list.
pub(super) fn most_items(name: &str) -> usize {
    match name {
        "containers" | "services" => MOST_CONTAINERS,
        _ => 256,
    }
}

/// The most keys of a map.
pub(super) fn most_keys(name: &str) -> usize {
    match name {
        "volumes" | "existingVolumes" => 64,
        "configs" => 32,
        _ => 256,
    }
}
