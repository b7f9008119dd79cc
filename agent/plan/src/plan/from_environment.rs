//! Options of `flux-agent run` that describe its job, for jobs for which no operator writes a spec: a JobSet, a
//! TrainJob, a plain Job.
//!
//! ```text
//! (command line, environment) ─► AgentSpec, key
//! ```
//!
//! The command line has the names of environment variables instead of values, so that one pod template serves any
//! number of jobs. The values come from labels (the downward API) or from the controller.

use std::collections::BTreeMap;
use std::path::PathBuf;

use flux_shared::agent_spec::{AgentSpec, Program};
use flux_shared::command_words::Word;
use flux_shared::paths::SEED_FILE;

use super::PlanError;
use crate::facts::KeyInputs;

type Environment = BTreeMap<String, String>;

/// The text in place of a spec file, if the command line names the cluster. 0 tasks: one task on each node.
const SPEC_WITHOUT_FILE: &str = "tasks = 0";

/// Names of variables, and the program.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct FromEnvironment {
    /// Variable with the cluster's name: that of the Job, whose pods have host names `<name>-<index>`
    #[arg(long, value_name = "NAME")]
    name_from_env: Option<String>,
    /// Variable with the lead's host name, `<name>-0.<service>`, which gives the cluster's name and service
    #[arg(long, value_name = "NAME", conflicts_with_all = ["name_from_env", "service_from_env"])]
    lead_from_env: Option<String>,
    /// Variable with the pods' subdomain, the name of their headless Service
    #[arg(long, value_name = "NAME")]
    service_from_env: Option<String>,
    /// Variable with the pods' namespace
    #[arg(long, value_name = "NAME")]
    namespace_from_env: Option<String>,
    /// Variable with the number of pods
    #[arg(long, value_name = "NAME")]
    size_from_env: Option<String>,
    /// Derive the curve certificate from a mounted seed and the values of these variables: the job's uid, and
    /// the number of the attempt if restarts keep the uid [default: a certificate is mounted]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    key_from_env: Vec<String>,
    /// With --key-from-env: file with the seed, at least 32 secret random bytes [default:
    /// /etc/flux-agent/seed/seed]
    #[arg(long, value_name = "FILE", requires = "key_from_env")]
    seed: Option<PathBuf>,
    /// The program of the container that runs Flux, in place of the spec's; passed as it is, without a shell
    #[arg(last = true, value_name = "CMD")]
    words: Vec<String>,
}

impl FromEnvironment {
    /// Whether no option is given.
    pub fn is_empty(&self) -> bool {
        *self == FromEnvironment::default()
    }

    /// Whether the command line has a program.
    pub fn is_program_given(&self) -> bool {
        !self.words.is_empty()
    }

    /// The spec's text if no `--spec` is given. None: the options give no name, so a spec file is needed.
    pub fn in_place_of_spec(&self) -> Option<&'static str> {
        (self.name_from_env.is_some() || self.lead_from_env.is_some()).then_some(SPEC_WITHOUT_FILE)
    }

    /// Applies the options to `spec`.
    pub fn apply_to(&self, spec: &mut AgentSpec, environment: &Environment) -> Result<(), PlanError> {
        let optional_value = |option, name: &Option<String>| -> Result<Option<String>, PlanError> {
            let Some(name) = name else { return Ok(None) };
            value(option, name, environment).map(|text| Some(text.to_owned()))
        };
        if let Some(variable) = &self.lead_from_env {
            (spec.name, spec.network.service) = name_and_service(variable, environment)?;
        }
        if let Some(name) = optional_value("--name-from-env", &self.name_from_env)? {
            spec.name = name;
        }
        if let Some(service) = optional_value("--service-from-env", &self.service_from_env)? {
            spec.network.service = service;
        }
        if let Some(namespace) = optional_value("--namespace-from-env", &self.namespace_from_env)? {
            spec.namespace = namespace;
        }
        if let Some(variable) = &self.size_from_env {
            spec.size = size(variable, environment)?;
        }
        if !self.words.is_empty() {
            let words = self.words.iter().map(Word::literal).collect();
            // The spec still decides whether the program is submitted or started as it is.
            spec.runner.program = match spec.runner.program {
                Program::Launcher { .. } | Program::Script { launch: true, .. } => {
                    Program::Launcher { words }
                }
                _ => Program::Submit { words },
            };
        }
        Ok(())
    }

    /// What the curve certificate is derived from. None: `--key-from-env` is not given.
    pub fn key(&self, environment: &Environment) -> Result<Option<KeyInputs>, PlanError> {
        if self.key_from_env.is_empty() {
            return Ok(None);
        }
        let job_values = self
            .key_from_env
            .iter()
            .map(|name| value("--key-from-env", name, environment).map(str::to_owned));
        let seed_file = self
            .seed
            .as_ref()
            .map_or(SEED_FILE.into(), |path| path.to_string_lossy().into_owned());
        Ok(Some(KeyInputs {
            seed_file,
            job_values: job_values.collect::<Result<_, _>>()?,
        }))
    }
}

/// A variable's value without blanks around it. An unset or empty variable is an error that names `option`.
fn value<'a>(option: &'static str, name: &str, environment: &'a Environment) -> Result<&'a str, PlanError> {
    let found = environment
        .get(name)
        .map(|value| value.trim())
        .filter(|value| !value.is_empty());
    found.ok_or_else(|| {
        variable_error(
            option,
            name,
            if environment.contains_key(name) {
                "it is empty"
            } else {
                "it is not set"
            },
        )
    })
}

fn variable_error(option: &'static str, variable: &str, why: &str) -> PlanError {
    PlanError::Variable {
        option,
        variable: variable.to_owned(),
        why: why.to_owned(),
    }
}

fn size(variable: &str, environment: &Environment) -> Result<u32, PlanError> {
    let text = value("--size-from-env", variable, environment)?;
    text.parse().map_err(|_| {
        variable_error(
            "--size-from-env",
            variable,
            &format!("`{text}` is not a number of pods"),
        )
    })
}

/// The cluster's name and its service, from the lead's host name `<name>-0.<service>`. The rest of a
/// full DNS name may follow.
fn name_and_service(variable: &str, environment: &Environment) -> Result<(String, String), PlanError> {
    let text = value("--lead-from-env", variable, environment)?;
    let mut parts = text.split('.');
    let name = parts
        .next()
        .and_then(|host| host.strip_suffix("-0"))
        .filter(|name| !name.is_empty());
    match (name, parts.next().filter(|service| !service.is_empty())) {
        (Some(name), Some(service)) => Ok((name.to_owned(), service.to_owned())),
        _ => Err(variable_error(
            "--lead-from-env",
            variable,
            &format!("`{text}` is not `<name>-0.<service>`"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: FromEnvironment,
    }

    fn options(words: &[&str]) -> FromEnvironment {
        Line::try_parse_from(["run"].iter().chain(words)).unwrap().options
    }

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn spec(text: &str, words: &[&str], pairs: &[(&str, &str)]) -> Result<AgentSpec, String> {
        let mut spec = AgentSpec::unchecked(text).unwrap();
        options(words)
            .apply_to(&mut spec, &environment(pairs))
            .map_err(|error| error.to_string())?;
        spec.check().map(|()| spec).map_err(|error| error.to_string())
    }

    #[test]
    fn labels_and_the_size_make_a_spec_without_a_file() {
        let words = [
            "--name-from-env=JOB",
            "--service-from-env=SET",
            "--namespace-from-env=NS",
            "--size-from-env=N",
        ];
        let pairs = [
            ("JOB", "train-node-0"),
            ("SET", "train"),
            ("NS", "team"),
            ("N", " 4\n"),
        ];
        let found = spec(options(&words).in_place_of_spec().unwrap(), &words, &pairs).unwrap();
        assert_eq!(
            (found.hostlist().as_str(), found.namespace.as_str()),
            ("train-node-0-[0-3]", "team")
        );
        assert_eq!(
            (found.network.service.as_str(), found.size, found.tasks),
            ("train", 4, 0)
        );
        assert_eq!(
            options(&["--size-from-env=N"]).in_place_of_spec(),
            None,
            "without a name a spec is needed"
        );
    }

    #[test]
    fn the_leads_host_name_tells_name_and_service() {
        let found = |lead: &str| spec("", &["--lead-from-env=ADDR"], &[("ADDR", lead)]);
        for lead in ["job-node-0-0.job", "job-node-0-0.job.team.svc.cluster.local"] {
            let found = found(lead).unwrap();
            assert_eq!(
                (found.name.as_str(), found.network.service.as_str()),
                ("job-node-0", "job"),
                "{lead}"
            );
        }
        for bad in ["10.0.0.1", "job-node-0-1.job", "job-0", "-0.job", "job-0."] {
            let why = found(bad).unwrap_err();
            assert!(why.contains("--lead-from-env ADDR") && why.contains(bad), "{why}");
        }
    }

    #[test]
    fn unset_or_bad_variable_is_an_error_with_its_cause() {
        let words = ["--name-from-env=JOB", "--size-from-env=N"];
        for (pairs, why) in [
            (
                &[("N", "2")][..],
                "failed to use --name-from-env JOB: it is not set",
            ),
            (
                &[("JOB", " "), ("N", "2")],
                "failed to use --name-from-env JOB: it is empty",
            ),
            (
                &[("JOB", "a"), ("N", "two")],
                "failed to use --size-from-env N: `two` is not a number of pods",
            ),
            (
                &[("JOB", "a"), ("N", "0")],
                "the spec's size is invalid: use 1 to 65536",
            ),
            (
                &[("JOB", "A b"), ("N", "1")],
                "the spec's name is invalid: use at most 63 lower case letters, digits and `-`, with no `-` at either end",
            ),
        ] {
            assert_eq!(spec("", &words, pairs).unwrap_err(), why);
        }
        assert!(
            options(&["--key-from-env=UID"])
                .key(&environment(&[("UID", "")]))
                .is_err()
        );
    }

    #[test]
    fn the_program_is_words_as_they_were_given() {
        let words = ["--", "sh", "-c", "echo \"$HOME\" 'a  b'", ""];
        let literal: Vec<Word> = words[1..].iter().map(|word| Word::literal(*word)).collect();
        let found = |text: &str| {
            spec(&format!("name = 'a'\n{text}"), &words, &[])
                .unwrap()
                .runner
                .program
        };
        assert_eq!(
            found(""),
            Program::Submit {
                words: literal.clone()
            }
        );
        assert_eq!(
            found("[runner.program]\nmode = 'script'\ntext = 'x'"),
            Program::Submit {
                words: literal.clone()
            }
        );
        for launcher in [
            "mode = 'launcher'\nwords = []",
            "mode = 'script'\ntext = 'x'\nlaunch = true",
        ] {
            assert_eq!(
                found(&format!("[runner.program]\n{launcher}")),
                Program::Launcher {
                    words: literal.clone()
                }
            );
        }
        let kept = spec("name = 'a'\n[runner.program]\nmode = 'diagnostics'", &[], &[]).unwrap();
        assert_eq!(kept.runner.program, Program::Diagnostics);
    }

    #[test]
    fn key_has_the_values_in_order_and_only_names_the_seed() {
        let pairs = environment(&[("UID", "1-2"), ("ATTEMPT", "0")]);
        let key = |words: &[&str]| options(words).key(&pairs).unwrap();
        assert_eq!(key(&[]), None);
        let job_values = vec!["1-2".to_owned(), "0".to_owned()];
        assert_eq!(
            key(&["--key-from-env=UID,ATTEMPT"]),
            Some(KeyInputs {
                seed_file: SEED_FILE.into(),
                job_values: job_values.clone()
            })
        );
        let other = key(&["--key-from-env=UID,ATTEMPT", "--seed=/other"]);
        assert_eq!(
            other,
            Some(KeyInputs {
                seed_file: "/other".into(),
                job_values
            })
        );
        assert!(
            options(&[]).is_empty()
                && !options(&["--", "x"]).is_empty()
                && !options(&["--key-from-env=A"]).is_empty()
        );
    }
}
