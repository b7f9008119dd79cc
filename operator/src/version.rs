//! Which Kubernetes this is, and what it lacks.
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "asks, and asks again")]

use std::time::Duration;

use flux_shared::validate::{Notice, ValidMiniCluster};
use kube::Client;

/// The oldest Kubernetes 1.n that the operator runs on: Jobs with a success policy, and native sidecars.
pub const FLOOR: u32 = 31;
/// The first one that takes resources of whole pods without being told to.
const POD_RESOURCES: u32 = 34;
/// Time between two questions.
const PAUSE: Duration = Duration::from_secs(2);

/// The n of Kubernetes 1.n. Waits for an API server that is out of reach.
pub async fn ask(client: &Client) -> u32 {
    loop {
        match client.apiserver_version().await {
            Ok(info) => {
                tracing::info!(version = info.git_version, "found Kubernetes");
                return minor(&info.minor);
            }
            Err(error) => crate::telemetry::warn("failed to ask for the version of Kubernetes", &error),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Some providers add a `+`. What is no number is taken for new.
fn minor(text: &str) -> u32 {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(u32::MAX)
}

/// What a MiniCluster asks for that this Kubernetes would pass over in silence.
pub fn notices(cluster: &ValidMiniCluster, kubernetes: u32) -> Vec<Notice> {
    let mut notices = Vec::new();
    if kubernetes < POD_RESOURCES && !cluster.pod.resources.is_empty() && cluster.pod.runtime_class_name.is_none() {
        let message = format!(
            "Kubernetes 1.{kubernetes} knows no resources of whole pods, unless it is told to, and passes over them: give them to containers"
        );
        notices.push(Notice::new("spec.pod.resources", message));
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_lacks_is_said() {
        assert_eq!((minor("31"), minor("35+"), minor("")), (31, 35, u32::MAX));
        let with = crate::testing::cluster("pod: {resources: {cpu: 2}}");
        assert!(notices(&with, 33)[0].to_string().starts_with("spec.pod.resources: Kubernetes 1.33 knows no"));
        assert_eq!(notices(&with, 34), []);
        assert_eq!(notices(&crate::testing::cluster("size: 1"), 31), []);
    }
}
