//! Which Kubernetes this is. (What one may lack above the floor: `render::needs`.)
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "asks, and asks again")]

use std::time::Duration;

use kube::Client;

/// The oldest Kubernetes 1.n that the operator runs on: Jobs with a success policy, and native sidecars.
pub const FLOOR: u32 = 31;
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
            Err(error) => crate::health::log::warn("failed to ask for the version of Kubernetes", &error),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Some providers add a `+`. What is no number is taken for new.
pub(crate) fn minor(text: &str) -> u32 {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_add_signs() {
        assert_eq!((minor("31"), minor("35+"), minor("")), (31, 35, u32::MAX));
    }
}
