//! What takes longer: once a week.

pub mod cut_off;
pub mod dead_node;
pub mod places;
pub mod reboot;
