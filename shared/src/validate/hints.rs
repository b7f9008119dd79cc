//! Hints on valid specs whose effect may surprise. Only `validate`, `dry-run` and `kubectl minicluster run` show them;
//! no condition does, since nothing is wrong.

use std::path::Path;

use super::assigned_variables::is_name_letter;
use super::{Notice, Problem, ValidMiniCluster, VolumeSource};
use crate::agent_spec::Program;
use crate::choices::{Gang, ViewSource};
use crate::submission::{flux_subcommand, options_of_flux};

impl ValidMiniCluster {
    /// Hints on effects that may surprise. The path of a container has no index, which is not known here.
    pub fn hints(&self) -> Vec<Notice> {
        let hints = [
            self.few_tasks(),
            self.more_than_sure_pods(),
            self.more_tasks_than_cores(),
            self.all_or_none(),
            self.old_option_for_openmpi(),
            self.scattered_files(),
        ];
        hints
            .into_iter()
            .flatten()
            .chain(self.installs_into_mounted_view())
            .chain(self.unexpanded_paths())
            .collect()
    }

    /// Whether the lead submits or launches the user's program by itself. It does not in an interactive MiniCluster,
    /// or if the pods join the instance of another lead (`flux.lead`).
    fn lead_starts_program(&self) -> bool {
        self.runner.program.is_from_user() && !self.interactive && self.flux.lead.is_none()
    }

    /// Whether the lead submits the user's program as one job with all tasks.
    fn lead_submits_program(&self) -> bool {
        let is_submitted = match self.runner.program {
            Program::Submit { .. } => true,
            Program::Script { launch, .. } => !launch,
            _ => false,
        };
        is_submitted && self.lead_starts_program()
    }

    /// Hints that there are fewer tasks than pods.
    fn few_tasks(&self) -> Option<Notice> {
        let (tasks, size) = (self.tasks, self.size);
        let is_too_few = self.lead_submits_program() && (1..size).contains(&tasks);
        is_too_few.then(|| {
            let count = if tasks == 1 {
                "1 task".to_owned()
            } else {
                format!("{tasks} tasks")
            };
            let message = format!("{count} for {size} pods: some pods get no task; 0 means one task per pod");
            Problem::new("spec.tasks", message)
        })
    }

    /// Hints that the job starts only with more than `minSize` pods, since its tasks need more cores.
    fn more_than_sure_pods(&self) -> Option<Notice> {
        let (tasks, sure) = (self.tasks, self.min_size?);
        let pods = tasks.div_ceil(self.cores_of_pod()?);
        // Flux rejects a job for which there can never be enough pods.
        let waits = sure < self.size && pods > sure && pods <= self.max_size;
        (waits && self.lead_submits_program()).then(|| {
            let message = format!(
                "{tasks} tasks need {pods} pods, and only {sure} (minSize) are sure to run: the job waits until {pods} pods run; lower tasks, or raise minSize"
            );
            Problem::new("spec.tasks", message)
        })
    }

    /// Hints that the pods can never have a core for each task. Flux rejects such a job.
    fn more_tasks_than_cores(&self) -> Option<Notice> {
        let flux = &self.flux;
        let is_batch = matches!(self.runner.program, Program::Batch { .. });
        let command = flux_subcommand(&flux.submit_command);
        let submits = (self.lead_submits_program() && matches!(command, Some("submit" | "run")))
            || (self.lead_starts_program() && is_batch);
        // Other clusters bring their own cores.
        let is_alone = flux.lead.is_none() && flux.hostlist.is_none();
        if !is_alone
            || !(submits || self.interactive)
            || self.sets_own_size()
            || self.may_have_own_resources()
        {
            return None;
        }
        // Without a number of nodes (elastic), or with one that people choose (interactive), a job may get all pods.
        let is_elastic = self.min_size.is_some_and(|least| least < self.size);
        let pods = if is_elastic || self.interactive {
            self.max_size
        } else {
            self.size
        };
        let tasks = self.tasks;
        let cores = u64::from(self.cores_of_pod()?) * u64::from(pods);
        let remedy = if self.runner.cores.is_some() {
            "(cores); raise cores, or lower tasks"
        } else {
            "(CPU limit); raise or remove the limit, set cores, or lower tasks"
        };
        (u64::from(tasks) > cores).then(|| {
            let message =
                format!("{tasks} tasks need {tasks} cores, and {pods} pods have at most {cores} {remedy}");
            Problem::new("spec.tasks", message)
        })
    }

    /// Whether options of the job, or those in the container's environment, set its size in place of `tasks`.
    fn sets_own_size(&self) -> bool {
        let environment = self.environment(&self.runner.container);
        let of_environment = environment.get("FLUX_OPTION_FLAGS").map_or("", String::as_str);
        let mut words = options_of_flux(&self.flux.submit_command)
            .iter()
            .chain(&self.flux.option_flags)
            .map(String::as_str)
            .chain(of_environment.split_whitespace());
        // `--n`: Flux accepts options that are cut off, such as `--ntask=4`. `alloc-bypass` names other resources.
        words.any(|word| {
            ["-n", "-N", "--n"].iter().any(|option| word.starts_with(option)) || word.contains("alloc-bypass")
        })
    }

    /// Whether the instance's resources may come from the user: from a snippet that writes R, or by broker.toml.
    fn may_have_own_resources(&self) -> bool {
        let mut before_broker = self.runner.snippets.before_broker(true);
        let names_r = |text: &String| {
            text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .any(|word| word == "R")
        };
        before_broker.any(names_r)
            || self.flux.broker_config.is_some()
            || self
                .flux
                .configs
                .values()
                .any(|config| config.contains("resource"))
    }

    /// The most cores that Flux has in each pod. None: the spec does not say.
    fn cores_of_pod(&self) -> Option<u32> {
        self.runner.cores.or_else(|| {
            // Flux counts at least one core.
            Some(self.cpu_limit()?.max(1.0) as u32)
        })
    }

    /// Hints at the requirements of `gang: on`: a dry run does not know whether the cluster serves a gang API.
    fn all_or_none(&self) -> Option<Notice> {
        let gang_size = self.min_size.unwrap_or(self.size);
        let message = format!(
            "{gang_size} pods are scheduled or none: if the cluster has no gang API, or the operator was installed without gang.enabled, no pod is created"
        );
        (self.gang == Gang::On).then(|| Problem::new("spec.gang", message))
    }

    /// Hints at snippets that install into a mounted view, which is read-only.
    fn installs_into_mounted_view(&self) -> Vec<Notice> {
        if !self.view.enabled || self.view.source == Some(ViewSource::Copy) {
            return Vec::new();
        }
        let snippets = &self.runner.snippets;
        let script = match &self.runner.program {
            Program::Script { text, .. } => Some(text),
            _ => None,
        };
        // Without `post`, which runs after the command.
        let of_runner = [
            ("commands.init", snippets.init.as_ref()),
            ("preCommand", snippets.pre_command.as_ref()),
            ("commands.pre", snippets.pre.as_ref()),
            ("commands.brokerPre", snippets.broker_pre.as_ref()),
            ("commands.workerPre", snippets.worker_pre.as_ref()),
            ("commands.script", script),
        ]
        .map(|(name, text)| (String::new(), name, text));
        let of_sidecars = self.sidecars.iter().flat_map(|sidecar| {
            let texts = sidecar.wrapped.iter().flat_map(|wrapped| {
                [
                    ("commands.init", wrapped.init.as_ref()),
                    ("preCommand", wrapped.pre_command.as_ref()),
                    ("commands.pre", wrapped.pre.as_ref()),
                    ("commands.servicePre", wrapped.service_pre.as_ref()),
                    ("command", wrapped.command.as_ref()),
                    ("commands.script", wrapped.script.as_ref()),
                    ("commands.post", wrapped.post.as_ref()),
                ]
            });
            texts.map(|(name, text)| (sidecar.container.name.clone(), name, text))
        });
        let installs = |text: &String| {
            let uses_view = text.contains("flux-view.sh");
            text.lines()
                .any(|line| installs_into_view(line, &self.view.mount_path, uses_view))
        };
        let message = "installs into the view, which is read-only where nodes mount its image: set flux.container.source: copy";
        let found = of_runner
            .into_iter()
            .chain(of_sidecars)
            .filter(|(_, _, text)| text.is_some_and(installs));
        found
            .map(|(container, name, _)| Problem::new(format!("spec.containers[{container}].{name}"), message))
            .collect()
    }

    /// Hints at variables in search paths that nothing expands: if the PATH lacks the usual folders, Flux does not start.
    fn unexpanded_paths(&self) -> Vec<Notice> {
        let sidecars = self
            .sidecars
            .iter()
            .map(|sidecar| (sidecar.container.name.as_str(), &sidecar.container));
        let containers = std::iter::once(("", &self.runner.container)).chain(sidecars);
        let mut hints = Vec::new();
        for (container_name, container) in containers {
            let environment = self.environment(container);
            let variables = self.variables(container);
            for (name, value) in &environment {
                // The kubelet replaces `$(OTHER)`, perhaps by a value that is not known here, but not `$(PATH)` in PATH.
                let is_known = |other: &str| {
                    other != name
                        && (container.secrets.contains_key(other)
                            || variables.iter().any(|variable| variable["name"] == other))
                };
                let Some(text) = unexpanded_path(name, value, is_known) else {
                    continue;
                };
                let field = if container.environment.contains_key(name) {
                    format!("spec.containers[{container_name}].environment[{name}]")
                } else {
                    "spec.podTemplate".to_owned()
                };
                hints.push(Problem::new(field, text));
            }
        }
        for (name, value) in &self.flux.environment {
            if let Some(text) = unexpanded_path(name, value, |_| false) {
                hints.push(Problem::new(format!("spec.flux.environment[{name}]"), text));
            }
        }
        hints
    }

    /// Hints that a batch's output files are in the pods where its jobs ran.
    fn scattered_files(&self) -> Option<Notice> {
        let Program::Batch { .. } = self.runner.program else {
            return None;
        };
        let folder = self.runner.logs.as_deref().unwrap_or(crate::paths::DEFAULT_LOGS);
        let mounts = &self.runner.container.mounts;
        let outlives_its_pod = mounts
            .iter()
            .any(|mount| Path::new(folder).starts_with(&mount.path) && outlives_pod(&mount.source));
        let scattered = self.lead_starts_program() && self.size > 1 && !outlives_its_pod;
        scattered.then(|| {
            let message = format!(
                "each job's output is in {folder} of the pod that ran it, and is lost with that pod: use a folder on a volume that all pods mount"
            );
            Problem::new("spec.containers[].logs", message)
        })
    }

    /// Hints that Open MPI 5 does not get its ranks. Manifests for the Go operator have this option.
    fn old_option_for_openmpi(&self) -> Option<Notice> {
        let is_given = self
            .flux
            .option_flags
            .iter()
            .any(|word| word.ends_with("mpi=openmpi@5"));
        is_given.then(|| {
            let message = "mpi=openmpi@5 has no effect since flux-pmix 0.3; a program with Open MPI 5 needs -o pmi=pmix";
            Problem::new("spec.flux.optionFlags", message)
        })
    }
}

/// A hint at the first `$NAME`, `${NAME}` or `$(NAME)` in a search path that stays as it is. `is_known`: whether the kubelet
/// may know the variable of a `$(NAME)`.
fn unexpanded_path(name: &str, value: &str, is_known: impl Fn(&str) -> bool) -> Option<String> {
    /// Search paths, whose values in shell scripts often end with the earlier value.
    const SEARCH_PATHS: [&str; 3] = ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH"];
    /// What the dynamic loader replaces.
    const OF_LOADER: [&str; 3] = ["ORIGIN", "LIB", "PLATFORM"];
    if !SEARCH_PATHS.contains(&name) {
        return None;
    }
    let reference = value.match_indices('$').find_map(|(at, _)| {
        let after = &value[at + 1..];
        let (start, end) = match after.chars().next()? {
            '(' => (1, ")"),
            '{' => (1, "}"),
            _ => (0, ""),
        };
        let letters = &after[start..];
        let name_end = letters.find(|letter| !is_name_letter(letter));
        let (variable, rest) = letters.split_at(name_end.unwrap_or(letters.len()));
        let is_reference = !variable.is_empty() && rest.starts_with(end);
        let is_expanded = OF_LOADER.contains(&variable) || (end == ")" && is_known(variable));
        let length = 1 + start + variable.len() + end.len();
        (is_reference && !is_expanded).then(|| &value[at..at + length])
    })?;
    Some(format!(
        "`{reference}` is not expanded: write its value, or use `export` in commands.pre, which a shell runs"
    ))
}

/// Whether a line installs Python packages into the view's own Python. `uses_view`: the text sources `flux-view.sh`,
/// which puts that Python on the PATH.
fn installs_into_view(line: &str, mount_path: &str, uses_view: bool) -> bool {
    let installs = ["ensurepip", "pip install", "pip3 install"]
        .iter()
        .any(|words| line.contains(words));
    let view = format!("{mount_path}/view/");
    // `viewroot` and `viewbin` are variables of the snippets: folders of the view.
    let names_view = [view.as_str(), "viewroot", "viewbin"]
        .iter()
        .any(|place| line.contains(place));
    installs && (names_view || (uses_view && runs_versioned_pip(line))) && !line.trim_start().starts_with('#')
}

/// Whether a line runs `python3.N -m pip` or `python3.N -m ensurepip`. The view's Python has its version in its name.
fn runs_versioned_pip(line: &str) -> bool {
    if ["--target", "--prefix", "--user"]
        .iter()
        .any(|option| line.contains(option))
    {
        return false;
    }
    line.split("python3.").skip(1).any(|rest| {
        let module = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
        let module = module.trim_start().strip_prefix("-m").map(str::trim_start);
        module.is_some_and(|module| module.starts_with("pip install") || module.starts_with("ensurepip"))
    })
}

/// Whether what is written to the volume may survive the pod.
fn outlives_pod(source: &VolumeSource) -> bool {
    match source {
        VolumeSource::Claim(_) | VolumeSource::HostPath(_) => true,
        VolumeSource::Csi { read_only, .. } => !read_only,
        VolumeSource::EmptyDir { .. } | VolumeSource::ConfigMap { .. } | VolumeSource::Secret { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::manifest;
    use crate::validate::validate;

    #[test]
    fn snippet_that_installs_into_a_mounted_view_gets_a_hint() {
        let installs = |view: &str, line: &str| -> Vec<String> {
            let text = format!(
                "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: a}}\nspec:\n  \
                 flux: {{container: {{{view}}}}}\n  containers: [{{image: a, command: b, commands: {{pre: '{line}'}}}}]\n"
            );
            let hints = validate(&manifest::parse(&text).unwrap()).unwrap().hints();
            hints.into_iter().map(|hint| hint.field).collect()
        };
        let pip = "/mnt/flux/view/bin/python3.11 -m pip install numpy";
        assert_eq!(installs("", pip), ["spec.containers[].commands.pre"]);
        assert_eq!(
            installs("", "${viewroot}/bin/python3 -m ensurepip"),
            ["spec.containers[].commands.pre"]
        );
        assert_eq!(installs("source: copy", pip), [""; 0]);
        assert_eq!(installs("", "pip install numpy"), [""; 0], "into the image");
        let sourced = ". /mnt/flux/flux-view.sh && python3.11 -m pip install numpy";
        assert_eq!(installs("", sourced), ["spec.containers[].commands.pre"]);
        assert_eq!(
            installs("", "python3.11 -m pip install numpy"),
            [""; 0],
            "into the image"
        );
    }

    #[test]
    fn old_option_for_openmpi_5_gets_a_hint() {
        let fields = |flags: &str| -> Vec<String> {
            let text = format!(
                "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: a}}\nspec:\n  \
                 flux: {{optionFlags: {flags}}}\n  containers: [{{image: a, command: b}}]\n"
            );
            let hints = validate(&manifest::parse(&text).unwrap()).unwrap().hints();
            hints.into_iter().map(|hint| hint.field).collect()
        };
        for old in ["-ompi=openmpi@5 -c 1", "-o mpi=openmpi@5"] {
            assert_eq!(fields(old), ["spec.flux.optionFlags"], "{old}");
        }
        assert_eq!(fields("-o pmi=pmix"), [""; 0]);
    }

    #[test]
    fn search_path_with_an_unexpanded_variable_gets_a_hint() {
        let hints = |fields: &str| -> Vec<String> {
            let text = format!(
                "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: a}}\nspec:\n  {fields}\n"
            );
            let hints = validate(&manifest::parse(&text).unwrap()).unwrap().hints();
            hints.into_iter().map(|hint| hint.to_string()).collect()
        };
        let of_runner = |environment: &str| {
            hints(&format!(
                "containers: [{{image: a, command: b, secrets: {{KEY: {{name: s, key: k}}}}, environment: {{{environment}}}}}]"
            ))
        };
        let hint = |field: &str, reference: &str| {
            vec![format!(
                "{field}: `{reference}` is not expanded: write its value, or use `export` in commands.pre, which a shell runs"
            )]
        };
        for (variable, value, reference) in [
            ("PATH", "/opt/bin:$PATH", "$PATH"),
            ("PATH", "$(PATH):/opt/bin", "$(PATH)"),
            ("PATH", "/opt:$(HOME)/bin", "$(HOME)"),
            (
                "LD_LIBRARY_PATH",
                "$ORIGIN:${LD_LIBRARY_PATH}:é",
                "${LD_LIBRARY_PATH}",
            ),
            ("PYTHONPATH", "$é$:$HOME", "$HOME"),
        ] {
            let field = format!("spec.containers[].environment[{variable}]");
            assert_eq!(
                of_runner(&format!("{variable}: '{value}'")),
                hint(&field, reference),
                "{value}"
            );
        }
        for environment in [
            "PATH: /opt/bin:/usr/bin",
            "APP: /opt, PATH: '$(APP)/bin:$(KEY)'",
            "LD_LIBRARY_PATH: '$ORIGIN/../$LIB'",
            "PATH: '$:${:$(:$'",
            "GREETING: '$NAME'",
        ] {
            assert_eq!(of_runner(environment), [""; 0], "{environment}");
        }
        assert_eq!(
            hints("flux: {environment: {PATH: '/a:$PATH'}}\n  containers: [{image: a, command: b}]"),
            hint("spec.flux.environment[PATH]", "$PATH")
        );
        let sidecar = "containers: [{image: a, command: b, runFlux: true}, {image: c, name: web, command: d, environment: {PATH: '$PATH:/a'}}]";
        assert_eq!(
            hints(sidecar),
            hint("spec.containers[web].environment[PATH]", "$PATH")
        );
    }

    #[test]
    fn sidecar_that_installs_into_a_mounted_view_gets_a_hint() {
        let installs = |view: &str, sidecar: &str| -> Vec<String> {
            let text = format!(
                "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: a}}\nspec:\n  \
                 flux: {{container: {{{view}}}}}\n  \
                 containers: [{{image: a, command: b, runFlux: true}}, {{image: c, name: web, {sidecar}}}]\n"
            );
            let hints = validate(&manifest::parse(&text).unwrap()).unwrap().hints();
            hints.into_iter().map(|hint| hint.field).collect()
        };
        let pip = "/mnt/flux/view/bin/python3.11 -m pip install x";
        for snippet in ["init", "pre", "servicePre", "script", "post"] {
            assert_eq!(
                installs("", &format!("commands: {{{snippet}: {pip}}}")),
                [format!("spec.containers[web].commands.{snippet}")]
            );
        }
        assert_eq!(
            installs("", &format!("preCommand: {pip}")),
            ["spec.containers[web].preCommand"]
        );
        let sourced =
            "command: '. /mnt/flux/flux-view.sh; python3.11 -m ensurepip; python3.11 -m pip install x'";
        assert_eq!(installs("", sourced), ["spec.containers[web].command"]);
        assert_eq!(installs("source: copy", sourced), [""; 0]);
        assert_eq!(
            installs("", "command: python3 -m pip install x"),
            [""; 0],
            "into the image"
        );
    }

    #[test]
    fn tasks_that_need_more_pods_than_min_size_get_a_hint() {
        let hints = |sizes: &str, container: &str| -> Vec<String> {
            let text = format!(
                "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: a}}\nspec:\n  \
                 size: 4\n  {sizes}\n  containers: [{{image: a, {container}}}]\n"
            );
            let hints = validate(&manifest::parse(&text).unwrap()).unwrap().hints();
            hints.into_iter().map(|hint| hint.message).collect()
        };
        let waits = |sizes: &str, container: &str| {
            hints(sizes, container)
                .iter()
                .any(|hint| hint.contains("the job waits"))
        };
        let declared = "command: b, cores: 4";
        assert_eq!(
            hints("minSize: 2\n  tasks: 9", declared),
            [
                "9 tasks need 3 pods, and only 2 (minSize) are sure to run: the job waits until 3 pods run; lower tasks, or raise minSize"
            ]
        );
        assert!(!waits("minSize: 2\n  tasks: 8", declared));
        assert!(!waits("minSize: 2\n  tasks: 0", declared) && !waits("minSize: 4\n  tasks: 16", declared));
        // Flux rejects a job that needs more pods than there can be.
        assert!(waits("minSize: 2\n  tasks: 16", declared) && !waits("minSize: 2\n  tasks: 17", declared));
        assert!(waits("minSize: 2\n  maxSize: 5\n  tasks: 17", declared));
        // Without declared cores, the limit counts, rounded down.
        for (limit, enough) in [("4500m", 8), ("500m", 2)] {
            let limited = format!("command: b, resources: {{limits: {{cpu: {limit}}}}}");
            // Fewer tasks than pods give a hint of their own, so only the difference counts.
            let count = |tasks: u32| hints(&format!("minSize: 2\n  tasks: {tasks}"), &limited).len();
            assert_eq!(count(enough + 1), count(enough) + 1, "{limit}");
        }
        assert!(!waits("minSize: 2\n  tasks: 9", "command: b"), "unknown cores");
        for other in ["command: b, launcher: true", "command: b, batch: true"] {
            let found = hints("minSize: 2\n  tasks: 9", &format!("{other}, cores: 4"));
            assert!(!found.iter().any(|hint| hint.contains("minSize")), "{other}");
        }
    }

    #[test]
    fn tasks_for_which_the_pods_have_no_cores_get_a_hint() {
        let hints = |spec: &str, container: &str| -> Vec<String> {
            let text = format!(
                "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: a}}\nspec:\n  \
                 {spec}\n  containers: [{{image: a, {container}}}]\n"
            );
            let hints = validate(&manifest::parse(&text).unwrap()).unwrap().hints();
            let messages = hints.into_iter().map(|hint| hint.message);
            messages.filter(|message| message.contains("at most")).collect()
        };
        let limit = "resources: {limits: {cpu: 3}}";
        let limited = format!("command: b, {limit}");
        assert_eq!(
            hints("size: 4\n  tasks: 16", &limited),
            [
                "16 tasks need 16 cores, and 4 pods have at most 12 (CPU limit); raise or remove the limit, set cores, or lower tasks"
            ]
        );
        assert_eq!(
            hints("size: 2\n  tasks: 5", "command: b, cores: 2"),
            ["5 tasks need 5 cores, and 2 pods have at most 4 (cores); raise cores, or lower tasks"]
        );
        let has_hint = |spec: &str, container: &str| !hints(spec, container).is_empty();
        for spec in [
            "size: 2\n  maxSize: 9\n  tasks: 7",
            "size: 2\n  tasks: 7\n  interactive: true",
            "size: 2\n  tasks: 7\n  flux: {optionFlags: -c 2 -o cpu-affinity=per-task}",
            "size: 2\n  tasks: 7\n  flux: {submitCommand: flux run}",
        ] {
            assert!(has_hint(spec, &limited), "{spec}");
        }
        for spec in [
            "size: 2\n  tasks: 6",
            "size: 2\n  tasks: 0",
            "size: 2\n  minSize: 1\n  maxSize: 3\n  tasks: 9",
            "size: 2\n  maxSize: 3\n  tasks: 9\n  interactive: true",
            "size: 2\n  tasks: 7\n  flux: {optionFlags: -n 6}",
            "size: 2\n  tasks: 7\n  flux: {optionFlags: --ntasks=6}",
            "size: 2\n  tasks: 7\n  flux: {submitCommand: flux submit -N2}",
            "size: 2\n  tasks: 7\n  flux: {submitCommand: my-submit}",
            "size: 2\n  tasks: 7\n  flux: {brokerConfig: 'a = 1'}",
            "size: 2\n  tasks: 7\n  flux: {bursting: {clusters: [{name: b, size: 2}]}}",
        ] {
            assert!(!has_hint(spec, &limited), "{spec}");
        }
        let tasks = "size: 2\n  tasks: 7";
        for container in [
            "command: b".to_owned(),
            format!("{limited}, launcher: true"),
            format!(
                "{limited}, commands: {{pre: 'flux R encode --local > ${{viewroot}}/etc/flux/system/R'}}"
            ),
            format!("{limited}, environment: {{FLUX_OPTION_FLAGS: -n 6}}"),
            format!("{limited}, cores: 4"),
        ] {
            assert!(!has_hint(tasks, &container), "{container}");
        }
        assert!(has_hint(tasks, &format!("{limited}, batch: true")));
        assert!(has_hint(
            tasks,
            &format!("{limited}, commands: {{pre: . /etc/profile}}")
        ));
    }
}
