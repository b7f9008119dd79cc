//! The agent as a whole: real processes, signals, namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests"
)]

mod accounting;
mod any_image;
mod archive;
mod as_planned;
mod chain;
mod commands;
mod cores;
mod crash;
mod docs;
mod documents;
mod giving_up;
mod here;
mod hostile;
mod image;
mod instance;
mod job;
mod live;
mod local;
mod metrics;
mod output;
mod pid1;
mod public;
mod python;
mod restful;
mod scheduler;
mod search_paths;
mod snippet_shell;
mod snippets;
mod stop_stages;
