//! The summary that `dry-run` prints without `--full`, and colours for the output on a terminal.

use std::fmt::Write as _;

use flux_shared::agent_spec::Program;
use flux_shared::paths::DEFAULT_LOGS;

use super::pods::PlannedContainer;
use super::source::{OtherContainer, Source};
use super::text::host_facts;
use crate::facts::Facts;
use crate::plan::shell_quote::word;
use crate::plan::{Role, Step};

/// Last line of the summary.
const MORE: &str = "--full prints every file, variable and step; --index N prints those of one pod; --cpus, --uid and --facts assume another host";

pub fn render_summary(source: &Source, facts: &Facts, pods: &[PlannedContainer]) -> String {
    let spec = &source.spec;
    let maximum = if spec.max_size() > spec.size {
        format!(" (maximum {})", spec.max_size())
    } else {
        String::new()
    };
    let pod_count = if spec.size == 1 {
        "1 pod".into()
    } else {
        format!("{} pods", spec.size)
    };
    let mut out = format!(
        "MiniCluster {}: {pod_count}{maximum}, hosts {}; assumed: {}\n",
        spec.name,
        spec.hostlist(),
        host_facts(source, facts)
    );
    let mut line = |label: &str, text: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{label:<11}{text}");
    };
    line("lead", &lead(source, pods));
    line("followers", &followers(source));
    line("output", &output(source));
    // Sidecars whose entrypoint is the agent. `others` are containers without it.
    let wrapped = spec.sidecars.keys().map(|name| format!("{name} (in every pod)"));
    let others = source.others.iter().map(OtherContainer::title);
    let sidecars: Vec<String> = wrapped.chain(others).collect();
    if !sidecars.is_empty() {
        line("sidecars", &sidecars.join(", "));
    }
    if let Some(users) = users(source) {
        line("users", &users);
    }
    let notes = &source.notices;
    line("notes", notes.first().map_or("none", String::as_str));
    notes.iter().skip(1).for_each(|note| line("", note));
    out.push_str(MORE);
    out.push('\n');
    out
}

/// The program that the lead starts, as a command line; or where the lead is, if it is in another cluster.
fn lead(source: &Source, pods: &[PlannedContainer]) -> String {
    if let Some(lead) = &source.spec.network.lead {
        return format!("in another cluster, at {}", lead.address);
    }
    let Some(lead) = pods.iter().find(|pod| pod.plan.role == Role::Lead) else {
        return "not planned: the facts are those of a follower".into();
    };
    let program = lead.plan.steps.iter().find_map(|step| match step {
        Step::Launch(launch) => Some(launch.program.iter().map(word).collect::<Vec<String>>()),
        _ => None,
    });
    match program.as_deref() {
        // As for a pod that replaces a lost lead.
        None => "starts no broker with these facts: --full says why".into(),
        Some([]) => "no program: the broker runs until you shut it down".into(),
        Some(words) => words.join(" "),
    }
}

/// The users that the agent creates, and which of them runs Flux. None if it creates none.
fn users(source: &Source) -> Option<String> {
    let spec = &source.spec;
    // Every pod has the user root already.
    let flux_user = spec.runner.user.iter().filter(|user| user.name != "root");
    let flux_user = flux_user.map(|user| {
        if user.run_flux_as_root {
            user.name.clone()
        } else {
            format!("{} (runs Flux)", user.name)
        }
    });
    let all: Vec<String> = spec.users.iter().cloned().chain(flux_user).collect();
    (!all.is_empty()).then(|| format!("created in every pod: {}", all.join(", ")))
}

/// What the followers do. If the lead is in another cluster, all pods of this MiniCluster are followers.
fn followers(source: &Source) -> String {
    let spec = &source.spec;
    let port = spec.network.port;
    match (&spec.network.lead, spec.size) {
        (Some(lead), size) => {
            let who = subject(size);
            format!(
                "{who} joins the lead on port {}, and ends when the lead ends",
                lead.port
            )
        }
        (None, 1) => "none".into(),
        (None, size) => {
            let who = subject(size - 1);
            format!("{who} waits for the lead on port {port}, joins it, and ends when the lead ends")
        }
    }
}

/// The subject of a sentence about this number of pods.
fn subject(pods: u32) -> String {
    if pods == 1 {
        "1 pod: it".into()
    } else {
        format!("{pods} pods: each")
    }
}

fn output(source: &Source) -> String {
    let runner = &source.spec.runner;
    let logs = if runner.logs.is_empty() {
        DEFAULT_LOGS
    } else {
        &runner.logs
    };
    // Whether no pod of this MiniCluster runs the program. If the lead is in another cluster, all pods are followers.
    let is_idle = runner.is_left_to_users() || source.spec.network.lead.is_some();
    match runner.program {
        _ if is_idle => "from the commands that you run in a pod with flux-agent connect".into(),
        Program::Persistent => "from the commands that you run in a pod with flux-agent connect".into(),
        Program::Diagnostics => "three reports in the lead's log; then the instance keeps running".into(),
        Program::Batch { .. } => {
            format!(
                "{logs}/job-<line>.out and .err in the pod that runs the line; the exit code is 0 if all lines succeed"
            )
        }
        Program::BatchRaw { .. } => {
            "where the jobs in the script write it; the exit code is that of the batch script".into()
        }
        Program::Submit { .. } | Program::Launcher { .. } | Program::Script { .. } => {
            "live in the lead's log; the exit code is that of the command".into()
        }
    }
}

/// Adds colours to the output of `dry-run`: titles and labels are bold, notices yellow, details dim.
pub fn paint(text: &str) -> String {
    let (bold, yellow, dim, plain) = ("\u{1b}[1m", "\u{1b}[33m", "\u{1b}[2m", "\u{1b}[0m");
    let lines: Vec<&str> = text.lines().collect();
    let mut out = String::new();
    for (number, line) in lines.iter().enumerate() {
        // Titles are underlined.
        let is_title = lines.get(number + 1).is_some_and(|next| next.starts_with('─'));
        let label = ["lead ", "followers ", "output ", "sidecars ", "users ", "notes "]
            .into_iter()
            .find(|label| line.starts_with(label));
        let style = match label {
            Some(label) => {
                let _ = writeln!(out, "{bold}{label}{plain}{}", &line[label.len()..]);
                continue;
            }
            None if is_title || line.starts_with("MiniCluster ") => bold,
            None if line.trim_start().starts_with("Notice: ") => yellow,
            // The last line, the content of files, and the lines under titles.
            None if line.starts_with("--full")
                || line.trim_start().starts_with('│')
                || line.starts_with('─') =>
            {
                dim
            }
            None => "",
        };
        let end = if style.is_empty() { "" } else { plain };
        let _ = writeln!(out, "{style}{line}{end}");
    }
    out
}
