//! What this pod has, as Flux reads it: cores and GPUs in hwloc's XML, for `FLUX_HWLOC_XMLFILE`.
//!
//! Where all brokers are there before anything runs, R is not written: each broker looks at its own pod, and Flux puts the R of
//! all together. So nodes may be unlike each other. Its own look would take the whole node for the pod's, though: it does not
//! know of CPU limits, and knows GPUs by libraries that few images have. This file says what the agent sees.
//! (Flux falls back on its own look where it cannot read the file: hwloc 1.)

use std::fmt::Write;

use flux_shared::agent_spec::RestartPolicy;

use super::{Content, EnvChange, Mode, Planned, Resolved, Step, set};

/// The variable that names the file.
const VARIABLE: &str = "FLUX_HWLOC_XMLFILE";

/// Whether each broker says what it has. Else R says it for all: it must be known before they are all there (elastic sizes,
/// clusters that join later), the number of cores is the user's word, or an earlier instance's R stands in the state that is
/// read back.
pub fn is_discovered(resolved: &Resolved) -> bool {
    let spec = resolved.spec;
    let all_are_awaited = resolved.hosts.size() == spec.size && spec.quorum.is_none_or(|quorum| quorum == spec.size);
    resolved.hosts.size() > 1
        && all_are_awaited
        && spec.network.lead.is_none()
        && spec.runner.cores.is_none()
        && spec.archive.is_none()
        && spec.flux.broker_config.is_none()
        && spec.restart_policy == RestartPolicy::Never
}

/// The file, and the variable that leads to it. In the environment of all that follows: an instance within this one looks too.
pub fn variable(resolved: &Resolved) -> Option<EnvChange> {
    is_discovered(resolved).then(|| set(VARIABLE, &resolved.paths.topology()))
}

pub fn step(resolved: &Resolved) -> Option<Planned> {
    is_discovered(resolved).then(|| {
        let step = Step::File {
            path: resolved.paths.topology(),
            mode: Mode(0o644),
            owner: resolved.own(),
            content: Content::Text(xml(resolved)),
        };
        Planned::with(&["uid", "cores", "cpus", "cpu_quota", "gpus"], step)
    })
}

fn xml(resolved: &Resolved) -> String {
    let count = resolved.facts.usable_cores() as usize;
    // Facts that were given for a dry run may name no CPUs.
    let known = resolved.facts.cpus.iter().cloned();
    let cores: Vec<Vec<u32>> = match resolved.facts.cpus.len() >= count {
        true => known.take(count).collect(),
        false => (0..MOST_CORES).take(count).map(|cpu| vec![cpu]).collect(),
    };
    let all: Vec<u32> = cores.iter().flatten().copied().collect();
    let mut writer = Writer { text: HEAD.to_owned(), ids: 0, indent: 0 };
    let places = format!("{} complete_nodeset=\"0x1\" nodeset=\"0x1\" allowed_nodeset=\"0x1\"", of(&all, true));
    writer.open("Machine", &format!("os_index=\"0\" {places}"));
    writer.line(&format!("<info name=\"HostName\" value=\"{}\"/>", resolved.hostname));
    let memory = writer.tag("NUMANode", &format!("os_index=\"0\" {} local_memory=\"1\"", in_node(&all)));
    writer.line(&(memory + "</object>"));
    writer.open("Package", &format!("os_index=\"0\" {}", in_node(&all)));
    for (number, cpus) in cores.iter().enumerate() {
        let core = writer.tag("Core", &format!("os_index=\"{number}\" {}", in_node(cpus)));
        let threads =
            cpus.iter().map(|cpu| writer.tag("PU", &format!("os_index=\"{cpu}\" {}", in_node(&[*cpu]))) + "</object>");
        let threads: String = threads.collect();
        writer.line(&format!("{core}{threads}</object>"));
    }
    writer.close();
    if resolved.facts.gpus > 0 {
        writer.gpus(resolved.facts.gpus);
    }
    writer.close();
    writer.text + "</topology>\n"
}

const HEAD: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n\
                    <topology version=\"2.0\">\n";

struct Writer {
    text: String,
    /// Every object has a number of its own.
    ids: u32,
    indent: usize,
}

impl Writer {
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{:width$}{line}", "", width = 2 + 2 * self.indent);
    }

    fn tag(&mut self, kind: &str, attributes: &str) -> String {
        self.ids += 1;
        format!("<object type=\"{kind}\" {attributes} gp_index=\"{}\">", self.ids)
    }

    fn open(&mut self, kind: &str, attributes: &str) {
        let tag = self.tag(kind, attributes);
        self.line(&tag);
        self.indent += 1;
    }

    fn close(&mut self) {
        self.indent -= 1;
        self.line("</object>");
    }

    /// Each is a device of its own with a backend that Flux counts as a GPU, whoever made it.
    fn gpus(&mut self, count: u32) {
        self.open("Bridge", "bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[00-ff]\"");
        for gpu in 0..count.min(MOST_GPUS) {
            let place = format!("0000:{:02x}:{:02x}.0", 1 + gpu / 32, gpu % 32);
            let kind = "pci_type=\"0302 [0000:0000] [0000:0000] 00\" pci_link_speed=\"0.000000\"";
            let device = self.tag("PCIDev", &format!("pci_busid=\"{place}\" {kind}"));
            let gpu = self.tag("OSDev", &format!("name=\"gpu{gpu}\" subtype=\"OpenCL\" osdev_type=\"5\""));
            self.line(&format!("{device}{gpu}<info name=\"Backend\" value=\"OpenCL\"/></object></object>"));
        }
        self.close();
    }
}

/// More than machines have: facts that were given for a dry run may say anything.
const MOST_CORES: u32 = 512;
const MOST_CPUS: u32 = 1 << 16;
const MOST_GPUS: u32 = 64;

fn in_node(cpus: &[u32]) -> String {
    format!("{} nodeset=\"0x1\" complete_nodeset=\"0x1\"", of(cpus, false))
}

fn of(cpus: &[u32], whole: bool) -> String {
    let set = bitmap(cpus);
    let allowed = if whole { format!(" allowed_cpuset=\"{set}\"") } else { String::new() };
    format!("cpuset=\"{set}\" complete_cpuset=\"{set}\"{allowed}")
}

/// A set as hwloc writes it: words of 32 bits, the highest first.
fn bitmap(cpus: &[u32]) -> String {
    let cpus: Vec<u32> = cpus.iter().copied().filter(|cpu| *cpu < MOST_CPUS).collect();
    let words = cpus.iter().max().map_or(1, |last| last / 32 + 1);
    let word =
        |number: u32| cpus.iter().filter(|cpu| **cpu / 32 == number).fold(0_u32, |word, cpu| word | 1 << (cpu % 32));
    (0..words).rev().map(|number| format!("0x{:08x}", word(number))).collect::<Vec<String>>().join(",")
}

#[cfg(test)]
mod tests {
    use flux_shared::agent_spec::AgentSpec;

    use super::*;
    use crate::facts::Facts;

    fn discovered(spec: &str) -> bool {
        let spec = AgentSpec::from_toml(&format!("name = 'mc'\n{spec}")).unwrap();
        is_discovered(&Resolved::new(&spec, &Facts::default()).unwrap())
    }

    #[test]
    fn each_broker_says_what_it_has_where_all_are_there_before_anything_runs() {
        assert!(discovered("size = 3") && discovered("size = 3\nquorum = 3"));
        for other in [
            "size = 1",
            "size = 3\nmax_size = 4",
            "size = 3\nquorum = 2",
            "size = 3\narchive = '/a.tgz'",
            "size = 3\nrestart_policy = 'OnFailure'",
            "size = 3\n[runner]\ncores = 2",
            "size = 3\n[flux]\nbroker_config = 'a = 1'",
            "size = 3\n[network]\nhostlist = 'mc-[0-2],burst-[0-3]'",
        ] {
            assert!(!discovered(other), "{other}");
        }
    }

    #[test]
    fn sets_of_cpus_are_written_as_hwloc_does() {
        assert_eq!((bitmap(&[0, 1]), bitmap(&[])), ("0x00000003".into(), "0x00000000".into()));
        assert_eq!(bitmap(&[31, 32, 70]), "0x00000040,0x00000001,0x80000000");
    }

    #[test]
    fn the_cores_are_those_that_the_pod_may_use_with_both_of_their_threads() {
        let spec = AgentSpec::from_toml("name = 'mc'\nsize = 2").unwrap();
        let cpus = vec![vec![2, 10], vec![3, 11], vec![4, 12]];
        let facts = Facts { cores: 3, cpus, cpu_quota: Some(2.0), gpus: 2, index: Some(1), ..Facts::default() };
        let text = xml(&Resolved::new(&spec, &facts).unwrap());
        let count = |what: &str| text.matches(what).count();
        assert_eq!((count("type=\"Core\""), count("type=\"PU\""), count("type=\"OSDev\"")), (2, 4, 2), "{text}");
        assert!(text.contains("value=\"mc-1\"") && !text.contains("os_index=\"4\""), "{text}");
        assert!(text.contains("type=\"Core\" os_index=\"1\" cpuset=\"0x00000808\""), "{text}");
        assert_eq!(count("<object"), count("</object>"), "{text}");
    }
}
