//! Checks the numbers of pods and tasks, and the MiniCluster's name, after which hosts are named.

use super::report::Report;
use crate::crd::v1alpha2::MiniClusterSpec;
use crate::names;

/// Most pods of a cluster (arbitrary).
pub const MAX_SIZE: i32 = 10_000;

/// The sizes. A `maxSize` or `minSize` of 0 counts as left out. Invalid sizes are moved into the allowed range, so that
/// further checks can use them.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub size: u32,
    /// `maxSize`; without it, the maximum that was fixed at creation, or else `size`.
    pub max_size: u32,
    pub min_size: Option<u32>,
}

/// Checks the sizes, `tasks` and the name. `fixed`: the maximum size that was fixed at creation.
pub fn check(spec: &MiniClusterSpec, fixed: Option<u32>, name: &str, report: &mut Report) -> Sizes {
    if spec.size < 1 || spec.size > MAX_SIZE {
        report.problem("spec.size", format!("must be 1 to {MAX_SIZE}"));
    }
    let fixed = fixed.and_then(|fixed| i32::try_from(fixed).ok()).unwrap_or(0);
    let max_size = spec
        .max_size
        .filter(|max| *max != 0)
        .unwrap_or(spec.size.max(fixed));
    if max_size < spec.size {
        report.problem("spec.maxSize", "must not be smaller than size");
    }
    if max_size > MAX_SIZE {
        report.problem("spec.maxSize", format!("must be {MAX_SIZE} at most"));
    }
    let min_size = spec.min_size.filter(|min| *min != 0);
    if min_size.is_some_and(|min| min < 0 || min > spec.size) {
        report.problem("spec.minSize", "must be 1 to size");
    }
    if spec.tasks < 0 {
        report.problem("spec.tasks", "must be 0 or more; 0 asks for nodes only (-N size)");
    }
    let in_range = |size: i32| size.clamp(1, MAX_SIZE).unsigned_abs();
    let (length, limit) = (name.chars().count(), names::cluster_name_max(in_range(max_size)));
    if name.is_empty() {
        report.problem(
            "metadata.name",
            "is missing: add a name, which hosts and Services are named after",
        );
    } else if length > limit {
        report.problem(
            "metadata.name",
            format!("is too long: {length} characters, must be {limit} at most, so that hosts can be named after it"),
        );
    } else if !names::is_dns_label(name) {
        report.problem(
            "metadata.name",
            "must be lower case letters, digits and `-`, and must not begin or end with `-`: hosts are named after it",
        );
    }
    Sizes {
        size: in_range(spec.size),
        max_size: in_range(max_size.max(spec.size)),
        min_size: min_size.map(in_range),
    }
}
