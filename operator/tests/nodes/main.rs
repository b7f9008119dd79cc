//! MiniClusters on several nodes, some of which lose their power, their network or a program: on the test
//! node with three workers (`make e2e-nodes`).
//!
//! ```text
//! machines   what happens to nodes
//! timeline   what the status said, and when
//! stage      a namespace, with programs that record what they do
//! short      the tests that take four minutes
//! long       the other tests, once a week: with `short`, half an hour
//! chaos      random MiniClusters and faults of one seed (`make chaos`)
//! ```
//!
//! The tests assert how often a program started, that no two starts ran at once, and the final phase, exit
//! code and reason. They run one after the other: when a test takes a node down, no other test can use it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::print_stderr, reason = "tests print notices")]

mod chaos;
mod long;
mod machines;
mod short;
mod stage;
mod timeline;
