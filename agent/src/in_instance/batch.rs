//! `flux-agent batch`: submits a batch, and waits for it. If it fails, shows the end of its output.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::command_runner::CommandRunner;
use crate::report::failure::Failure;
use crate::report::log;
use crate::supervise::program::Output;

/// Number of lines of a failed batch's output that are shown.
const SHOWN_LINES: usize = 20;
/// Only these last bytes of the output are searched for the lines.
const SEARCHED_BYTES: u64 = 64 << 10;

/// What to submit, and where its output goes.
#[derive(Debug, clap::Args)]
pub struct BatchArgs {
    /// File with the batch's output ({{id}}: its id); its end is shown if the batch fails
    #[arg(long, value_name = "FILE")]
    shows: String,
    /// Print the batch's events
    #[arg(long)]
    events: bool,
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command, which submits a batch and prints its id. Then waits for the batch, and returns its exit code.
pub fn run(args: &BatchArgs) -> Result<u8, Failure> {
    let BatchArgs {
        shows,
        events,
        command,
    } = args;
    crate::system::runtime::block_on(Box::pin(async {
        let mut runner = CommandRunner::new()?;
        let failed =
            |error: std::io::Error| Failure::internal(format!("failed to read the job's id: {error}"));
        // A file in memory, since the command could block on a pipe that nobody reads until it ends.
        let mut output =
            File::from(memfd_create("output", MFdFlags::MFD_CLOEXEC).map_err(|error| failed(error.into()))?);
        let command_output = output.try_clone().map_err(failed)?;
        let code = runner.run(command, Output::To(command_output.into())).await?;
        let mut bytes = Vec::new();
        output
            .rewind()
            .and_then(|()| output.read_to_end(&mut bytes))
            .map_err(failed)?;
        let _ = std::io::stdout().write_all(&bytes);
        let text = String::from_utf8_lossy(&bytes);
        if code != 0 {
            return Ok(code);
        }
        let id = text.split_whitespace().last();
        if *events && let Some(id) = id {
            // Ignore the exit code of wait-event: it is not the batch's.
            runner
                .run(
                    &["flux", "job", "wait-event", "-v", id, "clean"].map(OsString::from),
                    Output::Inherit,
                )
                .await?;
        }
        let wait: Vec<OsString> = match id {
            Some(id) => ["flux", "job", "status", id].map(OsString::from).into(),
            // The command printed no id. The plan gives the batch the flag `waitable`, for which this waits.
            None => ["flux", "job", "wait", "--all"].map(OsString::from).into(),
        };
        let code = runner.run(&wait, Output::Inherit).await?;
        if code != 0
            && runner.supervisor.received_stop().is_none()
            && let Some(id) = id
        {
            show_output(shows, id, code);
        }
        Ok(code)
    }))
}

/// Shows the end of a failed batch's output, which `flux batch` writes into a file. `{{id}}` in `template`, the path of
/// this file, means the batch's id.
fn show_output(template: &str, id: &str, code: u8) {
    let path_for = |id: &str| template.replace("{{id}}", id);
    // In a locale without `ƒ`, Flux writes the id with an `f`.
    let paths = [path_for(id), path_for(&id.replace('ƒ', "f"))];
    let Some(text) = paths.iter().find_map(|path| end_of(path, SEARCHED_BYTES).ok()) else {
        let [path, _] = paths;
        tracing::info!(
            stage = "batch",
            "the batch ended with code {code}; its output is in {path} of the pod where it ran"
        );
        return;
    };
    tracing::info!(
        stage = "batch",
        "the batch ended with code {code}; the end of its output:"
    );
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines
        .iter()
        .skip(lines.len().saturating_sub(SHOWN_LINES))
        .for_each(|line| log::plain("batch", line));
}

/// The last bytes of a file, `most` at most.
fn end_of(path: &str, most: u64) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let begin = file.metadata()?.len().saturating_sub(most);
    file.seek(SeekFrom::Start(begin))?;
    let mut end = Vec::new();
    file.take(most).read_to_end(&mut end)?;
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{allow_processes, alone, become_user};

    #[test]
    fn batch_needs_only_the_process_of_its_command() {
        let test = "in_instance::batch::tests::batch_needs_only_the_process_of_its_command";
        let output = alone(test, |folder| {
            become_user(61_237, folder);
            allow_processes(1);
            let args = BatchArgs {
                shows: String::new(),
                events: false,
                command: ["sh", "-c", "echo printed; exit 5"].map(OsString::from).into(),
            };
            assert_eq!(run(&args).unwrap(), 5);
        });
        // It is empty in the separate process, in which `alone` runs this test again.
        assert!(output.is_empty() || output.contains("printed"), "{output}");
    }

    #[test]
    fn batch_output_shows_at_most_its_last_bytes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "first\nlast\n").unwrap();
        let end = |most| String::from_utf8(end_of(file.path().to_str().unwrap(), most).unwrap()).unwrap();
        assert_eq!((end(100).as_str(), end(5).as_str()), ("first\nlast\n", "last\n"));
    }
}
