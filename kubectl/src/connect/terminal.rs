//! The user's terminal while a program in a pod uses it. It is in raw mode, and the pod's terminal gets its size.

use std::io;
use std::time::Duration;

use crossterm::terminal;
use futures::SinkExt;
use futures::channel::mpsc::Sender;
use kube::api::TerminalSize;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use crate::failure::Failure;

/// Many load balancers close a connection on which nobody has sent anything for 60 s, and kube's client sends its pings
/// only every 60 s.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// A terminal in raw mode. Dropping this ends raw mode.
pub struct Raw(());

impl Raw {
    /// Switches raw mode on, and keeps sending the terminal's size to `sizes`.
    pub fn begin(sizes: Option<Sender<TerminalSize>>) -> Result<Raw, Failure> {
        // Before raw mode: if this fails, nothing has to be undone.
        let changes = signal(SignalKind::window_change())
            .map_err(Failure::on_this_machine("listen for the terminal's size"))?;
        terminal::enable_raw_mode().map_err(Failure::on_this_machine("make the terminal raw"))?;
        if let Some(sizes) = sizes {
            tokio::spawn(send_sizes(terminal::size, changes, sizes));
        }
        Ok(Raw(()))
    }
}

/// Sends the terminal's size (columns and rows): now, after each change, and after `KEEP_ALIVE` again, which changes
/// nothing in the pod. Ends if `size` fails, or if `sizes` has no receiver.
async fn send_sizes(
    size: impl Fn() -> io::Result<(u16, u16)>,
    mut changes: Signal,
    mut sizes: Sender<TerminalSize>,
) {
    while let Ok((width, height)) = size() {
        if sizes.send(TerminalSize { width, height }).await.is_err()
            || matches!(timeout(KEEP_ALIVE, changes.recv()).await, Ok(None))
        {
            return;
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = terminal::disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use futures::channel::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn idle_terminal_sends_its_size_twice_a_minute() {
        let changes = signal(SignalKind::window_change()).unwrap();
        let (sender, mut sizes) = mpsc::channel(0);
        tokio::spawn(send_sizes(|| Ok((80, 24)), changes, sender));
        let begin = tokio::time::Instant::now();
        for _ in 0..4 {
            assert_eq!(sizes.next().await.unwrap().width, 80);
        }
        assert!(
            begin.elapsed() <= Duration::from_secs(90),
            "{:?}",
            begin.elapsed()
        );
    }
}
