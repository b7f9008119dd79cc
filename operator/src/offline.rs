//! What a manifest's text becomes without a cluster: `flux-operator render` and `validate`, and `kubectl minicluster`'s.

use clap::Args;
use flux_shared::curve::Certificate;
use flux_shared::validate::{Problem, ValidMiniCluster, ViewSource, validate_and_note};
use flux_shared::{agent_spec, manifest};
use serde_json::Value;

use crate::reconcile::render::{self, Facts, Objects, Options};
use crate::yaml::{self, YamlError};

/// What an administrator chooses for all MiniClusters.
#[derive(Debug, Args)]
pub struct Choices {
    /// Give each MiniCluster a NetworkPolicy: its brokers are reached from its own pods alone
    #[arg(long, env = "FLUX_MINICLUSTER_NETWORK_POLICY")]
    minicluster_network_policy: bool,
    /// Image of the agent
    #[arg(long, env = "FLUX_AGENT_IMAGE", default_value = render::DEFAULT_AGENT_IMAGE)]
    agent_image: String,
    /// Image with the Flux view, for MiniClusters that name none
    #[arg(long, env = "FLUX_VIEW_IMAGE", default_value = render::DEFAULT_VIEW_IMAGE)]
    view_image: String,
    /// Address of the Flux RESTful API's repository, as git takes it: a mirror, where pods do not reach the usual one
    #[arg(long, env = "FLUX_RESTFUL_REPOSITORY", default_value = agent_spec::RESTFUL_REPOSITORY, value_name = "ADDRESS")]
    restful_repository: String,
    /// How the view comes into the pods, for MiniClusters that do not say: imageVolume mounts its image and copies nothing;
    /// copy copies it; auto takes the image volume where every node that takes pods can (Kubernetes 1.35 with containerd
    /// 2.1 or CRI-O 1.33), which needs the permission to list nodes: without it, a copy
    #[arg(long, env = "FLUX_VIEW_SOURCE", default_value = "auto", value_parser = str::parse::<ViewSource>)]
    view_source: ViewSource,
}

impl From<Choices> for Options {
    fn from(choices: Choices) -> Options {
        let Choices { minicluster_network_policy, agent_image, view_image, restful_repository, view_source } = choices;
        Options { agent_image, view_image, restful_repository, view_source, network_policy: minicluster_network_policy }
    }
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    #[error("{}", lines(.0))]
    Problems(Vec<Problem>),
    #[error(transparent)]
    Render(#[from] render::RenderError),
    #[error(transparent)]
    Yaml(#[from] YamlError),
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The objects of the first MiniCluster of `text`, as YAML, in the order in which they are made.
pub fn render(text: &str, options: &Options) -> Result<String, OfflineError> {
    let manifest = manifest::parse(text).map_err(OfflineError::Problems)?;
    let cluster = validate_and_note(&manifest).map_err(OfflineError::Problems)?;
    let objects = render::objects(&cluster, options, &Facts::default(), placeholder(&cluster))?;
    Ok(to_yaml(&objects)?)
}

/// That every MiniCluster of `text` is valid, with what may surprise; or every problem.
pub fn validate(text: &str) -> Result<String, OfflineError> {
    let documents = manifest::documents(text).map_err(OfflineError::Problems)?;
    let (mut told, mut problems) = (String::new(), Vec::new());
    for document in &documents {
        match manifest::from_value(document).and_then(|it| validate_and_note(&it)) {
            Ok(cluster) => {
                let notes = cluster.notices.iter().cloned().chain(cluster.hints());
                told.extend(notes.map(|note| format!("note: {note}\n")));
                told.push_str(&format!("MiniCluster {} is valid\n", cluster.name));
            }
            Err(found) if documents.len() == 1 => problems.extend(found),
            Err(found) => {
                let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("without a name");
                problems.extend(
                    found.into_iter().map(|it| Problem::new(format!("MiniCluster {name}: {}", it.field), it.message)),
                );
            }
        }
    }
    if problems.is_empty() { Ok(told) } else { Err(OfflineError::Problems(problems)) }
}

/// The certificate is made when the cluster is; a person who looks at the objects gets none.
fn placeholder(cluster: &ValidMiniCluster) -> Certificate {
    Certificate::from_keys(&cluster.name, &[0; 32], &[0; 32])
}

/// Every object, in the order in which they are made.
fn to_yaml(objects: &Objects) -> Result<String, YamlError> {
    let Objects { config_map, secrets, volumes, network_policy, headless, services, job, services_pod } = objects;
    let mut documents = vec![yaml::document(config_map)?];
    for secret in secrets {
        documents.push(yaml::document(&secret.redacted())?);
    }
    documents.push(yaml::document(headless)?);
    if let Some(policy) = network_policy {
        documents.push(yaml::document(policy)?);
    }
    for made in volumes {
        documents.extend([yaml::document(&made.volume)?, yaml::document(&made.claim)?]);
    }
    for service in services {
        documents.push(yaml::document(service)?);
    }
    documents.push(yaml::document(job)?);
    if let Some(pod) = services_pod {
        documents.push(yaml::document(pod)?);
    }
    Ok(yaml::stream(documents))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_of_one_of_several_have_its_name() {
        let one = |kind: &str, name: &str, size: u32| {
            format!(
                "apiVersion: flux-framework.org/v1alpha2\nkind: {kind}\nmetadata: {{name: {name}}}\n\
                 spec: {{size: {size}, containers: [{{image: a}}]}}\n---\n"
            )
        };
        let said = |text: &str| validate(text).unwrap_err().to_string();
        assert_eq!(said(&one("MiniCluster", "a", 0)), "spec.size: must be 1 to 10000");
        let several = one("MiniCluster", "a", 1) + &one("MiniCluster", "b", 0) + &one("Minicluster", "c", 0);
        let wanted = "MiniCluster b: spec.size: must be 1 to 10000\n\
                      MiniCluster c: kind: is `Minicluster`; did you mean MiniCluster?\n\
                      MiniCluster c: spec.size: must be 1 to 10000";
        assert_eq!(said(&several), wanted);
    }
}
