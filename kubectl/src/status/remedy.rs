//! What a reason means and what to do: its section of `docs/troubleshooting.md`, or its meaning. Pure.

use flux_operator_core::vocabulary::Reason;

/// The page with a section for every reason whose meaning does not say all (checked by `operator/tests/docs`).
const PAGE: &str = include_str!("../../../docs/troubleshooting.md");

/// The section for reasons of other programs that have no section of their own.
const OTHERS: &str = "Other reasons";

/// The remedy for `reason`, as plain text.
pub fn of(reason: &str) -> Option<String> {
    let Some(text) = section_of(reason) else {
        return match Reason::parse(reason) {
            Some(reason) => Some(sentence(reason.meaning())),
            None => section_of(OTHERS),
        };
    };
    // A section that begins with "As ErrImagePull: …" refers to another section, whose text is appended.
    let other = text
        .strip_prefix("As ")
        .and_then(|rest| rest.split(|c: char| !c.is_alphanumeric()).next());
    match other.and_then(section_of) {
        Some(more) => Some(format!("{text}\n\n{more}")),
        None => Some(text),
    }
}

fn section_of(reason: &str) -> Option<String> {
    let mut lines = PAGE
        .lines()
        .skip_while(|line| *line != format!("### {reason}"))
        .skip(1);
    let section: Vec<String> = lines
        .by_ref()
        .take_while(|line| !line.starts_with('#'))
        .map(plain)
        .collect();
    let text = section.join("\n").trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// A meaning, which begins with a small letter and has no full stop, as a sentence. A name at the beginning stays.
fn sentence(meaning: &str) -> String {
    let (first, rest) = meaning.split_at(1);
    plain(&format!("{}{rest}.", first.to_uppercase()))
}

/// A line without Markdown's links and quotes.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        // The last bracket before it begins the link: an earlier one may be part of the text, as in `containers[]`.
        let (Some((before, name)), Some((_, after))) = (before.rsplit_once('['), after.split_once(')'))
        else {
            break;
        };
        text += &format!("{before}{name}");
        rest = after;
    }
    (text + rest).replace('`', "").replace("**", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lose_their_address_and_other_brackets_stay() {
        assert_eq!(
            plain("Set `containers[].image` ([images](images.md)), see [here](a.md#b) and [2]."),
            "Set containers[].image (images), see here and [2]."
        );
    }

    #[test]
    fn every_operator_reason_has_a_remedy() {
        for reason in Reason::ALL {
            let found = of(reason.name()).unwrap_or_default();
            assert!(
                !found.is_empty() && !found.contains('`') && !found.contains("]("),
                "{reason}: {found}"
            );
        }
        assert_eq!(
            of("NoSuchReason"),
            section_of(OTHERS),
            "other programs set reasons that the operator does not know"
        );
        assert!(of("NoSuchReason").unwrap().contains("kubectl describe job NAME"));
        assert_eq!(of("Deleted").as_deref(), Some("The pod was deleted."));
        assert_eq!(
            of("PostCompleted").as_deref(),
            Some("post ended with exit code 0.")
        );
        let (one, other) = (of("ImagePullBackOff").unwrap(), of("ErrImagePull").unwrap());
        assert!(
            one.starts_with("As ErrImagePull") && one.ends_with(&other),
            "{one}"
        );
    }
}
