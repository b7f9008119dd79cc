//! Signals that would end this program at once.

use std::pin::Pin;

use flux_shared::exit::of_signal;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(Failure::on_this_machine("listen for signals"))
}

/// Listens for SIGINT, SIGTERM and SIGHUP. From then on, they do not end the program by themselves. The returned future
/// waits for the first signal. Its result is the exit code, as in shells: 128 + the signal's number.
pub fn until_signalled() -> Result<Pin<Box<dyn Future<Output = u8>>>, Failure> {
    let mut interrupt = listen(SignalKind::interrupt())?;
    let (mut terminate, mut hangup) = (listen(SignalKind::terminate())?, listen(SignalKind::hangup())?);
    Ok(Box::pin(async move {
        tokio::select! {
            _ = interrupt.recv() => of_signal(2),
            _ = terminate.recv() => of_signal(15),
            _ = hangup.recv() => of_signal(1),
        }
    }))
}

/// Receives SIGINT (Ctrl-C) and SIGTERM for `run`. (SIGHUP, of a closed terminal, ends `run` alone: the job goes on.) They
/// do not end the program by themselves: until the job has ended,
/// the first one makes it stop the MiniCluster.
pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    /// Whether SIGTERM was received. If the MiniCluster cannot be stopped then, the program ends with the failure: the
    /// sender waits for the program to end and sends no second signal. After Ctrl-C the program goes on, and its user
    /// can press Ctrl-C again.
    pub is_terminated: bool,
}

impl Interrupts {
    pub fn listen() -> Result<Interrupts, Failure> {
        Ok(Interrupts {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            is_terminated: false,
        })
    }

    /// Waits for the next of the two signals.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => self.is_terminated = true,
        }
    }
}
