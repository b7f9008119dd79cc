//! What a MiniCluster will do, in a few lines; and colours for people at a terminal.

use std::fmt::Write as _;

use flux_shared::agent_spec::Program;
use flux_shared::paths::DEFAULT_LOGS;

use super::pods::PlannedContainer;
use super::source::{OtherContainer, Source};
use super::text::assumed;
use crate::facts::Facts;
use crate::plan::shell_quote::word;
use crate::plan::{Role, Step};

const MORE: &str = "--full shows every file, variable and step, --index N those of one pod; --cpus, --uid and --facts assume another host";

pub fn render_summary(source: &Source, facts: &Facts, pods: &[PlannedContainer]) -> String {
    let spec = &source.spec;
    let most = if spec.max_size() > spec.size {
        format!(" ({} at most)", spec.max_size())
    } else {
        String::new()
    };
    let many = if spec.size == 1 {
        "1 pod".into()
    } else {
        format!("{} pods", spec.size)
    };
    let mut out = format!(
        "MiniCluster {}: {many}{most}, hosts {}; assumed: {}\n",
        spec.name,
        spec.hostlist(),
        assumed(source, facts)
    );
    let mut line = |label: &str, text: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{label:<11}{text}");
    };
    line("lead", &lead(source, pods));
    line("followers", &followers(source));
    line("output", &output(source));
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

/// The program that the lead starts, as it would be typed.
fn lead(source: &Source, pods: &[PlannedContainer]) -> String {
    if let Some(lead) = &source.spec.network.lead {
        return format!("in another cluster, at {}", lead.address);
    }
    let plan = pods
        .iter()
        .find(|pod| pod.plan.role == Role::Lead)
        .map(|pod| &pod.plan);
    let steps = plan.iter().flat_map(|plan| &plan.steps);
    let mut launches = steps.filter_map(|step| match step {
        Step::Launch(launch) => Some(launch.program.iter().map(word).collect::<Vec<String>>()),
        _ => None,
    });
    match launches.next_back().unwrap_or_default().as_slice() {
        [] => "no program: the broker stays until it is shut down".into(),
        words => words.join(" "),
    }
}

/// The users that the agent creates, and whom Flux runs as.
fn users(source: &Source) -> Option<String> {
    let spec = &source.spec;
    let of_flux = spec.runner.user.iter().map(|user| {
        if user.run_flux_as_root {
            user.name.clone()
        } else {
            format!("{} (runs Flux)", user.name)
        }
    });
    let all: Vec<String> = spec.users.iter().cloned().chain(of_flux).collect();
    (!all.is_empty()).then(|| format!("{}, created in every pod", all.join(", ")))
}

fn followers(source: &Source) -> String {
    let spec = &source.spec;
    let port = spec.network.port;
    match (&spec.network.lead, spec.size) {
        (Some(lead), size) => format!("{size}: join the lead on port {} and end with it", lead.port),
        (None, 1) => "none".into(),
        (None, size) => format!(
            "{}: wait for the lead on port {port}, join it and end with it",
            size - 1
        ),
    }
}

fn output(source: &Source) -> String {
    let runner = &source.spec.runner;
    let logs = if runner.logs.is_empty() {
        DEFAULT_LOGS
    } else {
        &runner.logs
    };
    let is_idle = runner.interactive || source.spec.network.lead.is_some();
    match runner.program {
        _ if is_idle => "that of what you run with flux-agent connect in a pod".into(),
        Program::Persistent => "that of what you run with flux-agent connect in a pod".into(),
        Program::Diagnostics => "the log of the lead: three reports; then the instance stays up".into(),
        Program::Batch { .. } => {
            format!(
                "{logs}/job-<line>.out and .err on the pod that ran the line; exit code 0 if all of them succeeded"
            )
        }
        Program::BatchRaw { .. } => "where the jobs of the script write; the exit code is the batch's".into(),
        Program::Submit { .. } | Program::Launcher { .. } | Program::Script { .. } => {
            "the log of the lead, as it comes; the exit code is the command's own".into()
        }
    }
}

/// With colours: titles and labels bold, notes yellow, details dim.
pub fn paint(text: &str) -> String {
    let (bold, yellow, dim, plain) = ("\u{1b}[1m", "\u{1b}[33m", "\u{1b}[2m", "\u{1b}[0m");
    let lines: Vec<&str> = text.lines().collect();
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        let is_title = lines.get(at + 1).is_some_and(|next| next.starts_with('─'));
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
