//! Catches panics. A panic is a bug in the operator that one object triggers. If it is caught in that object's reconcile,
//! it is reported, and the object is retried later. A watch skips the object, and only the log shows the panic.
//!
//! Reports have the source line of the panic but not its message, which may contain anything, even a password.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};

use flux_operator_core::status::Panicked;
use futures::FutureExt;

thread_local! {
    /// The source line of this thread's last panic, until it is taken.
    static SOURCE_LINE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Installs a panic hook that logs the source line of each panic, and keeps it for `panicked`.
pub fn install_hook() {
    set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(
            || "an unknown place".to_owned(),
            |at| format!("{}:{}", at.file(), at.line()),
        );
        tracing::error!(place, "panicked: this is a bug in the operator");
        SOURCE_LINE.set(Some(place));
    }));
}

/// The panic that this thread has just caught.
fn panicked() -> Panicked {
    Panicked(
        SOURCE_LINE
            .take()
            .unwrap_or_else(|| "an unknown place".to_owned()),
    )
}

/// Awaits `work`; a panic in it becomes an error.
pub async fn catch<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    // Unwind safe: only the state of `work` itself may be inconsistent after a panic. Shared state is behind locks,
    // and code that holds one does not panic.
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .map_err(|_| panicked())
}

/// Calls `work`; a panic in it becomes an error.
pub fn catch_call<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| panicked())
}
