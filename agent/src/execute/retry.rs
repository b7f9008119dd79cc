//! Retries work whose failure may be temporary, with growing pauses and a time limit. The agent does this
//! itself: by default, the pods have the restartPolicy Never, so the kubelet does not restart the container.

use std::time::{Duration, Instant};

use flux_shared::backoff;

use super::executor::wait_failed;
use crate::report::activity::{Activity, ActivityFile, Awaited};
use crate::report::failure::Failure;
use crate::supervise::program::{Child, ChildProgram, StartError};
use crate::supervise::{Interrupted, Stop, Supervisor};

/// How long failures that may be temporary are retried, unless `--patience` says otherwise.
pub const RETRY_DEADLINE: Duration = Duration::from_secs(120);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The attempts at one piece of work: a step, the plan, or the start of a program.
#[derive(Debug)]
pub struct Attempts {
    begin: Instant,
    /// After this time from `begin`, a failure is final.
    bound: Duration,
    activity_file: ActivityFile,
    failures: u32,
    reported_at: Option<Instant>,
}

/// What to do after a failure.
#[derive(Debug)]
pub enum AfterFailure {
    Retry,
    /// The failure is final.
    GiveUp(Failure),
    /// A stop has come.
    Stop(Stop),
}

/// The result of starting a program.
#[derive(Debug)]
pub enum Start {
    Started {
        child: Child,
        /// When the successful attempt began.
        begin: Instant,
    },
    Failed(StartError),
    /// A stop came before it could be started.
    Stopped(Stop),
}

impl Attempts {
    pub fn new(bound: Duration, activity_file: ActivityFile) -> Attempts {
        Attempts {
            begin: Instant::now(),
            bound,
            activity_file,
            failures: 0,
            reported_at: None,
        }
    }

    /// Decides what follows a failed attempt; pauses before a retry. `awaited`: what the retry waits for, to
    /// report it as the current activity.
    pub async fn after(
        &mut self,
        failure: Failure,
        awaited: Awaited,
        supervisor: &mut Supervisor,
    ) -> Result<AfterFailure, Failure> {
        if !failure.is_passing || self.begin.elapsed() >= self.bound {
            return Ok(AfterFailure::GiveUp(failure));
        }
        if self
            .reported_at
            .is_none_or(|reported_at| reported_at.elapsed() >= REPORT_EVERY)
        {
            self.reported_at = Some(Instant::now());
            let left = self.bound.saturating_sub(self.begin.elapsed()).as_secs();
            tracing::warn!(stage = "wait", "{}; retrying for up to {left} s", failure.cause);
        }
        self.activity_file.write(Some(&Activity::Retrying(awaited)));
        self.failures += 1;
        let pause = backoff::after(self.failures, FIRST_PAUSE, LONGEST_PAUSE);
        let waited = supervisor.unless_stopped(tokio::time::sleep(pause)).await;
        self.activity_file.write(None);
        match waited {
            Ok(Interrupted::Done(())) => Ok(AfterFailure::Retry),
            Ok(Interrupted::Stopped(stop)) => Ok(AfterFailure::Stop(stop)),
            Err(error) => Err(wait_failed(error)),
        }
    }

    /// Starts a program. Retries if the failure may be temporary, for example at the limit of processes.
    pub async fn start(
        mut self,
        program: &ChildProgram<'_>,
        supervisor: &mut Supervisor,
    ) -> Result<Start, Failure> {
        loop {
            let begin = Instant::now();
            let error = match supervisor.start(program) {
                Ok(child) => return Ok(Start::Started { child, begin }),
                Err(error) => error,
            };
            // Only `is_passing` and the cause of this failure are read.
            let failure = Failure {
                is_passing: error.is_passing,
                ..Failure::internal(error.to_string())
            };
            match self.after(failure, Awaited::Process, supervisor).await? {
                AfterFailure::Retry => {}
                AfterFailure::GiveUp(_) => return Ok(Start::Failed(error)),
                AfterFailure::Stop(stop) => return Ok(Start::Stopped(stop)),
            }
        }
    }
}
