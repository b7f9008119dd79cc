//! Any user input gets an answer in limited time, without a panic. Accepted input becomes an AgentSpec that
//! pods can read.
//!
//! The tests with damaged examples run for a few seconds. To run them longer: `FUZZ_SECONDS=600 cargo test --release
//! -p flux-shared --test fuzz`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests read files and print what they found"
)]

use flux_shared::agent_spec::AgentSpec;
use flux_shared::quantity::Quantity;
use flux_shared::validate::{Problem, ValidMiniCluster, validate, validate_and_note};
use flux_shared::{command_words, derive, flux_duration, hostlist, manifest, names};
use proptest::prelude::*;
use test_support::mutate::{Dice, for_a_while, miniclusters, spoilt, texts};

/// Processes a manifest and checks the result. Returns whether it was accepted.
fn check_answer(parsed: Result<manifest::Manifest, Vec<Problem>>) -> bool {
    match parsed.and_then(|manifest| validate(&manifest)) {
        Ok(cluster) => {
            check_spec(&cluster);
            true
        }
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a reason");
            for problem in problems {
                assert!(!problem.message.is_empty(), "{problem:?}");
            }
            false
        }
    }
}

/// Asserts that pods can read the AgentSpec, and that the pod of index 0 is one of its hosts.
fn check_spec(cluster: &ValidMiniCluster) {
    let spec = derive::agent_spec(cluster);
    let text = spec.to_toml().unwrap();
    assert_eq!(AgentSpec::from_toml(&text).unwrap(), spec);
    let hosts = hostlist::expand(&spec.hostlist()).unwrap();
    assert!(hosts.contains(&names::host(&spec.name, 0)), "{hosts:?}");
    assert!(
        hosts.iter().all(|host| hostlist::is_bootstrap_host(host)),
        "{hosts:?}"
    );
}

#[test]
fn spoilt_examples_are_answered() {
    let examples = miniclusters();
    let mut accepted_count = 0;
    for_a_while(4, |dice| {
        accepted_count += usize::from(check_answer(manifest::from_value(&spoilt(&examples, dice))))
    });
    println!("{accepted_count} accepted");
    assert!(accepted_count > 10, "only {accepted_count} inputs were accepted");
}

/// The text with a few lines dropped, copied or unindented, and with a few characters inserted.
fn scrambled(text: &str, dice: &mut Dice) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..=dice.roll(5) {
        let (at, from) = (dice.roll(lines.len()), dice.roll(lines.len()));
        match dice.roll(6) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[from].clone()),
            2 => lines[at].insert_str(
                0,
                ["  ", "- ", "\t", "? ", "!!x ", "&a ", "*a ", "--- "][dice.roll(8)],
            ),
            3 => lines[at]
                .push_str([":", " |", " >", " [", " {", " \"", " #", " *a", " !!binary x"][dice.roll(9)]),
            4 => lines[at] = lines[at].trim_start().to_owned(),
            _ => {
                let mut characters: Vec<char> = lines[at].chars().collect();
                let place = dice.roll(characters.len() + 1);
                characters.insert(
                    place,
                    *dice.pick(&['\0', '\u{feff}', '%', '@', '`', '{', ']', ',', '\'', 'é', '\r']),
                );
                lines[at] = characters.into_iter().collect();
            }
        }
        if lines.is_empty() {
            break;
        }
    }
    lines.join("\n")
}

#[test]
fn scrambled_text_is_answered() {
    let texts = texts();
    for_a_while(3, |dice| {
        let text = scrambled(dice.pick(&texts).as_str(), dice);
        check_answer(manifest::parse(&text));
    });
}

#[test]
fn text_that_would_grow_without_bound_is_refused() {
    let mut bomb = String::from("kind: MiniCluster\na: &a [x, x, x, x, x, x, x, x, x, x]\n");
    for (new, old) in ('b'..='k').zip('a'..='j') {
        bomb.push_str(&format!(
            "{new}: &{new} [{}]\n",
            vec![format!("*{old}"); 10].join(", ")
        ));
    }
    assert!(manifest::parse(&bomb).is_err());
    for deep in [
        "[".repeat(100_000),
        "{a: ".repeat(100_000),
        "- ".repeat(100_000),
        "? ".repeat(100_000),
    ] {
        assert!(manifest::parse(&deep).is_err());
    }
    let wide = format!(
        "kind: MiniCluster\nspec: {{{}}}",
        (0..100_000).map(|i| format!("k{i}: 1, ")).collect::<String>()
    );
    assert!(manifest::parse(&wide).is_err());
}

#[test]
fn long_lists_and_texts_are_answered_in_time() {
    let many: Vec<serde_json::Value> = (0..5000)
        .map(|i| serde_json::json!({"name": format!("s{i}"), "image": "i", "command": "a"}))
        .collect();
    let mut document = miniclusters().remove(0);
    document["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .extend(many);
    document["spec"]["containers"][0]["runFlux"] = true.into();
    check_answer(manifest::from_value(&document));
    let mut document = miniclusters().remove(0);
    for text in [
        "$a ".repeat(200_000),
        "${".repeat(300_000),
        "$".repeat(600_000),
        "'a' ".repeat(200_000),
    ] {
        document["spec"]["containers"][0]["command"] = text.into();
        let start = std::time::Instant::now();
        check_answer(manifest::from_value(&document));
        assert!(start.elapsed().as_secs() < 180, "{:?}", start.elapsed());
    }
    let list = "a[0-9999],".repeat(100);
    assert_eq!(hostlist::expand(&list).unwrap().len(), 10_000);
}

/// The operator has one thread. If the time grew faster, anyone who may create a MiniCluster could block it for
/// minutes.
#[test]
fn time_of_validation_grows_with_the_length_of_the_text_alone() {
    let many_hosts = "[0-65535],".repeat(6500);
    let with = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut document = miniclusters().remove(0);
        change(&mut document["spec"]);
        document
    };
    let documents = [
        // One job of many lines.
        with(&|spec| {
            spec["containers"][0]["batch"] = true.into();
            spec["containers"][0]["command"] = "\\\n".repeat(60_000).into();
        }),
        // Many variables, each of which the long snippet might assign.
        with(&|spec| {
            let snippets = serde_json::json!({ "init": ":\n".repeat(100_000) });
            spec["containers"][0]["commands"] = snippets;
            let names = (0..10_000).map(|number| format!("$a{number} "));
            spec["containers"][0]["command"] = names.collect::<String>().into();
        }),
        // The same hosts again and again, in one list and in many parts of broker.toml.
        with(&|spec| spec["flux"]["bursting"] = serde_json::json!({ "hostlist": many_hosts })),
        with(&|spec| {
            let part = "[[resource.config]]\nhosts = 'a[0-65535]'\n".repeat(500);
            let parts = (0..20).map(|number| (format!("part-{number}"), part.clone().into()));
            spec["flux"]["configs"] = parts.collect::<serde_json::Map<_, _>>().into();
        }),
    ];
    for document in documents {
        let start = std::time::Instant::now();
        let parsed = manifest::from_value(&document);
        drop(parsed.and_then(|manifest| validate_and_note(&manifest)));
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}

/// The text in shell quotes.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn quoted_words_reach_the_program_unchanged(texts in proptest::collection::vec("\\PC{0,20}|[$'\"\\\\ \n`|;&<>(){}*?]{0,12}", 0..6)) {
        let line = texts.iter().map(|text| quoted(text)).collect::<Vec<String>>().join(" ");
        let split = command_words::split(&line).unwrap();
        let got: Vec<String> = split.words.iter().map(|word| word.resolve(|_| Some("WRONG".into()))).collect();
        prop_assert_eq!(got, texts);
        prop_assert!(split.shell_syntax.is_empty());
    }

    #[test]
    fn references_in_double_quotes_stay_one_word(before in "[a-z ]{0,8}", name in "[A-Z_][A-Z0-9_]{0,8}", after in "[ .,/-]{0,4}") {
        let words = command_words::split(&format!("\"{before}${{{name}}}{after}\"")).unwrap().words;
        prop_assert_eq!(words.len(), 1);
        let value = words[0].resolve(|variable| (variable == name).then(|| "a  b".to_owned()));
        prop_assert_eq!(value, format!("{before}a  b{after}"));
    }

    #[test]
    fn quantities_names_and_durations_are_answered(text in "\\PC{0,40}|[-+.0-9eEmkKMGTi]{0,12}") {
        let _ = Quantity(text.clone()).check();
        let _ = flux_duration::seconds(&text);
        let label = names::is_dns_label(&text);
        prop_assert!(!label || text.len() <= 63 && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
        prop_assert!(!names::is_service_name(&text) || label);
        let _ = (names::is_label_key(&text), names::is_label_value(&text), names::is_env_name(&text));
    }

    #[test]
    fn hostlists_are_answered_and_bounded(text in "[a-c0-9,\\[\\]-]{0,40}") {
        if let Ok(hosts) = hostlist::expand(&text) {
            prop_assert!(hosts.len() <= hostlist::MAX_HOSTS);
            // (A second group in brackets is part of the name, as in Flux.)
            if hosts.iter().all(|host| !host.contains('[')) {
                let again = hostlist::expand(&hosts.join(",")).unwrap();
                prop_assert_eq!(again, hosts);
            }
        }
    }
}
