//! Counts GPUs by the device nodes that a device plugin has put into the container. Flux's own count (by hwloc) needs
//! the vendors' libraries.
//!
//! - NVIDIA: `/dev/nvidia0`, `/dev/nvidia1` …. If GPUs are divided (MIG), their parts count instead. Each part has a
//!   device node below `/dev/nvidia-caps`, with a number that the driver lists.
//! - AMD: `/dev/dri/renderD*` of vendor 0x1002 and of the partitions of a divided GPU (CPX), if the compute device
//!   `/dev/kfd` exists as well. Such a partition is no PCI device and has no vendor, except the first one.
//! - Intel: `/dev/dri/renderD*` of vendor 0x8086, except the GPU in the processor, which always has the same PCI
//!   address.

use std::collections::BTreeSet;

use super::host::HostFiles;

const AMD: &str = "0x1002";
const INTEL: &str = "0x8086";
/// The start of the line that marks a partition of AMD's GPUs.
const AMD_PARTITION: &str = "MODALIAS=platform:amdgpu_xcp";
/// The line with the PCI address of the GPU in Intel's processors.
const INTEGRATED_GPU: &str = "PCI_SLOT_NAME=0000:00:02.0";

/// The number of GPUs in this container.
pub fn gpus(host: &HostFiles) -> u32 {
    let whole = host
        .names("/dev")
        .into_iter()
        .filter(|name| is_numbered(name, "nvidia"))
        .count();
    let parts = mig_parts(host);
    let nvidia = if parts > 0 { parts } else { whole };
    let render_nodes = || {
        host.names("/dev/dri")
            .into_iter()
            .filter(|name| is_numbered(name, "renderD"))
    };
    let amd = if host.exists("/dev/kfd") {
        render_nodes()
            .filter(|node| vendor(host, node).as_deref() == Some(AMD) || is_amd_partition(host, node))
            .count()
    } else {
        0
    };
    let is_intel = |node: &String| vendor(host, node).as_deref() == Some(INTEL) && !is_integrated(host, node);
    u32::try_from(nvidia + amd + render_nodes().filter(is_intel).count()).unwrap_or(u32::MAX)
}

/// The number of parts of divided GPUs that this container may compute on (`gpu0/gi3/ci0/access 12` is
/// `/dev/nvidia-caps/nvidia-cap12`). Lines without `ci`, such as `gpu0/gi3/access 11`, name no such part.
pub fn mig_parts(host: &HostFiles) -> usize {
    let list = host
        .text("/proc/driver/nvidia-caps/mig-minors")
        .unwrap_or_default();
    let minors: BTreeSet<String> = list
        .lines()
        .filter_map(|line| line.split_once("/access "))
        .filter(|(part, _)| {
            part.rsplit('/')
                .next()
                .is_some_and(|last| is_numbered(last, "ci"))
        })
        .map(|(_, minor)| format!("nvidia-cap{}", minor.trim()))
        .collect();
    host.names("/dev/nvidia-caps")
        .into_iter()
        .filter(|name| minors.contains(name))
        .count()
}

fn vendor(host: &HostFiles, node: &str) -> Option<String> {
    host.text(&format!("/sys/class/drm/{node}/device/vendor"))
        .map(|vendor| vendor.trim().to_owned())
}

fn is_amd_partition(host: &HostFiles, node: &str) -> bool {
    uevent(host, node)
        .lines()
        .any(|line| line.starts_with(AMD_PARTITION))
}

fn is_integrated(host: &HostFiles, node: &str) -> bool {
    uevent(host, node).lines().any(|line| line == INTEGRATED_GPU)
}

/// What the kernel says of the node's device, one `KEY=VALUE` per line.
fn uevent(host: &HostFiles, node: &str) -> String {
    host.text(&format!("/sys/class/drm/{node}/device/uevent"))
        .unwrap_or_default()
}

fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn devices_are_counted_and_their_control_nodes_are_not() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str, text: &str| write(root.path(), path, text);
        for node in [
            "nvidia0",
            "nvidia1",
            "nvidiactl",
            "nvidia-uvm",
            "kfd",
            "dri/renderD128",
            "dri/renderD129",
        ] {
            make(&format!("dev/{node}"), "");
        }
        make("sys/class/drm/renderD128/device/vendor", "0x1002\n");
        make("sys/class/drm/renderD129/device/vendor", "0x8086\n");
        let counted = || gpus(&HostFiles::new(root.path()));
        assert_eq!(counted(), 4, "two of NVIDIA's, one of AMD's, one of Intel's");
        make(
            "sys/class/drm/renderD129/device/uevent",
            "DRIVER=i915\nPCI_SLOT_NAME=0000:00:02.0\n",
        );
        assert_eq!(counted(), 3, "the GPU in the processor does not count");
        let minors =
            "config 1\nmonitor 2\ngpu0/gi3/access 30\ngpu0/gi3/ci0/access 31\ngpu0/gi4/ci0/access 40\n";
        make("proc/driver/nvidia-caps/mig-minors", minors);
        for capability in [1, 2, 30, 31, 99] {
            make(&format!("dev/nvidia-caps/nvidia-cap{capability}"), "");
        }
        assert_eq!(counted(), 2, "one part of NVIDIA's, one of AMD's");
    }

    #[test]
    fn partitions_of_an_amd_gpu_count_as_gpus() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str, text: &str| write(root.path(), path, text);
        for node in [128, 129, 130] {
            make(&format!("dev/dri/renderD{node}"), "");
        }
        make("sys/class/drm/renderD128/device/vendor", "0x1002\n");
        let partition = "MODALIAS=platform:amdgpu_xcp_1\n";
        make("sys/class/drm/renderD129/device/uevent", partition);
        make(
            "sys/class/drm/renderD130/device/uevent",
            "MODALIAS=platform:vgem\n",
        );
        let counted = || gpus(&HostFiles::new(root.path()));
        assert_eq!(counted(), 0, "without /dev/kfd, none can compute");
        make("dev/kfd", "");
        assert_eq!(counted(), 2);
    }
}
