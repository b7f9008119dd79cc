//! GPUs by their device nodes: what a device plugin put into the container.
//!
//! NVIDIA: `/dev/nvidia0`, `/dev/nvidia1` … AMD: `/dev/dri/renderD*` of vendor 0x1002, if the compute device
//! `/dev/kfd` is there as well. Flux's own count (by hwloc) needs their libraries; the device nodes do not.

use super::host::Host;

const AMD: &str = "0x1002";

pub fn gpus(host: &Host) -> u32 {
    let nvidia = host.names("/dev").into_iter().filter(|name| is_numbered(name, "nvidia")).count();
    let amd = match host.exists("/dev/kfd") {
        true => host.names("/dev/dri").into_iter().filter(|name| is_amd(host, name)).count(),
        false => 0,
    };
    u32::try_from(nvidia + amd).unwrap_or(u32::MAX)
}

fn is_amd(host: &Host, node: &str) -> bool {
    let vendor = || host.text(&format!("/sys/class/drm/{node}/device/vendor"));
    is_numbered(node, "renderD") && vendor().is_some_and(|vendor| vendor.trim() == AMD)
}

fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_counted_and_their_control_nodes_are_not() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for node in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "kfd", "dri/renderD128", "dri/renderD129"] {
            make(&format!("dev/{node}"), "");
        }
        make("sys/class/drm/renderD128/device/vendor", "0x1002\n");
        make("sys/class/drm/renderD129/device/vendor", "0x8086\n");
        assert_eq!(gpus(&Host::new(root.path())), 3);
    }
}
