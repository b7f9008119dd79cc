//! The operator's tests. Those with a `fixture` need a control plane, which is built once
//! (`test-node/build`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::print_stdout, reason = "tests print figures and notices")]

mod alerts;
mod calm;
mod canary;
mod change;
mod dead_fields;
mod deletion;
mod edit;
mod ends;
mod faults;
mod fuzz;
mod gangs;
mod golden;
mod inputs;
mod install;
mod killed;
mod lead;
mod leaves;
mod life;
mod on_server;
mod operator_process;
mod overlay;
mod prometheus;
mod queue;
mod quiet;
mod refuse;
mod relist;
mod restarts;
mod sdk;
mod shipped;
mod stale;
mod storage;
mod stuck;
mod teams;
mod tenants;
mod traces;
mod webhook;
mod zero_values;
