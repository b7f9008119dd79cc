//! The input of `dry-run`: a MiniCluster or an AgentSpec.

use std::collections::BTreeMap;

use flux_shared::agent_spec::{AgentSpec, Program};
use flux_shared::paths::{FALLBACK_HOME, SOFTWARE_DIR, VIEW_IMAGE_MOUNT, home_beside};
use flux_shared::validate::{Problem, ValidContainer, ValidMiniCluster, ViewContainer, ViewSource};
use flux_shared::{derive, manifest, validate};
use serde::Serialize;

use crate::facts::Facts;
use crate::file_format::is_toml;
use crate::plan::FromEnvironment;

/// The kind of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum SourceKind {
    MiniCluster,
    AgentSpec,
}

/// The parsed input.
#[derive(Debug)]
pub struct Source {
    pub kind: SourceKind,
    /// Whether the facts are those of the pod that this program runs in (`--here`).
    pub is_here: bool,
    pub spec: AgentSpec,
    /// Notices about parts of the spec that are valid, but perhaps not what the user meant.
    pub notices: Vec<String>,
    /// The notices among them about the text as a whole: it may have another MiniCluster than the user meant.
    pub text_notices: Vec<String>,
    /// Containers without the agent.
    pub others: Vec<OtherContainer>,
    /// How the view gets into the pods, in words. None for an AgentSpec, which does not specify this.
    pub view: Option<String>,
    /// The MiniCluster, if the input was one.
    pub(super) cluster: Option<Box<ValidMiniCluster>>,
}

/// A container without the agent: a sidecar that keeps its own entrypoint, or a service.
#[derive(Debug)]
pub struct OtherContainer {
    pub name: String,
    pub place: Place,
    /// Its command. None: the image's own entrypoint.
    pub command: Option<Vec<String>>,
}

/// The pods that a container is in.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    EveryPod,
    ServicesPod,
}

impl OtherContainer {
    /// Its name, and the pods that it is in.
    pub fn title(&self) -> String {
        let place = match self.place {
            Place::EveryPod => "in every pod",
            Place::ServicesPod => "in the services pod",
        };
        format!("{} ({place})", self.name)
    }
}

/// Everything that is wrong with the input.
#[derive(Debug, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct Problems(pub(super) Vec<Problem>);

impl Problems {
    pub(super) fn has_several(&self) -> bool {
        self.0.len() > 1
    }
}

fn lines(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(Problem::to_string)
        .collect::<Vec<String>>()
        .join("\n")
}

impl Source {
    /// The source for `--here`: the spec of the pod that this program runs in.
    pub fn here(spec: AgentSpec, notices: Vec<String>) -> Source {
        Source {
            kind: SourceKind::AgentSpec,
            is_here: true,
            spec,
            notices,
            text_notices: Vec::new(),
            others: Vec::new(),
            view: None,
            cluster: None,
        }
    }

    /// Parses a MiniCluster, in YAML or JSON, or an AgentSpec, in TOML.
    pub fn parse(text: &str) -> Result<Source, Problems> {
        Source::of(text, &FromEnvironment::default(), &BTreeMap::new())
    }

    /// Parses the input. Applies the options of the entrypoint's command line (`from_environment`) to an
    /// AgentSpec; with a MiniCluster they are an error. The options name variables of `environment`.
    pub fn of(
        text: &str,
        from_environment: &FromEnvironment,
        environment: &BTreeMap<String, String>,
    ) -> Result<Source, Problems> {
        if is_toml(text) {
            return agent_spec(text, from_environment, environment);
        }
        if !from_environment.is_empty() {
            return Err(problem(
                "--…-from-env and -- CMD are for an AgentSpec: a MiniCluster sets them itself".into(),
            ));
        }
        mini_cluster(text).map_err(Problems)
    }

    /// The MiniCluster, if the input was one.
    pub fn cluster(&self) -> Option<&ValidMiniCluster> {
        self.cluster.as_deref()
    }

    /// The default facts, changed as the MiniCluster specifies for the container that runs Flux. `uid`: the user, in
    /// place of the specified one.
    pub fn assumed_facts(&self, uid: Option<u32>) -> Facts {
        let mut facts = self.facts_of_pod(uid);
        // The operator gives a container for interactive use a terminal.
        facts.terminal = self.spec.runner.interactive || self.spec.runner.program == Program::Persistent;
        if let Some(cluster) = &self.cluster {
            assume_container(&mut facts, cluster, &cluster.runner.container, uid);
        }
        facts
    }

    /// The default facts, changed as the MiniCluster specifies for each sidecar with the agent, by its name.
    pub fn assumed_facts_of_sidecars(&self, uid: Option<u32>) -> BTreeMap<String, Facts> {
        let facts = |name: &String| {
            let mut facts = self.facts_of_pod(uid);
            if let Some(cluster) = &self.cluster {
                let mut sidecars = cluster.sidecars.iter().map(|sidecar| &sidecar.container);
                if let Some(container) = sidecars.find(|container| container.name == *name) {
                    assume_container(&mut facts, cluster, container, uid);
                }
            }
            (name.clone(), facts)
        };
        self.spec.sidecars.keys().map(facts).collect()
    }

    /// The facts that all containers of a pod have in common.
    fn facts_of_pod(&self, uid: Option<u32>) -> Facts {
        let mut facts = Facts {
            // No real address: the word is printed where a pod has its address.
            address: Some("POD_IP".into()),
            ..Facts::default()
        };
        if let Some(uid) = uid {
            assume_user(&mut facts, uid, uid);
        }
        if let Some(cpus) = self.spec.runner.cpu_limit {
            // Enough cores for this limit, which then decides.
            facts.cores = facts.cores.max(cpus.ceil() as u32);
        }
        if let Some(cluster) = &self.cluster {
            // 0: the MiniCluster has not restarted yet.
            facts.restarts_left = Some(cluster.restarts_left(0));
            facts.grace_period = Some(cluster.grace_period());
        }
        facts
    }
}

/// Changes the facts as the MiniCluster specifies for this container. With `uid`, they keep their user.
fn assume_container(
    facts: &mut Facts,
    cluster: &ValidMiniCluster,
    container: &ValidContainer,
    uid: Option<u32>,
) {
    facts.gpus = derive::gpus(&container.resources);
    if uid.is_none()
        && let Some((uid, gid)) = cluster.run_as(container)
    {
        assume_user(facts, uid, gid);
    }
    // After the user: the specified HOME precedes that of the user.
    facts.environment.extend(cluster.environment(container));
    let of_overlay = cluster.pod_template.iter();
    let of_overlay = of_overlay.flat_map(|overlay| overlay.mount_paths(&container.name));
    let mounts = container.mounts.iter().map(|mount| mount.path.as_str());
    let home = home_beside(mounts.chain(of_overlay));
    for paths in [&mut facts.present, &mut facts.writable] {
        paths.remove(FALLBACK_HOME);
        paths.insert(home.into());
    }
    if let Some(folder) = &container.working_dir {
        // Assumed to be writable, since the user chose it.
        facts.working_directory = folder.clone();
        facts.writable.insert(folder.clone());
    }
}

/// Changes the facts to those of a container that runs as this user. Any user but root is assumed to have the home `/`,
/// as without an entry in /etc/passwd, and not to be able to write there.
pub fn assume_user(facts: &mut Facts, uid: u32, gid: u32) {
    if uid != 0 {
        facts.environment.insert("HOME".into(), "/".into());
        facts.writable.remove("/");
    } else if facts.uid != 0 {
        facts.environment.insert("HOME".into(), "/root".into());
        facts.writable.insert("/".into());
    }
    (facts.uid, facts.gid) = (uid, gid);
}

fn mini_cluster(text: &str) -> Result<Source, Vec<Problem>> {
    let (manifest, text_notices) = manifest::parse_and_note(text)?;
    let cluster = validate::validate_and_note(&manifest)?;
    let sidecars = cluster
        .sidecars
        .iter()
        .filter(|sidecar| sidecar.wrapped.is_none());
    let sidecars = sidecars.map(|sidecar| OtherContainer {
        name: sidecar.container.name.clone(),
        place: Place::EveryPod,
        command: None,
    });
    let services = cluster.services.iter().map(|service| OtherContainer {
        name: service.name.clone(),
        place: Place::ServicesPod,
        command: service.entrypoint.clone(),
    });
    let others = sidecars.chain(services).collect();
    Ok(Source {
        kind: SourceKind::MiniCluster,
        is_here: false,
        spec: derive::agent_spec(&cluster),
        notices: text_notices
            .iter()
            .chain(&cluster.notices)
            .chain(&cluster.hints())
            .map(Problem::to_string)
            .collect(),
        text_notices: text_notices.iter().map(Problem::to_string).collect(),
        others,
        view: Some(view(&cluster.view)),
        cluster: Some(Box::new(cluster)),
    })
}

/// How the view gets into the pods, in words. The operator decides this, so the AgentSpec does not contain it.
fn view(view: &ViewContainer) -> String {
    let ViewContainer { name, mount_path, .. } = view;
    let image = view.image.as_deref().unwrap_or("the operator's default image");
    let mounted =
        format!("the kubelet mounts {image} at {VIEW_IMAGE_MOUNT}, and {mount_path}/view has links to it");
    let copied = format!(
        "the init container {name} copies the view from {image} to {mount_path}/view and {SOFTWARE_DIR}"
    );
    let from = match view.source {
        _ if !view.enabled => return "none; the pods use the Flux in your image".into(),
        Some(ViewSource::Copy) => copied,
        Some(ViewSource::ImageVolume) => {
            format!("{mounted}. If it cannot be mounted, {copied}")
        }
        None | Some(ViewSource::Auto) => {
            format!(
                "if all nodes can mount images, {mounted}. Otherwise {copied}. To choose, set flux.container.source"
            )
        }
    };
    format!("{from}. If your image has files in {SOFTWARE_DIR}, they are copied next to the view's packages")
}

/// A problem of the whole input. It names no field (the empty path).
fn problem(text: String) -> Problems {
    Problems(vec![Problem::new("", text)])
}

fn agent_spec(
    text: &str,
    from_environment: &FromEnvironment,
    environment: &BTreeMap<String, String>,
) -> Result<Source, Problems> {
    let mut spec = AgentSpec::unchecked(text).map_err(|error| problem(error.to_string()))?;
    from_environment
        .apply_to(&mut spec, environment)
        .map_err(|error| problem(error.to_string()))?;
    // After the options: they may set required fields.
    spec.check().map_err(|error| problem(error.to_string()))?;
    Ok(Source {
        kind: SourceKind::AgentSpec,
        is_here: false,
        spec,
        notices: Vec::new(),
        text_notices: Vec::new(),
        others: Vec::new(),
        view: None,
        cluster: None,
    })
}
