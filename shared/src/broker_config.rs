//! Parts of broker.toml from the user (`flux.configs`): TOML texts, by name. Their tables are merged over the
//! agent's, key by key, in the order of the names; a list replaces a list.
//!
//! Own code: if a key is a table in only one of two parts, crates that merge configurations (figment, config)
//! silently let the later one win. That is a user's mistake, so it must be an error.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use crate::hostlist;
use crate::toml_error::one_line;

/// Keys that the agent writes itself or overrides by an option, and what to use instead.
const OWN_KEYS: [(&[&str], &str); 5] = [
    (
        &["bootstrap"],
        "the brokers find each other by it: use flux.bursting and network",
    ),
    (
        &["resource", "path"],
        "the agent writes R: set `cores`, or list all hosts in resource.config",
    ),
    (&["tbon", "topo"], "set flux.topology"),
    (&["tbon", "connect_timeout"], "set flux.connectTimeout"),
    (&["modules", "alternatives", "sched"], "set flux.scheduler"),
];

/// Tables of the agent's broker.toml: a part can add to them, but not replace one by another kind of value.
const OWN_TABLES: [&[&str]; 6] = [
    &["access"],
    &["resource"],
    &["heartbeat"],
    &["modules"],
    &["modules", "alternatives"],
    &["sched-fluxion-qmanager"],
];

/// A problem in the part with this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartProblem {
    /// Name of the part.
    pub part: String,
    /// What is wrong, with table and key, and the remedy.
    pub why: String,
}

impl std::fmt::Display for PartProblem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: {}", self.part, self.why)
    }
}

/// Merges all parts; the error has the problems of all parts, but only the first one with hosts. `hosts`: all hosts of
/// the instance, which the hosts in `resource.config` must equal. None: these are not checked. This is so if the lead
/// is in another cluster, since only the lead's R counts.
pub fn merged(
    parts: &BTreeMap<String, String>,
    mut hosts: Option<&[String]>,
) -> Result<Table, Vec<PartProblem>> {
    let (mut all, mut wrong, mut written_hosts) = (Table::new(), Vec::new(), 0);
    for (part, text) in parts {
        let mut refuse = |why: String| {
            wrong.push(PartProblem {
                part: part.clone(),
                why,
            })
        };
        let table: Table = match toml::from_str(text) {
            Ok(table) => table,
            Err(error) => {
                refuse(format!("is not TOML: {}", one_line(text, &error)));
                continue;
            }
        };
        for (keys, instead) in OWN_KEYS.iter().filter(|(keys, _)| find(&table, keys).is_some()) {
            refuse(format!("`{}` cannot be set here: {instead}", keys.join(".")));
        }
        for keys in OWN_TABLES
            .iter()
            .filter(|keys| find(&table, keys).is_some_and(|value| !value.is_table()))
        {
            refuse(format!("`{}` must be a table", keys.join(".")));
        }
        if let Some(why) = hosts.and_then(|hosts| wrong_hosts(&table, hosts, &mut written_hosts)) {
            // One report of wrong hosts is enough: a further part may name thousands of hosts, so do not expand them.
            hosts = None;
            refuse(why);
        }
        if let Err(why) = merge(&mut all, table) {
            refuse(why);
        }
    }
    if wrong.is_empty() { Ok(all) } else { Err(wrong) }
}

/// Merges `over` into `base`. The error names a key that is a table in only one of them.
pub fn merge(base: &mut Table, over: Table) -> Result<(), String> {
    merge_at("", base, over)
}

fn merge_at(path: &str, base: &mut Table, over: Table) -> Result<(), String> {
    for (key, value) in over {
        let path = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        match (base.get_mut(&key), value) {
            (Some(Value::Table(base)), Value::Table(over)) => merge_at(&path, base, over)?,
            (Some(Value::Table(_)), _) => return Err(format!("`{path}` must be a table")),
            (Some(_), Value::Table(_)) => return Err(format!("`{path}` must not be a table")),
            (_, value) => drop(base.insert(key, value)),
        }
    }
    Ok(())
}

/// The value at the path `keys`, from the outermost table inwards.
fn find<'a>(table: &'a Table, keys: &[&str]) -> Option<&'a Value> {
    let (first, rest) = keys.split_first()?;
    let value = table.get(*first)?;
    if rest.is_empty() {
        Some(value)
    } else {
        find(value.as_table()?, rest)
    }
}

/// What is wrong with the hosts in a part's `resource.config`: Flux starts only if they are exactly the instance's.
/// Each part is checked by itself, since its list replaces those of earlier parts.
/// `written` counts the hosts of all lists so far, duplicates included.
fn wrong_hosts(table: &Table, hosts: &[String], written: &mut usize) -> Option<String> {
    let config = find(table, &["resource", "config"])?;
    let field = "`resource.config`";
    let Some(entries) = config.as_array() else {
        return Some(format!("{field} must be a list of tables"));
    };
    let mut named = BTreeSet::new();
    for entry in entries {
        let Some(list) = entry.get("hosts").and_then(Value::as_str) else {
            return Some(format!("{field}: every entry needs hosts, a hostlist"));
        };
        match hostlist::expand_and_count(list, written) {
            Ok(hosts) => named.extend(hosts),
            Err(_) if *written > hostlist::MAX_WRITTEN => {
                return Some(format!(
                    "{field} names more than {} hosts, most of them again and again",
                    hostlist::MAX_WRITTEN
                ));
            }
            Err(why) => return Some(format!("{field}: hosts `{list}` is not a hostlist: {why}")),
        }
    }
    let of_the_instance: BTreeSet<&String> = hosts.iter().collect();
    if let Some(other) = named.iter().find(|host| !of_the_instance.contains(host)) {
        return Some(format!(
            "{field} names the host {other}, which is not in this instance"
        ));
    }
    let missing = hosts.iter().find(|host| !named.contains(*host))?;
    Some(format!(
        "{field} lacks the host {missing}: Flux starts only if it names all {} of them",
        of_the_instance.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(texts: &[&str]) -> BTreeMap<String, String> {
        texts
            .iter()
            .enumerate()
            .map(|(number, text)| (format!("part-{number}"), (*text).to_owned()))
            .collect()
    }

    fn why(text: &str) -> String {
        let hosts = ["mc-0".to_owned(), "mc-1".to_owned()];
        let wrong = merged(&parts(&[text]), Some(&hosts)).unwrap_err();
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        wrong[0].to_string()
    }

    #[test]
    fn parts_are_merged_key_by_key_and_later_names_win() {
        let all = merged(
            &parts(&[
                "[a]\nx = 1\ny = [1]\n[a.b]\nz = 1",
                "[a]\nx = 2\ny = [2]\n[c]\n",
                "",
            ]),
            None,
        )
        .unwrap();
        assert_eq!(
            all,
            toml::from_str::<Table>("[a]\nx = 2\ny = [2]\nb = { z = 1 }\n[c]\n").unwrap()
        );
    }

    #[test]
    fn broker_config_keys_of_the_agent_are_rejected_by_name() {
        assert!(
            why("[bootstrap]\nenable_ipv6 = true").starts_with("part-0: `bootstrap` cannot be set here: ")
        );
        assert!(why("resource.path = '/R'").contains("`resource.path`"));
        assert!(why("tbon.topo = 'kary:2'").contains("flux.topology"));
        assert!(why("[modules.alternatives]\nsched = 'x'").contains("flux.scheduler"));
        assert_eq!(why("resource = 1"), "part-0: `resource` must be a table");
        assert!(why("[a]\nb = = 1").contains("is not TOML: line 2, column 5"));
        let wrong = merged(&parts(&["a = 1", "[a]\n", "[b"]), None).unwrap_err();
        let parts: Vec<&str> = wrong.iter().map(|wrong| wrong.part.as_str()).collect();
        assert_eq!(parts, ["part-1", "part-2"], "all are reported: {wrong:?}");
        assert_eq!(wrong[0].why, "`a` must not be a table");
    }

    #[test]
    fn resource_config_must_name_exactly_the_hosts() {
        let config = |hosts: &str| format!("[[resource.config]]\nhosts = '{hosts}'\ncores = '0-3'\n");
        let hosts = ["mc-0".to_owned(), "mc-1".to_owned()];
        let two = config("mc-0") + &config("mc-1") + &config("mc-[0-1]");
        assert!(merged(&parts(&[&two]), Some(&hosts)).is_ok());
        assert!(merged(&parts(&["[resource]\nexclude = '0'"]), Some(&hosts)).is_ok());
        assert!(why(&config("mc-0")).contains("lacks the host mc-1"));
        assert!(why(&config("mc-[0-2]")).contains("the host mc-2, which is not in this instance"));
        assert!(why(&config("mc-[0")).contains("is not a hostlist"));
        assert!(why("[[resource.config]]\ncores = '0'").contains("every entry needs hosts"));
        assert!(why("resource.config = 3").contains("must be a list"));
        let again_and_again = config(&["mc-[0-9999]"; 100].join(","));
        assert!(why(&again_and_again.repeat(20)).contains("names more than"));
    }
}
