//! The command line of a broker, with the options as snippets have left them in `$brokerOptions`.

use std::ffi::OsString;

use flux_agent_plan::plan::Launch;
use flux_shared::command_words::Word;

use super::session::Session;

/// Beginnings of options that stay even if snippets remove them. They decide where the broker's socket is, at which the
/// agent connects.
const NEEDED: [&str; 2] = ["-Srundir=", "-Slocal-uri="];

/// The words of `launch`, with variables replaced by their values, and with the options that the snippets have left.
/// `given`: the text of `$brokerOptions` that the snippets' shell began with. `restore`: an option that comes before
/// the others, so that those of snippets win.
pub fn argv_after_snippets(
    launch: &Launch,
    session: &Session,
    given: &str,
    restore: Option<&str>,
) -> Vec<OsString> {
    let resolve = |words: &[Word]| {
        words
            .iter()
            .map(|word| session.resolve(word))
            .collect::<Vec<OsString>>()
    };
    let parts = launch.options.clone().and_then(|range| {
        let (before, rest) = launch.argv.split_at_checked(range.start)?;
        let (planned, after) = rest.split_at_checked(range.len())?;
        Some((resolve(before), resolve(planned), resolve(after)))
    });
    let Some((before, planned, after)) = parts else {
        return resolve(&launch.argv);
    };
    let changed = session
        .broker_options
        .as_deref()
        .and_then(|left| changed_options(&planned, given, left));
    let restore = restore.map(OsString::from).into_iter().collect();
    [before, restore, changed.unwrap_or(planned), after].concat()
}

/// The options in `left`, the text of `$brokerOptions`, split at whitespace as a shell splits an unquoted variable.
/// None if the snippets have not changed this text, which was `given`. The planned options may differ from it: a later
/// plan knows what the snippets have changed.
fn changed_options(planned: &[OsString], given: &str, left: &str) -> Option<Vec<OsString>> {
    let words = |text: &str| {
        text.split_whitespace()
            .map(OsString::from)
            .collect::<Vec<OsString>>()
    };
    if left == given {
        return None;
    }
    // If the snippets only added options before or after the planned ones, the planned words stay as they
    // are, since a word may contain spaces.
    let options = match left.split_once(given) {
        Some((before, after)) if !given.is_empty() => {
            [words(before), planned.to_vec(), words(after)].concat()
        }
        _ => {
            let left = words(left);
            let has_option = |begin: &str| left.iter().any(|word| word.to_string_lossy().starts_with(begin));
            let is_missing = |word: &&OsString| {
                NEEDED
                    .iter()
                    .any(|begin| word.to_string_lossy().starts_with(begin) && !has_option(begin))
            };
            planned
                .iter()
                .filter(is_missing)
                .cloned()
                .chain(left.iter().cloned())
                .collect()
        }
    };
    tracing::info!(
        stage = "broker",
        "options of the broker as the snippets left them: {}",
        options.join(" ".as_ref()).display()
    );
    Some(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "-Srundir=/run -Sstatedir=/state -Slocal-uri=local:///run/local -Scontent.dump=/a b";

    /// The options in brackets, if the snippets were given `given` and left `text`.
    fn left(given: &str, text: &str) -> Option<String> {
        let planned = [
            "-Srundir=/run",
            "-Sstatedir=/state",
            "-Slocal-uri=local:///run/local",
            "-Scontent.dump=/a b",
        ];
        let planned: Vec<OsString> = planned.iter().map(OsString::from).collect();
        changed_options(&planned, given, text)
            .map(|words| words.iter().map(|word| format!("[{}]", word.display())).collect())
    }

    #[test]
    fn broker_options_of_snippets_replace_planned_ones() {
        let (own, left) = (OWN, |text: &str| left(OWN, text));
        assert_eq!(left(own), None);
        let words = "[-Srundir=/run][-Sstatedir=/state][-Slocal-uri=local:///run/local][-Scontent.dump=/a b]";
        assert_eq!(
            left(&format!("{own}  -Sx=1\n")).unwrap(),
            format!("{words}[-Sx=1]")
        );
        assert_eq!(left(&format!("-v {own}")).unwrap(), format!("[-v]{words}"));
        let needed = "[-Srundir=/run][-Slocal-uri=local:///run/local]";
        assert_eq!(
            left("-Sstatedir=/x -Sy").unwrap(),
            format!("{needed}[-Sstatedir=/x][-Sy]")
        );
        assert_eq!(left("").unwrap(), needed);
        assert_eq!(
            left("-Srundir=/r -Slocal-uri=local:///r/l").unwrap(),
            "[-Srundir=/r][-Slocal-uri=local:///r/l]"
        );
    }

    /// A later plan may have other options than the one by which the shell was started.
    #[test]
    fn unchanged_broker_options_become_those_of_the_later_plan() {
        let given = "-Srundir=/run -Scontent.dump=/earlier";
        let planned =
            "[-Srundir=/run][-Sstatedir=/state][-Slocal-uri=local:///run/local][-Scontent.dump=/a b]";
        assert_eq!(left(given, given), None);
        assert_eq!(
            left(given, &format!("-v {given} -Sx=1")).unwrap(),
            format!("[-v]{planned}[-Sx=1]")
        );
    }

    #[test]
    fn restored_archive_comes_before_the_options_of_snippets() {
        let words = ["flux", "start", "-Srundir=/run", "program"];
        let launch = Launch {
            argv: words.map(|word| Word::Literal(word.into())).into(),
            options: Some(2..3),
            ..crate::execute::tests::launch(&[])
        };
        let mut session = Session::new(Default::default(), "/".into());
        session.broker_options = Some("-Srundir=/run -Sx=1".into());
        let argv = argv_after_snippets(&launch, &session, "-Srundir=/run", Some("-Scontent.restore=/a"));
        assert_eq!(
            argv.join(" ".as_ref()),
            "flux start -Scontent.restore=/a -Srundir=/run -Sx=1 program"
        );
    }
}
