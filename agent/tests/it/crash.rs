//! Killed at every system call that writes, then run again: the same result as one undisturbed run.
