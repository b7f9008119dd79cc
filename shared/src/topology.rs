//! The parent of a broker, and the brokers below it in the tree. The rules are those of flux-core's overlay
//! (`topology.c`, version 0.88).
//!
//! They are implemented here since they are needed before a broker runs, and where Flux is not installed
//! (`validate`, `dry-run`).

use std::collections::BTreeSet;

use crate::hostlist;

/// Children of each broker in the default tree. Up to 257 brokers, all others are children of the lead.
pub const DEFAULT_FANOUT: u32 = 256;
/// The largest number of children that `mincrit` without a number gives a router.
const MINCRIT_FANOUT: u32 = 1024;

/// A text that is no topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to read the topology `{0}`")]
pub struct InvalidTopology(String);

/// The shape of the tree of brokers (TBON).
#[derive(Clone, Copy)]
enum Tree {
    /// A tree in heap order in which each broker has this many children. 0: a flat tree.
    Kary(u32),
    /// Ranks 1 to k are routers below the lead. The other ranks are assigned to them in turn.
    Mincrit(u32),
    /// The parent's number is the broker's without its lowest binary 1.
    Binomial,
}

impl Tree {
    fn of(topology: Option<&str>, size: u32) -> Result<Tree, InvalidTopology> {
        let Some(text) = topology else {
            return Ok(Tree::Kary(DEFAULT_FANOUT));
        };
        let (kind, argument) = match text.split_once(':') {
            Some((kind, argument)) => (kind, Some(argument).filter(|argument| !argument.is_empty())),
            None => (text, None),
        };
        let number = || {
            argument
                .map(str::parse::<u32>)
                .transpose()
                .map_err(|_| InvalidTopology(text.into()))
        };
        match (kind, number()?) {
            ("kary", Some(k)) => Ok(Tree::Kary(k)),
            ("mincrit", k) => Ok(Tree::Mincrit(k.unwrap_or_else(|| routers(size)))),
            ("binomial", None) => Ok(Tree::Binomial),
            // The parents would be in broker.toml. The agent's broker.toml has none, so the tree is flat.
            ("custom", None) => Ok(Tree::Kary(0)),
            _ => Err(InvalidTopology(text.into())),
        }
    }

    /// The parent of `rank` (1 or more).
    fn parent(self, rank: u32) -> u32 {
        match self {
            // The lead, rank 0, has the ranks 1 to k as children. A division by 0 gives None: a flat tree.
            Tree::Kary(k) => rank.saturating_sub(1).checked_div(k).unwrap_or(0),
            Tree::Mincrit(k) if k == 0 || rank <= k => 0,
            Tree::Mincrit(k) => (rank - k - 1) % k + 1,
            Tree::Binomial => rank & rank.wrapping_sub(1),
        }
    }
}

/// The parent of `rank` (1 or more) in an instance of `size` brokers.
pub fn parent(topology: Option<&str>, rank: u32, size: u32) -> Result<u32, InvalidTopology> {
    Ok(Tree::of(topology, size)?.parent(rank))
}

/// The ranks from 1 in an instance of `size` brokers, each with its parent.
pub fn parents(
    topology: Option<&str>,
    size: u32,
) -> Result<impl Iterator<Item = (u32, u32)>, InvalidTopology> {
    let shape = Tree::of(topology, size)?;
    Ok((1..size).map(move |rank| (rank, shape.parent(rank))))
}

/// The ranks that are connected through `rank` (1 or more), as an idset.
pub fn below(topology: Option<&str>, rank: u32, size: u32) -> Result<String, InvalidTopology> {
    let (shape, mut below) = (Tree::of(topology, size)?, BTreeSet::new());
    // A parent comes before its children.
    for other in rank.saturating_add(1)..size {
        let parent = shape.parent(other);
        if parent == rank || below.contains(&parent) {
            below.insert(other);
        }
    }
    Ok(hostlist::to_idset(&below))
}

/// The number of routers that `mincrit` without a number chooses. 0: all brokers are children of the lead.
fn routers(size: u32) -> u32 {
    if size <= MINCRIT_FANOUT + 1 {
        return 0;
    }
    // The ranks that are neither the lead nor routers are divided among the routers. Flux never chooses a single
    // router: that would only move work from the lead to rank 1.
    (2..)
        .find(|k| size.saturating_sub(1 + k).div_ceil(*k) <= MINCRIT_FANOUT)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parents(topology: Option<&str>, size: u32) -> Vec<u32> {
        let parents = super::parents(topology, size).unwrap();
        parents.map(|(_, parent)| parent).collect()
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

    #[test]
    fn brokers_below_a_rank_are_its_subtree() {
        let all = |topology: Option<&str>, size: u32| -> Vec<String> {
            (1..size)
                .map(|rank| below(topology, rank, size).unwrap())
                .collect()
        };
        assert_eq!(all(None, 257).concat(), "");
        assert_eq!(all(None, 300)[0], "257-299");
        assert_eq!(all(Some("kary:1"), 4), ["2-3", "3", ""]);
        assert_eq!(all(Some("kary:2"), 8), ["3-4,7", "5-6", "7", "", "", "", ""]);
        assert_eq!(all(Some("binomial"), 8), ["", "3", "", "5-7", "", "7", ""]);
        assert_eq!(all(Some("mincrit:2"), 7), ["3,5", "4,6", "", "", "", ""]);
    }

    /// The internal ranks that flux-core's own tests expect.
    #[test]
    fn mincrit_chooses_as_many_routers_as_flux_core_does() {
        for (size, last_router) in [(512, 0), (1025, 0), (1026, 2), (2051, 2), (2052, 3), (10_800, 11)] {
            let parents: std::collections::BTreeSet<u32> =
                parents(Some("mincrit"), size).into_iter().collect();
            assert_eq!(parents.last(), Some(&last_router), "{size}");
        }
    }

    #[test]
    fn unknown_topologies_are_rejected() {
        for bad in [
            "",
            "kary",
            "kary:",
            "kary:x",
            "kary:-1",
            "binomial:2",
            "ring",
            "custom:x",
            "mincrit:x",
        ] {
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
