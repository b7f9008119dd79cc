//! The user's terminal while a program in a pod uses it. It is in raw mode, and the pod's terminal gets its size.

use crossterm::terminal;
use futures::SinkExt;
use futures::channel::mpsc::Sender;
use kube::api::TerminalSize;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// A terminal in raw mode. Dropping this ends raw mode.
pub struct Raw(());

impl Raw {
    /// Switches raw mode on, and sends the terminal's size and every change of it to `sizes`.
    pub fn begin(sizes: Option<Sender<TerminalSize>>) -> Result<Raw, Failure> {
        // Before raw mode: if this fails, nothing has to be undone.
        let mut resized = signal(SignalKind::window_change())
            .map_err(Failure::on_this_machine("listen for the terminal's size"))?;
        terminal::enable_raw_mode().map_err(Failure::on_this_machine("make the terminal raw"))?;
        if let Some(mut sizes) = sizes {
            tokio::spawn(async move {
                loop {
                    let Ok((width, height)) = terminal::size() else {
                        return;
                    };
                    if sizes.send(TerminalSize { width, height }).await.is_err()
                        || resized.recv().await.is_none()
                    {
                        return;
                    }
                }
            });
        }
        Ok(Raw(()))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = terminal::disable_raw_mode();
    }
}
