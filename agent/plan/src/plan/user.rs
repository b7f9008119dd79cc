//! The steps that create the user that Flux runs as, and its home.

use flux_shared::paths::{AGENT_HOME, FALLBACK_HOME};

use super::identity::{Account, account_by};
use super::{EnvChange, Mode, Resolved, RunAs, Step, set};
use crate::facts::Facts;

/// The user that Flux's programs run as. None: the agent's own user.
pub fn run_as(resolved: &Resolved) -> Option<RunAs> {
    let Account { name, home, owner } = resolved.identity.run_as.clone()?;
    let home = if is_accounts_home_usable(resolved, &home) {
        home
    } else {
        fallback_home(resolved)
    };
    Some(RunAs { owner, name, home })
}

/// The steps that create the user and its home, and set SHELL, HOME and USER for all later steps, where the container's
/// own values are unset or of no use.
pub fn steps(resolved: &Resolved) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(account) = &resolved.identity.create {
        steps.extend(creation(resolved.facts, account));
    }
    let mut changes = Vec::new();
    ensure_home(resolved, &mut changes, &mut steps);
    changes.extend(shell(resolved));
    if !changes.is_empty() {
        steps.push(Step::Environment { changes });
    }
    steps
}

/// The steps that create an account and its home.
pub(super) fn creation(facts: &Facts, account: &Account) -> Vec<Step> {
    let Account { name, home, owner } = account.clone();
    let directory = Step::Directory {
        path: home.clone(),
        mode: Mode(0o755),
        owner,
    };
    let directory = (!facts.is_present(&home)).then_some(directory);
    let user = Step::User {
        name,
        uid: owner.uid,
        gid: owner.gid,
        home,
    };
    // The home comes first: once the user is in the password file, a later plan skips both steps. If /etc is read-only,
    // the user cannot be created, and a volume for the home is no remedy. Then the user's error must be the first.
    let mut steps: Vec<Step> = directory.into_iter().chain([user]).collect();
    if facts.is_present("/etc") && !facts.is_writable("/etc") {
        steps.reverse();
    }
    steps
}

/// Whether this home of the account that Flux changes to is of use: it exists, or the agent creates it.
fn is_accounts_home_usable(resolved: &Resolved, home: &str) -> bool {
    is_usable(home) && (resolved.identity.create.is_some() || !is_missing(resolved.facts, home))
}

fn is_usable(home: &str) -> bool {
    !home.is_empty() && home != "/"
}

/// Whether this home is known to be missing. Assumed facts (`dry-run`) do not list every home. Unlike facts that were
/// read, they need not have `/` either.
fn is_missing(facts: &Facts, home: &str) -> bool {
    facts.is_present("/") && !facts.is_present(home)
}

/// Replaces a home that is of no use by the fallback, and sets USER.
fn ensure_home(resolved: &Resolved, changes: &mut Vec<EnvChange>, steps: &mut Vec<Step>) {
    let facts = resolved.facts;
    if let Some(account) = &resolved.identity.run_as {
        if !is_accounts_home_usable(resolved, &account.home) {
            steps.extend(make_fallback_home(resolved));
        }
        // The agent is root, and keeps its HOME and USER. Only programs of this account get the account's (`RunAs`).
        return;
    }
    let account = account_by(&facts.passwd, |_, uid| uid == resolved.identity.owner.uid);
    // If the password file has no name for the uid, USER is the uid, which Flux accepts in place of a name.
    let name = account.map_or_else(|| resolved.identity.owner.uid.to_string(), |account| account.name);
    let home = facts.environment.get("HOME").filter(|home| is_usable(home));
    // A missing home that this user can create stays: snippets and programs may create it, such as on a volume. Without
    // the volume for the home, it stays as well: a sidecar's user may be unable to create another home.
    let is_kept = |home| !is_missing(facts, home) || facts.can_create(home) || home_volume(facts).is_none();
    if home.is_some_and(|home| is_kept(home)) {
        changes.push(EnvChange::Default {
            name: "USER".into(),
            value: name,
        });
        return;
    }
    steps.extend(make_fallback_home(resolved));
    changes.extend([set("HOME", &fallback_home(resolved)), set("USER", &name)]);
}

/// The home to use if the user's own is of no use: the volume that the operator mounts for it, else a folder in the
/// configuration folder.
fn fallback_home(resolved: &Resolved) -> String {
    if let Some(home) = home_volume(resolved.facts) {
        home.to_owned()
    } else {
        format!(
            "{}/home-{}",
            resolved.paths.config_root(),
            resolved.identity.owner.uid
        )
    }
}

/// Creates the fallback home. None: the volume is there.
fn make_fallback_home(resolved: &Resolved) -> Option<Step> {
    let (path, owner) = (fallback_home(resolved), resolved.identity.owner);
    let step = Step::Directory {
        path,
        mode: Mode(0o755),
        owner,
    };
    home_volume(resolved.facts).is_none().then_some(step)
}

/// Where the volume for the home is mounted. None: this user cannot write to it, or there is none.
pub(super) fn home_volume(facts: &Facts) -> Option<&'static str> {
    // AGENT_HOME comes first: if the volume is there, FALLBACK_HOME is a folder in the user's own storage.
    [AGENT_HOME, FALLBACK_HOME]
        .into_iter()
        .find(|home| facts.is_writable(home) || (facts.uid == 0 && facts.is_present(home)))
}

/// Sets SHELL to the image's shell if the shell that Flux would use is not known to exist. Flux runs its own scripts by
/// `$SHELL` or, if it is unset, by /bin/bash.
fn shell(resolved: &Resolved) -> Option<EnvChange> {
    let facts = resolved.facts;
    let shell_exists = match facts.environment.get("SHELL") {
        // Assumed facts may name their shell without listing it as present.
        Some(shell) => facts.is_present(shell) || facts.shell.as_deref() == Some(shell),
        None => facts.shell.as_deref() == Some("/bin/bash"),
    };
    match (&facts.shell, shell_exists) {
        (Some(shell), false) => Some(set("SHELL", shell)),
        _ => None,
    }
}
