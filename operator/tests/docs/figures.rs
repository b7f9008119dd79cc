//! The page about scaling: its table of metrics matches the code, and its manifests are those of the example.

use flux_shared::usage::{InstanceResources, Jobs, Usage};
use serde_json::Value;

use test_support::pages::{blocks, repository};

const PAGE: &str = "docs/tasks/autoscale.md";
const BEGIN: &str = "<!-- figures -->\n";
const END: &str = "<!-- end -->\n";

#[test]
fn the_metrics_of_the_page_are_those_of_the_code() {
    // `metrics` leaves out what is `None`.
    let all = Usage {
        resources: Some(InstanceResources::default()),
        jobs: Some(Jobs::default()),
        ..Usage::default()
    };
    let rows = all
        .metrics()
        .into_iter()
        .map(|metric| format!("| `{}` | {} |\n", metric.name, metric.help));
    let table = format!(
        "{BEGIN}| metric | what it counts |\n| --- | --- |\n{}{END}",
        rows.collect::<String>()
    );
    let path = repository().join(PAGE);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let want = format!("{before}{table}{after}");
    // An unchanged page is not written: another test may be reading it.
    if text != want && std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &want).unwrap();
    }
    assert!(
        text == want || std::env::var_os("UPDATE").is_some(),
        "{PAGE} is stale: run `make generate`"
    );
}

#[test]
fn the_manifests_of_the_page_are_those_of_the_example() {
    let read = |text: &str| -> Value { serde_saphyr::from_str(text).unwrap() };
    let page = repository().join(PAGE);
    let shown: Vec<Value> = blocks(&page)
        .iter()
        .filter(|block| block.language == "yaml")
        .map(|block| read(&block.text))
        .collect();
    let files = ["minicluster", "adapter", "hpa", "keda"];
    let files = files.map(|name| {
        repository()
            .join("examples/autoscale")
            .join(name)
            .with_extension("yaml")
    });
    let files = files.map(|path| read(&std::fs::read_to_string(path).unwrap()));
    assert_eq!(shown, files);
}
