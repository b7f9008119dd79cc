//! The plans as text: for each container a heading and its steps in order, with the command lines of the
//! programs that the steps start.

use std::fmt::Write as _;

use flux_shared::exit::Category;

use super::pods::PlannedContainer;
use super::source::Source;
use crate::facts::Facts;
use crate::plan::shell_quote::{quote, word};
use crate::plan::{
    AtEnd, BrokerAddress, Content, EnvChange, InstancePart, Launch, Owner, RESTORE, Role, SignalTarget,
    Snippet, SnippetPhase, SnippetResources, SnippetShell, Stdout, Step, Waits,
};

/// Printed below the facts of an assumed host.
const ASSUMED: &str = "To assume another host, use --facts FILE, --cpus, --uid …";
/// Printed below the facts of a detected host (`--here`).
const FOUND: &str = "`flux-agent facts` prints all that was detected";

/// Longest line of a command line in bytes, without indentation and ` \`, unless a single word is longer.
const WIDTH: usize = 100;

pub fn render_text(source: &Source, facts: &Facts, pods: &[PlannedContainer]) -> String {
    let mut out = String::new();
    head(&mut out, source, facts);
    // The steps of the lead, which comes first in `pods` if it is planned.
    let mut lead: &[Step] = &[];
    for pod in pods {
        heading(&mut out, pod);
        steps(&mut out, &pod.plan.steps, lead);
        if pod.plan.role == Role::Lead {
            lead = &pod.plan.steps;
        }
    }
    if !source.others.is_empty() {
        section(&mut out, "Containers without the agent");
        for other in &source.others {
            let command = match &other.command {
                Some(words) => words.join(" "),
                None => "the image's own entrypoint".into(),
            };
            line_of(&mut out, 1, &format!("{}: {command}", other.title()));
        }
    }
    out
}

/// Writes the steps in order. Two or more steps in a row that the lead has too become one line. Two or more
/// directories in a row share a heading.
fn steps(out: &mut String, steps: &[Step], lead: &[Step]) {
    let mut at = 0;
    while let Some(current) = steps.get(at) {
        let rest = &steps[at..];
        let lead_at = lead.iter().position(|lead_step| lead_step == current);
        let known = lead_at.map_or(0, |lead_at| {
            rest.iter()
                .zip(&lead[lead_at..])
                .take_while(|(step, lead_step)| step == lead_step)
                .count()
        });
        let directories = rest
            .iter()
            .take_while(|step| matches!(step, Step::Directory { .. }))
            .count();
        match (known, directories) {
            (2.., _) => {
                let lead_numbers = numbers(lead_at.unwrap_or(0), known);
                let _ = writeln!(
                    out,
                    "{:>5} the same as steps {lead_numbers} of the lead",
                    numbers(at, known)
                );
                at += known;
            }
            (_, 2..) => {
                let _ = writeln!(out, "{:>5} directories", numbers(at, directories));
                rest[..directories].iter().for_each(|step| directory(out, step));
                at += directories;
            }
            _ => {
                step(out, &numbers(at, 1), current, known == 1);
                at += 1;
            }
        }
    }
}

/// The numbers of `count` steps from index `at` on, such as `3-5`. Steps are numbered from 1.
fn numbers(at: usize, count: usize) -> String {
    if count == 1 {
        (at + 1).to_string()
    } else {
        format!("{}-{}", at + 1, at + count)
    }
}

/// Writes the mode, owner and path of a directory.
fn directory(out: &mut String, step: &Step) {
    if let Step::Directory { path, mode, owner } = step {
        line_of(out, 2, &format!("{:04o} {} {}", mode.0, ids(owner), quote(path)));
    }
}

/// Writes a line, indented by `depth` times four blanks.
fn line_of(out: &mut String, depth: usize, text: &str) {
    let indent = "    ".repeat(depth);
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}", format!("{indent}{text}").trim_end());
}

/// Writes what is the same for all pods: the MiniCluster, the host, the view and the notices.
fn head(out: &mut String, source: &Source, facts: &Facts) {
    let spec = &source.spec;
    let pods = if spec.size == 1 {
        "1 pod".into()
    } else {
        format!("{} pods", spec.size)
    };
    let maximum = if spec.max_size() > spec.size {
        format!(" (maximum {})", spec.max_size())
    } else {
        String::new()
    };
    line_of(
        out,
        0,
        &format!(
            "MiniCluster {} in namespace {}: {pods}{maximum}, hosts {}",
            spec.name,
            spec.namespace,
            spec.hostlist()
        ),
    );
    let host = if source.is_here {
        "Detected host"
    } else {
        "Assumed host"
    };
    line_of(out, 0, &format!("{host}: {}", host_facts(source, facts)));
    if let Some(view) = &source.view {
        line_of(out, 0, &format!("View: {view}"));
    }
    line_of(out, 0, if source.is_here { FOUND } else { ASSUMED });
    for notice in &source.notices {
        line_of(out, 0, &format!("Notice: {notice}"));
    }
}

/// The most important facts about the host, in one line.
pub fn host_facts(source: &Source, facts: &Facts) -> String {
    let mut parts = vec![match facts.uid {
        0 => "user root".to_owned(),
        uid => format!("uid {uid}, gid {}", facts.gid),
    }];
    parts.push(match facts.usable_cores(&source.spec.runner) {
        1 => "1 core".into(),
        cores => format!("{cores} cores"),
    });
    if facts.gpus > 0 {
        parts.push(format!("{} GPUs", facts.gpus));
    }
    parts.push(
        facts
            .shell
            .as_ref()
            .map_or_else(|| "no shell".into(), |shell| format!("shell {shell}")),
    );
    if source.spec.view.enabled {
        let python = facts.view.python.as_deref().unwrap_or("no Python");
        let fluxion = if facts.view.fluxion {
            "Fluxion"
        } else {
            "no Fluxion"
        };
        parts.push(if facts.view.flux {
            format!("a Flux view with {python} and {fluxion}")
        } else {
            "no Flux view".into()
        });
    } else {
        parts.push(format!(
            "Flux at {}",
            facts.flux_on_path.as_deref().unwrap_or("(not on the PATH)")
        ));
    }
    parts.join(", ")
}

/// Writes the title of a container, and what holds for its whole plan.
fn heading(out: &mut String, pod: &PlannedContainer) {
    let PlannedContainer { indexes, plan } = pod;
    // A single index has no `-`.
    let is_range = indexes.contains('-');
    let title = match (&plan.role, plan.rank) {
        (Role::Sidecar(name), _) if is_range => format!("Sidecar {name}: indexes {indexes}"),
        (Role::Sidecar(name), _) => format!("Sidecar {name}: index {indexes}"),
        (Role::Lead, _) => format!("Lead: index {indexes}, host {}, rank 0", plan.hostname),
        (Role::Follower, rank) => {
            let rank = rank.map(|rank| rank.to_string()).unwrap_or_default();
            let pods = if is_range {
                format!(
                    "Followers: indexes {indexes}, same plan; example: index {}",
                    plan.index
                )
            } else {
                format!("Follower: index {indexes}")
            };
            format!("{pods}, host {}, rank {rank}", plan.hostname)
        }
    };
    section(out, &title);
    if let Some(binding) = &plan.binding {
        line_of(out, 1, &format!("Binding tasks to cores is {}", binding.line()));
    }
    if let Some(trace) = &plan.trace {
        line_of(
            out,
            1,
            &format!(
                "Writes its timeline to the termination message at the end, for trace {:032x}",
                trace.parent.trace
            ),
        );
    }
    for line in waits(&plan.waits) {
        line_of(out, 1, &line);
    }
    if let Some(seconds) = plan.kill_after {
        line_of(
            out,
            1,
            &format!("Kills all processes that still run {seconds} s after a stop signal"),
        );
    }
    for notice in &plan.notices {
        line_of(out, 1, &format!("Notice: {notice}"));
    }
}

/// A line for each limit on the time that a follower waits.
fn waits(waits: &Waits) -> Vec<String> {
    let lines = [
        (
            waits.parent_deadline,
            "Exits at the start if its parent broker does not answer within",
        ),
        (
            waits.lead_gone,
            "Exits when the lead's DNS name has been missing for",
        ),
        (
            waits.lead_silent,
            "Exits when the lead, once reached, has not answered for",
        ),
    ];
    lines
        .into_iter()
        .filter_map(|(seconds, what)| Some(format!("{what} {} s", seconds?)))
        .collect()
}

/// Writes an underlined title.
fn section(out: &mut String, title: &str) {
    out.push('\n');
    line_of(out, 0, title);
    line_of(out, 0, &"─".repeat(title.chars().count()));
}

/// Writes a step: a numbered first line, and the details below. `is_known`: the lead has the same step, so the
/// content of a file is left out.
fn step(out: &mut String, number: &str, step: &Step, is_known: bool) {
    let mut first = |text: &str| {
        let _ = writeln!(out, "{number:>5} {text}");
    };
    match step {
        Step::User { name, uid, gid, home } => {
            first(&format!(
                "add user {name}, uid {uid}, gid {gid}, home {home}, unless it exists"
            ));
        }
        Step::Password { user, source } => {
            first(&format!(
                "password of {user}, from {} (never shown)",
                quote(source)
            ));
        }
        Step::Daemon { argv } => first(&format!("start {} in the background", argv.join(" "))),
        Step::Give { path, owner } => {
            first(&format!(
                "change the owner of {} to {}, unless that user can write to it",
                quote(path),
                ids(owner)
            ));
        }
        Step::Directory { path, mode, owner } => first(&format!(
            "directory {} {:04o} {}",
            quote(path),
            mode.0,
            ids(owner)
        )),
        Step::File {
            path,
            mode,
            owner,
            content,
        } => {
            first(&format!("file {} {:04o} {}", quote(path), mode.0, ids(owner)));
            file(out, content, is_known);
        }
        Step::Link { path, target } => first(&format!("link {} -> {}", quote(path), quote(target))),
        Step::Environment { changes } => {
            first("environment");
            changes
                .iter()
                .for_each(|change| line_of(out, 2, &variable(change)));
        }
        Step::Shell(shell) => {
            first(&format!("one shell for all snippets: {}", shell_notes(shell)));
            if !shell.variables.is_empty() {
                line_of(out, 2, "(more variables, not exported)");
                shell
                    .variables
                    .iter()
                    .for_each(|(name, value)| block(out, &format!("{name}={}", quote(value))));
            }
        }
        Step::Snippet(snippet) => {
            first(&format!("snippet {}", snippet_notes(snippet)));
            block(out, &snippet.source);
        }
        Step::EndShell => first("end the shell for the snippets"),
        Step::Replan => first("look up the user again: a snippet may have added it"),
        Step::SnippetResources(step) => {
            let SnippetResources {
                path,
                hosts,
                config,
                strict,
                ..
            } = step;
            first(&format!(
                "if a snippet has written R (the resources of the instance) to {}, Flux uses it",
                quote(path)
            ));
            let otherwise = if step.falls_back_to_agents_r() {
                "the agent's R"
            } else {
                "the resources that each broker discovers"
            };
            let unusable = if *strict {
                format!(", or the container fails; if it is missing, Flux uses {otherwise}")
            } else {
                format!("; if it is missing or wrong, Flux uses {otherwise}")
            };
            line_of(
                out,
                2,
                &format!("(it must be JSON and name the hosts {hosts}{unusable})"),
            );
            if let Some((config_path, text)) = config {
                line_of(
                    out,
                    2,
                    &format!("(if Flux uses it, write the file {})", quote(config_path)),
                );
                block(out, text);
            }
        }
        Step::WaitParent(parent) if parent.only_looked_up => first(&format!(
            "wait until the name {} has an address",
            host_name(parent)
        )),
        Step::WaitParent(parent) => first(&format!(
            "wait until {} answers on port {}",
            host_name(parent),
            parent.port
        )),
        Step::WaitSocket { path } => first(&format!("wait until the broker answers on {}", quote(path))),
        Step::Launch(launch) => {
            first(&format!("start {}", launch_notes(launch)));
            launch_details(out, launch);
        }
        Step::PrepareArchive {
            archive,
            dump,
            leftovers,
            owner,
        } => {
            first(&format!(
                "file {} 0644 {}, empty; remove other files {leftovers}; if {} exists, start the broker with {}",
                quote(dump),
                ids(owner),
                quote(archive),
                quote(&format!("{RESTORE}{archive}"))
            ));
        }
        Step::PublishArchive { from, to } => first(&format!(
            "rename {} to {} if the dump is complete and the broker did not fail",
            quote(from),
            quote(to)
        )),
        Step::CheckEarlierStarts { record, restarts, .. } => {
            let outcome = final_outcome(*restarts);
            first(&format!(
                "exit at once if the program has already {outcome}, as recorded in {}",
                quote(record)
            ));
        }
        Step::LeadLost { restarts_left: 0 } => {
            first("exit with lead-lost: an earlier pod of this lead was lost, and its program may have run");
        }
        Step::LeadLost { .. } => {
            first("an earlier pod of this lead was lost: wait until the operator restarts the MiniCluster");
        }
        Step::Linger { note, seconds } => {
            first(&format!(
                "once Flux has ended, hold back a stop signal until {seconds} s after {} was written, so that the command can end",
                quote(note)
            ));
        }
        Step::NoteEnd { note } => first(&format!(
            "file {}, unless this container was stopped",
            quote(note)
        )),
        Step::Stay => first("keep running until the pod ends"),
    }
}

/// What an earlier start must have recorded for the program not to run again. `restarts`: how often the program
/// may restart; `u32::MAX`: without a limit.
fn final_outcome(restarts: u32) -> String {
    match restarts {
        0 => "started".to_owned(),
        u32::MAX => "ended with 0".to_owned(),
        restarts => format!("ended with 0 or been restarted {restarts} times"),
    }
}

fn ids(owner: &Owner) -> String {
    format!("{}:{}", owner.uid, owner.gid)
}

/// Writes the content of a file, or where it comes from.
fn file(out: &mut String, content: &Content, is_known: bool) {
    match content {
        Content::Text(_) | Content::Exports(_) if is_known => line_of(out, 2, "(the same as in the lead)"),
        Content::Text(text) => block(out, text),
        Content::Exports(exports) => {
            line_of(out, 2, "(with the values that the variables have at this step)");
            exports
                .iter()
                .for_each(|(name, value)| line_of(out, 2, &format!("│ export {name}={}", word(value))));
        }
        Content::Secret { source } => line_of(out, 2, &format!("(copied from {source}; never shown)")),
        Content::DerivedCurve { seed, of, .. } => line_of(
            out,
            2,
            &format!(
                "(a certificate derived from the seed in {seed} and from {}; never shown)",
                of.join(", ")
            ),
        ),
        Content::Curve { source } => line_of(
            out,
            2,
            &format!("(a copy of the certificate {source}, checked; never shown)"),
        ),
    }
}

/// Writes a text of any number of lines, with a bar before each.
fn block(out: &mut String, text: &str) {
    text.lines()
        .for_each(|line| line_of(out, 2, &format!("│ {line}")));
}

/// A change of an environment variable, such as `NAME=value`.
fn variable(change: &EnvChange) -> String {
    match change {
        EnvChange::Set { name, value } => format!("{name}={}", word(value)),
        EnvChange::Append {
            name,
            separator,
            value,
        } => format!("{name} += {separator}{}", quote(value)),
        EnvChange::Withdraw {
            name,
            separator,
            value,
        } => format!("{name} -= {separator}{}", quote(value)),
        EnvChange::Default { name, value } => format!("{name}={}  (if it is not set)", quote(value)),
        EnvChange::Remove { name } => format!("{name} is removed"),
    }
}

/// The shell's command line, and the value of its variable `asFlux`.
fn shell_notes(SnippetShell { argv, as_flux, .. }: &SnippetShell) -> String {
    let argv: Vec<String> = argv.iter().map(|word| quote(word)).collect();
    format!(
        "{}, with the variable asFlux={} (not exported)",
        argv.join(" "),
        quote(as_flux)
    )
}

/// The snippet's name, the effect of its exit code, and whether its output is hidden.
fn snippet_notes(snippet: &Snippet) -> String {
    let Snippet {
        name,
        phase,
        strict,
        decides,
        silent,
        ..
    } = snippet;
    let end = match (phase, strict) {
        (SnippetPhase::Program, _) => "the container exits with its exit code",
        (SnippetPhase::After, _) if *decides => {
            "if the job's exit code is 0, the container exits with the snippet's"
        }
        (SnippetPhase::After, _) => "if it fails, the agent logs the failure; the result does not change",
        (_, true) => "if it fails, the container exits with the snippet's exit code",
        (_, false) => "if it fails, the agent logs the failure and continues",
    };
    let silent = if *silent { "; its output is not shown" } else { "" };
    format!("{name}; {end}{silent}")
}

/// The broker's DNS name, without the dot at its end.
fn host_name(broker: &BrokerAddress) -> &str {
    broker.host.trim_end_matches('.')
}

/// How the agent supervises the process, above all at a stop: one note for each line.
fn supervision(launch: &Launch) -> Vec<String> {
    let who = match launch.signals {
        SignalTarget::Process => "this process only",
        SignalTarget::Broker => "the broker only",
        SignalTarget::Group => "its whole process group",
    };
    let mut notes = vec![match &launch.parent {
        Some(parent) => {
            let (host, port) = (host_name(parent), parent.port);
            let bound = launch
                .hold_stop
                .map_or(String::new(), |bound| format!(" up to {bound} s"));
            format!(
                "when the pod is stopped, wait{bound} for the broker at {host}:{port} to end the instance, then signal {who}"
            )
        }
        None => format!("when the pod is stopped, signal {who}"),
    }];
    notes.extend(launch.lead.as_ref().map(|lead| {
        format!(
            "ask the lead at {}:{} whether the instance has ended",
            host_name(lead),
            lead.port
        )
    }));
    notes.extend(launch.drain.map(|rank| match launch.below.as_str() {
        "" => format!("if only this pod is stopped, drain node {rank} and wait for its jobs"),
        below => {
            format!(
                "if only this pod is stopped, drain node {rank} and those below it in the tree ({below}), and wait for their jobs"
            )
        }
    }));
    // A follower with `job_shell` also has the drain above. Flux ends the jobs of a killed broker at once. If a broker
    // shuts down in order, Flux ends its jobs only after half a minute.
    notes.extend(
        launch
            .job_shell
            .map(|name| format!("after that, kill the broker if a job's {name} process still runs")),
    );
    notes.extend(
        launch
            .socket
            .as_ref()
            .map(|socket| format!("broker socket: {}", quote(socket))),
    );
    notes.extend(
        launch
            .metrics
            .as_ref()
            .map(|metrics| format!("serve metrics on port {}", metrics.port)),
    );
    notes
}

/// What is started, as which user, where its output goes and what its exit code means, in one line.
fn launch_notes(launch: &Launch) -> String {
    let mut notes = vec![match launch.part {
        InstancePart::Lead | InstancePart::Follower => format!("the broker ({})", launch.label),
        InstancePart::Command => launch.label.to_owned(),
    }];
    notes.extend(launch.run_as.as_ref().map(|user| {
        let (ids, name, home) = (ids(&user.owner), quote(&user.name), quote(&user.home));
        format!("as {ids} with HOME={home} USER={name} LOGNAME={name}")
    }));
    match launch.stdout {
        Stdout::Inherit => {}
        Stdout::LineBuffered => notes.push("its output appears live, line by line".into()),
        Stdout::Discard => notes.push("its standard output is discarded".into()),
    }
    notes.push(match launch.at_end {
        AtEnd::Exit => "the container exits with its exit code".into(),
        AtEnd::ExitUnlessStopped => {
            "the container exits with its exit code, but after a stop (SIGTERM) with 143 instead of 0".into()
        }
        AtEnd::Complete { lead_can_restart: false } => "if it has joined the instance, the container exits with 0 when it ends".into(),
        AtEnd::Complete { lead_can_restart: true } => {
            "if it has joined the instance, restarted if it fails; when the lead has ended, the container waits until the lead starts again".into()
        }
        AtEnd::RestartFollower { limit, lead_can_restart: false } => {
            format!("restarted if it fails, at most {limit} times in a row; when it exits with 0 or the lead has ended, the container exits with 0")
        }
        AtEnd::RestartFollower { limit, lead_can_restart: true } => {
            format!("restarted if it fails, at most {limit} times in a row; when it exits with 0 or the lead has ended, the container waits until the lead starts again")
        }
    });
    // This continues the sentence of the note before: "the container exits with …".
    notes.extend(launch.needs_instance.then(|| {
        let failed = Category::BrokerFailed;
        format!(
            "if the instance does not come up, with {} ({})",
            failed.code(),
            failed.name()
        )
    }));
    notes.join("; ")
}

/// Writes how the process is supervised, the changes of its environment, and its command line.
fn launch_details(out: &mut String, launch: &Launch) {
    for note in supervision(launch) {
        line_of(out, 2, &format!("({note})"));
    }
    for change in &launch.environment {
        let text = match change {
            EnvChange::Remove { name } => format!("without {name}"),
            _ => format!("with {}", variable(change)),
        };
        line_of(out, 2, &text);
    }
    command_line(out, launch);
}

/// Writes the command line as it would be typed in a shell. A line begins at each `-S` option, and after the last
/// one.
fn command_line(out: &mut String, launch: &Launch) {
    let words: Vec<String> = launch.argv.iter().map(word).collect();
    let last_option = words.iter().rposition(|typed| typed.starts_with("-S"));
    let mut lines: Vec<String> = Vec::new();
    for (at, typed) in words.iter().enumerate() {
        let breaks = typed.starts_with("-S") || last_option.is_some_and(|last| at == last + 1);
        match lines.last_mut() {
            Some(line) if !breaks && line.len() + typed.len() < WIDTH => *line += &format!(" {typed}"),
            _ => lines.push(typed.clone()),
        }
    }
    let count = lines.len();
    for (at, line) in lines.iter().enumerate() {
        let indent = if at == 0 { "" } else { "  " };
        let more = if at + 1 < count { " \\" } else { "" };
        // A word may have several lines (shell source): each is indented.
        line.lines().enumerate().for_each(|(part, text)| {
            let end = if part + 1 == line.lines().count() {
                more
            } else {
                ""
            };
            line_of(out, 2, &format!("{indent}{text}{end}"));
        });
    }
}
