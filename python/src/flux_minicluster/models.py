"""Models of the MiniCluster, flux-framework.org/v1alpha2.

Made from the CRD's schema by `.ci/python generate`: do not edit. Fields have Python's spelling (`max_size`); the API's
spelling (`maxSize`) is accepted as well. A field that this version does not know is kept as it is.
"""

from __future__ import annotations
from pydantic import BaseModel as _BaseModel, ConfigDict, Field
from typing import Annotated, Any, Literal


class BaseModel(_BaseModel):
    model_config = ConfigDict(
        extra="allow",
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class Archive(BaseModel):
    """File that Flux's state is restored from and saved to, so that a later MiniCluster can continue."""

    path: str | None = None
    """
    A file on a volume that outlives the pods. Restored at the start if it exists. Saved at the end
    and on a stop: written to a file beside it, which replaces it once complete. The suffix selects
    the format: .tar, .tgz, .tar.gz, .tar.bz2, .tar.xz or .zip.
    """


class Commands(BaseModel):
    """Snippets and wrappers around the start of Flux."""

    broker_pre: Annotated[str | None, Field(alias="brokerPre")] = None
    """On the lead, before Flux."""
    init: str | None = None
    """Runs first, on every pod."""
    post: str | None = None
    """After Flux has ended; on a sidecar, after its command."""
    pre: str | None = None
    """On every pod, before Flux."""
    pre_broker: Annotated[str | None, Field(alias="preBroker")] = None
    """Alias of brokerPre, for existing manifests."""
    pre_worker: Annotated[str | None, Field(alias="preWorker")] = None
    """Alias of workerPre, for existing manifests."""
    prefix: str | None = None
    """Command put before submit, batch, the launcher's command, the broker and the followers' start."""
    run_flux_as_root: Annotated[bool | None, Field(alias="runFluxAsRoot")] = None
    """Run Flux as the container's own user (root), even with fluxUser."""
    script: str | None = None
    """A script to run instead of command; `\\$` becomes `$`. Without a `#!`, the image's shell runs it."""
    service_pre: Annotated[str | None, Field(alias="servicePre")] = None
    """On sidecars, before the wait for the broker's socket."""
    worker_pre: Annotated[str | None, Field(alias="workerPre")] = None
    """On the followers, before Flux."""


class ExistingVolume(BaseModel):
    """
    A volume that exists already, and where it is mounted. Exactly one of claimName, configMapName,
    secretName.
    """

    claim_name: Annotated[str | None, Field(alias="claimName")] = None
    """Name of a PersistentVolumeClaim."""
    config_map_name: Annotated[str | None, Field(alias="configMapName")] = None
    """Name of a ConfigMap."""
    items: dict[str, str] | None = None
    """Keys of the ConfigMap or Secret, each with its path below the mount. Default: all."""
    path: str | None = None
    """Where it is mounted in the container."""
    read_only: Annotated[bool | None, Field(alias="readOnly")] = None
    """Mount it read-only."""
    secret_name: Annotated[str | None, Field(alias="secretName")] = None
    """Name of a Secret."""


class FluxUser(BaseModel):
    """The user to run Flux as; created if missing, which needs root. Default: the container's own user."""

    disable: bool | None = None
    """Run Flux as the container's own user, as without this block."""
    name: str | None = None
    """User name. Default: flux."""
    uid: int | None = None
    """User id, if the user must be created. Default: 1000."""


class LifeCycle(BaseModel):
    """Lifecycle hooks of the container."""

    post_start_exec: Annotated[str | None, Field(alias="postStartExec")] = None
    """Run after the container has started."""
    pre_stop_exec: Annotated[str | None, Field(alias="preStopExec")] = None
    """Run before the container is stopped."""


class Resources(BaseModel):
    """Requests and limits."""

    limits: dict[str, int | str] | None = None
    """Limits, such as memory: 500M, cpu: 4, nvidia.com/gpu: 1."""
    requests: dict[str, int | str] | None = None
    """Requests."""


class Secret(BaseModel):
    """A key of a Secret."""

    key: str
    """Key in it."""
    name: str
    """Name of the Secret."""


class AppArmorProfile(BaseModel):
    """appArmorProfile is the AppArmor options to use by this container. If set, this profile overrides the pod's appArmorProfile. Note that this field cannot be set when spec.os.name is windows."""

    localhost_profile: Annotated[str | None, Field(alias="localhostProfile")] = None
    """localhostProfile indicates a profile loaded on the node that should be used. The profile must be preconfigured on the node to work. Must match the loaded name of the profile. Must be set if and only if type is "Localhost"."""
    type: str
    """
    type indicates which kind of AppArmor profile will be applied. Valid options are:
      Localhost - a profile pre-loaded on the node.
      RuntimeDefault - the container runtime's default profile.
      Unconfined - no AppArmor enforcement.
    """


class Capabilities(BaseModel):
    """The capabilities to add/drop when running containers. Defaults to the default set of capabilities granted by the container runtime. Note that this field cannot be set when spec.os.name is windows."""

    add: list[str] | None = None
    """Added capabilities"""
    drop: list[str] | None = None
    """Removed capabilities"""


class SeLinuxOptions(BaseModel):
    """The SELinux context to be applied to the container. If unspecified, the container runtime will allocate a random SELinux context for each container.  May also be set in PodSecurityContext.  If set in both SecurityContext and PodSecurityContext, the value specified in SecurityContext takes precedence. Note that this field cannot be set when spec.os.name is windows."""

    level: str | None = None
    """Level is SELinux level label that applies to the container."""
    role: str | None = None
    """Role is a SELinux role label that applies to the container."""
    type: str | None = None
    """Type is a SELinux type label that applies to the container."""
    user: str | None = None
    """User is a SELinux user label that applies to the container."""


class SeccompProfile(BaseModel):
    """The seccomp options to use by this container. If seccomp options are provided at both the pod & container level, the container options override the pod options. Note that this field cannot be set when spec.os.name is windows."""

    localhost_profile: Annotated[str | None, Field(alias="localhostProfile")] = None
    """localhostProfile indicates a profile defined in a file on the node should be used. The profile must be preconfigured on the node to work. Must be a descending path, relative to the kubelet's configured seccomp profile location. Must be set if type is "Localhost". Must NOT be set for any other type."""
    type: str
    """
    type indicates which kind of seccomp profile will be applied. Valid options are:

    Localhost - a profile defined in a file on the node should be used. RuntimeDefault - the container runtime default profile should be used. Unconfined - no profile should be applied.
    """


class WindowsOptions(BaseModel):
    """The Windows specific settings applied to all containers. If unspecified, the options from the PodSecurityContext will be used. If set in both SecurityContext and PodSecurityContext, the value specified in SecurityContext takes precedence. Note that this field cannot be set when spec.os.name is linux."""

    gmsa_credential_spec: Annotated[str | None, Field(alias="gmsaCredentialSpec")] = (
        None
    )
    """GMSACredentialSpec is where the GMSA admission webhook (https://github.com/kubernetes-sigs/windows-gmsa) inlines the contents of the GMSA credential spec named by the GMSACredentialSpecName field."""
    gmsa_credential_spec_name: Annotated[
        str | None, Field(alias="gmsaCredentialSpecName")
    ] = None
    """GMSACredentialSpecName is the name of the GMSA credential spec to use."""
    host_process: Annotated[bool | None, Field(alias="hostProcess")] = None
    """HostProcess determines if a container should be run as a 'Host Process' container. All of a Pod's containers must have the same effective HostProcess value (it is not allowed to have a mix of HostProcess containers and non-HostProcess containers). In addition, if HostProcess is true then HostNetwork must also be set to true."""
    run_as_user_name: Annotated[str | None, Field(alias="runAsUserName")] = None
    """The UserName in Windows to run the entrypoint of the container process. Defaults to the user specified in image metadata if unspecified. May also be set in PodSecurityContext. If set in both SecurityContext and PodSecurityContext, the value specified in SecurityContext takes precedence."""


class SecurityContext(BaseModel):
    """Kubernetes' SecurityContext; the older addCapabilities is accepted as well."""

    add_capabilities: Annotated[list[str] | None, Field(alias="addCapabilities")] = None
    """Capabilities to add. Alias of capabilities.add, for existing manifests."""
    allow_privilege_escalation: Annotated[
        bool | None, Field(alias="allowPrivilegeEscalation")
    ] = None
    """AllowPrivilegeEscalation controls whether a process can gain more privileges than its parent process. This bool directly controls if the no_new_privs flag will be set on the container process. AllowPrivilegeEscalation is true always when the container is: 1) run as Privileged 2) has CAP_SYS_ADMIN Note that this field cannot be set when spec.os.name is windows."""
    app_armor_profile: Annotated[
        AppArmorProfile | None, Field(alias="appArmorProfile")
    ] = None
    """appArmorProfile is the AppArmor options to use by this container. If set, this profile overrides the pod's appArmorProfile. Note that this field cannot be set when spec.os.name is windows."""
    capabilities: Capabilities | None = None
    """The capabilities to add/drop when running containers. Defaults to the default set of capabilities granted by the container runtime. Note that this field cannot be set when spec.os.name is windows."""
    privileged: bool | None = None
    """Run container in privileged mode. Processes in privileged containers are essentially equivalent to root on the host. Defaults to false. Note that this field cannot be set when spec.os.name is windows."""
    proc_mount: Annotated[str | None, Field(alias="procMount")] = None
    """procMount denotes the type of proc mount to use for the containers. The default value is Default which uses the container runtime defaults for readonly paths and masked paths. This requires the ProcMountType feature flag to be enabled. Note that this field cannot be set when spec.os.name is windows."""
    read_only_root_filesystem: Annotated[
        bool | None, Field(alias="readOnlyRootFilesystem")
    ] = None
    """Whether this container has a read-only root filesystem. Default is false. Note that this field cannot be set when spec.os.name is windows."""
    run_as_group: Annotated[int | None, Field(alias="runAsGroup")] = None
    """The GID to run the entrypoint of the container process. Uses runtime default if unset. May also be set in PodSecurityContext.  If set in both SecurityContext and PodSecurityContext, the value specified in SecurityContext takes precedence. Note that this field cannot be set when spec.os.name is windows."""
    run_as_non_root: Annotated[bool | None, Field(alias="runAsNonRoot")] = None
    """Indicates that the container must run as a non-root user. If true, the Kubelet will validate the image at runtime to ensure that it does not run as UID 0 (root) and fail to start the container if it does. If unset or false, no such validation will be performed. May also be set in PodSecurityContext.  If set in both SecurityContext and PodSecurityContext, the value specified in SecurityContext takes precedence."""
    run_as_user: Annotated[int | None, Field(alias="runAsUser")] = None
    """The UID to run the entrypoint of the container process. Defaults to user specified in image metadata if unspecified. May also be set in PodSecurityContext.  If set in both SecurityContext and PodSecurityContext, the value specified in SecurityContext takes precedence. Note that this field cannot be set when spec.os.name is windows."""
    se_linux_options: Annotated[
        SeLinuxOptions | None, Field(alias="seLinuxOptions")
    ] = None
    """The SELinux context to be applied to the container. If unspecified, the container runtime will allocate a random SELinux context for each container.  May also be set in PodSecurityContext.  If set in both SecurityContext and PodSecurityContext, the value specified in SecurityContext takes precedence. Note that this field cannot be set when spec.os.name is windows."""
    seccomp_profile: Annotated[SeccompProfile | None, Field(alias="seccompProfile")] = (
        None
    )
    """The seccomp options to use by this container. If seccomp options are provided at both the pod & container level, the container options override the pod options. Note that this field cannot be set when spec.os.name is windows."""
    windows_options: Annotated[WindowsOptions | None, Field(alias="windowsOptions")] = (
        None
    )
    """The Windows specific settings applied to all containers. If unspecified, the options from the PodSecurityContext will be used. If set in both SecurityContext and PodSecurityContext, the value specified in SecurityContext takes precedence. Note that this field cannot be set when spec.os.name is linux."""


class Volume(BaseModel):
    """
    A volume and where it is mounted. It has one source at most; without one it is the volume of the same
    name in spec.volumes.
    """

    claim_name: Annotated[str | None, Field(alias="claimName")] = None
    """Name of a PersistentVolumeClaim."""
    config_map_name: Annotated[str | None, Field(alias="configMapName")] = None
    """Name of a ConfigMap."""
    csi_driver: Annotated[str | None, Field(alias="csiDriver")] = None
    """Name of a CSI driver, for an ephemeral volume."""
    csi_driver_attributes: Annotated[
        dict[str, str] | None, Field(alias="csiDriverAttributes")
    ] = None
    """Attributes for the CSI driver."""
    empty_dir: Annotated[bool | None, Field(alias="emptyDir")] = None
    """An empty directory that lives as long as the pod."""
    empty_dir_medium: Annotated[str | None, Field(alias="emptyDirMedium")] = None
    """memory: the directory is kept in memory and mounted at /dev/shm."""
    empty_dir_size_limit: Annotated[
        int | str | None, Field(alias="emptyDirSizeLimit")
    ] = None
    """Largest size of the empty directory, such as 64Gi."""
    host_path: Annotated[str | None, Field(alias="hostPath")] = None
    """A directory of the node; it must exist."""
    items: dict[str, str] | None = None
    """Keys of the ConfigMap or Secret, each with its path below the mount. Default: all."""
    path: str | None = None
    """Where it is mounted in the container."""
    read_only: Annotated[bool | None, Field(alias="readOnly")] = None
    """Mount it read-only."""
    secret_name: Annotated[str | None, Field(alias="secretName")] = None
    """Name of a Secret."""


class Container(BaseModel):
    """A container."""

    batch: bool | None = None
    """Each line of the command is one job of a flux batch."""
    batch_raw: Annotated[bool | None, Field(alias="batchRaw")] = None
    """With batch: the command is the batch script itself."""
    command: str | None = None
    """
    On the Flux runner: the job's command, split into arguments with POSIX quoting; without one (or
    commands.script), the cluster stays up. On a sidecar: shell source. On a service: replaces the image's
    entrypoint.
    """
    commands: Commands | None = None
    """Snippets and wrappers around the start of Flux."""
    cores: int | None = None
    """
    Number of cores that Flux manages on every node: 0 to cores-1. Default: all that the container may
    use.
    """
    diagnostics: bool | None = None
    """Instead of the command: report the overlay, attributes and log of the instance, then stay up."""
    environment: dict[str, str] | None = None
    """
    Environment variables. As in a pod, `$(NAME)` in a value stands for an earlier variable (in the order of
    their names) or for a variable of `secrets`, and `$$` for `$`.
    """
    existing_volumes: Annotated[
        dict[str, ExistingVolume] | None, Field(alias="existingVolumes")
    ] = None
    """Existing claims, ConfigMaps and Secrets to mount, by name. The same can be written in volumes."""
    flux_log_level: Annotated[int | None, Field(alias="fluxLogLevel")] = None
    """The same as flux.logLevel, on the Flux runner."""
    flux_option_flags: Annotated[str | None, Field(alias="fluxOptionFlags")] = None
    """The same as flux.optionFlags, on the Flux runner."""
    flux_user: Annotated[FluxUser | None, Field(alias="fluxUser")] = None
    """The user to run Flux as; created if missing, which needs root. Default: the container's own user."""
    fluxuser: FluxUser | None = None
    """Alias of fluxUser, for existing manifests."""
    image: str | None = None
    """Image. Default: ghcr.io/rse-ops/accounting:app-latest."""
    image_pull_policy: Annotated[
        Literal["", "Always", "IfNotPresent", "Never"] | None,
        Field(alias="imagePullPolicy"),
    ] = None
    """Kubernetes' imagePullPolicy: Always, IfNotPresent or Never. pullAlways wins."""
    image_pull_secret: Annotated[str | None, Field(alias="imagePullSecret")] = None
    """Secret to pull the image with."""
    launcher: bool | None = None
    """Pass the command to flux start without flux submit: the command launches Flux jobs itself."""
    life_cycle: Annotated[LifeCycle | None, Field(alias="lifeCycle")] = None
    """Lifecycle hooks of the container."""
    logs: str | None = None
    """With batch: directory for the jobs' output. Default: /tmp/fluxout."""
    name: str | None = None
    """Name; required, except for the Flux runner."""
    no_wrap_entrypoint: Annotated[bool | None, Field(alias="noWrapEntrypoint")] = None
    """Keep the image's own entrypoint (sidecars)."""
    ports: list[int] | None = None
    """TCP ports. A sidecar with ports gets a Service of its name."""
    pre_command: Annotated[str | None, Field(alias="preCommand")] = None
    """Shell source, run before commands.pre."""
    pull_always: Annotated[bool | None, Field(alias="pullAlways")] = None
    """Pull the image at every start."""
    resources: Resources | None = None
    """Requests and limits."""
    run_flux: Annotated[bool | None, Field(alias="runFlux")] = None
    """This container runs Flux. Default: true if it is the only one."""
    secrets: dict[str, Secret] | None = None
    """Environment variables from Secrets: each names a Secret and a key in it."""
    security_context: Annotated[
        SecurityContext | None, Field(alias="securityContext")
    ] = None
    """Kubernetes' SecurityContext; the older addCapabilities is accepted as well."""
    volumes: dict[str, Volume] | None = None
    """Volumes, by name. A volume without a source is the one of the same name in spec.volumes."""
    working_dir: Annotated[str | None, Field(alias="workingDir")] = None
    """Working directory. Default: the image's."""


class Cluster(BaseModel):
    """A cluster that may join."""

    name: str | None = None
    """Prefix of its hosts. Default: burst-N, N being its position from 0."""
    size: int | None = None
    """Number of its hosts. Default: this cluster's largest size."""


class LeadBroker(BaseModel):
    """The lead broker, if it is in another cluster."""

    address: str | None = None
    """Host name or address at which this cluster reaches it."""
    hostlist: str | None = None
    """Alias of bursting.hostlist, for existing manifests."""
    name: str | None = None
    """Name of its MiniCluster."""
    port: int | None = 8050
    """Port at which this cluster reaches it."""
    size: int | None = None
    """Number of hosts of its MiniCluster. Default: this cluster's largest size."""


class Bursting(BaseModel):
    """Other clusters of the same Flux instance."""

    clusters: list[Cluster] | None = None
    """The clusters that may join, in rank order."""
    hostlist: str | None = None
    """All hosts of the instance as a hostlist, in rank order, instead of those from clusters."""
    lead_broker: Annotated[LeadBroker | None, Field(alias="leadBroker")] = None
    """The lead broker, if it is in another cluster."""


class FluxContainer(BaseModel):
    """The container that provides Flux."""

    disable: bool | None = None
    """Use the Flux of the Flux runner's own image instead."""
    image: str | None = None
    """
    Image with the view; its libc must not be newer than that of the Flux runner's image. Default: set
    by the operator, ghcr.io/converged-computing/flux-view-rocky:tag-9.
    """
    image_pull_secret: Annotated[str | None, Field(alias="imagePullSecret")] = None
    """Secret to pull the image with."""
    mount_path: Annotated[str | None, Field(alias="mountPath")] = "/mnt/flux"
    """Where the view and all of Flux's files are in the pods."""
    name: str | None = "flux-view"
    """Name of the init container and of its volume."""
    pull_always: Annotated[bool | None, Field(alias="pullAlways")] = None
    """Pull the image at every start."""
    python_path: Annotated[str | None, Field(alias="pythonPath")] = None
    """PYTHONPATH of the view. Default: its own site-packages."""
    resources: Resources | None = None
    """
    Resources of the init containers, which install the agent and copy the view. Default: the cpu and
    memory of the Flux runner.
    """
    security_context: Annotated[
        SecurityContext | None, Field(alias="securityContext")
    ] = None
    """Kubernetes' SecurityContext of the init container that copies the view."""
    source: Literal["", "auto", "imageVolume", "copy"] | None = None
    """
    How the view gets into the pods: imageVolume mounts its image read-only (Kubernetes 1.35,
    containerd 2.1 or CRI-O 1.33); copy copies it in an init container; auto mounts it if every node that the
    pods may use can, else copies it. Default: the operator's --view-source, else auto.
    """
    working_dir: Annotated[str | None, Field(alias="workingDir")] = None
    """Working directory of the init container that copies the view."""


class Scheduler(BaseModel):
    """The scheduler."""

    queue_policy: Annotated[
        Literal["", "fcfs", "easy", "conservative", "hybrid"] | None,
        Field(alias="queuePolicy"),
    ] = None
    """Queue policy of Fluxion: fcfs, easy, conservative or hybrid. Default: fcfs."""
    simple: bool | None = None
    """
    Use Flux's own simple scheduler (true) or Fluxion (false). Default: Fluxion if the view has it
    and queuePolicy is set, configs has a table of Fluxion, or the pods have GPUs; else simple.
    Without a view: the default of the image's Flux.
    """


class Flux(BaseModel):
    """Options of Flux, and of the container that provides it."""

    arch: str | None = None
    """Architecture of the nodes, as in their label kubernetes.io/arch: amd64, arm64 (or arm)."""
    broker_config: Annotated[str | None, Field(alias="brokerConfig")] = None
    """The whole broker.toml, used as it is."""
    bursting: Bursting | None = None
    """Other clusters of the same Flux instance."""
    complete_workers: Annotated[bool | None, Field(alias="completeWorkers")] = None
    """
    A follower completes when its broker ends: the broker is not restarted. (With pod.restartPolicy
    OnFailure it is.)
    """
    configs: dict[str, str] | None = None
    """
    Parts of broker.toml, by name: TOML whose tables, such as queues, policy, exec and ingest, are
    merged over the agent's in the order of the names.
    """
    connect_timeout: Annotated[str | None, Field(alias="connectTimeout")] = "5s"
    """Timeout of one attempt to connect to the parent broker, such as 5s; empty: Flux's own."""
    container: FluxContainer | None = None
    """The container that provides Flux."""
    curve_cert: Annotated[str | None, Field(alias="curveCert")] = None
    """
    The curve certificate (as flux keygen writes it), to share one between clusters. Default:
    generated once.
    """
    curve_cert_secret: Annotated[str | None, Field(alias="curveCertSecret")] = None
    """A Secret whose key curve.cert is the curve certificate, in place of curveCert."""
    disable_socket: Annotated[bool | None, Field(alias="disableSocket")] = None
    """Leave the broker's socket at Flux's default path: `local-<rank>` in its run directory."""
    environment: dict[str, str] | None = None
    """Environment of the brokers, and so of the jobs; also set by flux-view.sh."""
    heartbeat_timeout: Annotated[str | None, Field(alias="heartbeatTimeout")] = None
    """
    How long a follower's broker keeps running without a heartbeat from the lead, such as 60s; 0: no
    limit. Default: Flux's own, 5m. The operator ends the pods of a lost lead sooner.
    """
    install_root: Annotated[str | None, Field(alias="installRoot")] = None
    """
    With container.disable: the prefix of the image's own Flux, such as /opt/flux. Default: that of
    the `flux` on the PATH.
    """
    lead_broker: Annotated[LeadBroker | None, Field(alias="leadBroker")] = None
    """Alias of bursting.leadBroker, for existing manifests."""
    lead_gone_seconds: Annotated[int | None, Field(alias="leadGoneSeconds")] = None
    """Seconds the lead's DNS name may be missing before a follower exits. Default: 30."""
    lead_silent_seconds: Annotated[int | None, Field(alias="leadSilentSeconds")] = None
    """Seconds a lead that has answered before may be silent before a follower exits. Default: never."""
    log_level: Annotated[int | None, Field(alias="logLevel")] = 6
    """
    Level of the broker's messages on standard error, 0 (emergencies only) to 7 (debug). logging.quiet
    sets 0, logging.zeromq 7.
    """
    metrics_port: Annotated[int | None, Field(alias="metricsPort")] = None
    """
    Port on which the lead serves metrics of the instance (nodes, cores, jobs by state): for
    Prometheus at /metrics, as JSON at /metrics.json. Without authentication. Default: none.
    """
    minimal_service: Annotated[bool | None, Field(alias="minimalService")] = None
    """The headless Service names only the lead, not all pods, if all MiniClusters that share it set this."""
    munge_secret: Annotated[str | None, Field(alias="mungeSecret")] = None
    """Secret to mount at /etc/munge."""
    no_wait_socket: Annotated[bool | None, Field(alias="noWaitSocket")] = None
    """Start the sidecars' commands without waiting for the broker's socket."""
    option_flags: Annotated[str | None, Field(alias="optionFlags")] = None
    """Flags added to `flux submit` and `flux batch`, such as --time-limit=60m."""
    parent_deadline_seconds: Annotated[
        int | None, Field(alias="parentDeadlineSeconds")
    ] = None
    """Seconds a follower waits for its parent broker at the start before it exits. Default: never."""
    scheduler: Scheduler | None = None
    """The scheduler."""
    submit_command: Annotated[str | None, Field(alias="submitCommand")] = "flux submit"
    """Command in place of `flux submit`."""
    topology: str | None = None
    """Shape of the tree of brokers: kary:K, binomial, mincrit or mincrit:K. Default: kary:256."""
    wrap: str | None = None
    """
    Command that runs the broker on every pod (`flux start --wrap`), its words separated by commas,
    such as strace,-f.
    """


class FluxRestful(BaseModel):
    """
    The Flux RESTful API, which the lead serves if the cluster has no command, script or diagnostics and is
    not interactive. Unset: not served.
    """

    branch: str | None = None
    """Branch or tag of the API's repository. Default: main."""
    disable: bool | None = None
    """Do not serve the API, as without this block."""
    port: int | None = None
    """Port that it listens on. Default: 5000."""
    secret_key: Annotated[str | None, Field(alias="secretKey")] = None
    """
    Key that encodes the payloads. Default: generated. Stored in the Secret that
    status.fluxRestfulSecret names.
    """
    token: str | None = None
    """
    Token (password) of the user `username`. Default: generated. Stored in the Secret that
    status.fluxRestfulSecret names.
    """
    username: str | None = None
    """User name of its clients. Default: flux."""


class Logging(BaseModel):
    """What the pods log."""

    debug: bool | None = None
    """Log more about the submission of the job (-vvv), or the events of a batch. No effect with quiet."""
    format: Literal["", "text", "json"] | None = None
    """Format of the agent's own log lines: text (default), or json, one object per line."""
    quiet: bool | None = None
    """Only the job's own output (errors and warnings still show)."""
    strict: bool | None = None
    """
    If a command fails in a snippet that runs before the program, the pod ends with its exit code
    (errexit and pipefail). false: the failure is reported and ignored. If you set true yourself, `post`
    is strict as well: if the job ended with 0 and `post` fails on the lead, the exit code of `post` is
    the result. Default: true, unless the installation sets another (`snippets.strict`).
    """
    timed: bool | None = None
    """Report the wall time of flux start and of the job (lines that begin with FLUXTIME). No effect with quiet."""
    zeromq: bool | None = None
    """Log the events of ZeroMQ connections between brokers."""


class Network(BaseModel):
    """Network of the pods."""

    disable_affinity: Annotated[bool | None, Field(alias="disableAffinity")] = None
    """Turn off the default preference (not a requirement) for one pod per node, all in one zone."""
    headless_name: Annotated[str | None, Field(alias="headlessName")] = "flux-service"
    """Name of the headless Service. MiniClusters of one namespace may share it."""


class Sysctl(BaseModel):
    """Sysctl defines a kernel parameter to be set"""

    name: str
    """Name of a property to set"""
    value: str
    """Value of a property to set"""


class PodSecurityContext(BaseModel):
    """Kubernetes' PodSecurityContext."""

    app_armor_profile: Annotated[
        AppArmorProfile | None, Field(alias="appArmorProfile")
    ] = None
    """appArmorProfile is the AppArmor options to use by the containers in this pod. Note that this field cannot be set when spec.os.name is windows."""
    fs_group: Annotated[int | None, Field(alias="fsGroup")] = None
    """
    A special supplemental group that applies to all containers in a pod. Some volume types allow the Kubelet to change the ownership of that volume to be owned by the pod:

    1. The owning GID will be the FSGroup 2. The setgid bit is set (new files created in the volume will be owned by FSGroup) 3. The permission bits are OR'd with rw-rw----

    If unset, the Kubelet will not modify the ownership and permissions of any volume. Note that this field cannot be set when spec.os.name is windows.
    """
    fs_group_change_policy: Annotated[
        str | None, Field(alias="fsGroupChangePolicy")
    ] = None
    """fsGroupChangePolicy defines behavior of changing ownership and permission of the volume before being exposed inside Pod. This field will only apply to volume types which support fsGroup based ownership(and permissions). It will have no effect on ephemeral volume types such as: secret, configmaps and emptydir. Valid values are "OnRootMismatch" and "Always". If not specified, "Always" is used. Note that this field cannot be set when spec.os.name is windows."""
    run_as_group: Annotated[int | None, Field(alias="runAsGroup")] = None
    """The GID to run the entrypoint of the container process. Uses runtime default if unset. May also be set in SecurityContext.  If set in both SecurityContext and PodSecurityContext, the value specified in SecurityContext takes precedence for that container. Note that this field cannot be set when spec.os.name is windows."""
    run_as_non_root: Annotated[bool | None, Field(alias="runAsNonRoot")] = None
    """Indicates that the container must run as a non-root user. If true, the Kubelet will validate the image at runtime to ensure that it does not run as UID 0 (root) and fail to start the container if it does. If unset or false, no such validation will be performed. May also be set in SecurityContext.  If set in both SecurityContext and PodSecurityContext, the value specified in SecurityContext takes precedence."""
    run_as_user: Annotated[int | None, Field(alias="runAsUser")] = None
    """The UID to run the entrypoint of the container process. Defaults to user specified in image metadata if unspecified. May also be set in SecurityContext.  If set in both SecurityContext and PodSecurityContext, the value specified in SecurityContext takes precedence for that container. Note that this field cannot be set when spec.os.name is windows."""
    se_linux_change_policy: Annotated[
        str | None, Field(alias="seLinuxChangePolicy")
    ] = None
    """
    seLinuxChangePolicy defines how the container's SELinux label is applied to all volumes used by the Pod. It has no effect on nodes that do not support SELinux or to volumes does not support SELinux. Valid values are "MountOption" and "Recursive".

    "Recursive" means relabeling of all files on all Pod volumes by the container runtime. This may be slow for large volumes, but allows mixing privileged and unprivileged Pods sharing the same volume on the same node.

    "MountOption" mounts all eligible Pod volumes with `-o context` mount option. This requires all Pods that share the same volume to use the same SELinux label. It is not possible to share the same volume among privileged and unprivileged Pods. Eligible volumes are in-tree FibreChannel and iSCSI volumes, and all CSI volumes whose CSI driver announces SELinux support by setting spec.seLinuxMount: true in their CSIDriver instance. Other volumes are always re-labelled recursively. "MountOption" value is allowed only when SELinuxMount feature gate is enabled.

    If not specified and SELinuxMount feature gate is enabled, "MountOption" is used. If not specified and SELinuxMount feature gate is disabled, "MountOption" is used for ReadWriteOncePod volumes and "Recursive" for all other volumes.

    This field affects only Pods that have SELinux label set, either in PodSecurityContext or in SecurityContext of all containers.

    All Pods that use the same volume should use the same seLinuxChangePolicy, otherwise some pods can get stuck in ContainerCreating state. Note that this field cannot be set when spec.os.name is windows.
    """
    se_linux_options: Annotated[
        SeLinuxOptions | None, Field(alias="seLinuxOptions")
    ] = None
    """The SELinux context to be applied to all containers. If unspecified, the container runtime will allocate a random SELinux context for each container.  May also be set in SecurityContext.  If set in both SecurityContext and PodSecurityContext, the value specified in SecurityContext takes precedence for that container. Note that this field cannot be set when spec.os.name is windows."""
    seccomp_profile: Annotated[SeccompProfile | None, Field(alias="seccompProfile")] = (
        None
    )
    """The seccomp options to use by the containers in this pod. Note that this field cannot be set when spec.os.name is windows."""
    supplemental_groups: Annotated[
        list[int] | None, Field(alias="supplementalGroups")
    ] = None
    """A list of groups applied to the first process run in each container, in addition to the container's primary GID and fsGroup (if specified).  If the SupplementalGroupsPolicy feature is enabled, the supplementalGroupsPolicy field determines whether these are in addition to or instead of any group memberships defined in the container image. If unspecified, no additional groups are added, though group memberships defined in the container image may still be used, depending on the supplementalGroupsPolicy field. Note that this field cannot be set when spec.os.name is windows."""
    supplemental_groups_policy: Annotated[
        str | None, Field(alias="supplementalGroupsPolicy")
    ] = None
    """Defines how supplemental groups of the first container processes are calculated. Valid values are "Merge" and "Strict". If not specified, "Merge" is used. (Alpha) Using the field requires the SupplementalGroupsPolicy feature gate to be enabled and the container runtime must implement support for this feature. Note that this field cannot be set when spec.os.name is windows."""
    sysctls: list[Sysctl] | None = None
    """Sysctls hold a list of namespaced sysctls used for the pod. Pods with unsupported sysctls (by the container runtime) might fail to launch. Note that this field cannot be set when spec.os.name is windows."""
    windows_options: Annotated[WindowsOptions | None, Field(alias="windowsOptions")] = (
        None
    )
    """The Windows specific settings applied to all containers. If unspecified, the options within a container's SecurityContext will be used. If set in both SecurityContext and PodSecurityContext, the value specified in SecurityContext takes precedence. Note that this field cannot be set when spec.os.name is linux."""


class Toleration(BaseModel):
    """A taint that the pods tolerate."""

    effect: str | None = None
    """NoSchedule, PreferNoSchedule or NoExecute; unset: all."""
    key: str | None = None
    """Key of the taint. Empty, with operator Exists: every taint."""
    operator: str | None = None
    """Equal (default) or Exists."""
    toleration_seconds: Annotated[int | None, Field(alias="tolerationSeconds")] = None
    """With NoExecute: seconds a pod may stay on a node that gets the taint. Default: no limit."""
    value: str | None = None
    """Value of the taint."""


class Pod(BaseModel):
    """Attributes of every pod."""

    annotations: dict[str, str] | None = None
    """Annotations of the pods."""
    automount_service_account_token: Annotated[
        bool | None, Field(alias="automountServiceAccountToken")
    ] = None
    """Mount the token of the ServiceAccount."""
    dns_policy: Annotated[
        Literal["", "ClusterFirst", "ClusterFirstWithHostNet", "Default"] | None,
        Field(alias="dnsPolicy"),
    ] = None
    """
    Kubernetes' dnsPolicy: ClusterFirst (default), ClusterFirstWithHostNet (the default with
    podTemplate's hostNetwork) or Default. None is not supported.
    """
    host_ipc: Annotated[bool | None, Field(alias="hostIPC")] = None
    """Use the host's IPC namespace."""
    host_pid: Annotated[bool | None, Field(alias="hostPID")] = None
    """Use the host's process ids."""
    labels: dict[str, str] | None = None
    """Labels of the pods. The operator's own labels win."""
    node_affinity: Annotated[
        dict[str, list[str]] | None, Field(alias="nodeAffinity")
    ] = None
    """Labels that the nodes must have, each with the values allowed."""
    node_selector: Annotated[dict[str, str] | None, Field(alias="nodeSelector")] = None
    """Labels that the nodes must have."""
    resources: dict[str, int | str] | None = None
    """Resources of the whole pod: its overhead with a runtimeClassName, else its requests and limits."""
    restart_policy: Annotated[
        Literal["", "Never", "OnFailure"] | None, Field(alias="restartPolicy")
    ] = None
    """
    Never (default) or OnFailure. With OnFailure the kubelet restarts a failed command, up to
    backoffLimit times.
    """
    runtime_class_name: Annotated[str | None, Field(alias="runtimeClassName")] = None
    """Name of the RuntimeClass."""
    scheduler_name: Annotated[str | None, Field(alias="schedulerName")] = None
    """Name of the scheduler."""
    security_context: Annotated[
        PodSecurityContext | None, Field(alias="securityContext")
    ] = None
    """Kubernetes' PodSecurityContext."""
    service_account_name: Annotated[str | None, Field(alias="serviceAccountName")] = (
        None
    )
    """Name of the ServiceAccount."""
    termination_grace_period_seconds: Annotated[
        int | None, Field(alias="terminationGracePeriodSeconds")
    ] = None
    """
    Seconds from SIGTERM to SIGKILL when a pod is stopped: for the program to clean up and the archive
    to be saved. Default: 30.
    """
    tolerations: list[Toleration] | None = None
    """Taints that the pods tolerate."""


class Service(BaseModel):
    """A container."""

    batch: bool | None = None
    """Each line of the command is one job of a flux batch."""
    batch_raw: Annotated[bool | None, Field(alias="batchRaw")] = None
    """With batch: the command is the batch script itself."""
    command: str | None = None
    """
    On the Flux runner: the job's command, split into arguments with POSIX quoting; without one (or
    commands.script), the cluster stays up. On a sidecar: shell source. On a service: replaces the image's
    entrypoint.
    """
    commands: Commands | None = None
    """Snippets and wrappers around the start of Flux."""
    cores: int | None = None
    """
    Number of cores that Flux manages on every node: 0 to cores-1. Default: all that the container may
    use.
    """
    diagnostics: bool | None = None
    """Instead of the command: report the overlay, attributes and log of the instance, then stay up."""
    environment: dict[str, str] | None = None
    """
    Environment variables. As in a pod, `$(NAME)` in a value stands for an earlier variable (in the order of
    their names) or for a variable of `secrets`, and `$$` for `$`.
    """
    existing_volumes: Annotated[
        dict[str, ExistingVolume] | None, Field(alias="existingVolumes")
    ] = None
    """Existing claims, ConfigMaps and Secrets to mount, by name. The same can be written in volumes."""
    flux_log_level: Annotated[int | None, Field(alias="fluxLogLevel")] = None
    """The same as flux.logLevel, on the Flux runner."""
    flux_option_flags: Annotated[str | None, Field(alias="fluxOptionFlags")] = None
    """The same as flux.optionFlags, on the Flux runner."""
    flux_user: Annotated[FluxUser | None, Field(alias="fluxUser")] = None
    """The user to run Flux as; created if missing, which needs root. Default: the container's own user."""
    fluxuser: FluxUser | None = None
    """Alias of fluxUser, for existing manifests."""
    image: str | None = None
    """Image. Default: ghcr.io/rse-ops/accounting:app-latest."""
    image_pull_policy: Annotated[
        Literal["", "Always", "IfNotPresent", "Never"] | None,
        Field(alias="imagePullPolicy"),
    ] = None
    """Kubernetes' imagePullPolicy: Always, IfNotPresent or Never. pullAlways wins."""
    image_pull_secret: Annotated[str | None, Field(alias="imagePullSecret")] = None
    """Secret to pull the image with."""
    launcher: bool | None = None
    """Pass the command to flux start without flux submit: the command launches Flux jobs itself."""
    life_cycle: Annotated[LifeCycle | None, Field(alias="lifeCycle")] = None
    """Lifecycle hooks of the container."""
    logs: str | None = None
    """With batch: directory for the jobs' output. Default: /tmp/fluxout."""
    name: str | None = None
    """Name; required, except for the Flux runner."""
    no_wrap_entrypoint: Annotated[bool | None, Field(alias="noWrapEntrypoint")] = None
    """Keep the image's own entrypoint (sidecars)."""
    ports: list[int] | None = None
    """TCP ports. A sidecar with ports gets a Service of its name."""
    pre_command: Annotated[str | None, Field(alias="preCommand")] = None
    """Shell source, run before commands.pre."""
    pull_always: Annotated[bool | None, Field(alias="pullAlways")] = None
    """Pull the image at every start."""
    resources: Resources | None = None
    """Requests and limits."""
    run_flux: Annotated[bool | None, Field(alias="runFlux")] = None
    """This container runs Flux. Default: true if it is the only one."""
    secrets: dict[str, Secret] | None = None
    """Environment variables from Secrets: each names a Secret and a key in it."""
    security_context: Annotated[
        SecurityContext | None, Field(alias="securityContext")
    ] = None
    """Kubernetes' SecurityContext; the older addCapabilities is accepted as well."""
    volumes: dict[str, Volume] | None = None
    """Volumes, by name. A volume without a source is the one of the same name in spec.volumes."""
    working_dir: Annotated[str | None, Field(alias="workingDir")] = None
    """Working directory. Default: the image's."""


class User(BaseModel):
    """A user of every pod."""

    name: str
    """User name."""
    password: str | None = None
    """
    Password, 8 characters at most. Default: generated. Stored in the Secret that status.usersSecret
    names.
    """


class SpecVolume(BaseModel):
    """A volume that the operator creates: a PersistentVolume and a claim on it, of mode ReadWriteMany."""

    annotations: dict[str, str] | None = None
    """Annotations of the volume."""
    attributes: dict[str, str] | None = None
    """Attributes for the CSI driver."""
    capacity: int | str | None = None
    """Capacity of the volume, and request of its claim."""
    claim_annotations: Annotated[
        dict[str, str] | None, Field(alias="claimAnnotations")
    ] = None
    """Annotations of its claim."""
    delete: bool | None = None
    """
    Delete the PersistentVolume when the MiniCluster is deleted, or its pods are cleaned up; false:
    keep it, without its claim. The data are always kept. Default: true.
    """
    driver: str | None = None
    """Name of the CSI driver."""
    labels: dict[str, str] | None = None
    """Labels of the volume."""
    path: str | None = None
    """Directory of the node (storageClass hostpath); created if missing."""
    secret: str | None = None
    """Name of a Secret for the CSI driver."""
    secret_namespace: Annotated[str | None, Field(alias="secretNamespace")] = "default"
    """Namespace of that Secret."""
    storage_class: Annotated[str | None, Field(alias="storageClass")] = "hostpath"
    """
    Storage class of the volume and its claim. hostpath: a directory of the node; any other: a CSI
    volume.
    """
    volume_handle: Annotated[str | None, Field(alias="volumeHandle")] = None
    """CSI handle of the volume. Default: the storage class."""
    volume_name: Annotated[str | None, Field(alias="volumeName")] = None
    """Alias of volumeHandle, for existing manifests."""


class MiniClusterSpec(BaseModel):
    """Desired state. Once the Job is created, only size, suspend, maxRestarts, ttlSecondsAfterFinished and the cleanup fields can change."""

    archive: Archive | None = None
    """File that Flux's state is restored from and saved to, so that a later MiniCluster can continue."""
    backoff_limit: Annotated[int | None, Field(alias="backoffLimit")] = None
    """
    How often the whole MiniCluster may be restarted because its lead was lost (its node failed or was
    drained, or its pod was deleted) or its Job was deleted; also how often one follower that does not
    start is recreated. Default: 100; 0: never. A failed command is retried only with pod.restartPolicy:
    OnFailure.
    """
    cleanup: bool | None = None
    """Delete the MiniCluster, and everything that belongs to it, when the job has finished."""
    cleanup_pods: Annotated[bool | None, Field(alias="cleanupPods")] = None
    """
    When the job has completed (exit code 0), delete the pods, and the PersistentVolumes and claims that
    were created for volumes; a PersistentVolume with delete: false stays. After a failure everything
    stays. The MiniCluster and its status remain. In v1alpha1: cleanup.
    """
    containers: list[Container]
    """Containers of every pod: exactly one runs Flux, the others are its sidecars."""
    deadline_seconds: Annotated[int | None, Field(alias="deadlineSeconds")] = None
    """
    Seconds from the start of the Job after which it is ended: waiting for nodes and images counts, and
    restarts share the time. A resumed Job begins again. Default: no limit.
    """
    flux: Flux | None = None
    """Options of Flux, and of the container that provides it."""
    flux_restful: Annotated[FluxRestful | None, Field(alias="fluxRestful")] = None
    """
    The Flux RESTful API, which the lead serves if the cluster has no command, script or diagnostics and is
    not interactive. Unset: not served.
    """
    gang: Literal["", "on", "off", "auto"] | None = None
    """
    Schedule all pods of the MiniCluster (minSize of them, if set) or none, so that two MiniClusters that
    each hold half of the nodes do not block each other: "on", "off" or "auto". Default: "auto", which is
    on if the operator is installed with gangs and the cluster has a gang API. Quote the value: YAML reads
    a bare on or off as true or false.
    """
    interactive: bool | None = None
    """
    Start the broker without a program (diagnostics run anyway) and keep it up, for `kubectl exec`.
    `flux shutdown` then ends it with 0.
    """
    job_labels: Annotated[dict[str, str] | None, Field(alias="jobLabels")] = None
    """Labels of the Job object (not of its pods)."""
    launcher: bool | None = None
    """
    The command launches Flux jobs itself: it is not wrapped in flux submit. Same as launcher on the Flux
    runner.
    """
    logging: Logging | None = None
    """What the pods log."""
    managed_by: Annotated[str | None, Field(alias="managedBy")] = None
    """
    Controller that manages the MiniCluster, like managedBy of a Job. With another value than the default,
    such as kueue.x-k8s.io/multikueue, this operator ignores the MiniCluster. Cannot be changed. Default:
    flux-framework.org/flux-operator.
    """
    max_restarts: Annotated[int | None, Field(alias="maxRestarts")] = None
    """
    How often the whole MiniCluster may be restarted after its job failed because a follower was lost
    while the job ran on it. Can be changed at any time. Default: 0.
    """
    max_size: Annotated[int | None, Field(alias="maxSize")] = None
    """Largest number of pods that size may be raised to. Default: size."""
    min_size: Annotated[int | None, Field(alias="minSize")] = None
    """Number of brokers that must be online before the job starts. Default: size."""
    network: Network | None = None
    """Network of the pods."""
    pod: Pod | None = None
    """Attributes of every pod."""
    pod_template: Annotated[dict[str, Any] | None, Field(alias="podTemplate")] = None
    """
    A strategic merge patch on the template of the MiniCluster's pods, for pod and container fields that
    this spec lacks. Lists are merged by name; `$patch: delete` removes an item. Fields that the operator
    or the agent relies on cannot be patched: the error names the field to use instead.
    """
    services: list[Service] | None = None
    """Containers of one extra pod, `<name>-services`, which runs no broker."""
    services_pod_template: Annotated[
        dict[str, Any] | None, Field(alias="servicesPodTemplate")
    ] = None
    """A strategic merge patch on the template of the services pod, like podTemplate."""
    share_process_namespace: Annotated[
        bool | None, Field(alias="shareProcessNamespace")
    ] = None
    """Share one process namespace among the containers of a pod."""
    size: int | None = 1
    """
    Number of pods; each runs one broker. Also the number of brokers that must be online before the job
    starts, unless minSize is set. Can be changed while the cluster runs, up to maxSize.
    """
    suspend: bool | None = None
    """
    Create the Job suspended, or suspend a running one: its pods are deleted, and created again when this
    is false. Unset: the Job's own suspend is left alone. No effect in a Kueue queue, which suspends and
    resumes the Job itself.
    """
    tasks: int | None = 1
    """
    Total number of tasks of the job (`-n`). `-N size` is added if there are at least as many tasks as pods,
    unless minSize is below size. With 0 there is no `-n`: the job asks for all nodes only, `-N size`, or
    `-N minSize` if minSize is below size. If flux.optionFlags has an option per resource, such as `--gpus-per-node`
    or `--tasks-per-node`, the default of 1 is left out.
    """
    ttl_seconds_after_finished: Annotated[
        int | None, Field(alias="ttlSecondsAfterFinished")
    ] = None
    """Delete the MiniCluster this many seconds after the job has finished. Default: never."""
    users: list[User] | None = None
    """
    Users to create on every pod, which needs root. Each has a generated password, or a chosen one of 8
    characters at most.
    """
    volumes: dict[str, SpecVolume] | None = None
    """
    Volumes that the operator creates, by name: each is a PersistentVolume and a claim. A container mounts
    one by naming it in its volumes.
    """


class Condition(BaseModel):
    """One aspect of the state, in the form of Kubernetes' conditions."""

    last_transition_time: Annotated[str, Field(alias="lastTransitionTime")]
    """When the status last changed."""
    message: str
    """Why, in a sentence."""
    observed_generation: Annotated[int | None, Field(alias="observedGeneration")] = None
    """The generation of the spec that the condition describes."""
    reason: str
    """Why, in one word."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    type: str
    """Name of the condition."""


class LostPod(BaseModel):
    """A pod that was lost: deleted, evicted, or on a failed node."""

    index: int | None = 0
    """Completion index of the pod; 0 is the lead."""
    message: str | None = None
    """Why the pod was lost, in one sentence."""
    name: str
    """Name of the pod."""
    node: str | None = None
    """Node that the pod was on."""
    reason: str
    """Why the pod was lost, in one word."""
    time: str
    """When the loss was first seen."""


class Restart(BaseModel):
    """A restart."""

    job_uid: Annotated[str | None, Field(alias="jobUid")] = None
    """Uid of the Job that was replaced, if there was one."""
    message: str
    """Why, in one sentence, such as which pod was lost, and on which node."""
    reason: str
    """
    Why, in one word: LeadLost, PodLost, JobDeleted, Suspended, Requeued, or the reason why the lead
    did not start.
    """
    time: str
    """When the restart was decided."""


class Timeline(BaseModel):
    """When each step of the last start was reached."""

    ready: str | None = None
    """When enough brokers were ready (condition Ready)."""
    running: str | None = None
    """When the lead's container started."""
    scheduled: str | None = None
    """When every pod had a node."""


class MiniClusterStatus(BaseModel):
    """What the MiniCluster is doing."""

    backoff_limit_used: Annotated[int | None, Field(alias="backoffLimitUsed")] = None
    """Number of restarts that count towards backoffLimit."""
    completion_time: Annotated[str | None, Field(alias="completionTime")] = None
    """When the Job ended."""
    conditions: list[Condition] | None = None
    """Conditions, one of each type."""
    container_restarts: Annotated[int | None, Field(alias="containerRestarts")] = None
    """
    Number of restarts of the lead's container by the kubelet since the current Job was created or last
    suspended (restartPolicy OnFailure).
    """
    exit_code: Annotated[int | None, Field(alias="exitCode")] = None
    """Exit code of the lead, 128 + n for signal n."""
    failed_index: Annotated[int | None, Field(alias="failedIndex")] = None
    """Index of the pod because of which the job failed."""
    flux_restful_secret: Annotated[str | None, Field(alias="fluxRestfulSecret")] = None
    """Secret with the Flux RESTful API's key, user and token."""
    job_uid: Annotated[str | None, Field(alias="jobUid")] = None
    """Uid of the current Job."""
    jobid: str | None = None
    """Unused; accepted because clients of the Go operator send it."""
    lost_pods: Annotated[list[LostPod] | None, Field(alias="lostPods")] = None
    """Pods lost since the last restart, the latest last; 8 at most."""
    max_restarts_used: Annotated[int | None, Field(alias="maxRestartsUsed")] = None
    """Number of restarts that count towards maxRestarts."""
    maximum_size: Annotated[int | None, Field(alias="maximumSize")] = None
    """Largest size allowed, fixed when the first Job was created."""
    message: str | None = None
    """Reason for the phase, in one sentence."""
    observed_generation: Annotated[int | None, Field(alias="observedGeneration")] = None
    """The generation of the spec that this status describes."""
    phase: str | None = None
    """One word: Invalid, Pending, Starting, Running, Suspended, Completed, Failed or Terminating."""
    ready_size: Annotated[int | None, Field(alias="readySize")] = 0
    """Number of pods whose Flux runner is ready."""
    reason: str | None = None
    """Reason for the phase, in one word."""
    restart_count: Annotated[int | None, Field(alias="restartCount")] = None
    """Total number of restarts. The latest are listed in restarts."""
    restarts: list[Restart] | None = None
    """The last 20 restarts with their reasons, the latest last."""
    selector: str | None = None
    """Selector of the pods, for autoscalers."""
    signal: int | None = None
    """The signal that ended the lead."""
    size: int | None = 0
    """Number of pods that exist and have not ended."""
    start_time: Annotated[str | None, Field(alias="startTime")] = None
    """When the Job started."""
    timeline: Timeline | None = None
    """When each step of the last start was reached."""
    users_secret: Annotated[str | None, Field(alias="usersSecret")] = None
    """Secret with the passwords of users, one key each."""


class MiniCluster(BaseModel):
    """
    A MiniCluster is a Flux instance in Kubernetes: an Indexed Job whose pod 0 is the lead broker and whose
    other pods join it.
    """

    api_version: Annotated[str | None, Field(alias="apiVersion")] = None
    """The API's group and version."""
    kind: str | None = None
    """The kind of the object: MiniCluster."""
    metadata: dict[str, Any] | None = None
    """Name, namespace, labels and annotations, as of any Kubernetes object."""
    spec: MiniClusterSpec
    """Desired state. Once the Job is created, only size, suspend, maxRestarts, ttlSecondsAfterFinished and the cleanup fields can change."""
    status: MiniClusterStatus | None = None
    """What the MiniCluster is doing."""
