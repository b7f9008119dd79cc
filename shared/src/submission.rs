//! What the agent must know of a command line such as `flux submit --gpus-per-node=1`, to which it adds options.

/// Options of `flux submit` that Flux rejects if the number of tasks is given too.
const PER_RESOURCE_OPTIONS: [&str; 4] = [
    "--cores",
    "--tasks-per-node",
    "--tasks-per-core",
    "--gpus-per-node",
];

/// The options among `words` that Flux rejects if the number of tasks is given too, without their values.
pub fn per_resource_options<'a>(words: impl IntoIterator<Item = &'a String>) -> Vec<&'a str> {
    let names = words
        .into_iter()
        .map(|word| word.split_once('=').map_or(word.as_str(), |(name, _)| name));
    names.filter(|name| PER_RESOURCE_OPTIONS.contains(name)).collect()
}

fn is_flux(word: &String) -> bool {
    word == "flux" || word.ends_with("/flux")
}

/// The word after `flux`, such as `submit`. None: there is no such word, as in a script of the user's own.
pub fn flux_subcommand(words: &[String]) -> Option<&str> {
    let flux = words.iter().position(is_flux)?;
    words.get(flux + 1).map(String::as_str)
}

/// The submit command with an empty standard input for the job, if it is `flux submit`: by default, Flux keeps the input
/// open for somebody who attaches to the job, so a program that reads it would wait for ever. The user's own `--input`
/// comes later, and has precedence.
pub fn with_empty_input(submit_command: &[String]) -> Vec<String> {
    let mut words = submit_command.to_vec();
    if let Some(flux) = words.iter().position(is_flux)
        && words.get(flux + 1).is_some_and(|word| word == "submit")
    {
        words.insert(flux + 2, "--input=/dev/null".to_owned());
    }
    words
}

/// The words of a submit command that runs `flux`, whose options are Flux's own. Empty: it runs another program.
pub fn options_of_flux(submit_command: &[String]) -> &[String] {
    if flux_subcommand(submit_command).is_some() {
        submit_command
    } else {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn only_flux_submit_gets_an_empty_input() {
        for (command, expected) in [
            ("flux submit --input=a", "flux submit --input=/dev/null --input=a"),
            (
                "env A=b /opt/bin/flux submit",
                "env A=b /opt/bin/flux submit --input=/dev/null",
            ),
            ("flux run -x", "flux run -x"),
            ("my-submit", "my-submit"),
        ] {
            assert_eq!(with_empty_input(&words(command)).join(" "), expected);
        }
    }

    #[test]
    fn per_resource_options_are_found_with_and_without_a_value() {
        let found = |text: &str| per_resource_options(&words(text)).join(" ");
        assert_eq!(
            found("-x --gpus-per-node=2 --tasks-per-core 1"),
            "--gpus-per-node --tasks-per-core"
        );
        assert_eq!(found("--cores=4 --tasks-per-node=1"), "--cores --tasks-per-node");
        assert_eq!(
            found("-c 2 --cores-per-task=1 --gpus-per-task=1 --env=--cores=4"),
            ""
        );
    }

    #[test]
    fn subcommand_is_the_word_after_flux() {
        for (text, subcommand) in [
            ("flux submit -x", Some("submit")),
            ("env A=flux /usr/bin/flux run", Some("run")),
            ("sh /bin/my-submit", None),
            ("flux", None),
        ] {
            assert_eq!(flux_subcommand(&words(text)), subcommand, "{text}");
        }
    }
}
