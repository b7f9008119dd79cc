//! Who Flux runs as, and where its home is.

use flux_shared::agent_spec::User;
use flux_shared::paths::FALLBACK_HOME;

use super::{EnvChange, Mode, Owner, Planned, Resolved, RunAs, Step, set};
use crate::facts::Facts;
use crate::known_paths::home_of;

/// The name given where the password file has none for the uid.
const FALLBACK_NAME: &str = "flux-operator";

/// Who Flux runs as.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// Owner of all files that Flux uses.
    pub owner: Owner,
    /// Ids to change to; none: the agent's own.
    pub run_as: Option<Owner>,
    /// The user that has to be made first: name and home.
    create: Option<Account>,
    /// The account to run as, where it isn't the agent's own.
    account: Option<Account>,
    /// What a person should know about the choice.
    pub notice: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Account {
    name: String,
    home: String,
    owner: Owner,
}

impl Identity {
    /// The container's own user, or the one that the spec names if the agent may change to it.
    pub fn of(wanted: Option<&User>, facts: &Facts) -> Identity {
        let own = Owner { uid: facts.uid, gid: facts.gid };
        let mut identity = Identity { owner: own, run_as: None, create: None, account: None, notice: None };
        let Some(user) = wanted else { return identity };
        let found = account_by(&facts.passwd, |name, _| name == user.name);
        let account = found.clone().unwrap_or_else(|| Account {
            name: user.name.clone(),
            home: home_of(&user.name),
            owner: Owner { uid: user.uid, gid: group_id(&facts.group, &user.name).unwrap_or(user.uid) },
        });
        if facts.uid != 0 {
            if account.owner.uid != facts.uid {
                identity.notice = Some(format!(
                    "the container runs as uid {}, so Flux can't run as {} (uid {}) and runs as the container's user",
                    facts.uid, account.name, account.owner.uid
                ));
            }
            return identity;
        }
        if found.is_none() {
            identity.notice = account_by(&facts.passwd, |_, uid| uid == account.owner.uid).map(|other| {
                format!(
                    "uid {} belongs to {} in this image, so Flux's user {} is the same user: choose another fluxUser.uid, or that name",
                    other.owner.uid, other.name, account.name
                )
            });
            identity.create = Some(account.clone());
        }
        if !user.run_flux_as_root && account.owner != own {
            identity.owner = account.owner;
            identity.run_as = Some(account.owner);
            identity.account = Some(account);
        }
        identity
    }
}

/// Whom the programs of Flux run as, where that is another user than the agent's.
pub fn run_as(resolved: &Resolved) -> Option<RunAs> {
    let Account { name, home, owner } = resolved.identity.account.clone()?;
    let home = if is_usable(&home) { home } else { fallback_home(resolved) };
    Some(RunAs { owner, name, home })
}

/// The steps that make user and home, and variables for all that follows: SHELL; HOME and USER where they say nothing of use.
pub fn steps(resolved: &Resolved) -> Vec<Planned> {
    let mut steps = Vec::new();
    if let Some(account) = &resolved.identity.create {
        let Account { name, home, owner } = account.clone();
        // The home first: once the user is in the password file, the next run takes all of this for done.
        if !resolved.facts.is_present(&home) {
            let step = Step::Directory { path: home.clone(), mode: Mode(0o755), owner };
            steps.push(Planned::with(&["passwd"], step));
        }
        let step = Step::User { name, uid: owner.uid, gid: owner.gid, home };
        steps.push(Planned::with(&["uid", "passwd"], step));
    }
    let mut changes = Vec::new();
    let home = home(resolved, &mut changes, &mut steps);
    changes.extend(shell(resolved));
    if !changes.is_empty() {
        steps.push(Planned::with(home, Step::Environment { changes }));
    }
    steps
}

fn is_usable(home: &str) -> bool {
    !home.is_empty() && home != "/"
}

/// Where HOME leads nowhere, it leads to a directory of Flux's own; what it was decided by.
fn home(resolved: &Resolved, changes: &mut Vec<EnvChange>, steps: &mut Vec<Planned>) -> &'static [&'static str] {
    let facts = resolved.facts;
    if let Some(account) = &resolved.identity.account {
        if !is_usable(&account.home) {
            steps.extend(make_fallback_home(resolved));
        }
        return &["shell"];
    }
    let own = account_by(&facts.passwd, |_, uid| uid == resolved.identity.owner.uid);
    let name = own.map(|account| account.name).unwrap_or_else(|| FALLBACK_NAME.to_owned());
    if facts.environment.get("HOME").is_some_and(|home| is_usable(home)) {
        changes.push(EnvChange::Default { name: "USER".into(), value: name });
        return &["uid", "passwd", "env.HOME"];
    }
    steps.extend(make_fallback_home(resolved));
    changes.extend([set("HOME", &fallback_home(resolved)), set("USER", &name)]);
    &["uid", "passwd", "env.HOME"]
}

/// The volume that the operator mounts for it, else a folder of the configuration's.
fn fallback_home(resolved: &Resolved) -> String {
    match has_home_volume(resolved.facts) {
        true => FALLBACK_HOME.to_owned(),
        false => format!("{}/home-{}", resolved.paths.config_root(), resolved.identity.owner.uid),
    }
}

fn make_fallback_home(resolved: &Resolved) -> Option<Planned> {
    let (path, owner) = (fallback_home(resolved), resolved.identity.owner);
    let step = Step::Directory { path, mode: Mode(0o755), owner };
    (!has_home_volume(resolved.facts)).then(|| Planned::with(&["env.HOME"], step))
}

fn has_home_volume(facts: &Facts) -> bool {
    facts.is_writable(FALLBACK_HOME) || (facts.uid == 0 && facts.is_present(FALLBACK_HOME))
}

/// Flux runs its own scripts by `$SHELL`, else by /bin/bash: where that leads nowhere, it gets the shell that is there.
fn shell(resolved: &Resolved) -> Option<EnvChange> {
    let facts = resolved.facts;
    let leads_somewhere = match facts.environment.get("SHELL") {
        Some(shell) => facts.is_present(shell) || facts.shell.as_deref() == Some(shell),
        None => facts.shell.as_deref() == Some("/bin/bash"),
    };
    match (&facts.shell, leads_somewhere) {
        (Some(shell), false) => Some(set("SHELL", shell)),
        _ => None,
    }
}

/// The first account of the password file's text that fits.
pub(super) fn account_by(passwd: &str, fits: impl Fn(&str, u32) -> bool) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields.as_slice() else { return None };
        let owner = Owner { uid: uid.parse().ok()?, gid: gid.parse().ok()? };
        fits(name, owner.uid).then(|| Account { name: (*name).to_owned(), home: (*home).to_owned(), owner })
    })
}

pub(super) fn group_id(group: &str, wanted: &str) -> Option<u32> {
    group.lines().find_map(|line| {
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

    fn user(run_flux_as_root: bool) -> User {
        User { name: "flux".into(), uid: 1000, run_flux_as_root }
    }

    fn facts(uid: u32, passwd: &str) -> Facts {
        Facts { uid, gid: uid, passwd: passwd.into(), ..Facts::default() }
    }

    #[test]
    fn a_user_that_exists_is_taken_with_its_own_ids() {
        let identity = Identity::of(Some(&user(false)), &facts(0, PASSWD));
        assert_eq!(identity.run_as, Some(Owner { uid: 1234, gid: 1300 }));
        assert_eq!(identity.create, None);
        assert_eq!(identity.owner, Owner { uid: 1234, gid: 1300 });
    }

    #[test]
    fn a_missing_user_is_made_with_the_group_of_its_name() {
        let mut facts = facts(0, "");
        facts.group = "root:x:0:\nflux:x:77:a,b\n".into();
        let identity = Identity::of(Some(&user(false)), &facts);
        assert_eq!(identity.run_as, Some(Owner { uid: 1000, gid: 77 }));
        assert!(identity.create.is_some());
    }

    #[test]
    fn flux_stays_root_if_asked_and_keeps_its_uid_if_it_is_not_root() {
        let root = Identity::of(Some(&user(true)), &facts(0, ""));
        assert!(root.create.is_some() && root.run_as.is_none() && root.owner.uid == 0);
        let other = Identity::of(Some(&user(false)), &facts(500, PASSWD));
        assert!(other.create.is_none() && other.run_as.is_none() && other.notice.is_some());
        let taken =
            Identity::of(Some(&User { uid: 1234, name: "ada".into(), run_flux_as_root: false }), &facts(0, PASSWD));
        assert!(taken.notice.unwrap().starts_with("uid 1234 belongs to flux in this image"));
        let same = Identity::of(Some(&user(false)), &facts(1234, PASSWD));
        assert!(same.run_as.is_none() && same.notice.is_none());
    }
}
