//! Retries with growing pauses: of a call that is waited for ([`until_done`]), and of small writes in the background
//! ([`run_queue`]), where a failed one does not hold up the others.
#![expect(clippy::disallowed_methods, reason = "pauses")]

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

/// How long an answer asks to wait before the next call.
pub fn retry_after(error: &kube::Error) -> Duration {
    let kube::Error::Api(status) = error else { return Duration::ZERO };
    Duration::from_secs(status.details.as_ref().map_or(0, |details| details.retry_after_seconds).into())
}

/// Repeats `call` until it succeeds or `judge` returns its error as final, with pauses that grow from `first` to `longest`.
pub async fn until_done<T, E, F, C: Future<Output = Result<T, E>>>(
    (first, longest): (Duration, Duration),
    mut call: impl FnMut() -> C,
    mut judge: impl FnMut(E) -> Result<(), F>,
) -> Result<T, F> {
    let mut failures = 0;
    loop {
        match call().await {
            Ok(done) => return Ok(done),
            Err(error) => judge(error)?,
        }
        failures += 1;
        tokio::time::sleep(backoff::after(failures, first, longest)).await;
    }
}

/// Calls `write` for each item, for at most `concurrency` at the same time, and again later for those that fail.
/// Returns when the channel is closed.
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
    let mut later = FuturesUnordered::new();
    loop {
        let has_room = running.len() < concurrency;
        tokio::select! {
            item = items.recv(), if has_room => match item {
                Some(item) => running.push(attempt(item, 0)),
                None => return,
            },
            Some((item, failures)) = later.next(), if has_room && !later.is_empty() => {
                running.push(attempt(item, failures));
            }
            Some(result) = running.next(), if !running.is_empty() => {
                later.extend(result.map(|(item, failures)| after_pause(item, failures)));
            }
        }
    }
}

/// Waits for the pause after so many failures, then returns the item.
async fn after_pause<T>(item: T, failures: u32) -> (T, u32) {
    tokio::time::sleep(backoff::after(failures, FIRST_PAUSE, LONGEST_PAUSE)).await;
    (item, failures)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_is_made_again_until_it_succeeds_or_its_error_is_final() {
        let pauses = (Duration::from_secs(1), Duration::from_secs(3));
        let begin = tokio::time::Instant::now();
        let mut calls = 0;
        let call = || {
            calls += 1;
            std::future::ready(if calls <= 4 { Err(calls) } else { Ok(calls) })
        };
        assert_eq!(until_done(pauses, call, |_| Ok::<(), u32>(())).await, Ok(5));
        assert_eq!(begin.elapsed().as_secs(), 1 + 2 + 3 + 3);
        let mut calls = 0;
        let call = || {
            calls += 1;
            std::future::ready(Err::<(), u32>(calls))
        };
        assert_eq!(until_done(pauses, call, |error| if error < 3 { Ok(()) } else { Err(error) }).await, Err(3));
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_done_later_and_what_comes_after_it_is_not_held_up() {
        let done = Mutex::new(Vec::new());
        let (sender, items) = tokio::sync::mpsc::unbounded_channel();
        for item in 0..3 {
            sender.send(item).unwrap();
        }
        let write = async |item: u32| {
            let mut done = done.lock().unwrap();
            done.push(item);
            // The first one fails three times.
            match item == 0 && done.iter().filter(|done| **done == 0).count() <= 3 {
                true => Err(std::io::Error::other("no")),
                false => Ok(()),
            }
        };
        let work = run_queue(items, 1, "failed", write);
        assert!(tokio::time::timeout(Duration::from_secs(100), work).await.is_err(), "more may come");
        assert_eq!(*done.lock().unwrap(), [0, 1, 2, 0, 0, 0]);
        drop(sender);
    }
}
