//! The plan that `dry-run` prints is what `run` does: every file, every variable, every word.
