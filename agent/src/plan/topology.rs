//! Who a broker's parent is. The rules are those of flux-core's overlay (`topology.c`, version 0.88).

use super::PlanError;

/// Width of the default tree, so that every broker is the lead's child up to 257 brokers.
pub const DEFAULT_FANOUT: u32 = 256;
/// Most children that `mincrit` without a number gives a router.
const MINCRIT_FANOUT: u32 = 1024;

/// The parent of `rank` (1 or more) in an instance of `size` brokers.
pub fn parent(topology: Option<&str>, rank: u32, size: u32) -> Result<u32, PlanError> {
    let Some(text) = topology else { return Ok(kary(DEFAULT_FANOUT, rank)) };
    let (kind, argument) = match text.split_once(':') {
        Some((kind, argument)) => (kind, Some(argument).filter(|argument| !argument.is_empty())),
        None => (text, None),
    };
    let number = || argument.map(str::parse::<u32>).transpose().map_err(|_| PlanError::Topology(text.into()));
    match (kind, number()?) {
        ("kary", Some(k)) => Ok(kary(k, rank)),
        ("mincrit", k) => Ok(mincrit(k.unwrap_or_else(|| routers(size)), rank)),
        ("binomial", None) => Ok(rank & rank.wrapping_sub(1)),
        ("custom", None) => Ok(0),
        _ => Err(PlanError::Topology(text.into())),
    }
}

/// Heap order; 0 is a flat tree.
fn kary(k: u32, rank: u32) -> u32 {
    rank.saturating_sub(1).checked_div(k).unwrap_or(0)
}

/// Ranks 1 to k are routers under the lead; the others are dealt out to them in turn.
fn mincrit(k: u32, rank: u32) -> u32 {
    match k == 0 || rank <= k {
        true => 0,
        false => (rank - k - 1) % k + 1,
    }
}

/// The number of routers that `mincrit` chooses by itself.
fn routers(size: u32) -> u32 {
    if size <= MINCRIT_FANOUT + 1 {
        return 0;
    }
    (2..).find(|k| size.saturating_sub(1 + k).div_ceil(*k) <= MINCRIT_FANOUT).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parents(topology: Option<&str>, size: u32) -> Vec<u32> {
        (1..size).map(|rank| parent(topology, rank, size).unwrap()).collect()
    }

    #[test]
    fn trees_are_those_of_flux_core() {
        assert_eq!(parents(None, 5), [0, 0, 0, 0]);
        assert_eq!(parent(None, 257, 300), Ok(1));
        assert_eq!(parents(Some("kary:0"), 4), [0, 0, 0]);
        assert_eq!(parents(Some("kary:1"), 4), [0, 1, 2]);
        assert_eq!(parents(Some("kary:2"), 7), [0, 0, 1, 1, 2, 2]);
        assert_eq!(parents(Some("binomial"), 8), [0, 0, 2, 0, 4, 4, 6]);
        assert_eq!(parents(Some("mincrit:2"), 7), [0, 0, 1, 2, 1, 2]);
        assert_eq!(parents(Some("custom"), 3), [0, 0]);
    }

    /// The internal ranks that flux-core's own tests expect.
    #[test]
    fn mincrit_chooses_as_many_routers_as_flux_core_does() {
        for (size, last_router) in [(512, 0), (1025, 0), (1026, 2), (2051, 2), (2052, 3), (10_800, 11)] {
            let parents: std::collections::BTreeSet<u32> = parents(Some("mincrit"), size).into_iter().collect();
            assert_eq!(parents.last(), Some(&last_router), "{size}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in ["", "kary", "kary:", "kary:x", "kary:-1", "binomial:2", "ring", "custom:x", "mincrit:x"] {
            assert!(parent(Some(bad), 1, 4).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_parent_comes_before_its_child(size in 2u32..5000, rank in 1u32..5000, k in 0u32..40) {
            let rank = rank % (size - 1) + 1;
            for topology in [None, Some(format!("kary:{k}")), Some(format!("mincrit:{k}")), Some("mincrit".into()), Some("binomial".into())] {
                proptest::prop_assert!(parent(topology.as_deref(), rank, size).unwrap() < rank);
            }
        }
    }
}
