//! The usage of an instance as text. Pure.

use comfy_table::{CellAlignment, Table, presets};
use flux_shared::printable::printable;
use flux_shared::usage::{Count, Host, HostState, InstanceResources, Jobs, Usage};

use crate::screen;

/// The height to print all lines.
pub const WHOLE: usize = usize::MAX;

/// The text in at most `height` lines, without terminal codes: the answer is from a pod. Nodes that do not fit are at
/// most counted.
pub fn lines(name: &str, usage: &Usage, height: usize) -> Vec<String> {
    let mut lines = vec![headline(name, usage), String::new()];
    match &usage.resources {
        Some(resources) => lines.extend(totals(resources)),
        None => lines.push("node resources not known yet".into()),
    }
    lines.extend([String::new(), jobs(usage.jobs)]);
    if let Some(resources) = usage
        .resources
        .as_ref()
        .filter(|resources| !resources.hosts.is_empty())
    {
        lines.push(String::new());
        lines.extend(hosts(resources, height.saturating_sub(lines.len())));
    }
    lines.truncate(height);
    lines.iter().map(|line| printable(line).into_owned()).collect()
}

fn headline(name: &str, usage: &Usage) -> String {
    let Usage {
        state,
        seconds,
        brokers,
        ..
    } = usage;
    let meaning = if state == "quorum" {
        ", waits for brokers"
    } else {
        ""
    };
    let online = match brokers.online {
        Some(online) => format!("{online} of {} brokers online", brokers.size),
        None => format!("{} brokers", brokers.size),
    };
    format!("{name}: state {state} for {}{meaning}; {online}", time(*seconds))
}

fn time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn totals(resources: &InstanceResources) -> Vec<String> {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["", "TOTAL", "USED", "FREE", "DOWN"]);
    let all = [
        ("nodes", resources.nodes),
        ("cores", resources.cores),
        ("GPUs", resources.gpus),
    ];
    for (
        what,
        Count {
            total,
            used,
            free,
            down,
        },
    ) in all
    {
        if total > 0 || what != "GPUs" {
            table.add_row([
                what.to_owned(),
                total.to_string(),
                used.to_string(),
                free.to_string(),
                down.to_string(),
            ]);
        }
    }
    aligned_lines(table, &[1, 2, 3, 4])
}

fn jobs(jobs: Option<Jobs>) -> String {
    let Some(Jobs {
        waiting,
        running,
        ended,
        successful,
        failed,
        canceled,
        timeout,
        // Flux's own states, which `waiting`, `running` and `ended` sum up.
        states: _,
    }) = jobs
    else {
        return "jobs: not known yet".into();
    };
    let ends = [
        (successful, "successful"),
        (failed, "failed"),
        (canceled, "canceled"),
        (timeout, "timed out"),
    ];
    let ends: Vec<String> = ends
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, outcome)| format!("{count} {outcome}"))
        .collect();
    let ends = if ends.is_empty() {
        String::new()
    } else {
        format!(" ({})", ends.join(", "))
    };
    format!("jobs: {running} running, {waiting} waiting, {ended} ended{ends}")
}

/// The table of nodes in at most `room` lines. If not all nodes fit, those with problems are preferred.
fn hosts(resources: &InstanceResources, room: usize) -> Vec<String> {
    let all = &resources.hosts;
    // One line is for the head and, if not all nodes fit, one for the number of the others.
    let shown = if all.len() < room {
        all.len()
    } else {
        room.saturating_sub(2)
    };
    if shown == 0 {
        return Vec::new();
    }
    let mut listed: Vec<&Host> = all.iter().collect();
    if shown < all.len() {
        listed.sort_by_key(|host| (order_by_state(host.state), host.rank));
        listed.truncate(shown);
        listed.sort_by_key(|host| host.rank);
    }
    let has_gpus = resources.gpus.total > 0;
    let mut table = Table::new();
    let head = ["RANK", "NODE", "STATE", "CORES", "GPUS"];
    let columns = if has_gpus { 5 } else { 4 };
    table
        .load_style(presets::NOTHING)
        .set_header(head.into_iter().take(columns));
    for host in listed {
        let Host {
            rank,
            name,
            state,
            cores,
            cores_used,
            gpus,
            gpus_used,
        } = host;
        let cells = [
            rank.to_string(),
            name.clone(),
            state.word().to_owned(),
            format!("{cores_used}/{cores}"),
            format!("{gpus_used}/{gpus}"),
        ];
        table.add_row(cells.into_iter().take(columns));
    }
    let mut lines = aligned_lines(table, &[0, 3, 4]);
    let rest = all.len() - shown;
    lines.extend((rest > 0).then(|| format!("and {rest} more")));
    lines
}

/// The order in which nodes are taken for a table that has no room for all: those with problems first.
fn order_by_state(state: HostState) -> u8 {
    match state {
        HostState::Down | HostState::Unknown => 0,
        HostState::Drained => 1,
        HostState::Up => 2,
        HostState::Spare => 3,
    }
}

/// The table's lines, with the columns `numbers` aligned to the right.
fn aligned_lines(mut table: Table, numbers: &[usize]) -> Vec<String> {
    for &number in numbers {
        if let Some(column) = table.column_mut(number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    screen::lines_of(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(size: u32) -> Usage {
        let mut resources = InstanceResources::default();
        for rank in 0..size {
            let state = if rank == size - 1 {
                HostState::Down
            } else {
                HostState::Up
            };
            let cores_used = usize::from(rank == 0);
            resources.nodes.add(state, 1, cores_used);
            resources.cores.add(state, 4, cores_used);
            resources.hosts.push(Host {
                rank,
                name: format!("mc-{rank}"),
                state,
                cores: 4,
                cores_used,
                ..Host::default()
            });
        }
        let jobs = Jobs {
            running: 1,
            waiting: 2,
            ended: 5,
            successful: 4,
            failed: 1,
            ..Jobs::default()
        };
        let brokers = flux_shared::usage::Brokers {
            size: size as usize,
            online: Some(size as usize - 1),
        };
        Usage {
            state: "run".into(),
            seconds: 90,
            brokers,
            resources: Some(resources),
            jobs: Some(jobs),
        }
    }

    #[test]
    fn top_table_shows_nodes_cores_jobs_and_ranks() {
        let lines = lines("mc", &usage(3), WHOLE).join("\n");
        assert_eq!(
            lines,
            "mc: state run for 90 s; 2 of 3 brokers online\n\
             \n\
             \x20       TOTAL  USED  FREE  DOWN\n\
             \x20nodes      3     1     1     1\n\
             \x20cores     12     1     7     4\n\
             \n\
             jobs: 1 running, 2 waiting, 5 ended (4 successful, 1 failed)\n\
             \n\
             \x20RANK  NODE  STATE  CORES\n\
             \x20   0  mc-0  up       1/4\n\
             \x20   1  mc-1  up       0/4\n\
             \x20   2  mc-2  down     0/4"
        );
    }

    #[test]
    fn top_shows_no_terminal_codes() {
        let mut usage = usage(1);
        usage.state = "run\x1b[2J".into();
        let lines = lines("mc", &usage, WHOLE);
        assert!(lines[0].starts_with("mc: state run\u{fffd}[2J for"), "{lines:?}");
    }

    #[test]
    fn top_counts_nodes_that_do_not_fit_and_shows_those_down() {
        for height in [11, 12, 20] {
            let lines = lines("mc", &usage(64), height);
            assert_eq!(lines.len(), height);
            assert!(
                lines.iter().any(|line| line.contains("mc-63  down")),
                "{lines:#?}"
            );
            assert!(
                lines
                    .last()
                    .is_some_and(|line| line.starts_with("and ") && line.ends_with(" more")),
                "{lines:#?}"
            );
        }
        assert_eq!(lines("mc", &usage(64), 3).len(), 3);
        assert_eq!(lines("mc", &usage(64), WHOLE).len(), 8 + 65);
    }

    #[test]
    fn top_table_shows_gpus_where_there_are_some() {
        let mut usage = usage(1);
        let resources = usage.resources.as_mut().unwrap();
        resources.gpus = Count {
            total: 2,
            used: 1,
            free: 1,
            down: 0,
        };
        (resources.hosts[0].gpus, resources.hosts[0].gpus_used) = (2, 1);
        let text = lines("mc", &usage, WHOLE).join("\n");
        assert!(
            text.contains(" GPUs ") && text.contains("CORES  GPUS") && text.ends_with("1/2"),
            "{text}"
        );
    }

    #[test]
    fn top_table_says_not_known_yet_before_the_quorum() {
        let text = lines(
            "mc",
            &Usage {
                state: "quorum".into(),
                ..Usage::default()
            },
            WHOLE,
        )
        .join("\n");
        assert!(
            text.starts_with("mc: state quorum for 0 s, waits for brokers; 0 brokers\n"),
            "{text}"
        );
        assert!(
            text.contains("not known yet") && text.ends_with("jobs: not known yet"),
            "{text}"
        );
    }
}
