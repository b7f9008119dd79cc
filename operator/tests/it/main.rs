//! The operator's tests.
