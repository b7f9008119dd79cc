//! Every `yaml` block of the pages is usable. A MiniCluster is valid without a notice and can be rendered;
//! anything else can be parsed. `yaml,refused` must be rejected. `yaml,part` is a part of a spec, and is put
//! into one.

use flux_operator_core::render::{self, Options, RenderFacts};
use flux_shared::curve::Certificate;
use flux_shared::{manifest, validate};
use serde_json::{Value, json};

use test_support::pages::{Block, blocks, pages, repository};
use test_support::repository::yaml_files;

fn check(block: &Block) -> Result<(), String> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&block.text).map_err(|error| error.to_string())?;
    if block.word.as_deref() == Some("part") {
        return part(documents.first().unwrap_or(&Value::Null));
    }
    let clusters: Vec<&Value> = documents
        .iter()
        .filter(|document| document["kind"] == "MiniCluster")
        .collect();
    if clusters.is_empty() && !documents.iter().all(|document| document.is_object()) {
        return Err("neither a MiniCluster nor a mapping".into());
    }
    for cluster in clusters {
        match (usable(cluster), block.word.as_deref()) {
            (Err(_), Some("refused")) => {}
            (Ok(()), Some("refused")) => return Err("is said to be refused, and is not".into()),
            (result, _) => result?,
        }
    }
    Ok(())
}

/// Checks a part of a spec. Its fields replace those of a small MiniCluster.
fn part(fields: &Value) -> Result<(), String> {
    let mut cluster = json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "part" },
        "spec": { "size": 2, "tasks": 2, "containers": [{ "image": "rockylinux:9", "command": "true" }] }
    });
    for (name, value) in fields.as_object().ok_or("no mapping")? {
        cluster["spec"][name.as_str()] = value.clone();
    }
    usable(&cluster)
}

fn usable(cluster: &Value) -> Result<(), String> {
    rendered(cluster).map(drop)
}

fn rendered(cluster: &Value) -> Result<render::Objects, String> {
    let text_of = |problems: Vec<validate::Problem>| {
        problems
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    };
    let valid =
        validate::validate_and_note(&manifest::from_value(cluster).map_err(text_of)?).map_err(text_of)?;
    if !valid.notices.is_empty() {
        return Err(text_of(valid.notices));
    }
    let certificate = Certificate::from_keys("page", &[1; 32], &[2; 32]);
    render::objects(&valid, &Options::default(), &RenderFacts::default(), certificate)
        .map_err(|error| error.to_string())
}

#[test]
fn every_manifest_of_the_pages_can_be_used() {
    let yaml = pages()
        .into_iter()
        .flat_map(|page| blocks(&page))
        .filter(|block| block.language == "yaml");
    let (mut wrong, mut right) = (Vec::new(), 0);
    for block in yaml {
        match check(&block) {
            Ok(()) => right += 1,
            Err(why) => wrong.push(format!("{}: {why}", block.place())),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(right > 10, "only {right} were found");
}

/// flux-pmix 0.3 removed the file behind `-ompi=openmpi@5`: every rank of Open MPI 5 would be rank 0 of 1.
#[test]
fn no_manifest_has_the_old_option_for_openmpi_5() {
    let of_pages = pages()
        .into_iter()
        .flat_map(|page| blocks(&page))
        .map(|block| (block.place(), block.text));
    let of_examples = yaml_files(&repository().join("examples"))
        .into_iter()
        .map(|file| (file.display().to_string(), std::fs::read_to_string(file).unwrap()));
    for (place, text) in of_pages.chain(of_examples) {
        assert!(!text.contains("openmpi@5"), "{place}: use -o pmi=pmix");
    }
}

#[test]
fn a_manifest_that_is_wrong_is_found() {
    let block = |word: Option<&str>, text: &str| Block {
        page: "page".into(),
        line: 1,
        language: "yaml".into(),
        word: word.map(str::to_owned),
        text: text.into(),
    };
    assert!(check(&block(Some("part"), "maxSize: 1\n")).is_err());
    assert!(check(&block(Some("part"), "unknownField: 1\n")).is_err());
    assert!(check(&block(Some("part"), "maxSize: 3\n")).is_ok());
    assert!(check(&block(None, "a: [\n")).is_err());
    let good = "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {name: a}\nspec: {containers: [{image: b}]}\n";
    assert!(check(&block(None, good)).is_ok());
    assert!(check(&block(Some("refused"), good)).is_err());
}

#[test]
fn policy_for_default_deny_selects_all_pods_of_a_minicluster() {
    let all = blocks(&repository().join("docs/tasks/teams.md"));
    let block = all
        .iter()
        .find(|block| block.text.contains("kind: NetworkPolicy"))
        .unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&block.text).unwrap();
    let policy = &documents[0]["spec"];
    let selectors = [
        &policy["podSelector"],
        &policy["ingress"][0]["from"][0]["podSelector"],
        &policy["egress"][0]["to"][0]["podSelector"],
    ];
    let cluster = json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "mc" },
        "spec": { "containers": [{ "image": "app:1" }], "services": [{ "image": "db:1", "name": "db" }] },
    });
    let objects = rendered(&cluster).unwrap();
    let template = objects.job.rendered.spec.unwrap().template;
    let services_pod = objects.services_pod.unwrap().rendered;
    for labels in [template.metadata.unwrap().labels, services_pod.metadata.labels] {
        let labels = labels.unwrap();
        for selector in selectors {
            let key = selector["matchExpressions"][0]["key"].as_str().unwrap();
            assert!(labels.contains_key(key), "{selector}: {labels:?}");
        }
    }
}
