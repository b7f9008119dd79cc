//! The users of `spec.users`, on every pod: entries in the password files, a home, and a password.

use flux_shared::command_words::Word;
use flux_shared::paths::USERS_DIR;

use super::identity::{account_by, group_id};
use super::{Mode, Owner, Resolved, Step};
use crate::known_paths::{accounting_of, home_of};

/// The first id for users that the image does not have: after the one that is usual for Flux.
const FIRST_ID: u32 = 1001;

/// The file with a user's password, in the mounted Secret.
fn password_of(name: &str) -> String {
    format!("{USERS_DIR}/{name}")
}

/// Why the spec's users are not created, or not added to Flux Accounting.
pub fn notice(resolved: &Resolved) -> Option<String> {
    let users = &resolved.spec.users;
    match (users.is_empty(), resolved.facts.uid) {
        (true, _) => None,
        (false, 0) if resolved.is_lead() && resolved.spec.runner.interactive => Some(format!(
            "the users {} are not added to Flux Accounting: the cluster is interactive",
            users.join(", ")
        )),
        (false, 0) if resolved.is_lead() && !has_accounting(resolved) => Some(format!(
            "the users {} are not added to Flux Accounting: the image does not have it",
            users.join(", ")
        )),
        (false, 0) => None,
        (false, uid) => Some(format!(
            "the container runs as uid {uid}, so the users {} cannot be created",
            users.join(", ")
        )),
    }
}

fn has_accounting(resolved: &Resolved) -> bool {
    let flux = resolved.flux().ok();
    flux.and_then(|flux| accounting_of(&flux))
        .is_some_and(|command| resolved.facts.is_present(&command))
}

/// The lead's initial program, after the users were added to Flux Accounting if the image has it.
pub fn with_accounting(resolved: &Resolved, program: Vec<Word>) -> Vec<Word> {
    let users = &resolved.spec.users;
    if users.is_empty() || resolved.facts.uid != 0 || !has_accounting(resolved) {
        return program;
    }
    let database = format!("--database={}/FluxAccounting.db", resolved.paths.state_dir());
    let users = users.iter().map(|user| format!("--user={user}"));
    let words = [resolved.paths.agent(), "accounting".into(), database]
        .into_iter()
        .chain(users)
        .chain(["--".into()]);
    words.map(Word::Literal).chain(program).collect()
}

pub fn steps(resolved: &Resolved) -> Vec<Step> {
    if resolved.facts.uid != 0 {
        return Vec::new();
    }
    let mut taken: Vec<u32> = resolved.spec.runner.user.iter().map(|user| user.uid).collect();
    resolved
        .spec
        .users
        .iter()
        .flat_map(|name| of_user(resolved, name, &mut taken))
        .collect()
}

fn of_user(resolved: &Resolved, name: &str, taken: &mut Vec<u32>) -> Vec<Step> {
    let facts = resolved.facts;
    let mut steps = Vec::new();
    if account_by(&facts.passwd, |known, _| known == name).is_none() {
        let is_free = |id: &u32| {
            !taken.contains(id)
                && account_by(&facts.passwd, |_, uid| uid == *id).is_none()
                && !facts
                    .group
                    .lines()
                    .any(|line| line.split(':').nth(2) == Some(&id.to_string()))
        };
        let uid = (FIRST_ID..).find(is_free).unwrap_or(FIRST_ID);
        taken.push(uid);
        let owner = Owner {
            uid,
            gid: group_id(&facts.group, name).unwrap_or(uid),
        };
        let home = home_of(name);
        if !facts.is_present(&home) {
            let step = Step::Directory {
                path: home.clone(),
                mode: Mode(0o755),
                owner,
            };
            steps.push(step);
        }
        let step = Step::User {
            name: name.to_owned(),
            uid,
            gid: owner.gid,
            home,
        };
        steps.push(step);
    }
    let step = Step::Password {
        user: name.to_owned(),
        source: password_of(name),
    };
    steps.push(step);
    steps
}

#[cfg(test)]
mod tests {
    use flux_shared::agent_spec::AgentSpec;

    use super::*;
    use crate::facts::Facts;

    #[test]
    fn users_get_free_ids_and_those_that_the_image_has_keep_theirs() {
        let spec = "name='mc'\nusers=['ada','old','bob']\n[runner.user]\nname='flux'\nuid=1002\n";
        let spec = AgentSpec::from_toml(spec).unwrap();
        let facts = Facts {
            passwd: "root:x:0:0::/root:/bin/sh\nold:x:1001:1001::/home/old:/bin/sh\n".into(),
            group: "root:x:0:\nold:x:1001:\nstaff:x:1003:\n".into(),
            ..Facts::default()
        };
        let resolved = Resolved::new(&spec, &facts).unwrap();
        let made: Vec<(String, u32)> = steps(&resolved)
            .into_iter()
            .filter_map(|step| match step {
                Step::User { name, uid, .. } => Some((name, uid)),
                _ => None,
            })
            .collect();
        assert_eq!(made, [("ada".to_owned(), 1004), ("bob".to_owned(), 1005)]);
        let passwords = steps(&resolved)
            .iter()
            .filter(|it| matches!(it, Step::Password { .. }))
            .count();
        assert_eq!(passwords, 3);
        let program = vec![Word::literal("run")];
        assert_eq!(with_accounting(&resolved, program.clone()), program);
        let mut other = Facts {
            uid: 1000,
            ..facts.clone()
        };
        other.present.extend(accounting_of("/usr/bin/flux"));
        let resolved = Resolved::new(&spec, &other).unwrap();
        assert!(steps(&resolved).is_empty() && notice(&resolved).unwrap().contains("cannot be created"));
        let mut with = Facts {
            flux_on_path: Some("/usr/bin/flux".into()),
            ..facts
        };
        let spec = AgentSpec {
            view: flux_shared::agent_spec::View {
                enabled: false,
                ..spec.view.clone()
            },
            ..spec
        };
        assert!(
            notice(&Resolved::new(&spec, &with).unwrap())
                .unwrap()
                .contains("does not have it")
        );
        with.present.extend(accounting_of("/usr/bin/flux"));
        let resolved = Resolved::new(&spec, &with).unwrap();
        assert_eq!(notice(&resolved), None);
        let words: Vec<String> = with_accounting(&resolved, program)
            .iter()
            .map(|word| word.resolve(|_| None))
            .collect();
        assert_eq!(
            words[1..3],
            [
                "accounting",
                "--database=/mnt/flux/config/var/lib/flux/FluxAccounting.db"
            ]
        );
        assert_eq!(
            words[3..],
            ["--user=ada", "--user=old", "--user=bob", "--", "run"]
        );
    }
}
