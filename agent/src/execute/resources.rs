//! Checks an R (Flux's description of its resources) that a snippet has written, and makes Flux use it.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use flux_agent_plan::plan::{Mode, SnippetResources};
use flux_shared::exit::Category;
use flux_shared::hostlist;
use serde_json::Value;

use super::executor::{Executor, Flow};
use crate::report::failure::Failure;

/// The largest size of an R. This is enough for ten thousand nodes that all differ.
const MAX_R_MIB: usize = 16;
const MODE: Mode = Mode(0o644);

impl Executor<'_> {
    /// Makes Flux use the R that a snippet has written. If no snippet has, or if the R cannot be used and the
    /// step is not strict, Flux does what it would have done without snippets ([`Self::use_agents`]). A file that cannot
    /// be read fails in any case.
    pub(super) fn take_resources(&mut self, step: &SnippetResources) -> Result<Flow, Failure> {
        let SnippetResources {
            path,
            hosts,
            agents_r,
            config,
            owner,
            strict,
        } = step;
        let r_file = self.files.at(path);
        let bytes = match read(&r_file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.use_agents(step, agents_r.is_some().then_some("no file is there any more"));
            }
            Err(error) => return Err(Failure::write("read", &r_file, &error)),
        };
        // No snippet has changed the agent's R.
        if agents_r.as_ref().is_some_and(|r| r.as_bytes() == bytes) {
            return self.use_agents(step, None);
        }
        match describe(&bytes, hosts) {
            Ok(description) => {
                // Flux's user must be able to read it, whatever umask and user the snippet had.
                self.files.ensure_file(path, MODE, *owner, &bytes)?;
                if let Some((config_path, text)) = config {
                    self.files
                        .ensure_file(config_path, MODE, *owner, text.as_bytes())?;
                }
                tracing::info!(
                    stage = "config",
                    "Flux uses the resources (R) that a snippet wrote to {path}: {description}"
                );
                Ok(Flow::Next)
            }
            Err(why) if *strict => {
                let cause = format!("cannot use the R that a snippet wrote to {path}: {why}");
                let remedy = "write it with `flux R encode --hosts=${hosts}`, or not at all";
                Err(Failure::new(Category::SpecInvalid, cause, remedy))
            }
            Err(why) => self.use_agents(step, Some(&why)),
        }
    }

    /// Makes Flux use the agent's R, if broker.toml names it (then `config` is none). Otherwise Flux discovers its
    /// resources, and ignores the file at `path`. `why`: why Flux does not use that R, for a warning; none: no warning.
    fn use_agents(&mut self, step: &SnippetResources, why: Option<&str>) -> Result<Flow, Failure> {
        let SnippetResources {
            path,
            agents_r,
            config,
            owner,
            ..
        } = step;
        if let Some(r) = agents_r {
            self.files.ensure_file(path, MODE, *owner, r.as_bytes())?;
        }
        if let Some((config_path, _)) = config {
            // This file would make Flux use the R at `path`. An earlier start of this container may have written it.
            let _ = std::fs::remove_file(self.files.at(config_path));
        }
        if let Some(why) = why {
            let instead = if step.falls_back_to_agents_r() {
                "uses the agent's resources (R)"
            } else {
                "discovers its resources"
            };
            tracing::warn!(
                stage = "config",
                "Flux {instead}, and does not use the R that a snippet wrote to {path}: {why}"
            );
        }
        Ok(Flow::Next)
    }
}

/// The bytes of a regular file, of one that is too large only enough to know it. Anything else, such as a pipe, is an
/// error, and is not waited for.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take((MAX_R_MIB << 20) as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Checks the form of an R, and whether it is for these hosts (a hostlist). Returns a description of the R for
/// the log, or why Flux cannot use it.
fn describe(bytes: &[u8], hosts: &str) -> Result<String, String> {
    if bytes.len() > MAX_R_MIB << 20 {
        return Err(format!("it is larger than {MAX_R_MIB} MiB"));
    }
    if bytes.trim_ascii().is_empty() {
        return Err("it is empty".into());
    }
    let r: Value = serde_json::from_slice(bytes).map_err(|error| format!("it is not JSON: {error}"))?;
    if r["version"] != 1 {
        return Err(format!("its version is {}, not 1", r["version"]));
    }
    let list = |name: &str| r["execution"][name].as_array().filter(|list| !list.is_empty());
    let nodes = list("nodelist").ok_or("it has no execution.nodelist")?;
    let rank_groups = list("R_lite").ok_or("it has no execution.R_lite")?;
    let mut r_hosts = Vec::new();
    for part in nodes {
        let part = part
            .as_str()
            .ok_or("a name in execution.nodelist is not a string")?;
        r_hosts.extend(hostlist::expand(part).map_err(|why| format!("execution.nodelist: {why}"))?);
    }
    let mut wanted_hosts = hostlist::expand(hosts)?;
    let count = r_hosts.len();
    // The order does not matter: Flux takes the ranks of the hosts from the instance's hostlist, not from R.
    r_hosts.sort_unstable();
    wanted_hosts.sort_unstable();
    if r_hosts != wanted_hosts {
        let nodes: Vec<&str> = nodes.iter().filter_map(Value::as_str).collect();
        return Err(format!(
            "it is for the hosts {}, and this instance has {hosts}",
            nodes.join(",")
        ));
    }
    let children = |group: &Value| {
        let ids_of = |name: &str| Some(format!("{name} {}", group["children"][name].as_str()?));
        ["core", "gpu"]
            .into_iter()
            .filter_map(ids_of)
            .collect::<Vec<_>>()
            .join(" and ")
    };
    // The log line shows three groups at most.
    let described_groups: Vec<String> = rank_groups.iter().take(3).map(children).collect();
    Ok(format!("{count} hosts with {}", described_groups.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r_of_a_snippet_is_checked_for_its_form_and_its_hosts() {
        let r = |nodes: &str| {
            format!(
                r#"{{"version":1,"execution":{{"R_lite":[{{"rank":"0-1","children":{{"core":"0","gpu":"0-7"}}}}],"nodelist":[{nodes}]}}}}"#
            )
        };
        let description_of = |text: &str| describe(text.as_bytes(), "mc-[0-1]");
        for nodes in [r#""mc-[0-1]""#, r#""mc-1","mc-0""#, r#""mc-[0,1]""#] {
            assert_eq!(
                description_of(&r(nodes)).unwrap(),
                "2 hosts with core 0 and gpu 0-7",
                "{nodes}"
            );
        }
        for (text, why) in [
            ("0".repeat((16 << 20) + 1), "it is larger than 16 MiB"),
            (
                r(r#""mc-[0-2]""#),
                "it is for the hosts mc-[0-2], and this instance has mc-[0-1]",
            ),
            (
                r(r#""mc-0""#),
                "it is for the hosts mc-0, and this instance has mc-[0-1]",
            ),
            (r(r#""mc-0","mc-0","mc-1""#), "it is for the hosts mc-0,mc-0,mc-1"),
            (r("7"), "a name in execution.nodelist is not a string"),
            (r(""), "it has no execution.nodelist"),
            (r#"{"version":2}"#.into(), "its version is 2, not 1"),
            ("  \n".into(), "it is empty"),
            ("flux: error".into(), "it is not JSON: "),
            ("[]".into(), "its version is null, not 1"),
        ] {
            assert!(
                description_of(&text).unwrap_err().starts_with(why),
                "{text}: {:?}",
                description_of(&text)
            );
        }
    }
}
