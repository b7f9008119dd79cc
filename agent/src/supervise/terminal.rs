//! Moves the terminal, if there is one, between process groups: only the foreground group can read from it.

use std::io::{IsTerminal, stdin};

use nix::unistd::{Pid, getpgrp, getsid, tcgetpgrp, tcsetpgrp};

/// Whether standard input is a terminal, and the agent's process group is in its foreground. Only then may the agent
/// give the terminal to another group.
pub fn is_ours() -> bool {
    stdin().is_terminal() && tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
}

/// Whether a shell may have started this process, and could continue it after a suspension. The process that a
/// container's runtime starts has no such shell: it leads a session. Process 1 cannot suspend itself.
pub fn has_shell_above() -> bool {
    std::process::id() != 1 && getsid(None) != Ok(Pid::this())
}

/// Puts the process group `group` in the foreground. A failure is ignored: the group then cannot read.
pub fn give_to(group: i32) {
    let _ = tcsetpgrp(stdin(), Pid::from_raw(group));
}

/// Puts the agent's process group in the foreground again. This works from the background because SIGTTOU is blocked.
pub fn reclaim() {
    let _ = tcsetpgrp(stdin(), getpgrp());
}
