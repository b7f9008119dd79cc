//! What a reason means and what to do: its section of `docs/troubleshooting.md`. Pure.

/// The page with a section for every reason (checked by `operator/tests/docs`).
const PAGE: &str = include_str!("../../../docs/troubleshooting.md");

/// The section for reasons that others set, and that have no section of their own.
const OTHERS: &str = "Other reasons";

/// The remedy for `reason`, as plain text.
pub fn of(reason: &str) -> Option<String> {
    section_of(reason).or_else(|| section_of(OTHERS))
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
    // "As ErrImagePull: …": that section's text is included.
    let other = text
        .strip_prefix("As ")
        .and_then(|rest| rest.split(|it: char| !it.is_alphanumeric()).next());
    let more = other
        .filter(|other| *other != reason)
        .and_then(section_of)
        .map(|more| format!("\n\n{more}"));
    (!text.is_empty()).then(|| text + &more.unwrap_or_default())
}

/// A line without Markdown's links and quotes.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, (name, after))) = rest
        .split_once('[')
        .and_then(|(it, more)| Some((it, more.split_once("](")?)))
    {
        let Some((_, after)) = after.split_once(')') else {
            break;
        };
        text += &format!("{before}{name}");
        rest = after;
    }
    (text + rest).replace('`', "").replace("**", "")
}

#[cfg(test)]
mod tests {
    use flux_operator_core::vocabulary::REASONS;

    use super::*;

    #[test]
    fn every_operator_reason_has_a_remedy() {
        for reason in REASONS {
            let found = of(reason.name).unwrap_or_default();
            assert!(
                !found.is_empty() && !found.contains('`') && !found.contains("]("),
                "{}: {found}",
                reason.name
            );
        }
        assert_eq!(
            of("NoSuchReason"),
            section_of(OTHERS),
            "others set reasons that nobody here knows"
        );
        assert!(of("NoSuchReason").unwrap().contains("kubectl describe job NAME"));
        let (one, other) = (of("ImagePullBackOff").unwrap(), of("ErrImagePull").unwrap());
        assert!(
            one.starts_with("As ErrImagePull") && one.ends_with(&other),
            "{one}"
        );
    }
}
