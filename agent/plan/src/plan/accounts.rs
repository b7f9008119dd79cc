//! Creates the users of `spec.users` on every pod: entries in the password files, a home, and a password.

use std::collections::BTreeSet;

use flux_shared::command_words::Word;
use flux_shared::paths::USERS_DIR;

use super::identity::{Account, account_by, group_id};
use super::{Owner, Resolved, Step, user};
use crate::known_paths::home_of;

/// The first uid to try for a user that the image lacks. 1000 is left out: it is the usual uid of Flux's user.
const FIRST_UID: u32 = 1001;

/// The path of the file with a user's password, in the mounted Secret.
fn password_file(name: &str) -> String {
    format!("{USERS_DIR}/{name}")
}

/// Why the spec's users are not created, or not added to Flux Accounting.
pub fn notice(resolved: &Resolved) -> Option<String> {
    if resolved.spec.users.is_empty() {
        return None;
    }
    let users = resolved.spec.users.join(", ");
    let uid = resolved.facts.uid;
    if uid != 0 {
        return Some(format!(
            "the container runs as uid {uid}, so the users {users} cannot be created"
        ));
    }
    // The lead adds the users to Flux Accounting.
    if !resolved.is_lead() {
        return None;
    }
    if resolved.spec.runner.is_left_to_users() {
        return Some(format!(
            "the users {users} are not added to Flux Accounting: the cluster is interactive"
        ));
    }
    if !resolved.facts.flux_accounting {
        return Some(format!(
            "the users {users} are not added to Flux Accounting: the image does not have it"
        ));
    }
    super::program::initial(resolved)
        .is_none()
        .then(|| format!("the users {users} are not added to Flux Accounting: the lead runs no program"))
}

/// The lead's initial program. If users can be added to Flux Accounting, it is wrapped in `flux-agent accounting`,
/// which adds them first.
pub fn with_accounting(resolved: &Resolved, program: Vec<Word>) -> Vec<Word> {
    let users = &resolved.spec.users;
    if users.is_empty() || resolved.facts.uid != 0 || !resolved.facts.flux_accounting {
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

/// The users that the image lacks, with the uids that they get.
///
/// /home may be a volume with the homes of earlier MiniClusters, whose users had other uids. So a user gets the uid
/// that owns the home of that name, if it is free and not below [`FIRST_UID`]. Otherwise it gets one that owns no home.
fn new_accounts(resolved: &Resolved) -> Vec<Account> {
    let facts = resolved.facts;
    if facts.uid != 0 {
        return Vec::new();
    }
    let mut planned_uids: Vec<u32> = resolved.spec.runner.user.iter().map(|user| user.uid).collect();
    // /home may have very many folders.
    let home_owners: BTreeSet<u32> = facts.home_owners.values().copied().collect();
    let is_missing = |name: &&String| account_by(&facts.passwd, |account, _| account == *name).is_none();
    let names = resolved.spec.users.iter().filter(is_missing);
    names
        .map(|name| {
            let home = home_of(name);
            // Whether no user and no group has this id: a new group of the user gets the same id.
            let is_free = |id: &u32| {
                !planned_uids.contains(id)
                    && account_by(&facts.passwd, |_, uid| uid == *id).is_none()
                    && !facts
                        .group
                        .lines()
                        .any(|line| line.split(':').nth(2) == Some(&id.to_string()))
            };
            let owner = facts.home_owners.get(&home).copied();
            let uid = owner
                .filter(|uid| *uid >= FIRST_UID && is_free(uid))
                .or_else(|| (FIRST_UID..).find(|id| !home_owners.contains(id) && is_free(id)))
                .unwrap_or(FIRST_UID);
            planned_uids.push(uid);
            Account {
                name: name.clone(),
                home,
                owner: Owner {
                    uid,
                    gid: group_id(&facts.group, name).unwrap_or(uid),
                },
            }
        })
        .collect()
}

/// The users whose home exists, but belongs to somebody else.
pub fn home_notices(resolved: &Resolved) -> Vec<String> {
    let notice = |Account { name, home, owner }: Account| {
        // If root owns the home, another pod may have just created it, and will give it to the user next.
        let found = *resolved.facts.home_owners.get(&home)?;
        (found != 0 && found != owner.uid).then(|| {
            format!(
                "{home} belongs to uid {found}, but {name} gets uid {}: {found} is below {FIRST_UID}, or another user or group of this pod has it. Change the owner of {home}, or use an image without this id",
                owner.uid
            )
        })
    };
    new_accounts(resolved).into_iter().filter_map(notice).collect()
}

/// The steps that create the users and set their passwords. Only root can do that.
pub fn steps(resolved: &Resolved) -> Vec<Step> {
    if resolved.facts.uid != 0 {
        return Vec::new();
    }
    let accounts = new_accounts(resolved);
    let mut steps = Vec::new();
    for name in &resolved.spec.users {
        if let Some(account) = accounts.iter().find(|account| account.name == *name) {
            steps.extend(user::creation(resolved.facts, account));
        }
        steps.push(Step::Password {
            user: name.clone(),
            source: password_file(name),
        });
    }
    steps
}

#[cfg(test)]
mod tests {
    use flux_shared::agent_spec::{AgentSpec, Program};

    use super::*;
    use crate::facts::Facts;

    fn spec() -> AgentSpec {
        let text = "name='mc'\nusers=['ada','old','bob']\n[view]\nenabled=false\n[runner.user]\nname='flux'\nuid=1002\n";
        AgentSpec::from_toml(text).unwrap()
    }

    fn facts() -> Facts {
        Facts {
            passwd: "root:x:0:0::/root:/bin/sh\nold:x:1001:1001::/home/old:/bin/sh\n".into(),
            group: "root:x:0:\nold:x:1001:\nstaff:x:1003:\n".into(),
            flux_on_path: Some("/usr/bin/flux".into()),
            ..Facts::default()
        }
    }

    fn facts_with_accounting() -> Facts {
        Facts {
            flux_accounting: true,
            ..facts()
        }
    }

    #[test]
    fn new_users_get_free_ids_and_every_user_a_password() {
        let (spec, facts) = (spec(), facts());
        let steps = steps(&Resolved::new(&spec, &facts).unwrap());
        let created: Vec<(&str, u32)> = steps
            .iter()
            .filter_map(|step| match step {
                Step::User { name, uid, .. } => Some((name.as_str(), *uid)),
                _ => None,
            })
            .collect();
        assert_eq!(created, [("ada", 1004), ("bob", 1005)]);
        let passwords: Vec<(&str, &str)> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Password { user, source } => Some((user.as_str(), source.as_str())),
                _ => None,
            })
            .collect();
        let files = ["ada", "old", "bob"].map(password_file);
        assert_eq!(
            passwords,
            [
                ("ada", files[0].as_str()),
                ("old", files[1].as_str()),
                ("bob", files[2].as_str())
            ]
        );
    }

    /// The uids that new users get, and the notices. `owners`: the names of the folders in /home, and their owners.
    fn uids(users: &[&str], owners: &[(&str, u32)], passwd: &str) -> (Vec<(String, u32)>, Vec<String>) {
        let mut spec = AgentSpec::from_toml("name='mc'\n[view]\nenabled=false\n").unwrap();
        spec.users = users.iter().map(|name| (*name).to_owned()).collect();
        let facts = Facts {
            passwd: passwd.into(),
            home_owners: owners.iter().map(|(name, uid)| (home_of(name), *uid)).collect(),
            flux_on_path: Some("/usr/bin/flux".into()),
            ..Facts::default()
        };
        let resolved = Resolved::new(&spec, &facts).unwrap();
        let created = steps(&resolved).into_iter().filter_map(|step| match step {
            Step::User { name, uid, .. } => Some((name, uid)),
            _ => None,
        });
        (created.collect(), home_notices(&resolved))
    }

    #[test]
    fn user_gets_the_uid_that_owns_the_home_of_that_name() {
        for (users, owners, want) in [
            (&["grace"][..], &[("grace", 1002)][..], &[1002][..]),
            (&["grace"], &[("grace", 1002), ("ada", 1001)], &[1002]),
            (
                &["grace", "ada"],
                &[("grace", 1002), ("ada", 1001)],
                &[1002, 1001],
            ),
            (&["ada", "grace"], &[("grace", 1001)], &[1002, 1001]),
            // The home of a user who is not listed.
            (&["grace"], &[("ada", 1001)], &[1002]),
            // Another pod has created the home, and not yet given it to the user.
            (&["grace"], &[("grace", 0)], &[1001]),
        ] {
            let (created, notices) = uids(users, owners, "");
            let created: Vec<u32> = created.into_iter().map(|(_, uid)| uid).collect();
            assert_eq!(created, want, "{users:?} {owners:?}");
            assert_eq!(notices, [""; 0], "{users:?} {owners:?}");
        }
    }

    #[test]
    fn home_with_an_unusable_uid_is_noticed_and_another_is_given() {
        for (owner, passwd) in [(1001, "rocky:x:1001:1001::/home/rocky:/bin/sh\n"), (1000, "")] {
            let (created, notices) = uids(&["grace"], &[("grace", owner), ("ada", 1002)], passwd);
            let want = if owner == 1001 { 1003 } else { 1001 };
            assert_eq!(created, [("grace".to_owned(), want)]);
            let expected = format!("/home/grace belongs to uid {owner}, but grace gets uid {want}");
            assert!(
                notices.len() == 1 && notices[0].starts_with(&expected),
                "{notices:?}"
            );
        }
    }

    #[test]
    fn container_that_is_not_root_creates_no_users_and_says_so() {
        let spec = spec();
        let facts = Facts {
            uid: 1000,
            ..facts_with_accounting()
        };
        let resolved = Resolved::new(&spec, &facts).unwrap();
        assert!(steps(&resolved).is_empty() && notice(&resolved).unwrap().contains("cannot be created"));
        let program = vec![Word::literal("run")];
        assert_eq!(with_accounting(&resolved, program.clone()), program);
    }

    #[test]
    fn image_without_accounting_runs_the_program_alone_and_says_so() {
        let (spec, facts) = (spec(), facts());
        let resolved = Resolved::new(&spec, &facts).unwrap();
        assert!(notice(&resolved).unwrap().contains("does not have it"));
        let program = vec![Word::literal("run")];
        assert_eq!(with_accounting(&resolved, program.clone()), program);
    }

    #[test]
    fn interactive_diagnostics_give_no_accounting_notice() {
        let facts = facts_with_accounting();
        let notice_of = |program: Program| {
            let mut spec = spec();
            spec.runner.interactive = true;
            spec.runner.program = program;
            notice(&Resolved::new(&spec, &facts).unwrap())
        };
        assert_eq!(notice_of(Program::Diagnostics), None);
        assert!(notice_of(Program::Persistent).unwrap().contains("is interactive"));
    }

    #[test]
    fn lead_without_a_program_adds_no_users_and_says_so() {
        let mut spec = spec();
        spec.runner.program = Program::Persistent;
        let facts = facts_with_accounting();
        let resolved = Resolved::new(&spec, &facts).unwrap();
        assert!(notice(&resolved).unwrap().contains("runs no program"));
    }

    #[test]
    fn image_with_accounting_adds_the_users_before_the_program() {
        let (mut spec, facts) = (spec(), facts_with_accounting());
        spec.runner.program = Program::Submit {
            words: vec![Word::literal("run")],
        };
        let resolved = Resolved::new(&spec, &facts).unwrap();
        assert_eq!(notice(&resolved), None);
        let words: Vec<String> = with_accounting(&resolved, vec![Word::literal("run")])
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
