#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests"))]

mod dry_run;
mod facts;
mod plan;
mod spec;

fn main() {}
