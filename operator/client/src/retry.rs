//! Retries of a call.

use std::time::Duration;

/// Repeats `call`, with the same pause between all attempts, until it succeeds. `judge` gets each error: it
/// returns Ok to try again, or the error with which to stop.
pub async fn until_done<T, E, F, C: Future<Output = Result<T, E>>>(
    pause: Duration,
    mut call: impl FnMut() -> C,
    mut judge: impl FnMut(E) -> Result<(), F>,
) -> Result<T, F> {
    loop {
        match call().await {
            Ok(done) => return Ok(done),
            Err(error) => judge(error)?,
        }
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn call_is_retried_until_success_or_a_final_error() {
        let pause = Duration::from_secs(3);
        let begin = tokio::time::Instant::now();
        let mut calls = 0;
        let call = || {
            calls += 1;
            std::future::ready(if calls <= 4 { Err(calls) } else { Ok(calls) })
        };
        assert_eq!(until_done(pause, call, |_| Ok::<(), u32>(())).await, Ok(5));
        assert_eq!(begin.elapsed().as_secs(), 4 * 3);
        let mut calls = 0;
        let call = || {
            calls += 1;
            std::future::ready(Err::<(), u32>(calls))
        };
        assert_eq!(
            until_done(pause, call, |error| if error < 3 { Ok(()) } else { Err(error) }).await,
            Err(3)
        );
    }
}
