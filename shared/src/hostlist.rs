//! Hostlists (RFC 29) as flux-core 0.88 reads and writes them, such as `mc-[0-3],lead`. Own code: the order of hosts
//! determines their ranks, so it must be Flux's, and lists from users need a limit.
//!
//! flux-core differs from the RFC's text: the low end of each range determines the zero padding, only the first
//! bracket group of an entry is expanded, and blanks separate entries as commas do.

use std::collections::BTreeSet;

/// Most distinct hosts that a list may name (arbitrary; flux-core's own limit is 1,048,576 per range).
pub const MAX_HOSTS: usize = 65_536;
/// Most hosts that a list, or all lists in the parts of broker.toml together, may expand to, duplicates included
/// (arbitrary: 16 of the longest lists).
pub const MAX_WRITTEN: usize = 16 * MAX_HOSTS;

/// The hostlist, one entry, of the hosts `<prefix>-<first>` to `<prefix>-<last>`.
pub fn range(prefix: &str, first: u32, last: u32) -> String {
    if first == last {
        format!("{prefix}-{first}")
    } else {
        format!("{prefix}-[{first}-{last}]")
    }
}

/// Every host in order, without duplicates (the first position counts, as in Flux). The error says why the text is
/// not a hostlist.
pub fn expand(list: &str) -> Result<Vec<String>, String> {
    expand_and_count(list, &mut 0)
}

/// The same. `written` counts the hosts of several lists, duplicates included.
pub fn expand_and_count(list: &str, written: &mut usize) -> Result<Vec<String>, String> {
    let mut seen = std::collections::HashSet::new();
    let mut hosts = Vec::new();
    for entry in split_entries(list)? {
        for host in expand_entry(&entry)? {
            *written += 1;
            if seen.insert(host.clone()) {
                hosts.push(host);
            }
            if hosts.len() > MAX_HOSTS {
                return Err(format!("more than {MAX_HOSTS} hosts"));
            }
        }
        if *written > MAX_WRITTEN {
            return Err(format!(
                "more than {MAX_WRITTEN} hosts, some of them again and again"
            ));
        }
    }
    Ok(hosts)
}

/// The numbers of an idset, such as `0-3,7`. None: the text is not an idset, or one of more than [`MAX_HOSTS`] numbers.
pub fn idset(set: &str) -> Option<Vec<u32>> {
    // An entry that is only a bracket group expands to the bare numbers.
    let names = if set.is_empty() {
        Vec::new()
    } else {
        expand(&format!("[{set}]")).ok()?
    };
    names.iter().map(|name| name.parse().ok()).collect()
}

/// Numbers as an idset.
pub fn to_idset(numbers: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let texts = ranges.iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    texts.collect::<Vec<_>>().join(",")
}

/// The hostlist of an instance: `given`, else the hosts `<name>-0` to `<name>-<size - 1>`. A size of 0, which is
/// invalid, counts as 1.
pub fn of_instance(given: Option<&str>, name: &str, size: u32) -> String {
    given.map_or_else(|| range(name, 0, size.saturating_sub(1)), str::to_owned)
}

/// The rank of `host`: its first position in `hosts`. None: it is not one of them.
pub fn rank_of(hosts: &[String], host: &str) -> Option<u32> {
    hosts
        .iter()
        .position(|h| h == host)
        .and_then(|rank| u32::try_from(rank).ok())
}

/// Whether Flux accepts `host` in its bootstrap configuration: labels of letters, digits and `-`, separated by dots.
pub fn is_bootstrap_host(host: &str) -> bool {
    !host.is_empty()
        && host.split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

/// Splits a hostlist at the commas and blanks outside of brackets.
fn split_entries(list: &str) -> Result<Vec<String>, String> {
    let mut entries = Vec::new();
    let mut entry = String::new();
    let mut depth = 0u32;
    for c in list.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1).ok_or("unbalanced `]`")?,
            _ => {}
        }
        if depth > 1 {
            return Err("nested brackets".into());
        }
        if depth == 0 && (c == ',' || c.is_whitespace()) {
            if !entry.is_empty() {
                entries.push(std::mem::take(&mut entry));
            }
        } else {
            entry.push(c);
        }
    }
    if depth != 0 {
        return Err("unbalanced `[`".into());
    }
    if !entry.is_empty() {
        entries.push(entry);
    }
    Ok(entries)
}

/// The hosts of one entry, such as `mc-[0-3,7]`.
fn expand_entry(entry: &str) -> Result<Vec<String>, String> {
    let Some((prefix, rest)) = entry.split_once('[') else {
        return Ok(vec![entry.to_owned()]);
    };
    let (ranges, suffix) = rest.split_once(']').ok_or("unbalanced `[`")?;
    let mut hosts = Vec::new();
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(low)?, number(high)?);
        if last < first {
            return Err(format!("`{range}` ends before it starts"));
        }
        // Before the hosts are made, to save memory. So within an entry, duplicates count, too.
        if (last - first) as usize >= MAX_HOSTS || hosts.len() >= MAX_HOSTS {
            return Err(format!("more than {MAX_HOSTS} hosts"));
        }
        let width = low.len();
        hosts.extend((first..=last).map(|id| format!("{prefix}{id:0width$}{suffix}")));
    }
    Ok(hosts)
}

/// A number in brackets, of at most 15 digits: it fits into `u64`.
fn number(text: &str) -> Result<u64, String> {
    // `parse` accepts a sign as well.
    let is_number = text.len() < 16 && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(number) if is_number => Ok(number),
        _ => Err(format!("`{text}` in brackets is not a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(list: &str) -> Vec<String> {
        expand(list).unwrap()
    }

    #[test]
    fn idset_survives_encode_and_decode() {
        for text in ["", "0", "1-2", "0-3,7,9-10"] {
            let numbers: BTreeSet<u32> = idset(text).unwrap().into_iter().collect();
            assert_eq!(to_idset(&numbers), text);
        }
    }

    #[test]
    fn lists_expand_as_flux_core_does() {
        assert_eq!(hosts("mc-[0-3],lead"), ["mc-0", "mc-1", "mc-2", "mc-3", "lead"]);
        assert_eq!(hosts("n[08-11]"), ["n08", "n09", "n10", "n11"]);
        assert_eq!(hosts("n[0-03]"), ["n0", "n1", "n2", "n3"]);
        assert_eq!(hosts("n[005,4,11]"), ["n005", "n4", "n11"]);
        assert_eq!(hosts("a[0-1]x b"), ["a0x", "a1x", "b"]);
        assert_eq!(hosts("a[0-3],a[1-2]").len(), 4);
        assert!(hosts("").is_empty());
        assert_eq!(rank_of(&hosts("10.0.0.1,mc-[1-3]"), "mc-2"), Some(2));
    }

    #[test]
    fn hostlist_that_flux_rejects_is_rejected() {
        for bad in [
            "a[3-1]",
            "a[]",
            "a[1,]",
            "a[x]",
            "a[1",
            "a1]",
            "a[[1]]",
            "a[0-99999999]",
        ] {
            assert!(expand(bad).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_range_expands_to_its_hosts(first in 0u32..500, count in 0u32..500) {
            let list = expand(&range("mc", first, first + count)).unwrap();
            let want: Vec<String> = (first..=first + count).map(|i| format!("mc-{i}")).collect();
            proptest::prop_assert_eq!(list, want);
        }

        #[test]
        fn random_text_is_expanded_or_rejected_without_panic(text in ".{0,64}") {
            let _ = expand(&text);
        }
    }
}
