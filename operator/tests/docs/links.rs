//! Every link of the pages into the repository leads to an existing file and anchor, and the book has every page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use test_support::pages::{REPOSITORY, pages, repository};

/// The text without fenced blocks and code, which contain no links.
fn prose(page: &Path) -> String {
    let text = std::fs::read_to_string(page).unwrap();
    let mut inside = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        inside ^= is_fence;
        !inside && !is_fence
    });
    let lines: Vec<String> = lines
        .map(|line| line.split('`').step_by(2).collect::<Vec<_>>().join("code"))
        .collect();
    lines.join("\n")
}

/// The anchor that GitHub and mdBook make of a heading: lower case letters, digits, `-` and `_`.
fn anchor(heading: &str) -> String {
    let letters = heading.trim().to_lowercase();
    let letters = letters
        .chars()
        .filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    letters
        .map(|letter| if letter == ' ' { '-' } else { letter })
        .collect()
}

fn anchors(page: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let (mut all, mut seen, mut inside) = (BTreeSet::new(), BTreeMap::new(), false);
    for line in text.lines() {
        inside ^= line.trim_start().starts_with("```");
        if let Some(heading) = line.strip_prefix('#')
            && !inside
        {
            let name = anchor(heading.trim_start_matches('#'));
            let times: &mut u32 = seen.entry(name.clone()).or_default();
            all.insert(if *times == 0 {
                name
            } else {
                format!("{name}-{times}")
            });
            *times += 1;
        }
        let ids = line
            .split("<a id=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next());
        all.extend(ids.map(str::to_owned));
    }
    all
}

#[test]
fn every_link_into_the_repository_leads_somewhere() {
    let others = [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "chart/README.md",
        "images/README.md",
        "test-node/README.md",
    ];
    let others = others.map(|name| repository().join(name));
    let (mut wrong, mut right) = (Vec::new(), 0);
    for page in pages().into_iter().chain(others) {
        let text = prose(&page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, place) = link
                .split_once('#')
                .map_or((link, None), |(path, place)| (path, Some(place)));
            let target = match (path, in_repository(path)) {
                (_, Some(target)) => target,
                ("", None) => page.clone(),
                // A `tree` link without such a folder, or a `blob` link to a folder, falls through to the last arm.
                (path, None) if path.contains("://") && !is_into_repository(path) => continue,
                (path, None) => page.parent().unwrap().join(path),
            };
            let is_there = target.exists() && place.is_none_or(|place| anchors(&target).contains(place));
            if is_there {
                right += 1
            } else {
                wrong.push(format!("{}: {link}", page.display()))
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(right > 50, "only {right} links were found");
}

/// The file that a link to the repository's web pages means. `blob` is a file, `tree` a folder.
fn in_repository(link: &str) -> Option<PathBuf> {
    let (kind, path) = link
        .strip_prefix(REPOSITORY)?
        .strip_prefix('/')?
        .split_once("/main/")?;
    let target = repository().join(path);
    (matches!(kind, "blob" | "tree") && target.is_dir() == (kind == "tree")).then_some(target)
}

/// Whether a link means a file or a folder of the repository.
fn is_into_repository(link: &str) -> bool {
    link.strip_prefix(REPOSITORY)
        .is_some_and(|rest| rest.starts_with("/blob/") || rest.starts_with("/tree/"))
}

/// mdbook keeps the folders of a relative link, and the site has no file outside the book's folder.
#[test]
fn no_relative_link_leaves_the_book() {
    let docs = repository().join("docs");
    let (mut wrong, mut right) = (Vec::new(), 0);
    for page in pages().into_iter().filter(|page| page.starts_with(&docs)) {
        let depth = page.strip_prefix(&docs).unwrap().components().count() - 1;
        let text = prose(&page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let ups = link.split('/').take_while(|part| *part == "..").count();
            let stays_in_book = link.contains("://") || link.starts_with('#') || ups <= depth;
            if stays_in_book {
                right += 1
            } else {
                wrong.push(format!("{}: {link}", page.display()))
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "write {REPOSITORY}/blob/main/…:\n{}",
        wrong.join("\n")
    );
    assert!(right > 500, "only {right} links were found");
}

#[test]
fn the_book_has_every_page() {
    let summary = std::fs::read_to_string(repository().join("docs/SUMMARY.md")).unwrap();
    let named: BTreeSet<PathBuf> = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .map(PathBuf::from)
        .collect();
    let docs = repository().join("docs");
    let existing: BTreeSet<PathBuf> = pages()
        .iter()
        .filter_map(|page| Some(page.strip_prefix(&docs).ok()?.to_owned()))
        .collect();
    let missing: Vec<_> = existing
        .iter()
        .filter(|page| !page.ends_with("SUMMARY.md") && !named.contains(*page))
        .collect();
    assert!(missing.is_empty(), "not in SUMMARY.md: {missing:?}");
}

#[test]
fn headings_become_anchors_as_on_github() {
    assert_eq!(anchor(" `spec.flux`, and more (v1)"), "specflux-and-more-v1");
    assert_eq!(anchor(" NonZeroExitCode"), "nonzeroexitcode");
}
