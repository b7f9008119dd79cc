//! The Flux RESTful API as the lead's initial program. Inside the instance, the agent fetches and starts it.

use flux_shared::agent_spec::{Program, Restful};
use flux_shared::command_words::{self, Word};
use flux_shared::paths::{RESTFUL_DIR, RESTFUL_SECRET_KEY, RESTFUL_TOKEN, RESTFUL_USERNAME, USERS_DIR};

use super::{Content, Mode, Resolved, Step};

/// The settings of the RESTful API, if this pod is the lead and runs it.
pub fn wanted<'a>(resolved: &'a Resolved) -> Option<&'a Restful> {
    let runner = &resolved.spec.runner;
    // The server is an initial program. So it needs a lead that has no other, and an interactive lead starts none.
    let can_run = runner.program == Program::Persistent && !runner.interactive && resolved.is_lead();
    if can_run { runner.restful.as_ref() } else { None }
}

/// Copies of the mounted Secrets that the server needs, readable by its user.
pub fn files(resolved: &Resolved) -> Vec<Step> {
    if wanted(resolved).is_none() {
        return Vec::new();
    }
    let owner = resolved.identity.owner;
    let folder = resolved.paths.restful_dir();
    let mut steps = vec![
        Step::Directory {
            path: folder.clone(),
            mode: Mode(0o700),
            owner,
        },
        Step::Directory {
            path: format!("{folder}/users"),
            mode: Mode(0o700),
            owner,
        },
    ];
    let keys = [RESTFUL_SECRET_KEY, RESTFUL_USERNAME, RESTFUL_TOKEN];
    // Path of each copy, and of the file in the mounted Secret.
    let server_files = keys.map(|key| (format!("{folder}/{key}"), format!("{RESTFUL_DIR}/{key}")));
    let user_files = resolved
        .spec
        .users
        .iter()
        .map(|name| (format!("{folder}/users/{name}"), format!("{USERS_DIR}/{name}")));
    steps.extend(server_files.into_iter().chain(user_files).map(|(path, source)| {
        let content = Content::Secret { source };
        Step::File {
            path,
            mode: Mode(0o400),
            owner,
            content,
        }
    }));
    steps
}

/// The words of the initial program.
pub fn words(resolved: &Resolved, restful: &Restful) -> Vec<Word> {
    let size = resolved.hosts.size();
    let mut words = vec![
        resolved.paths.agent(),
        "restful".into(),
        format!("--directory={}", resolved.paths.restful_dir()),
        format!("--repository={}", restful.repository),
        format!("--branch={}", restful.branch),
        format!("--port={}", restful.port),
        format!("--nodes={size}"),
    ];
    if let Some(commit) = restful.commit() {
        words.push(format!("--commit={commit}"));
    }
    if !resolved.spec.flux.option_flags.is_empty() {
        words.push(format!(
            "--option-flags={}",
            command_words::join(&resolved.spec.flux.option_flags)
        ));
    }
    words.extend(resolved.spec.users.iter().map(|name| format!("--user={name}")));
    words.into_iter().map(Word::Literal).collect()
}

#[cfg(test)]
mod tests {
    use flux_shared::agent_spec::{AgentSpec, RESTFUL_COMMIT};

    use super::*;
    use crate::facts::Facts;

    /// The server splits the flags as a shell would.
    #[test]
    fn option_flags_for_the_restful_api_keep_their_quotes() {
        let spec =
            AgentSpec::from_toml("name='mc'\n[flux]\noption_flags=['--env=A=1 2', '-ompi=none']\n").unwrap();
        let facts = Facts::default();
        let words = words(&Resolved::new(&spec, &facts).unwrap(), &Restful::default());
        let want = Word::literal("--option-flags='--env=A=1 2' -ompi=none");
        assert!(words.contains(&want), "{words:?}");
    }

    /// The server rejects a job that asks for more nodes.
    #[test]
    fn restful_server_counts_hosts_that_may_join_later() {
        let nodes = |text: &str| {
            let spec = AgentSpec::from_toml(&format!("name='mc'\n{text}")).unwrap();
            let facts = Facts::default();
            let resolved = Resolved::new(&spec, &facts).unwrap();
            let words = words(&resolved, &Restful::default());
            let nodes = words.iter().find_map(|word| match word {
                Word::Literal(text) => text.strip_prefix("--nodes="),
                _ => None,
            });
            nodes.unwrap().to_owned()
        };
        assert_eq!(nodes("size=2"), "2");
        assert_eq!(nodes("size=2\nmax_size=8"), "8");
        assert_eq!(nodes("size=2\n[network]\nhostlist='mc-[0-1],burst-0-[0-3]'"), "6");
    }

    #[test]
    fn default_branch_of_the_restful_api_is_pinned() {
        let spec = AgentSpec::from_toml("name='mc'\n").unwrap();
        let facts = Facts::default();
        let resolved = Resolved::new(&spec, &facts).unwrap();
        let has = |restful: &Restful, word: &str| words(&resolved, restful).contains(&Word::literal(word));
        let pin = format!("--commit={RESTFUL_COMMIT}");
        let default = Restful::default();
        assert!(has(&default, "--branch=main") && has(&default, "--port=5000") && has(&default, &pin));
        let mirror = Restful {
            repository: "https://mirror.example.com/api".into(),
            ..Restful::default()
        };
        assert!(has(&mirror, &pin));
        let chosen = Restful {
            branch: "develop".into(),
            ..Restful::default()
        };
        assert!(!has(&chosen, &pin), "a branch that the user chose");
    }
}
