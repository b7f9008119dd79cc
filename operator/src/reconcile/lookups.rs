//! Data that a reconcile reads from the API server because no watch delivers it: the gang APIs that are served, the
//! last event of an object that waits, the Workloads of a Job in a queue, the version of Kubernetes,
//! MiniClusters that are too large for the cache. All but the first are in `reader`. (`apply` also reads the objects
//! that it is about to write.)

pub mod gangs;
pub mod reader;
