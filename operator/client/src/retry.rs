//! A call that is waited for, again with growing pauses.

use std::time::Duration;

use flux_shared::backoff;

/// Repeats `call` until it succeeds or `judge` returns its error as final, with pauses that grow from `first`
/// to `longest`.
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

#[cfg(test)]
mod tests {
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
        assert_eq!(
            until_done(pauses, call, |error| if error < 3 { Ok(()) } else { Err(error) }).await,
            Err(3)
        );
    }
}
