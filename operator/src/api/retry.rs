//! Retries of calls to the API server. [`retry_after`] reads how long the server asks to wait, for the reconciler and
//! the webhook. [`run_queue`] does small writes in the background: a write that fails is retried after growing pauses,
//! whatever the server asks, and does not delay the others.

use std::error::Error;
use std::time::Duration;

use flux_shared::backoff;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc::UnboundedReceiver;

/// The first pause after a failure; it doubles with each one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How long the API server asks to wait before the next call (`retryAfterSeconds`); zero if it does not ask.
pub fn retry_after(error: &kube::Error) -> Duration {
    let kube::Error::Api(status) = error else {
        return Duration::ZERO;
    };
    Duration::from_secs(
        status
            .details
            .as_ref()
            .map_or(0, |details| details.retry_after_seconds)
            .into(),
    )
}

/// Calls `write` for each item, at most `concurrency` at the same time, and retries those that fail, without a
/// limit. `failed` is the log message of a failure. Returns when the channel is closed and empty: the writes that have
/// not ended are then dropped.
pub async fn run_queue<T, E, F>(
    mut items: UnboundedReceiver<T>,
    concurrency: usize,
    failed: &str,
    write: impl Fn(T) -> F,
) where
    T: Clone,
    E: Error + 'static,
    F: Future<Output = Result<(), E>>,
{
    let attempt = |item: T, failures: u32| {
        let result = write(item.clone());
        async move {
            let error = result.await.err()?;
            crate::health::log::warn(failed, &error);
            Some((item, failures + 1))
        }
    };
    let mut running = FuturesUnordered::new();
    let mut waiting = FuturesUnordered::new();
    loop {
        let has_room = running.len() < concurrency;
        tokio::select! {
            item = items.recv(), if has_room => match item {
                Some(item) => running.push(attempt(item, 0)),
                None => return,
            },
            Some((item, failures)) = waiting.next(), if has_room && !waiting.is_empty() => {
                running.push(attempt(item, failures));
            }
            Some(result) = running.next(), if !running.is_empty() => {
                waiting.extend(result.map(|(item, failures)| after_pause(item, failures)));
            }
        }
    }
}

/// Returns the item after the pause that follows its `failures`-th failure.
async fn after_pause<T>(item: T, failures: u32) -> (T, u32) {
    tokio::time::sleep(backoff::after(failures, FIRST_PAUSE, LONGEST_PAUSE)).await;
    (item, failures)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failed_item_is_retried_later_and_delays_no_other() {
        let done = Mutex::new(Vec::new());
        let (sender, items) = tokio::sync::mpsc::unbounded_channel();
        for item in 0..3 {
            sender.send(item).unwrap();
        }
        let write = async |item: u32| {
            let mut done = done.lock().unwrap();
            done.push(item);
            // The first one fails three times.
            if item == 0 && done.iter().filter(|item| **item == 0).count() <= 3 {
                Err(std::io::Error::other("no"))
            } else {
                Ok(())
            }
        };
        let work = run_queue(items, 1, "failed", write);
        assert!(
            tokio::time::timeout(Duration::from_secs(100), work)
                .await
                .is_err(),
            "the queue waits for more items"
        );
        assert_eq!(*done.lock().unwrap(), [0, 1, 2, 0, 0, 0]);
        drop(sender);
    }
}
