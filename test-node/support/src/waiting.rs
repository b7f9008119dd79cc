//! Polls until a condition holds, for programs that run beside a test.

use std::time::{Duration, Instant};

/// Longer than any step takes, even while others build on the machine. It ends tests that hang; no result
/// depends on it.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Waits until `found` returns something. Panics with `description` after `DEADLINE`.
pub fn eventually<T>(description: &str, found: impl FnMut() -> Option<T>) -> T {
    within(DEADLINE, description, found)
}

/// Like [`eventually`], with another deadline.
pub fn within<T>(deadline: Duration, description: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(begin.elapsed() < deadline, "not in time: {description}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether this account has this right. `resource` may be `pods/exec`.
pub fn may(
    kubectl: impl Fn(&[&str]) -> Result<String, String>,
    account: &str,
    verb: &str,
    resource: &str,
) -> bool {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let (account, subresource) = (format!("--as={account}"), format!("--subresource={subresource}"));
    kubectl(&["auth", "can-i", verb, resource, &account, &subresource]).is_ok()
}

/// Waits until this account has this right, which was just granted: the API server answers before it acts on the grant.
pub fn until_granted(
    kubectl: impl Fn(&[&str]) -> Result<String, String>,
    account: &str,
    verb: &str,
    resource: &str,
) {
    eventually(&format!("{account} may {verb} {resource}"), || {
        may(&kubectl, account, verb, resource).then_some(())
    });
}
