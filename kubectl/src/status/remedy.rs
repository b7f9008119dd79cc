//! What a reason means and what to do. Pure.

use std::collections::BTreeMap;

/// For each reason its section of `docs/troubleshooting.md`, or else its meaning, as plain text. The file is made by
/// `python/tools/generate.py`.
const REMEDIES: &str = include_str!("../../../python/src/flux_minicluster/remedies.json");

/// The key of the remedy for reasons of other programs that have no section of their own.
const OTHER_REASONS: &str = "Other reasons";

/// The remedy for `reason`.
pub fn of(reason: &str) -> Option<String> {
    let mut remedies: BTreeMap<String, String> = serde_json::from_str(REMEDIES).ok()?;
    remedies.remove(reason).or_else(|| remedies.remove(OTHER_REASONS))
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn unknown_reason_gets_the_remedy_for_other_reasons() {
        assert_eq!(of("Deleted").as_deref(), Some("The pod was deleted."));
        let other = of("NoSuchReason").unwrap();
        assert!(other.contains("kubectl describe job NAME"), "{other}");
    }
}
