//! The order of work: Jobs are created before writes that only describe MiniClusters (statuses, labels,
//! owners of a shared Service). If many MiniClusters are created at the same time, all Jobs exist sooner, and
//! one later write covers more changes.

use std::time::Duration;

use tokio::sync::watch;

/// Longest time that other writes wait, however many Jobs are to be created.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Counts the reconciles that may create a Job.
#[derive(Debug)]
pub struct JobFirst {
    /// Number of reconciles that may create a Job.
    count: watch::Sender<usize>,
}

/// A reconcile that may create a Job, until it is dropped.
#[derive(Debug)]
pub struct MayCreateJob<'a>(&'a JobFirst);

impl Default for JobFirst {
    fn default() -> JobFirst {
        JobFirst {
            count: watch::Sender::new(0),
        }
    }
}

impl JobFirst {
    /// Counts a reconcile that may create a Job, until the returned value is dropped.
    pub fn begin(&self) -> MayCreateJob<'_> {
        self.change(|count| *count += 1);
        MayCreateJob(self)
    }

    /// Wakes the waiting writes only when the count reaches 0: there may be thousands.
    fn change(&self, change: impl FnOnce(&mut usize)) {
        self.count.send_if_modified(|count| {
            change(count);
            *count == 0
        });
    }

    /// Returns when no reconcile may create a Job any more, or after `LONGEST_WAIT`.
    pub async fn wait_for_jobs(&self) {
        let mut count = self.count.subscribe();
        // `self` has the sender, so the only error is the timeout.
        let _ = tokio::time::timeout(LONGEST_WAIT, count.wait_for(|count| *count == 0)).await;
    }
}

impl Drop for MayCreateJob<'_> {
    fn drop(&mut self) {
        self.0.change(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn other_writes_wait_for_job_creations_up_to_a_limit() {
        let job_first = JobFirst::default();
        let waited = async || {
            let begin = tokio::time::Instant::now();
            job_first.wait_for_jobs().await;
            begin.elapsed()
        };
        assert_eq!(waited().await, Duration::ZERO);
        let (one, two) = (job_first.begin(), job_first.begin());
        let ending = async {
            drop(one);
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(two);
        };
        assert_eq!(tokio::join!(waited(), ending).0, Duration::from_secs(1));
        let _endless = job_first.begin();
        assert_eq!(waited().await, LONGEST_WAIT);
    }
}
