//! The user's terminal while the usage is shown and updated in place.

use std::io::Write;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::queue;
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use flux_shared::printable::printable;

use crate::failure::Failure;
use crate::screen;

/// A terminal in raw mode that shows its alternate screen. Dropping this restores the terminal.
pub struct Display(());

impl Display {
    pub fn begin() -> Result<Display, Failure> {
        terminal::enable_raw_mode().map_err(Failure::on_this_machine("make the terminal raw"))?;
        // Made before the writes: if one fails, dropping this restores the terminal.
        let display = Display(());
        let mut output = std::io::stdout();
        queue!(output, EnterAlternateScreen, Hide)
            .and_then(|()| output.flush())
            .map_err(failed())?;
        Ok(display)
    }

    /// Shows the lines that `lines` returns for the height of the terminal. The last line shows `trouble`, else the
    /// `interval` in seconds and the key that ends the display.
    pub fn show(
        &mut self,
        lines: impl FnOnce(usize) -> Vec<String>,
        trouble: Option<&str>,
        interval: u64,
    ) -> Result<(), Failure> {
        let (width, height) = terminal::size().map_err(failed())?;
        let last_line = match trouble {
            Some(trouble) => format!("! {trouble}"),
            None => format!("every {interval} s; q ends"),
        };
        // Two lines are not for `lines`: the last line, and the one above it, which stays empty.
        let lines = lines(usize::from(height).saturating_sub(2));
        let mut output = std::io::BufWriter::new(std::io::stdout());
        let mut write = || {
            queue!(output, MoveTo(0, 0))?;
            for (number, line) in lines.iter().enumerate() {
                // Before the line: after one that fills the width, some terminals would clear its last character.
                queue!(output, Clear(ClearType::CurrentLine))?;
                let line = screen::cropped(line, width.into());
                if number == 0 && screen::shows_colours() {
                    queue!(
                        output,
                        SetAttribute(Attribute::Bold),
                        Print(line),
                        SetAttribute(Attribute::Reset)
                    )?
                } else {
                    queue!(output, Print(line))?
                }
                queue!(output, Print("\r\n"))?;
            }
            let last_line = screen::cropped(&printable(&last_line).replace('\n', " "), width.into());
            queue!(
                output,
                Clear(ClearType::FromCursorDown),
                MoveTo(0, height.saturating_sub(1)),
                Print(last_line)
            )?;
            output.flush()
        };
        write().map_err(failed())
    }
}

fn failed() -> impl FnOnce(std::io::Error) -> Failure {
    Failure::on_this_machine("write to the terminal")
}

impl Drop for Display {
    fn drop(&mut self) {
        let mut output = std::io::stdout();
        let _ = queue!(output, Show, LeaveAlternateScreen).and_then(|()| output.flush());
        let _ = terminal::disable_raw_mode();
    }
}
