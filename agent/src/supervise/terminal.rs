//! The terminal, where there is one: which process group may read from it.

use std::io::{IsTerminal, stdin};

use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// Whether standard input is a terminal with the agent's group in its foreground, so that the agent may hand
/// it on.
pub fn is_ours() -> bool {
    stdin().is_terminal() && tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
}

/// Hands the terminal to the process group `group`.
pub fn give_to(group: i32) {
    let _ = tcsetpgrp(stdin(), Pid::from_raw(group));
}

/// Takes the terminal back. (SIGTTOU is blocked, so this works from the background.)
pub fn reclaim() {
    let _ = tcsetpgrp(stdin(), getpgrp());
}
