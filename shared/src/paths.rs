//! Paths inside a pod. Those of Flux's files are below the mount path (`flux.container.mountPath`, by default
//! `/mnt/flux`). A view is Flux with all its libraries, which is mounted or copied into the pod.

/// Default of `flux.container.mountPath`.
pub const DEFAULT_MOUNT_PATH: &str = "/mnt/flux";
/// The folder of the agent's own mounts.
pub const AGENT_FOLDER: &str = "/etc/flux-agent";
/// Where the operator mounts the ConfigMap with the AgentSpec (in this file: the spec).
pub const SPEC_DIR: &str = "/etc/flux-agent/spec";
/// Default folder of the output of a batch's jobs.
pub const DEFAULT_LOGS: &str = "/tmp/fluxout";
/// Folder of the agent's binary in every container of the Job's pods: a volume of its own, to which only the init
/// container that installs the binary may write.
pub const AGENT_DIR: &str = "/etc/flux-agent/bin";
/// The agent's binary. Root runs it by this path, never by the link at the documented path ([`PodPaths::agent`]).
pub const AGENT_FILE: &str = "/etc/flux-agent/bin/flux-agent";
/// The key of the spec in the ConfigMap.
pub const SPEC_KEY: &str = "agent.toml";
/// The spec as `flux-agent run` reads it.
pub const SPEC_FILE: &str = "/etc/flux-agent/spec/agent.toml";
/// Name of the file, in the folder of the spec, with the reason why the operator wants this pod to end. The file shows
/// an annotation of the pod.
pub const END_KEY: &str = "end";
/// Where the operator mounts the Secret with the curve certificate.
pub const CURVE_DIR: &str = "/etc/flux-agent/curve";
/// The key of the certificate in the Secret.
pub const CURVE_KEY: &str = "curve.cert";
/// The certificate as the agent reads it.
pub const CURVE_FILE: &str = "/etc/flux-agent/curve/curve.cert";
/// The seed of the certificates of a JobSet or another Job, which mounts the Secret with it here.
pub const SEED_FILE: &str = "/etc/flux-agent/seed/seed";
/// Where the operator mounts the Secret with the passwords of `spec.users`: a file each, named after the
/// user.
pub const USERS_DIR: &str = "/etc/flux-agent/users";
/// Where the operator mounts the Secret of the Flux RESTful API.
pub const RESTFUL_DIR: &str = "/etc/flux-agent/restful";
/// Key in that Secret of the text by which the API encodes its payloads.
pub const RESTFUL_SECRET_KEY: &str = "secret-key";
/// Key in that Secret of the clients' user name.
pub const RESTFUL_USERNAME: &str = "username";
/// Key in that Secret of the clients' token.
pub const RESTFUL_TOKEN: &str = "token";
/// The absolute path by which files of a view refer to their packages.
pub const SOFTWARE_DIR: &str = "/opt/software";
/// The folder of the views in a view image: each subfolder is one, and usually there is one.
pub const VIEW_IMAGE_VIEWS: &str = "/opt/views/._view";
/// The link to the view in a view image, which most images have.
pub const VIEW_IMAGE_LINK: &str = "/opt/view";
/// A volume: HOME if the image sets none, or an empty one, or `/`, or one that is missing and cannot be created.
pub const FALLBACK_HOME: &str = "/home/flux-operator";
/// Where the volume of [`FALLBACK_HOME`] is mounted instead if a user's volume is mounted above that path, as at `/home`:
/// the mount point would have to be created in the user's storage.
pub const AGENT_HOME: &str = "/etc/flux-agent/home";
/// Where init containers mount the volume of the mount path. Anybody may write to a volume's top folder. So the other
/// containers mount only a folder in it ([`MOUNT_FOLDER`]), which belongs to the user that created it.
pub const MOUNT_STAGING: &str = "/mnt/flux-view";
/// The folder in that volume that the other containers mount at the mount path.
pub const MOUNT_FOLDER: &str = "flux";
/// Where init containers mount the volume of `/opt/software`.
pub const SOFTWARE_STAGING: &str = "/mnt/flux-software";
/// The folder in that volume that the other containers mount at `/opt/software`.
pub const SOFTWARE_FOLDER: &str = "software";
/// The folder in the volume of `/opt/software` with the copied view's packages.
pub const PACKAGES_FOLDER: &str = "packages";
/// The path of [`PACKAGES_FOLDER`] in all containers, if the view is copied: the links in `/opt/software` lead there.
pub const COPIED_PACKAGES: &str = "/mnt/flux-software/packages";
/// Where the operator mounts `flux.mungeSecret`.
pub const MUNGE_DIR: &str = "/etc/munge";
/// Where the whole view image is mounted if the node can mount images as volumes.
pub const VIEW_IMAGE_MOUNT: &str = "/mnt/flux-image";
/// Where the agent's init container mounts the runner's image, if the node can mount images as volumes.
pub const RUNNER_IMAGE_MOUNT: &str = "/mnt/flux-runner-image";
/// Kubernetes' default path of a container's termination message.
pub const TERMINATION_LOG: &str = "/dev/termination-log";

/// Links from the documented paths below the view to the real ones, relative to the mount path.
pub const VIEW_LINKS: [(&str, &str); 5] = [
    ("view/run", "../config/run"),
    ("view/curve", "../config/curve"),
    ("view/var", "../config/var"),
    ("view/etc/flux/config", "../../../config/etc/flux/config"),
    ("view/etc/flux/system", "../../../config/etc/flux/system"),
];
/// Links to the files that people source or run.
pub const HELPER_LINKS: [(&str, &str); 3] = [
    ("flux-view.sh", "config/flux-view.sh"),
    ("flux-connect.sh", "config/flux-connect.sh"),
    ("load-fluxion.sh", "config/load-fluxion.sh"),
];

/// Folders that the operator mounts into containers, with Flux at `mount_path`. Users may mount nothing there or
/// within: their volume would hide files that the agent needs, or hold a file that the agent takes for its own record of
/// an earlier start. At [`FALLBACK_HOME`] and [`MUNGE_DIR`] they may: there, their volume replaces the operator's.
pub fn own_folders(mount_path: &str) -> [&str; 6] {
    [
        mount_path,
        AGENT_FOLDER,
        SOFTWARE_DIR,
        SOFTWARE_STAGING,
        MOUNT_STAGING,
        VIEW_IMAGE_MOUNT,
    ]
}

/// Whether an absolute path is one of these folders or within one. Repeated slashes and `.` do not matter.
pub fn is_within<'a>(path: &str, folders: impl IntoIterator<Item = &'a str>) -> bool {
    fn parts(path: &str) -> Vec<&str> {
        path.split('/')
            .filter(|part| !part.is_empty() && *part != ".")
            .collect()
    }
    let path = parts(path);
    folders.into_iter().any(|folder| path.starts_with(&parts(folder)))
}

/// Where the volume for the home is mounted in a container with the user's mounts at `mounts`.
pub fn home_beside<'a>(mounts: impl IntoIterator<Item = &'a str> + Clone) -> &'static str {
    let is_users_own = mounts.clone().into_iter().any(|mount| mount == FALLBACK_HOME);
    if !is_users_own && is_within(FALLBACK_HOME, mounts) {
        AGENT_HOME
    } else {
        FALLBACK_HOME
    }
}

/// Path in `folder` of the file with the times of the init container's stage `name`.
pub fn timeline_note_in(folder: &str, name: &str) -> String {
    format!("{folder}/.flux-stage.{name}")
}

/// The paths below one mount path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPaths {
    mount: String,
}

impl PodPaths {
    /// Paths below `mount`, an absolute path.
    pub fn new(mount: &str) -> Self {
        PodPaths {
            mount: mount.trim_end_matches('/').to_owned(),
        }
    }

    /// A path below the mount path.
    pub fn at(&self, relative: &str) -> String {
        format!("{}/{relative}", self.mount)
    }

    /// The mount path, without a slash at the end.
    pub fn mount(&self) -> &str {
        &self.mount
    }

    /// The documented path of the agent, a link to [`AGENT_FILE`].
    pub fn agent(&self) -> String {
        self.at("flux-agent")
    }

    /// Folder of the Flux view.
    pub fn view(&self) -> String {
        self.at("view")
    }

    /// File that marks a copied view as complete. It holds digests of the sources and the node's boot ID.
    pub fn view_done(&self) -> String {
        self.at(".flux-view.done")
    }

    /// File with the times of the init container's stage `name`, for the timeline.
    pub fn timeline_note(&self, name: &str) -> String {
        timeline_note_in(&self.mount, name)
    }

    /// Link to [`SOFTWARE_DIR`].
    pub fn software_link(&self) -> String {
        self.at("software")
    }

    /// Folder of everything that the agent writes for Flux.
    pub fn config_root(&self) -> String {
        self.at("config")
    }

    /// Link to the `flux` by which the broker was started, if a snippet may have put it on the PATH.
    pub fn flux_link(&self) -> String {
        self.at("config/flux")
    }

    /// File in which `flux-agent program` records the exit code of the program.
    pub fn program_result(&self) -> String {
        self.at("config/program-result")
    }

    /// File in which the agent records this pod's starts; only the agent writes to it.
    pub fn starts(&self) -> String {
        self.at("config/agent/starts")
    }

    pub fn broker_toml(&self) -> String {
        self.at("config/etc/flux/config/broker.toml")
    }

    /// Folder of broker.toml, for `flux start --config-path`.
    pub fn broker_config_dir(&self) -> String {
        self.at("config/etc/flux/config")
    }

    /// Configuration folder of a batch job's own instance.
    pub fn batch_config_dir(&self) -> String {
        self.at("config/etc/flux/batch")
    }

    /// Folder of the hostlist, R and the topology.
    pub fn system_dir(&self) -> String {
        self.at("config/etc/flux/system")
    }

    pub fn hostlist(&self) -> String {
        self.at("config/etc/flux/system/hostlist")
    }

    /// The pod's topology in hwloc's XML.
    pub fn topology(&self) -> String {
        self.at("config/etc/flux/system/hwloc.xml")
    }

    /// Folder in which `flux modprobe` finds the agent's tasks.
    pub fn modprobe_dir(&self) -> String {
        self.at("config/etc/flux/modprobe")
    }

    /// Folder of the tasks that run when a broker starts.
    pub fn modprobe_rc1_dir(&self) -> String {
        self.at("config/etc/flux/modprobe/rc1.d")
    }

    /// Folder of the agent's start-up scripts, for `FLUX_RC_EXTRA`.
    pub fn rc_dir(&self) -> String {
        self.at("config/etc/flux")
    }

    /// Folder of the scripts that run when a broker starts.
    pub fn rc1_dir(&self) -> String {
        self.at("config/etc/flux/rc1.d")
    }

    /// File with R, Flux's resource set.
    pub fn resources(&self) -> String {
        self.at("config/etc/flux/system/R")
    }

    /// Folder of Python's bytecode caches, one folder per user.
    pub fn python_caches(&self) -> String {
        self.at("config/python")
    }

    /// Bytecode cache of the user `uid`.
    pub fn python_cache(&self, uid: u32) -> String {
        self.at(&format!("config/python/{uid}"))
    }

    /// Folder in which Flux's job shell finds the agent's defaults.
    pub fn shell_rc_dir(&self) -> String {
        self.at("config/etc/flux/shell")
    }

    /// The job shell's defaults in this pod.
    pub fn shell_rc(&self) -> String {
        self.at("config/etc/flux/shell/flux-agent.lua")
    }

    /// Folder of Flux's `cron.directory`.
    pub fn cron_dir(&self) -> String {
        self.at("config/etc/flux/system/cron.d")
    }

    pub fn curve_dir(&self) -> String {
        self.at("config/curve")
    }

    pub fn curve_cert(&self) -> String {
        self.at("config/curve/curve.cert")
    }

    /// Folder of the Flux RESTful API and its configuration.
    pub fn restful_dir(&self) -> String {
        self.at("config/restful")
    }

    /// File that tells sidecars that Flux has ended.
    pub fn ended_note(&self) -> String {
        self.at("config/ended")
    }

    /// Folder of the broker's `rundir`, with its socket.
    pub fn run_dir(&self) -> String {
        self.at("config/run/flux")
    }

    /// The broker's socket, without the `local://` scheme.
    pub fn socket(&self) -> String {
        self.at("config/run/flux/local")
    }

    /// Folder of the broker's `statedir`.
    pub fn state_dir(&self) -> String {
        self.at("config/var/lib/flux")
    }

    pub fn flux_view_sh(&self) -> String {
        self.at("config/flux-view.sh")
    }

    pub fn flux_connect_sh(&self) -> String {
        self.at("config/flux-connect.sh")
    }

    pub fn load_fluxion_sh(&self) -> String {
        self.at("config/load-fluxion.sh")
    }

    /// File with the user's `commands.script` of this container.
    pub fn script(&self, container: &str) -> String {
        self.at(&format!("config/scripts/{container}"))
    }
}
