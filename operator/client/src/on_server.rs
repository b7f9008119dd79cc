//! Checks whether the API server would accept a manifest: `validate --server`, of `flux-operator` and of
//! `kubectl minicluster`. It dry-runs the creation of the MiniCluster, of its Job and of its services pod with
//! the caller's own permissions; nothing is created.
//!
//! ```text
//! text ─► offline (each MiniCluster) ─► dry_run: the MiniCluster ─► its Job, its services pod ─► render::refusal
//!      ─► Judgement
//! ```

use std::path::PathBuf;

use clap::Args;
use flux_operator_core::offline::{self, Judged, Judgement};
use flux_operator_core::render::overlaid::Overlaid;
use flux_operator_core::render::refusal::{self, DryRun};
use flux_operator_core::render::{self, Options, RenderFacts};
use flux_shared::crd::v1alpha2::KIND;
use flux_shared::manifest::Manifest;
use flux_shared::validate::{Problem, ValidMiniCluster};
use k8s_openapi::Resource as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::core::Status;
use kube::{Client, Resource};
use serde::Serialize;
use serde_json::Value;

use crate::dry_run::{self, DryRunAnswer, Reply};

/// The command line of `validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// Files with MiniClusters, or - for standard input
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Also ask the API server, by a dry run of the MiniCluster, its Job and its services pod; nothing is created
    #[arg(long)]
    pub server: bool,
}

/// The resource name of MiniClusters in API paths.
const PLURAL: &str = "miniclusters";

/// Why a MiniCluster could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error("failed to check {what} {name} on the API server: {why}")]
    Call {
        what: &'static str,
        name: String,
        why: String,
    },
    #[error(transparent)]
    Render(#[from] render::RenderError),
}

/// The namespace in which MiniClusters would be created.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    pub namespace: &'a str,
    /// Whether the user chose the namespace (`--namespace`). A file that names another one is then a problem.
    pub is_asked_for: bool,
}

/// Validates every MiniCluster of `text`, and asks the API server about those without a problem.
pub async fn judge(
    client: &Client,
    target: Target<'_>,
    text: &str,
    options: &Options,
) -> Result<Judgement, CheckError> {
    let (documents, mut judgement) = offline::documents(text);
    for document in &documents {
        match offline::parse_and_validate(document) {
            Err(problems) => {
                judgement
                    .problems
                    .extend(offline::with_name(document, problems, documents.len()))
            }
            Ok((manifest, cluster)) => {
                let check = Check {
                    client,
                    options,
                    judged: Judged::of(&cluster),
                    problems: Vec::new(),
                };
                let (judged, problems) = check.run(target, document, manifest).await?;
                judgement.miniclusters.push(judged);
                judgement
                    .problems
                    .extend(offline::with_name(document, problems, documents.len()));
            }
        }
    }
    Ok(judgement)
}

/// The check of one MiniCluster.
struct Check<'a> {
    client: &'a Client,
    options: &'a Options,
    judged: Judged,
    problems: Vec<Problem>,
}

impl Check<'_> {
    async fn run(
        mut self,
        target: Target<'_>,
        document: &Value,
        mut manifest: Manifest,
    ) -> Result<(Judged, Vec<Problem>), CheckError> {
        let own_namespace = document["metadata"]["namespace"]
            .as_str()
            .filter(|namespace| !namespace.is_empty());
        let namespace = own_namespace.unwrap_or(target.namespace);
        if target.is_asked_for && namespace != target.namespace {
            let message = format!("is {namespace}, and --namespace is {}", target.namespace);
            return Ok((self.judged, vec![Problem::new("metadata.namespace", message)]));
        }
        self.check_minicluster(namespace, document).await?;
        namespace.clone_into(&mut manifest.namespace);
        // `judge` has validated the manifest already, but perhaps without a namespace. The Job and the services pod take
        // theirs from this `cluster`.
        match flux_shared::validate::validate(&manifest) {
            Ok(cluster) => self.check_pods(namespace, &cluster).await?,
            Err(problems) => self.problems.extend(problems),
        }
        Ok((self.judged, self.problems))
    }

    /// Asks about the MiniCluster itself, in the API version of the document.
    async fn check_minicluster(&mut self, namespace: &str, document: &Value) -> Result<(), CheckError> {
        let version = document["apiVersion"].as_str().unwrap_or_default();
        let path = format!("/apis/{version}/namespaces/{namespace}/{PLURAL}");
        match self.try_object(KIND, &path, document).await? {
            None | Some(DryRunAnswer::Accepted(_)) => {}
            Some(DryRunAnswer::Exists) => self.judged.notes.push(Problem::new(
                "metadata.name",
                "a MiniCluster of this name exists: whether it can be changed to this was not checked",
            )),
            Some(DryRunAnswer::Refused(status)) => self.problems.extend(problems_in(&status)),
        }
        Ok(())
    }

    /// Asks about the MiniCluster's Job and services pod.
    async fn check_pods(&mut self, namespace: &str, cluster: &ValidMiniCluster) -> Result<(), CheckError> {
        // The placeholder stands for the certificate, so that no secret is needed. The default facts are those of a
        // first start. They have no gang APIs, so the gang is not checked.
        let objects = render::objects(
            cluster,
            self.options,
            &RenderFacts::default(),
            offline::placeholder(cluster),
        )?;
        self.check_object(Job::KIND, &Job::url_path(&(), Some(namespace)), &objects.job)
            .await?;
        if let Some(pod) = &objects.services_pod {
            self.check_object(Pod::KIND, &Pod::url_path(&(), Some(namespace)), pod)
                .await?;
        }
        Ok(())
    }

    /// Asks about one rendered object; `what` is its kind. Adds a problem if the API server rejects it, or
    /// drops fields of the overlay (`podTemplate`).
    async fn check_object<K: Serialize>(
        &mut self,
        what: &'static str,
        path: &str,
        object: &Overlaid<K>,
    ) -> Result<(), CheckError> {
        let Some(answer) = self.try_object(what, path, object).await? else {
            return Ok(());
        };
        let is_denial =
            |answer: &DryRun| matches!(answer, DryRun::Refused(words) if refusal::is_denial(words));
        // `applied` is the user's overlay, if the object has one.
        self.problems
            .extend(match (&object.applied, DryRun::from(answer)) {
                (Some(applied), answer) if !is_denial(&answer) => refusal::problem(applied, &answer),
                (_, DryRun::Refused(message)) => Some(Problem::new(
                    "spec",
                    format!("the API server rejects its {what}: {message}"),
                )),
                (_, DryRun::Accepted(_) | DryRun::Exists) => None,
            });
        Ok(())
    }

    /// A dry run of creating one object. The API server's warnings become notes. None if it answers 403: a missing
    /// permission is noted as unchecked, a refusal by a quota or a policy is a problem.
    async fn try_object(
        &mut self,
        what: &'static str,
        path: &str,
        object: &impl Serialize,
    ) -> Result<Option<DryRunAnswer>, CheckError> {
        match dry_run::create(self.client, path, object).await {
            Ok(Reply { answer, warnings }) => {
                self.judged.checked.push(what);
                let notes = warnings.into_iter().map(|warning| {
                    Problem::new(
                        "",
                        format!("the API server's warning about the {what}: {warning}"),
                    )
                });
                self.judged.notes.extend(notes);
                Ok(Some(answer))
            }
            Err(kube::Error::Api(status)) if status.code == 403 => {
                // The API server's message about a missing permission; quotas and policies have other messages.
                if status.message.contains("cannot create resource") {
                    self.judged
                        .unchecked
                        .push(format!("its {what}: {}", status.message))
                } else {
                    self.problems
                        .push(Problem::new("", format!("{what}: {}", status.message)))
                }
                Ok(None)
            }
            Err(error) => {
                let why = match error {
                    // The answer about a missing object has details; that about a missing resource has none.
                    kube::Error::Api(status) if status.code == 404 && status.details.is_none() => {
                        "no such resource: is the operator's CustomResourceDefinition installed?".to_owned()
                    }
                    kube::Error::Api(status) => status.message.clone(),
                    error => error.to_string(),
                };
                Err(CheckError::Call {
                    what,
                    name: self.judged.name.clone(),
                    why,
                })
            }
        }
    }
}

/// The problems in a refusal: one for each field that the API server names, else one with its message.
fn problems_in(status: &Status) -> Vec<Problem> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let fields: Vec<Problem> = causes
        .map(|cause| Problem::new(cause.field.clone(), cause.message.clone()))
        .collect();
    if fields.is_empty() {
        let message = &status.message;
        // Unknown fields are listed after these words; the text before them is left out.
        let start = message.find("strict decoding error: ").unwrap_or_default();
        vec![Problem::new("", message.get(start..).unwrap_or(message))]
    } else {
        fields
    }
}
