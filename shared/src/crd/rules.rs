//! The rules by which the API server itself rejects an object. `definition` puts them into the CRD, and has those that
//! read the name or the status.
//!
//! Rules are CEL expressions. The API server limits their estimated cost. So `definition::add_bounds` gives every
//! string, list and map an upper bound, and a message is a constant text unless it needs the compared numbers.
//!
//! Clients with Go types send the zero values (`''`, `0`, `false`) of fields that are not set. So rules treat such a
//! value like a missing field.
//!
//! The API server evaluates all of an object's rules at each write, also at a write of the status. Looking up one field
//! of a large object takes about 10 us. So there are few rules, each as deep in the schema as possible.
//! `operator/benches/README.md` says what they cost.

/// A rule, its place in the schema, and its message.
pub(super) struct Rule {
    /// Path of the schema that the rule is added to: property names, `[]` for items, `{}` for map values.
    pub(super) path: &'static str,
    /// CEL expression that must be true. `self` is the value at `path`.
    pub(super) rule: &'static str,
    /// What is wrong, and the remedy.
    pub(super) message: &'static str,
    /// The field that the API server names in the error, below `path`. Empty: `path` itself.
    pub(super) field: &'static str,
    /// The message as a CEL expression with the compared numbers. Empty if `message` is enough.
    pub(super) message_expression: &'static str,
}

const fn rule(path: &'static str, field: &'static str, rule: &'static str, message: &'static str) -> Rule {
    Rule {
        path,
        rule,
        message,
        field,
        message_expression: "",
    }
}

/// CEL: for each of these texts of `commands`, whether it is set, followed by `||`.
macro_rules! commands {
    ($($field:literal)*) => {
        concat!($("(has(self.commands.", $field, ") && self.commands.", $field, " != '') || ",)*)
    };
}

const TOO_LARGE: &str = "has more than 1400000 bytes with its quoting (quotes, backslashes and ends of line count double), more than the API server can store: put larger files on a volume";

/// CEL: whether `.image` is missing, empty, or like [REGISTRY/]NAME[:TAG][@DIGEST].
const IMAGE: &str = r"!has(self.image) || self.image == '' || self.image.matches('^([^\\s/@]+/[^\\sA-Z:@/][^\\sA-Z:@]*|[^\\sA-Z:@/]+)(:[^\\s@/]+)?(@[^\\s:]+:[^\\s/]+)?$')";
const NOT_AN_IMAGE: &str = "must be like registry/name:tag or registry/name@sha256:0a1b, without blanks and without a scheme such as docker://. Only the registry and the tag may have capital letters";

/// The rules of both versions. The rules at each volume of a container follow below.
pub(super) const RULES: &[Rule] = &[
    Rule {
        message_expression: "'is %d, but must not be larger than size, which is %d'.format([self.minSize, self.size])",
        ..rule(
            "spec",
            ".minSize",
            "!has(self.minSize) || self.minSize <= self.size",
            "must not be larger than size",
        )
    },
    // The other fixed fields (`FIXED`) may change until the Job is created. This one may not: two controllers could
    // otherwise both start the MiniCluster.
    rule(
        "spec",
        ".managedBy",
        "(has(self.managedBy) ? self.managedBy : '') == (has(oldSelf.managedBy) ? oldSelf.managedBy : '')",
        "cannot change: delete and recreate the MiniCluster",
    ),
    rule(
        "spec.containers",
        "",
        "self.size() == 1 || self.filter(c, has(c.runFlux) && c.runFlux).size() == 1",
        "exactly one container runs Flux: set runFlux: true on one of several; a single container needs none",
    ),
    rule(
        "spec.containers",
        "",
        "self.size() == 1 || self.all(c, (has(c.runFlux) && c.runFlux) || (has(c.name) && c.name != ''))",
        "every container except the one that runs Flux needs a name",
    ),
    rule(
        "spec.services.[]",
        ".name",
        "has(self.name) && self.name != ''",
        "every service needs a name",
    ),
    rule(
        "spec.services.[]",
        "",
        concat!(
            "(!has(self.commands) || !(",
            commands!("prefix" "script" "init" "pre" "brokerPre" "preBroker" "workerPre" "preWorker" "post" "servicePre"),
            "(has(self.commands.runFluxAsRoot) && self.commands.runFluxAsRoot))) && (!has(self.runFlux) || !self.runFlux)"
        ),
        "services run their image's entrypoint (or command): commands and runFlux belong to containers",
    ),
    rule("spec.containers.[]", ".image", IMAGE, NOT_AN_IMAGE),
    rule("spec.services.[]", ".image", IMAGE, NOT_AN_IMAGE),
    rule("spec.flux.container", ".image", IMAGE, NOT_AN_IMAGE),
    rule(
        "spec.containers.[]",
        ".batch",
        "!(has(self.batch) && self.batch && has(self.launcher) && self.launcher)",
        "does not go with launcher: a batch is submitted by flux batch",
    ),
    rule(
        "spec.containers.[]",
        ".batch",
        "!(has(self.batch) && self.batch) || (has(self.command) && self.command != '')",
        "needs a command: its lines are the jobs",
    ),
    rule(
        "spec.containers.[]",
        ".batchRaw",
        "!(has(self.batchRaw) && self.batchRaw) || (has(self.batch) && self.batch)",
        "needs batch: true",
    ),
    rule(
        "spec.containers.[]",
        ".commands",
        "!(has(self.commands) && has(self.commands.script) && self.commands.script != '' && has(self.command) && self.command != '')",
        "commands.script replaces command: set only one",
    ),
    // The length is that of the quoted text, as the API server stores it: etcd takes 1.5 MiB per object. (CEL counts
    // characters, so the rule misses longer texts with other letters than ASCII.) The rule is not at the text itself,
    // since the API server would repeat the whole text in the error.
    rule(
        "spec.containers.[]",
        ".command",
        "!has(self.command) || strings.quote(self.command).size() <= 1400000",
        TOO_LARGE,
    ),
    rule(
        "spec.containers.[].commands",
        ".script",
        "!has(self.script) || strings.quote(self.script).size() <= 1400000",
        TOO_LARGE,
    ),
    rule(
        "spec",
        ".containers",
        "self.containers.all(c, !has(c.volumes) || c.volumes.all(k, (has(self.volumes) && k in self.volumes) != ((has(c.volumes[k].hostPath) && c.volumes[k].hostPath != '') || (has(c.volumes[k].emptyDir) && c.volumes[k].emptyDir) || (has(c.volumes[k].claimName) && c.volumes[k].claimName != '') || (has(c.volumes[k].configMapName) && c.volumes[k].configMapName != '') || (has(c.volumes[k].secretName) && c.volumes[k].secretName != '') || (has(c.volumes[k].csiDriver) && c.volumes[k].csiDriver != ''))))",
        "every volume of a container has a source (hostPath, emptyDir, claimName, configMapName, secretName, csiDriver), or has none and is the volume of that name in spec.volumes",
    ),
    rule(
        "spec",
        ".services",
        "!has(self.services) || self.services.all(c, !has(c.volumes) || c.volumes.all(k, (has(self.volumes) && k in self.volumes) != ((has(c.volumes[k].hostPath) && c.volumes[k].hostPath != '') || (has(c.volumes[k].emptyDir) && c.volumes[k].emptyDir) || (has(c.volumes[k].claimName) && c.volumes[k].claimName != '') || (has(c.volumes[k].configMapName) && c.volumes[k].configMapName != '') || (has(c.volumes[k].secretName) && c.volumes[k].secretName != '') || (has(c.volumes[k].csiDriver) && c.volumes[k].csiDriver != ''))))",
        "every volume of a service has a source (hostPath, emptyDir, claimName, configMapName, secretName, csiDriver), or has none and is the volume of that name in spec.volumes",
    ),
    rule(
        "spec.volumes.{}",
        ".path",
        "!(self.storageClass in ['hostpath', '']) || (has(self.path) && self.path.startsWith('/'))",
        "must be an absolute path: the directory of the node (storageClass hostpath)",
    ),
    rule(
        "spec.volumes.{}",
        ".driver",
        "self.storageClass in ['hostpath', ''] || (has(self.driver) && self.driver != '')",
        "is needed unless storageClass is hostpath: the CSI driver that provides the volume",
    ),
    rule(
        "spec.users.[]",
        ".password",
        "!has(self.password) || self.password.size() <= 8",
        "must have 8 characters at most; leave it out for a random one",
    ),
    rule(
        "spec.flux",
        ".curveCertSecret",
        "!(has(self.curveCertSecret) && self.curveCertSecret != '' && has(self.curveCert) && self.curveCert != '')",
        "replaces curveCert: set only one",
    ),
    rule(
        "spec.flux.bursting",
        ".hostlist",
        "!(has(self.hostlist) && self.hostlist != '' && has(self.clusters) && self.clusters.size() > 0)",
        "names all hosts, so clusters must be left out",
    ),
];

/// Rules of v1alpha2 only. In v1alpha1, a missing `flux.container` means the image's own Flux, and `installRoot` is
/// always set (default: `/usr`).
pub(super) const V1ALPHA2_RULES: &[Rule] = &[rule(
    "spec.flux",
    ".installRoot",
    "!has(self.installRoot) || self.installRoot == '' || (has(self.container) && has(self.container.disable) && self.container.disable)",
    "is where the image's own Flux is: it needs container.disable: true",
)];

/// Rules at every volume of containers and of services. (A rule in `RULES` checks that there is a source.)
pub(super) const VOLUME_RULES: &[Rule] = &[
    rule(
        "",
        "",
        "(has(self.hostPath) && self.hostPath != '' ? 1 : 0) + (has(self.emptyDir) && self.emptyDir ? 1 : 0) + (has(self.claimName) && self.claimName != '' ? 1 : 0) + (has(self.configMapName) && self.configMapName != '' ? 1 : 0) + (has(self.secretName) && self.secretName != '' ? 1 : 0) + (has(self.csiDriver) && self.csiDriver != '' ? 1 : 0) <= 1",
        "a volume has only one of hostPath, emptyDir, claimName, configMapName, secretName, csiDriver",
    ),
    // An empty directory without a path is mounted at /dev/shm.
    rule(
        "",
        ".path",
        "(has(self.path) && self.path.startsWith('/')) || (has(self.emptyDir) && self.emptyDir && (!has(self.path) || self.path == ''))",
        "must be an absolute path: where the volume is mounted in the container",
    ),
];

/// Rules at every existing volume of containers and of services.
pub(super) const EXISTING_VOLUME_RULES: &[Rule] = &[
    rule(
        "",
        "",
        "(has(self.claimName) && self.claimName != '' ? 1 : 0) + (has(self.configMapName) && self.configMapName != '' ? 1 : 0) + (has(self.secretName) && self.secretName != '' ? 1 : 0) == 1",
        "an existing volume has exactly one of claimName, configMapName, secretName",
    ),
    rule(
        "",
        ".path",
        "has(self.path) && self.path.startsWith('/')",
        "must be an absolute path: where the volume is mounted in the container",
    ),
];

/// Fields of the spec that are fixed once the Job has been created.
pub const FIXED: &[&str] = &[
    "managedBy",
    "maxSize",
    "minSize",
    "tasks",
    "interactive",
    "launcher",
    "jobLabels",
    "deadlineSeconds",
    "backoffLimit",
    "shareProcessNamespace",
    "archive",
    "network",
    "flux",
    "logging",
    "pod",
    "gang",
    "podTemplate",
    "servicesPodTemplate",
    "users",
    "fluxRestful",
    "volumes",
    "containers",
    "services",
];

/// The largest bound that we use, 2^53 - 1. The API server reads bounds as floating point, which represents every
/// integer up to this one exactly. `i64::MAX` would be rounded up, and overflow.
const LARGEST_BOUND: i64 = (1 << 53) - 1;

/// Lowest and highest values of numbers, by path.
pub(super) const RANGES: &[(&str, i64, i64)] = &[
    ("spec.size", 1, 10_000),
    ("spec.maxSize", 0, 10_000),
    ("spec.minSize", 0, 10_000),
    ("spec.tasks", 0, i32::MAX as i64),
    ("spec.deadlineSeconds", 1, LARGEST_BOUND),
    ("spec.backoffLimit", 0, i32::MAX as i64),
    ("spec.maxRestarts", 0, i32::MAX as i64),
    (
        "spec.pod.terminationGracePeriodSeconds",
        1,
        crate::names::LONGEST_GRACE_PERIOD as i64,
    ),
    ("spec.ttlSecondsAfterFinished", 0, i32::MAX as i64),
    ("spec.flux.logLevel", 0, 7),
    ("spec.flux.parentDeadlineSeconds", 1, LARGEST_BOUND),
    ("spec.flux.leadGoneSeconds", 1, LARGEST_BOUND),
    ("spec.flux.leadSilentSeconds", 1, LARGEST_BOUND),
    ("spec.flux.metricsPort", 1, 65_535),
    ("spec.containers.[].fluxLogLevel", 0, 7),
    ("spec.services.[].fluxLogLevel", 0, 7),
    ("spec.fluxRestful.port", 1, 65_535),
    ("spec.flux.leadBroker.port", 1, 65_535),
    ("spec.flux.bursting.leadBroker.port", 1, 65_535),
    ("spec.containers.[].cores", 0, 65_536),
    ("spec.containers.[].ports.[]", 1, 65_535),
    ("spec.services.[].ports.[]", 1, 65_535),
    // The user ids that `validate` accepts: all but the two largest numbers of 32 bits.
    ("spec.containers.[].fluxUser.uid", 0, 4_294_967_293),
    ("spec.containers.[].fluxuser.uid", 0, 4_294_967_293),
];

/// The values of fields with a closed set of values, by path. `definition` adds the empty text, which counts as not
/// set.
pub(super) const ENUMS: &[(&str, &[&str])] = &[
    ("spec.gang", crate::choices::Gang::NAMES),
    ("spec.pod.restartPolicy", &["Never", "OnFailure"]),
    ("spec.pod.dnsPolicy", crate::choices::DNS_POLICIES),
    ("spec.flux.container.source", crate::choices::ViewSource::NAMES),
    ("spec.flux.scheduler.queuePolicy", crate::choices::QUEUE_POLICIES),
    ("spec.logging.format", crate::agent_spec::LogFormat::NAMES),
    (
        "spec.containers.[].imagePullPolicy",
        &["Always", "IfNotPresent", "Never"],
    ),
    (
        "spec.services.[].imagePullPolicy",
        &["Always", "IfNotPresent", "Never"],
    ),
];

/// An absolute path other than `/`, without `:` and without the parts `.` and `..`. The empty text is allowed.
/// (Kubernetes' API allows no `:` in a `mountPath`.)
const ABSOLUTE: &str = "^$|^(/+([^:/.][^:/]*|[.][^:/.][^:/]*|[.][.][^:/]+))+/*$";
/// An absolute path without the part `..`, which Kubernetes rejects in a `hostPath`. The empty text is allowed.
const HOST_PATH: &str =
    "^$|^/+((([^/.][^/]*|[.]|[.][^/.][^/]*|[.][.][^/]+)/+)*([^/.][^/]*|[.]|[.][^/.][^/]*|[.][.][^/]+)?)$";

/// Patterns of strings, by path.
pub(super) const PATTERNS: &[(&str, &str)] = &[
    ("spec.containers.[].volumes.{}.path", ABSOLUTE),
    ("spec.containers.[].volumes.{}.hostPath", HOST_PATH),
    ("spec.containers.[].existingVolumes.{}.path", ABSOLUTE),
    ("spec.services.[].volumes.{}.path", ABSOLUTE),
    ("spec.services.[].volumes.{}.hostPath", HOST_PATH),
    ("spec.services.[].existingVolumes.{}.path", ABSOLUTE),
    (
        "spec.managedBy",
        "^([a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.:/]*[A-Za-z0-9])?)?$",
    ),
    (
        "spec.network.headlessName",
        "^([a-z]([-a-z0-9]{0,61}[a-z0-9])?)?$",
    ),
    (
        "spec.flux.topology",
        "^(kary:[0-9]{1,5}|mincrit(:[0-9]{1,5})?|binomial|custom)?$",
    ),
    ("spec.flux.connectTimeout", "^([0-9]+([.][0-9]+)?(ms|s|m|h|d)?)?$"),
    (
        "spec.flux.heartbeatTimeout",
        "^([0-9]+([.][0-9]+)?(ms|s|m|h|d)?)?$",
    ),
    ("spec.flux.container.mountPath", ABSOLUTE),
    ("spec.flux.installRoot", ABSOLUTE),
    ("spec.fluxRestful.branch", "^([A-Za-z0-9_.+][-A-Za-z0-9_.+/]*)?$"),
    ("spec.users.[].name", "^[a-z_][-a-z0-9_.]{0,31}$"),
    (
        "spec.archive.path",
        "^(/(.*/)?[^/]+[.](tar|tgz|tar[.]gz|tar[.]bz2|tar[.]xz|zip))?$",
    ),
];
