//! A file with this pod's cores and GPUs in hwloc's XML. `FLUX_HWLOC_XMLFILE` names it to Flux, which then does not
//! look at the node. The XML is written without a crate, since crates for hwloc bind its C library.
//!
//! If all brokers are there before anything runs, the agent does not write R (Flux's resource set). Each broker reads
//! the file of its own pod, and Flux combines the resources into R. So nodes may differ. Without the file, Flux would
//! count the whole node as the pod's: it does not know CPU limits, and it finds GPUs by libraries that few images
//! have. (If Flux cannot read the file, because it uses hwloc 1, it looks at the node after all.)
//!
//! State from an archive or an earlier attempt contains the R of that time, which Flux would use. A task for
//! `flux modprobe` removes it.

use std::fmt::Write;

use flux_shared::agent_spec::RestartPolicy;

use super::{Content, EnvChange, Mode, Resolved, Step, set};

/// The variable with the path of the XML file.
const XML_VARIABLE: &str = "FLUX_HWLOC_XMLFILE";
/// The variable with more folders for `flux modprobe`.
const MODPROBE_VARIABLE: &str = "FLUX_MODPROBE_PATH_APPEND";
/// Upper bounds, above what almost all machines have: the spec and assumed facts may contain any number.
const MOST_CORES: u32 = 1024;
const MOST_CPUS: u32 = 1 << 16;
const MOST_GPUS: u32 = 64;

/// Whether each broker reads its own pod's resources from the XML file. Otherwise the agent writes R for all hosts:
/// - for a single broker: the lead knows all its resources;
/// - if R is needed before all brokers are there (elastic sizes, a smaller quorum, clusters that join later), also in a
///   cluster that joins (`network.lead` names the lead of another cluster);
/// - for more declared cores than the XML file may have;
/// - with the user's own broker.toml, which may name the file of this R;
/// - if the lead may restore an archive, which has an R, and Flux is too old to remove that R. Only the lead checks
///   this condition, since only its R counts. The R of an earlier attempt (`OnFailure`) is no reason: unlike an
///   archive's, it is of this MiniCluster and has the same hosts;
/// - if Flux is too old to read the XML file.
pub fn is_discovered(resolved: &Resolved) -> bool {
    is_possible(resolved) && reads_xml(resolved) && !keeps_old_r(resolved)
}

/// Whether Flux reads the XML file, as since 0.55.
fn reads_xml(resolved: &Resolved) -> bool {
    !resolved.facts.is_flux_before(55)
}

/// Whether [`is_discovered`] is true for a current Flux.
fn is_possible(resolved: &Resolved) -> bool {
    let spec = resolved.spec;
    let all_are_awaited =
        resolved.hosts.size() == spec.size && spec.quorum.is_none_or(|quorum| quorum == spec.size);
    resolved.hosts.size() > 1
        && all_are_awaited
        && spec.network.lead.is_none()
        && spec
            .runner
            .declared_cores()
            .is_none_or(|cores| cores <= MOST_CORES)
        && spec.flux.broker_config.is_none()
}

/// Whether the lead may restore an archive, and Flux is too old to remove its R.
fn keeps_old_r(resolved: &Resolved) -> bool {
    resolved.is_lead() && resolved.spec.archive.is_some() && !removes_old_r(resolved)
}

/// A notice if R has the lead's resources for all nodes, and the only reason is that Flux is too old.
pub fn notice(resolved: &Resolved) -> Option<String> {
    let is_too_old = resolved.is_lead() && is_possible(resolved) && !is_discovered(resolved);
    is_too_old.then(|| {
        let why = if reads_xml(resolved) {
            "Flux before 0.79 and an archive"
        } else {
            "Flux before 0.55"
        };
        format!("{why}: Flux uses the lead's cores and GPUs for all nodes. If nodes differ, use a newer Flux")
    })
}

/// Whether the state may hold the R of an earlier instance: from an archive or, with `OnFailure`, from an earlier
/// attempt. Flux may be too old to remove it. So the brokers' own resources are then not checked against R (`noverify`
/// in `broker.rs`).
pub fn may_hold_old_r(resolved: &Resolved) -> bool {
    resolved.spec.archive.is_some() || resolved.spec.restart_policy == RestartPolicy::OnFailure
}

/// Whether the lead's broker removes the R of an earlier instance from the state, before Flux uses it. False on
/// followers, which have no such task.
fn removes_old_r(resolved: &Resolved) -> bool {
    resolved.is_lead() && may_hold_old_r(resolved) && resolved.facts.flux_modprobe
}

/// The variable for all later steps, since an instance inside this one discovers resources, too.
pub fn variable(resolved: &Resolved) -> Option<EnvChange> {
    is_discovered(resolved).then(|| set(XML_VARIABLE, &resolved.paths.topology()))
}

/// The variable that makes the lead's broker run the task that removes an old R. Followers do not get it.
pub fn broker_variable(resolved: &Resolved) -> Option<EnvChange> {
    let folder = resolved.paths.modprobe_dir();
    (is_discovered(resolved) && removes_old_r(resolved)).then(|| EnvChange::Append {
        name: MODPROBE_VARIABLE.into(),
        separator: ':',
        value: folder,
    })
}

/// The XML file and, on the lead, the task that removes an old R. None if the agent writes R instead.
pub fn steps(resolved: &Resolved) -> Option<Vec<Step>> {
    is_discovered(resolved).then(|| {
        let file = |path: String, text: String| Step::File {
            path,
            mode: Mode(0o644),
            owner: resolved.agent_owner(),
            content: Content::Text(text),
        };
        let mut steps = vec![file(resolved.paths.topology(), xml(resolved))];
        if removes_old_r(resolved) {
            let folder = Step::Directory {
                path: resolved.paths.modprobe_rc1_dir(),
                mode: Mode(0o755),
                owner: resolved.agent_owner(),
            };
            steps.push(folder);
            let path = format!("{}/flux-agent.py", resolved.paths.modprobe_rc1_dir());
            steps.push(file(path, REMOVE_OLD_R.to_owned()));
        }
        steps
    })
}

/// The task that removes the R of an earlier instance, in Python, as `flux modprobe rc1` reads it.
const REMOVE_OLD_R: &str = "\
# Removes the R of an earlier instance from the restored state: each broker discovers its resources now.
import flux.kvs
from flux.modprobe import task


@task(\"flux-agent-resources\", ranks=\"0\", after=[\"kvs\"], before=[\"resource\"], needs=[\"kvs\", \"resource\"])
def forget_resources(context):
    if flux.kvs.exists(context.handle, \"resource.R\"):
        flux.kvs.put_unlink(context.handle, \"resource.R\")
        flux.kvs.commit(context.handle)
";

/// The text of the XML file: one machine with one NUMA node and one package.
fn xml(resolved: &Resolved) -> String {
    // The number in the spec counts, even if the pod has fewer cores.
    let count = resolved.cores() as usize;
    let real_cores = resolved.facts.cpus.iter().take(count).cloned();
    // More cores, of one CPU each, if the spec declares more than there are or assumed facts name no CPUs. Their CPUs
    // have numbers that no real core has.
    let is_taken = |cpu: &u32| resolved.facts.cpus.iter().flatten().any(|taken| taken == cpu);
    let more_cores = (0..MOST_CPUS).filter(|cpu| !is_taken(cpu)).map(|cpu| vec![cpu]);
    let cores: Vec<Vec<u32>> = real_cores
        .chain(more_cores)
        .take(count.min(MOST_CORES as usize))
        .collect();
    let all_cpus: Vec<u32> = cores.iter().flatten().copied().collect();
    let mut writer = Writer {
        text: HEAD.to_owned(),
        last_id: 0,
        indent: 0,
    };
    let sets = format!(
        "{} complete_nodeset=\"0x1\" nodeset=\"0x1\" allowed_nodeset=\"0x1\"",
        cpusets(&all_cpus, true)
    );
    writer.open("Machine", &format!("os_index=\"0\" {sets}"));
    writer.line(&format!(
        "<info name=\"HostName\" value=\"{}\"/>",
        resolved.hostname
    ));
    let memory = writer.tag(
        "NUMANode",
        &format!("os_index=\"0\" {} local_memory=\"1\"", sets_in_node(&all_cpus)),
    );
    writer.line(&(memory + "</object>"));
    writer.open("Package", &format!("os_index=\"0\" {}", sets_in_node(&all_cpus)));
    for (number, cpus) in cores.iter().enumerate() {
        let core = writer.tag("Core", &format!("os_index=\"{number}\" {}", sets_in_node(cpus)));
        let threads = cpus.iter().map(|cpu| {
            writer.tag("PU", &format!("os_index=\"{cpu}\" {}", sets_in_node(&[*cpu]))) + "</object>"
        });
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

/// Writes XML objects, one or more per line.
struct Writer {
    text: String,
    /// `gp_index` of the last object.
    last_id: u32,
    /// Number of objects that are open.
    indent: usize,
}

impl Writer {
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{:width$}{line}", "", width = 2 + 2 * self.indent);
    }

    /// The opening tag of an object, which the caller writes and closes.
    fn tag(&mut self, kind: &str, attributes: &str) -> String {
        self.last_id += 1;
        format!(
            "<object type=\"{kind}\" {attributes} gp_index=\"{}\">",
            self.last_id
        )
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

    /// Writes each GPU as a PCI device with a backend that Flux counts as a GPU, whatever its vendor. Numbers are those
    /// of hwloc 2 and PCI: bridge 0-1 is host to PCI, class 0302 a 3D controller, `osdev_type` 5 a coprocessor.
    fn gpus(&mut self, count: u32) {
        self.open(
            "Bridge",
            "bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[00-ff]\"",
        );
        for gpu in 0..count.min(MOST_GPUS) {
            // A PCI bus has at most 32 devices.
            let bus_id = format!("0000:{:02x}:{:02x}.0", 1 + gpu / 32, gpu % 32);
            let kind = "pci_type=\"0302 [0000:0000] [0000:0000] 00\" pci_link_speed=\"0.000000\"";
            let device = self.tag("PCIDev", &format!("pci_busid=\"{bus_id}\" {kind}"));
            let backend = self.tag(
                "OSDev",
                &format!("name=\"gpu{gpu}\" subtype=\"OpenCL\" osdev_type=\"5\""),
            );
            self.line(&format!(
                "{device}{backend}<info name=\"Backend\" value=\"OpenCL\"/></object></object>"
            ));
        }
        self.close();
    }
}

/// The attributes of an object that has these CPUs, in the only NUMA node.
fn sets_in_node(cpus: &[u32]) -> String {
    format!(
        "{} nodeset=\"0x1\" complete_nodeset=\"0x1\"",
        cpusets(cpus, false)
    )
}

/// The attributes with an object's set of CPUs. `is_machine`: the root object also has the set of allowed CPUs.
fn cpusets(cpus: &[u32], is_machine: bool) -> String {
    let set = bitmap(cpus);
    let allowed = if is_machine {
        format!(" allowed_cpuset=\"{set}\"")
    } else {
        String::new()
    };
    format!("cpuset=\"{set}\" complete_cpuset=\"{set}\"{allowed}")
}

/// A set of CPUs in hwloc's form: words of 32 bits in hexadecimal, the highest first. CPUs from `MOST_CPUS` on are left
/// out.
fn bitmap(cpus: &[u32]) -> String {
    let cpus: Vec<u32> = cpus.iter().copied().filter(|cpu| *cpu < MOST_CPUS).collect();
    let words = cpus.iter().max().map_or(1, |last| last / 32 + 1);
    let word = |number: u32| {
        cpus.iter()
            .filter(|cpu| **cpu / 32 == number)
            .fold(0_u32, |word, cpu| word | 1 << (cpu % 32))
    };
    (0..words)
        .rev()
        .map(|number| format!("0x{:08x}", word(number)))
        .collect::<Vec<String>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use flux_shared::agent_spec::AgentSpec;

    use super::*;
    use crate::facts::Facts;
    use crate::plan::{PodContainer, build};

    fn discovered(spec: &str) -> bool {
        let spec = AgentSpec::from_toml(&format!("name = 'mc'\n{spec}")).unwrap();
        is_discovered(&Resolved::new(&spec, &Facts::default()).unwrap())
    }

    #[test]
    fn brokers_discover_resources_when_quorum_is_the_whole_size() {
        assert!(discovered("size = 3") && discovered("size = 3\nquorum = 3"));
        for other in [
            "size = 1",
            "size = 3\nmax_size = 4",
            "size = 3\nquorum = 2",
            "size = 3\n[runner]\ncores = 2000",
            "size = 3\n[flux]\nbroker_config = 'a = 1'",
            "size = 3\n[network]\nhostlist = 'mc-[0-2],burst-[0-3]'",
        ] {
            assert!(!discovered(other), "{other}");
        }
    }

    #[test]
    fn restored_archive_forgets_its_resources() {
        let spec = AgentSpec::from_toml("name = 'mc'\nsize = 2\narchive = '/a.tgz'").unwrap();
        let of = |index, flux_modprobe| {
            let facts = Facts {
                index: Some(index),
                flux_modprobe,
                ..Facts::default()
            };
            let resolved = Resolved::new(&spec, &facts).unwrap();
            (
                steps(&resolved).map_or(0, |steps| steps.len()),
                broker_variable(&resolved).is_some(),
                notice(&resolved).is_some(),
            )
        };
        assert_eq!((of(0, true), of(0, false)), ((3, true, false), (0, false, true)));
        assert_eq!(
            (of(1, true), of(1, false)),
            ((1, false, false), (1, false, false)),
            "a follower"
        );
    }

    #[test]
    fn flux_before_055_gets_the_r_of_the_lead() {
        let spec = AgentSpec::from_toml("name = 'mc'\nsize = 2\n[runner]\ncpu_limit = 3").unwrap();
        let of = |index, version: &str| {
            let facts = Facts {
                index: Some(index),
                flux_version: Some(version.into()),
                ..Facts::default()
            };
            let plan = build(&spec, &facts, &PodContainer::Runner).unwrap();
            let text = |name: &str| {
                plan.steps.iter().find_map(|step| match step {
                    Step::File {
                        path,
                        content: Content::Text(text),
                        ..
                    } if path.ends_with(name) => Some(text.clone()),
                    _ => None,
                })
            };
            let broker_toml = text("/broker.toml").unwrap();
            (
                text("/R").map(|r| r.contains("\"core\":\"0-2\"")),
                text("/hwloc.xml").is_some(),
                broker_toml.contains("path = ") && broker_toml.contains("noverify = true"),
                plan.notices
                    .iter()
                    .any(|notice| notice.contains("Flux before 0.55")),
            )
        };
        assert_eq!(of(0, "0.54.0"), (Some(true), false, true, true));
        assert_eq!(of(0, "0.55.0"), (None, true, false, false));
        assert_eq!(of(1, "0.54.0"), (None, false, false, false));
    }

    #[test]
    fn discovery_has_declared_cores_when_host_has_more_or_fewer() {
        let cores_of = |cores: u32| {
            let spec =
                AgentSpec::from_toml(&format!("name = 'mc'\nsize = 2\n[runner]\ncores = {cores}")).unwrap();
            let facts = Facts {
                cores: 2,
                cpus: vec![vec![0, 2], vec![1, 3]],
                gpus: 1,
                ..Facts::default()
            };
            let text = xml(&Resolved::new(&spec, &facts).unwrap());
            let count = |what: &str| text.matches(what).count();
            assert_eq!(count("type=\"OSDev\""), 1, "{text}");
            (
                count("type=\"Core\""),
                count("type=\"PU\""),
                text.contains("os_index=\"4\" cpuset=\"0x00000010\""),
            )
        };
        assert_eq!(
            (cores_of(1), cores_of(2), cores_of(3)),
            ((1, 2, false), (2, 4, false), (3, 5, true))
        );
        assert_eq!(cores_of(0), cores_of(2), "0 declares none");
    }

    #[test]
    fn sets_of_cpus_are_written_as_hwloc_does() {
        assert_eq!(
            (bitmap(&[0, 1]), bitmap(&[])),
            ("0x00000003".into(), "0x00000000".into())
        );
        assert_eq!(bitmap(&[31, 32, 70]), "0x00000040,0x00000001,0x80000000");
    }

    #[test]
    fn discovery_has_allowed_cores_with_both_threads() {
        let spec = AgentSpec::from_toml("name = 'mc'\nsize = 2").unwrap();
        let cpus = vec![vec![2, 10], vec![3, 11], vec![4, 12]];
        let facts = Facts {
            cores: 3,
            cpus,
            cpu_quota: Some(2.0),
            gpus: 2,
            index: Some(1),
            ..Facts::default()
        };
        let text = xml(&Resolved::new(&spec, &facts).unwrap());
        let count = |what: &str| text.matches(what).count();
        assert_eq!(
            (
                count("type=\"Core\""),
                count("type=\"PU\""),
                count("type=\"OSDev\"")
            ),
            (2, 4, 2),
            "{text}"
        );
        assert!(
            text.contains("value=\"mc-1\"") && !text.contains("os_index=\"4\""),
            "{text}"
        );
        assert!(
            text.contains("type=\"Core\" os_index=\"1\" cpuset=\"0x00000808\""),
            "{text}"
        );
        assert_eq!(count("<object"), count("</object>"), "{text}");
    }
}
