//! The documentation is true: the reference matches the code, the YAML of the pages is usable, their commands
//! run, their links work, and every word that the code can report is explained. No cluster is needed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod examples;
mod fields;
mod figures;
mod links;
mod manifests;
mod readers;
mod tables;
mod words;
mod workflows;

use std::path::Path;

use test_support::{pages, pasted};

#[test]
fn the_commands_of_the_pages_print_what_the_pages_show() {
    let (run, wrong) = pages::differences("flux-operator", Path::new(env!("CARGO_BIN_EXE_flux-operator")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(run > 2, "only {run} were run");
}

#[test]
fn the_reference_has_the_program_s_own_help() {
    pages::is_committed(
        "flux-operator.md",
        &pages::help("flux-operator", Path::new(env!("CARGO_BIN_EXE_flux-operator"))),
    );
}

/// A block of commands either has only commands of our programs, which a test runs without a cluster, or the word after
/// its language says why no such test runs it.
#[test]
fn every_block_of_commands_is_run_or_says_why_not() {
    let mut wrong = Vec::new();
    for block in pages::pages().iter().flat_map(|page| pages::blocks(page)) {
        let is_run = matches!(block.language.as_str(), "bash" | "console");
        let words = match block.language.as_str() {
            "yaml" => pages::YAML_WORDS,
            _ if is_run => pages::WORDS,
            _ => &[],
        };
        match &block.word {
            Some(word) if !words.contains(&word.as_str()) => {
                wrong.push(format!("{}: {word} is none of {words:?}", block.place()));
            }
            None if is_run => {
                let is_our_program = |command: &str| {
                    command.starts_with("flux-agent ") || command.starts_with("flux-operator ")
                };
                let others = block
                    .commands()
                    .into_iter()
                    .filter(|(command, _)| !is_our_program(command));
                wrong.extend(others.map(|(command, _)| {
                    format!(
                        "{}: no test runs `{command}`: say why after the language",
                        block.place()
                    )
                }));
                if block.commands().is_empty() {
                    wrong.push(format!("{}: a block of commands without one", block.place()));
                }
            }
            _ if block.language.is_empty() || matches!(block.language.as_str(), "sh" | "shell" | "yml") => {
                wrong.push(format!(
                    "{}: its language is none that a test knows: `{}`",
                    block.place(),
                    block.language
                ));
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The end-to-end test pastes the blocks of the pages into a shell, except those of `LEFT_OUT`. An entry without a
/// first command stands for all blocks of its page.
#[test]
fn blocks_that_no_node_runs_are_known_and_have_a_reason() {
    let blocks: Vec<pages::Block> = pasted::blocks_by_page().into_iter().flatten().collect();
    for entry in pasted::LEFT_OUT {
        let count = blocks.iter().filter(|block| entry.matches(block)).count();
        assert!(
            count == 1 || count > 0 && entry.first_command.is_none(),
            "{}: {:?} begins {count} blocks",
            entry.page,
            entry.first_command
        );
    }
    for block in &blocks {
        let mut entries = pasted::LEFT_OUT.iter().filter(|entry| entry.matches(block));
        assert!(
            entries.clone().count() <= 1,
            "{} has several reasons",
            block.place()
        );
        assert!(entries.all(|entry| !entry.reason.is_empty()), "{}", block.place());
        assert!(
            !block.commands().is_empty(),
            "{}: a block of commands without one",
            block.place()
        );
    }
    // These pages install the operator or change nodes, and all tests share both.
    let is_shared = |block: &pages::Block| {
        ["chart", "images", "test-node"]
            .iter()
            .any(|folder| block.page.starts_with(folder))
    };
    let (run, left_out): (Vec<_>, Vec<_>) = blocks
        .iter()
        .filter(|block| !is_shared(block))
        .partition(|block| pasted::why_left_out(block).is_none());
    assert!(run.len() > left_out.len(), "most blocks are run");
}

/// The CRD is larger than the annotation in which a client-side apply keeps a copy of it.
#[test]
fn folders_with_the_crd_are_applied_server_side() {
    let definition = std::fs::metadata(pages::repository().join("chart/crd/crd.yaml")).unwrap();
    assert!(definition.len() > 256 * 1024, "the CRD fits into the annotation");
    let mut files = pages::pages();
    files.extend(["chart/README.md", "images/README.md"].map(|file| pages::repository().join(file)));
    let wrong: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let text = std::fs::read_to_string(file).unwrap();
            let of_client = |line: &&str| {
                line.contains("kubectl apply") && line.contains(" -k ") && !line.contains("--server-side")
            };
            let lines = text.lines().filter(of_client);
            lines
                .map(|line| format!("{}: {line}", file.display()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// By default, `kubectl wait` gives up after 30 s, and pulling an image may take longer. `rollout status` has no limit.
#[test]
fn commands_that_wait_have_one_time_limit() {
    let wrong: Vec<String> = pasted::blocks_by_page()
        .into_iter()
        .flatten()
        .flat_map(|block| {
            let waits =
                |command: &str| command.contains("kubectl wait") || command.contains("rollout status");
            let commands = block.commands().into_iter().map(|(command, _)| command);
            commands
                .filter(|command| waits(command) && command.matches("--timeout").count() != 1)
                .map(|command| format!("{}: {command}", block.place()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
