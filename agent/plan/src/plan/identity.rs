//! The user that Flux runs as: the container's own, or the one that the spec names.

use flux_shared::agent_spec::RunnerUser;

use super::Owner;
use crate::facts::Facts;
use crate::known_paths::home_of;

/// The user that Flux runs as, and how the agent changes to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// Its uid and gid, and the owner of the files that it may change.
    pub owner: Owner,
    /// The account that Flux changes to. None: Flux stays the container's user.
    pub run_as: Option<Account>,
    /// The account to create first, since the image does not have it.
    pub create: Option<Account>,
    /// A notice about the choice.
    pub notice: Option<String>,
}

/// An entry of the password file.
#[derive(Debug, Clone, PartialEq)]
pub struct Account {
    pub name: String,
    pub home: String,
    /// Its uid and gid.
    pub owner: Owner,
}

impl Identity {
    /// The user that the spec names, if the agent may change to it, else the container's own. With
    /// `run_flux_as_root`, the named user is created, and Flux stays root.
    pub fn of(wanted: Option<&RunnerUser>, facts: &Facts) -> Identity {
        let container_user = Owner {
            uid: facts.uid,
            gid: facts.gid,
        };
        let mut identity = Identity {
            owner: container_user,
            run_as: None,
            create: None,
            notice: None,
        };
        let Some(user) = wanted else { return identity };
        let found = account_by(&facts.passwd, |name, _| name == user.name);
        let account = found.clone().unwrap_or_else(|| Account {
            name: user.name.clone(),
            home: home_of(&user.name),
            owner: Owner {
                uid: user.uid,
                gid: group_id(&facts.group, &user.name).unwrap_or(user.uid),
            },
        });
        let may_change_user = facts.uid == 0;
        if !may_change_user {
            if account.owner.uid != facts.uid {
                identity.notice = Some(format!(
                    "the container runs as uid {}, so Flux can't run as {} (uid {}) and runs as the container's user. Run the container as root, or leave out fluxUser",
                    facts.uid, account.name, account.owner.uid
                ));
            }
            return identity;
        }
        if found.is_none() {
            identity.notice = account_by(&facts.passwd, |_, uid| uid == account.owner.uid).map(|other| {
                format!(
                    "uid {} belongs to {name} in this image, so {} is the same user. Choose another fluxUser.uid, or set fluxUser.name to {name}",
                    other.owner.uid,
                    account.name,
                    name = other.name
                )
            });
            identity.create = Some(account.clone());
        } else if account.owner.uid != user.uid && user.uid != RunnerUser::DEFAULT_UID {
            // The owner of the user's data may be the uid that the spec names.
            identity.notice = Some(format!(
                "{} is uid {} in this image, not {}. For this uid, choose a fluxUser.name that the image does not have",
                account.name, account.owner.uid, user.uid
            ));
        }
        if !user.run_flux_as_root && account.owner != container_user {
            identity.owner = account.owner;
            identity.run_as = Some(account);
        }
        identity
    }
}

/// The first account in the text of a password file for which `fits(name, uid)` is true.
pub fn account_by(passwd: &str, fits: impl Fn(&str, u32) -> bool) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields.as_slice() else {
            return None;
        };
        let owner = Owner {
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
        };
        fits(name, owner.uid).then(|| Account {
            name: (*name).to_owned(),
            home: (*home).to_owned(),
            owner,
        })
    })
}

/// The id of the group `wanted` in the text of a group file.
pub fn group_id(group: &str, wanted: &str) -> Option<u32> {
    group.lines().find_map(|line| {
        // The fields are: name, password, gid, members.
        let mut fields = line.split(':');
        let name = fields.next()?;
        let gid = fields.nth(1)?.parse().ok()?;
        (name == wanted).then_some(gid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbroken\nflux:x:1234:1300:Flux:/srv/flux:/bin/sh\n";

    fn user(run_flux_as_root: bool) -> RunnerUser {
        RunnerUser {
            name: "flux".into(),
            uid: 1000,
            run_flux_as_root,
        }
    }

    fn facts(uid: u32, passwd: &str) -> Facts {
        Facts {
            uid,
            gid: uid,
            passwd: passwd.into(),
            ..Facts::default()
        }
    }

    #[test]
    fn a_user_that_exists_is_taken_with_its_own_ids() {
        let identity = Identity::of(Some(&user(false)), &facts(0, PASSWD));
        assert_eq!(identity.run_as.unwrap().owner, Owner { uid: 1234, gid: 1300 });
        assert_eq!(identity.create, None);
        assert_eq!(identity.owner, Owner { uid: 1234, gid: 1300 });
    }

    #[test]
    fn a_missing_user_is_made_with_the_group_of_its_name() {
        let mut facts = facts(0, "");
        facts.group = "root:x:0:\nflux:x:77:a,b\n".into();
        let identity = Identity::of(Some(&user(false)), &facts);
        assert_eq!(identity.run_as.unwrap().owner, Owner { uid: 1000, gid: 77 });
        assert!(identity.create.is_some());
    }

    #[test]
    fn flux_stays_root_if_the_spec_says_so() {
        let root = Identity::of(Some(&user(true)), &facts(0, ""));
        assert!(root.create.is_some() && root.run_as.is_none() && root.owner.uid == 0);
    }

    #[test]
    fn flux_keeps_the_containers_uid_without_root() {
        let other = Identity::of(Some(&user(false)), &facts(500, PASSWD));
        assert!(other.create.is_none() && other.run_as.is_none() && other.notice.is_some());
        let same = Identity::of(Some(&user(false)), &facts(1234, PASSWD));
        assert!(same.run_as.is_none() && same.notice.is_none());
    }

    #[test]
    fn other_uid_of_the_image_s_user_is_noticed() {
        let notice = |uid| {
            let user = RunnerUser { uid, ..user(false) };
            Identity::of(Some(&user), &facts(0, PASSWD)).notice
        };
        assert!(
            notice(2000)
                .unwrap()
                .starts_with("flux is uid 1234 in this image, not 2000")
        );
        assert_eq!((notice(RunnerUser::DEFAULT_UID), notice(1234)), (None, None));
    }

    #[test]
    fn uid_of_another_user_of_the_image_is_noticed() {
        let taken = Identity::of(
            Some(&RunnerUser {
                uid: 1234,
                name: "ada".into(),
                run_flux_as_root: false,
            }),
            &facts(0, PASSWD),
        );
        assert!(
            taken
                .notice
                .unwrap()
                .starts_with("uid 1234 belongs to flux in this image")
        );
    }
}
