//! Asks the API server for its version. `flux_operator_core::render::requirements` lists the features that some
//! supported versions lack.

use std::convert::Infallible;
use std::time::Duration;

use flux_operator_client::retry;
use kube::Client;

use crate::health::log;

/// The oldest Kubernetes 1.n that the operator runs on: it needs Jobs with a success policy, and native
/// sidecars.
pub const OLDEST_MINOR: u32 = 31;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_secs(2);

/// The n of Kubernetes 1.n. Retries until the API server answers.
pub async fn minor_version(client: &Client) -> u32 {
    // No error is final: it is logged, and the call is repeated.
    let keep_trying = |error| {
        log::warn("failed to ask for the version of Kubernetes", &error);
        Ok::<(), Infallible>(())
    };
    let Ok(info) = retry::until_done(PAUSE, || client.apiserver_version(), keep_trying).await;
    tracing::info!(version = info.git_version, "found Kubernetes");
    minor(&info.minor)
}

/// The number in a minor version. Some providers append a sign, as in `31+`. A text without a number counts as
/// the newest version, so that it is not rejected.
pub(crate) fn minor(text: &str) -> u32 {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_minor_version_may_have_a_plus_sign() {
        assert_eq!((minor("31"), minor("35+"), minor("")), (31, 35, u32::MAX));
    }
}
