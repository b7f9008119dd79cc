//! Validates and renders MiniClusters from files, without a cluster, for the commands `validate` and `render` of
//! `flux-operator` and of `kubectl minicluster`.

use std::path::Path;

use flux_shared::curve::Certificate;
use flux_shared::manifest::{self, Manifest};
use flux_shared::validate::{Notice, Problem, ValidMiniCluster, validate_and_note};
use serde::Serialize;
use serde_json::Value;

use crate::render::gang::{GangOf, Served};
use crate::render::{self, Objects, Options, RenderFacts};
use crate::yaml::{self, YamlError};

/// Why a manifest cannot be rendered or is not valid.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    #[error("{}", lines(.0))]
    Problems(Vec<Problem>),
    #[error(transparent)]
    Render(#[from] render::RenderError),
    #[error(transparent)]
    Yaml(#[from] YamlError),
    #[error("failed to write the objects")]
    Json(#[source] serde_json::Error),
}

/// The problems, one per line.
fn lines(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The objects of the first MiniCluster in `text` as a stream of YAML documents, the Job after everything that its pods
/// need.
pub fn render(text: &str, options: &Options) -> Result<String, OfflineError> {
    let documents: Result<Vec<String>, YamlError> =
        objects(text, options)?.iter().map(yaml::document).collect();
    Ok(yaml::stream(documents?))
}

/// Notices about the text as a whole, for `render`: the first MiniCluster in it may not be the one that its user meant.
pub fn text_notices(text: &str) -> Vec<Notice> {
    manifest::parse_and_note(text).map_or_else(|_| manifest::notices(text), |(_, notices)| notices)
}

/// The objects of the first MiniCluster in `text`, the Job after everything that its pods need. Assumes that the cluster
/// serves every gang API that the operator uses.
pub fn objects(text: &str, options: &Options) -> Result<Vec<Value>, OfflineError> {
    let manifest = manifest::parse(text).map_err(OfflineError::Problems)?;
    let cluster = validate_and_note(&manifest).and_then(|cluster| options.admit(cluster));
    let cluster = cluster.map_err(OfflineError::Problems)?;
    let facts = RenderFacts {
        gangs: Served::ALL,
        ..RenderFacts::default()
    };
    let objects = render::objects(&cluster, options, &facts, placeholder(&cluster))?;
    // All APIs are served here, so the cause is `options`: the operator was installed without gangs.
    if let GangOf::Unserved(why) = &objects.gang {
        return Err(OfflineError::Problems(vec![why.clone()]));
    }
    values(&objects).map_err(OfflineError::Json)
}

/// The result of `validate`. Serialized for its JSON output.
#[derive(Debug, Default, Serialize)]
pub struct Judgement {
    /// MiniClusters that are valid by themselves. If the API server refused one of them, `problems` says so.
    pub miniclusters: Vec<Judged>,
    /// Notices about a file as a whole: it may not mean what its author wanted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Notice>,
    pub problems: Vec<Problem>,
}

/// A MiniCluster that is valid by itself.
#[derive(Debug, Serialize)]
pub struct Judged {
    pub name: String,
    /// Notices about fields that are valid, but may not have the effect that the author wanted.
    pub notes: Vec<Notice>,
    /// Kinds of the objects that were sent to the API server as a dry run, whether it accepted them or not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checked: Vec<&'static str>,
    /// What was not sent to the API server, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unchecked: Vec<String>,
}

impl Judged {
    pub fn of(cluster: &ValidMiniCluster) -> Judged {
        let notes = cluster.notices.iter().cloned().chain(cluster.hints()).collect();
        Judged {
            name: cluster.name.clone(),
            notes,
            checked: Vec::new(),
            unchecked: Vec::new(),
        }
    }

    /// Its lines for people.
    fn text(&self) -> String {
        let Judged {
            name,
            notes,
            checked,
            unchecked,
        } = self;
        let mut text: String = notes.iter().map(|note| format!("note: {note}\n")).collect();
        text += &format!("MiniCluster {name} is valid\n");
        if !checked.is_empty() {
            text += &format!(
                "the API server would accept MiniCluster {name}: {}\n",
                checked.join(", ")
            );
        }
        text.extend(unchecked.iter().map(|reason| format!("not checked: {reason}\n")));
        text
    }
}

impl Judgement {
    /// Text for people: lines for each valid MiniCluster and its notes. If there is any problem, the error has all, and
    /// the notes about the files, which may name their cause.
    pub fn text(self) -> Result<String, OfflineError> {
        if self.problems.is_empty() {
            let notes = self.notes.iter().map(|note| format!("note: {note}\n"));
            Ok(notes.chain(self.miniclusters.iter().map(Judged::text)).collect())
        } else {
            let notes = self
                .notes
                .iter()
                .map(|note| Problem::new("note", note.to_string()));
            Err(OfflineError::Problems(
                self.problems.into_iter().chain(notes).collect(),
            ))
        }
    }

    /// Joins the judgements of several files. If there are more than one, problems and notes about a file name theirs.
    pub fn of_files(found: Vec<(&Path, Judgement)>) -> Judgement {
        let has_several = found.len() > 1;
        let mut all = Judgement::default();
        for (
            file,
            Judgement {
                miniclusters,
                notes,
                problems,
            },
        ) in found
        {
            all.miniclusters.extend(miniclusters);
            // A note that has a field also names a line. So the field is left out.
            all.notes.extend(notes.into_iter().map(|note| {
                if has_several {
                    Notice::new(file.display().to_string(), note.message)
                } else {
                    note
                }
            }));
            all.problems
                .extend(problems.into_iter().map(|problem| match file.display() {
                    _ if !has_several => problem,
                    file if problem.field.is_empty() => Problem::new(file.to_string(), problem.message),
                    file => Problem::new(format!("{file}: {}", problem.field), problem.message),
                }));
        }
        all
    }
}

/// The MiniClusters in `text`, and a judgement with the notices about `text` as a whole. If `text` cannot be
/// read, there are no documents, and the judgement has the problems.
pub fn documents(text: &str) -> (Vec<Value>, Judgement) {
    let (documents, problems) = match manifest::documents(text) {
        Ok(documents) => (documents, Vec::new()),
        Err(problems) => (Vec::new(), problems),
    };
    let judgement = Judgement {
        notes: manifest::notices(text),
        problems,
        ..Judgement::default()
    };
    (documents, judgement)
}

/// Validates every MiniCluster in `text`.
pub fn judge(text: &str) -> Judgement {
    let (documents, mut all) = documents(text);
    for document in &documents {
        match parse_and_validate(document) {
            Ok((_, cluster)) => all.miniclusters.push(Judged::of(&cluster)),
            Err(found) => all.problems.extend(with_name(document, found, documents.len())),
        }
    }
    all
}

/// Adds the MiniCluster's name to its problems if it is one of several (`count`).
pub fn with_name(document: &Value, problems: Vec<Problem>, count: usize) -> Vec<Problem> {
    if count == 1 {
        return problems;
    }
    let name = document
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or("without a name");
    let with_name = |problem: Problem| {
        let mut place = format!("MiniCluster {name}");
        if !problem.field.is_empty() {
            place.push_str(": ");
            place.push_str(&problem.field);
        }
        Problem::new(place, problem.message)
    };
    problems.into_iter().map(with_name).collect()
}

/// Parses and validates one MiniCluster.
pub fn parse_and_validate(document: &Value) -> Result<(Manifest, ValidMiniCluster), Vec<Problem>> {
    let manifest = manifest::from_value(document)?;
    let cluster = validate_and_note(&manifest)?;
    Ok((manifest, cluster))
}

/// A certificate whose keys are all zero, so that rendering needs no secret. The operator generates the real one when
/// it creates the cluster.
pub fn placeholder(cluster: &ValidMiniCluster) -> Certificate {
    Certificate::from_keys(&cluster.name, &[0; 32], &[0; 32])
}

/// Every object, the Job after everything that its pods need. The contents of Secrets are redacted.
fn values(objects: &Objects) -> Result<Vec<Value>, serde_json::Error> {
    let Objects {
        config_map,
        secrets,
        volumes,
        network_policy,
        headless,
        services,
        gang,
        job,
        services_pod,
    } = objects;
    let mut values = vec![serde_json::to_value(config_map)?];
    for secret in secrets {
        values.push(serde_json::to_value(secret.redacted())?);
    }
    values.push(serde_json::to_value(headless)?);
    if let Some(policy) = network_policy {
        values.push(serde_json::to_value(policy)?);
    }
    for service in services {
        values.push(serde_json::to_value(service)?);
    }
    for rendered in volumes {
        values.extend([
            serde_json::to_value(&rendered.volume)?,
            serde_json::to_value(&rendered.claim)?,
        ]);
    }
    if let GangOf::Object(object) = gang {
        values.push(object.body.clone());
    }
    values.push(serde_json::to_value(job)?);
    if let Some(pod) = services_pod {
        values.push(serde_json::to_value(pod)?);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gang_is_rendered_or_refused_as_the_installation_would() {
        let manifest = |gang: &str| {
            format!(
                "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: mc}}\n\
                 spec: {{size: 2, gang: '{gang}', containers: [{{image: a, command: b}}]}}\n"
            )
        };
        let render = |gang: &str, is_installed: bool| {
            let options = Options {
                gang: is_installed,
                ..Options::default()
            };
            render(&manifest(gang), &options)
        };
        assert!(render("on", true).unwrap().contains("kind: PodGroup"));
        assert!(!render("auto", false).unwrap().contains("PodGroup"));
        let refusal = render("on", false).unwrap_err().to_string();
        assert!(
            refusal.starts_with("spec.gang: the operator was installed without gangs"),
            "{refusal}"
        );
    }

    #[test]
    fn problems_name_the_minicluster_when_a_file_has_several() {
        let document = |kind: &str, name: &str, size: u32| {
            format!(
                "apiVersion: flux-framework.org/v1alpha2\nkind: {kind}\nmetadata: {{name: {name}}}\n\
                 spec: {{size: {size}, containers: [{{image: a}}]}}\n---\n"
            )
        };
        let problems = |text: &str| judge(text).text().unwrap_err().to_string();
        let single = document("MiniCluster", "a", 0);
        assert_eq!(problems(&single), "spec.size: must be 1 to 10000");
        let several = document("MiniCluster", "a", 1)
            + &document("MiniCluster", "b", 0)
            + &document("Minicluster", "c", 0);
        let wanted = "MiniCluster b: spec.size: must be 1 to 10000\n\
                      MiniCluster c: kind: is `Minicluster`; did you mean MiniCluster?\n\
                      MiniCluster c: spec.size: must be 1 to 10000";
        assert_eq!(problems(&several), wanted);
    }

    #[test]
    fn note_about_a_doubled_key_comes_with_its_problems() {
        let head = "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {name: a}\n";
        let text = format!("{head}spec: {{containers: [{{image: a}}]}}\nspec: {{size: 2}}\n");
        let wanted = "note: line 5 column 1: duplicate mapping key: spec: only the last of them counts";
        for found in [
            judge(&text).text().unwrap_err().to_string(),
            judge(&format!("{text}kind: Pod\n"))
                .text()
                .unwrap_err()
                .to_string(),
        ] {
            let (problem, note) = found.rsplit_once('\n').unwrap();
            assert!(!problem.contains("note: ") && note == wanted, "{found}");
        }
        assert_eq!(format!("note: {}", text_notices(&text)[0]), wanted);
    }
}
