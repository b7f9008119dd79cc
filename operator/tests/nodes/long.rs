//! Tests that take longer. They run once a week.

pub mod cut_off;
pub mod dead_node;
pub mod drain;
pub mod places;
pub mod programs;
pub mod reboot;
pub mod without_operator;
