//! Runs work in a task of its own. kube's controller polls all running reconciles whenever one of them makes
//! progress. In one task, each poll would go through the whole reconcile: with thousands of reconciles, this was a
//! fifth of all work.

use std::task::{Poll, Waker};

use futures::{FutureExt, future};
use tokio::task::coop;
use tokio_util::task::AbortOnDropHandle;

/// Runs `work` in a task of its own, which is aborted when the returned future is dropped. A poll of that future
/// only checks whether the task has ended, unless the waker has changed since the last poll.
pub(super) fn in_own_task<T, F>(work: F) -> impl Future<Output = T> + Send + Unpin
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut task = AbortOnDropHandle::new(tokio::spawn(work));
    let mut last_waker: Option<Waker> = None;
    future::poll_fn(move |task_context| {
        if !task.is_finished()
            && last_waker
                .as_ref()
                .is_some_and(|waker| waker.will_wake(task_context.waker()))
        {
            return Poll::Pending;
        }
        last_waker = Some(task_context.waker().clone());
        // Unconstrained: if the polling task had no budget left, the handle would not store the waker.
        coop::unconstrained(&mut task)
            .poll_unpin(task_context)
            .map(|ended| match ended {
                Ok(result) => result,
                // Only a panic outside of `panics::catch` ends the task early.
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            })
    })
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn last_poller_of_a_task_is_woken_at_its_end() {
        let (end, ended) = tokio::sync::oneshot::channel();
        let mut work = in_own_task(ended);
        let mut by_somebody_else = std::task::Context::from_waker(Waker::noop());
        assert!(work.poll_unpin(&mut by_somebody_else).is_pending());
        let later = async {
            tokio::task::yield_now().await;
            end.send("done").unwrap();
        };
        let in_time = tokio::time::timeout(Duration::from_secs(10), async { tokio::join!(work, later).0 });
        assert_eq!(in_time.await.unwrap(), Ok("done"));
    }

    /// Tokio's handles keep no waker when the budget of the task that polls them is used up.
    #[tokio::test]
    async fn poller_without_budget_is_woken_when_a_task_ends() {
        let (end, ended) = tokio::sync::oneshot::channel();
        let mut work = in_own_task(ended);
        let mut is_first = true;
        let waits = tokio::spawn(future::poll_fn(move |polling| {
            if std::mem::take(&mut is_first) {
                while coop::has_budget_remaining() {
                    assert!(pin!(coop::consume_budget()).poll_unpin(polling).is_ready());
                }
            }
            work.poll_unpin(polling)
        }));
        tokio::time::sleep(Duration::from_millis(50)).await;
        end.send("done").unwrap();
        let in_time = tokio::time::timeout(Duration::from_secs(10), waits);
        assert_eq!(in_time.await.unwrap().unwrap(), Ok("done"));
    }
}
