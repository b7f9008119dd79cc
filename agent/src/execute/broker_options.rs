//! The command line of a broker, with the options as snippets have left them in `$brokerOptions`.

use std::ffi::OsString;

use flux_agent_plan::plan::Launch;
use flux_shared::command_words::Word;

use super::session::Session;

/// Beginnings of options that stay even if snippets remove them. They decide where the broker's socket is, at which the
/// agent connects.
const NEEDED: [&str; 2] = ["-Srundir=", "-Slocal-uri="];

/// The words of `launch`, with variables replaced by their values, and with the options that the snippets have left.
pub fn argv_after_snippets(launch: &Launch, session: &Session) -> Vec<OsString> {
    let resolve = |words: &[Word]| {
        words
            .iter()
            .map(|word| session.resolve(word))
            .collect::<Vec<OsString>>()
    };
    let changed = launch
        .options
        .clone()
        .zip(session.broker_options.as_deref())
        .and_then(|(range, left)| {
            let (before, rest) = launch.argv.split_at_checked(range.start)?;
            let (planned, after) = rest.split_at_checked(range.len())?;
            let options = changed_options(&resolve(planned), left)?;
            Some([resolve(before), options, resolve(after)].concat())
        });
    changed.unwrap_or_else(|| resolve(&launch.argv))
}

/// The options in `left`, the text of `$brokerOptions`, split at whitespace as a shell splits an unquoted variable.
/// None if the snippets have not changed the planned options, or if one of these is not UTF-8: then `launch_once` does
/// not start the broker.
fn changed_options(planned: &[OsString], left: &str) -> Option<Vec<OsString>> {
    let planned_text = planned.join(" ".as_ref()).into_string().ok()?;
    let words = |text: &str| {
        text.split_whitespace()
            .map(OsString::from)
            .collect::<Vec<OsString>>()
    };
    if left == planned_text {
        return None;
    }
    // If the snippets only added options before or after the planned ones, the planned words stay as they
    // are, since a word may contain spaces.
    let options = match left.split_once(&planned_text) {
        Some((before, after)) if !planned_text.is_empty() => {
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

    fn left(text: &str) -> Option<String> {
        let planned = [
            "-Srundir=/run",
            "-Sstatedir=/state",
            "-Slocal-uri=local:///run/local",
            "-Scontent.dump=/a b",
        ];
        let planned: Vec<OsString> = planned.iter().map(OsString::from).collect();
        changed_options(&planned, text)
            .map(|words| words.iter().map(|word| format!("[{}]", word.display())).collect())
    }

    #[test]
    fn broker_options_of_snippets_replace_planned_ones() {
        let own = "-Srundir=/run -Sstatedir=/state -Slocal-uri=local:///run/local -Scontent.dump=/a b";
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
}
