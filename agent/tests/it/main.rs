//! The agent as a whole: real processes, signals, namespaces.
