//! The commands that people paste from the pages and from the READMEs of `examples/`, `chart/`, `images/` and
//! `test-node/`, block by block, and those that no test on a node runs.

use std::path::{Path, PathBuf};

use crate::pages::{self, Block, repository};

/// A page, the beginning of the first command of one of its blocks (empty: all blocks), and why no test on a
/// node runs it.
///
/// Every other block runs as it stands (`operator/tests/e2e/pasted.rs`). In pages of the book these are the
/// blocks of `needs-cluster`: the other words say themselves why not.
pub const NOT_RUN: &[(&str, &str, &str)] = &[
    (
        "chart/README.md",
        "helm install flux-framework chart --namespace flux-operator --create-namespace \\",
        INSTALLS,
    ),
    (
        "chart/README.md",
        "helm install flux-framework chart --namespace flux-operator --create-namespace --values",
        INSTALLS,
    ),
    (
        "chart/README.md",
        "helm install flux-framework chart --namespace flux-operator --take-ownership",
        INSTALLS,
    ),
    (
        "chart/README.md",
        "helm install flux-framework chart --namespace team-a",
        INSTALLS,
    ),
    (
        "chart/README.md",
        "kubectl label namespace flux-operator",
        "is for an installation by Helm; operator/manifests has this label",
    ),
    ("chart/README.md", "helm upgrade", INSTALLS),
    ("chart/README.md", "helm uninstall", INSTALLS),
    (
        "chart/README.md",
        "kubectl delete miniclusters --all --all-namespaces",
        "removes the installation: .ci/e2e does",
    ),
    (
        "chart/README.md",
        "kubectl --namespace flux-operator logs job/flux-operator-delete-miniclusters",
        "takes a hook of Helm that failed: operator/tests/versions/deletion.rs",
    ),
    (
        "chart/README.md",
        "kubectl delete namespace flux-operator",
        "removes the installation: .ci/e2e does",
    ),
    (
        "docs/getting-started.md",
        "kind load",
        "takes kind, which takes Docker",
    ),
    ("docs/getting-started.md", "minikube image", "takes minikube"),
    (
        "docs/getting-started.md",
        "k3d image",
        "takes k3d, which takes Docker",
    ),
    ("docs/getting-started.md", "helm install", INSTALLS),
    (
        "docs/getting-started.md",
        "kubectl apply --server-side -f operator/manifests/namespace.yaml",
        INSTALLS,
    ),
    (
        "docs/migrating.md",
        "kubectl -n operator-system scale",
        "takes an installation of the Go operator",
    ),
    (
        "docs/migrating.md",
        "kubectl apply --server-side --force-conflicts -k dist/install",
        INSTALLS,
    ),
    ("docs/tasks/fast-networks.md", "", "takes devices of EFA"),
    (
        "docs/tasks/gpus.md",
        "",
        "operator/tests/e2e/gpus.rs, with a device plugin of its own",
    ),
    (
        "docs/tasks/interactive.md",
        ". /mnt/flux/flux-view.sh",
        "is for a shell in a pod; operator/tests/e2e/sdk.rs",
    ),
    ("docs/tasks/interactive.md", "kubectl port-forward", FOR_EVER),
    ("docs/tasks/monitoring.md", "helm upgrade", INSTALLS),
    ("docs/tasks/queues.md", "", "make e2e-kueue"),
    (
        "docs/tasks/run-a-job.md",
        "kubectl get minicluster exit-code",
        "looks at examples/exit-code, which runs",
    ),
    ("docs/tasks/service-mesh.md", "", PLACEHOLDER),
    ("docs/tasks/sizing.md", "", INSTALLS),
    ("docs/tasks/teams.md", "kubectl create namespace", WHOLE_CLUSTER),
    ("docs/tasks/teams.md", "kubectl label namespace", WHOLE_CLUSTER),
    ("docs/tasks/teams.md", "helm template", INSTALLS),
    ("docs/tasks/tracing.md", "", TRACING),
    ("docs/tasks/storage.md", "", STORAGE),
    ("docs/troubleshooting.md", "", PLACEHOLDER),
    ("docs/upgrade.md", "kubectl apply", INSTALLS),
    ("docs/upgrade.md", "helm upgrade", INSTALLS),
    ("docs/upgrade.md", "kubectl delete miniclusters", REMOVES),
    ("docs/upgrade.md", "kubectl delete --ignore-not-found", REMOVES),
    ("docs/upgrade.md", "helm uninstall", REMOVES),
    ("examples/archive/README.md", "", STORAGE),
    ("examples/autoscale/README.md", "", "make e2e-autoscale"),
    (
        "examples/cores/README.md",
        "kubectl apply -f guaranteed.yaml",
        "takes more free cores than a small node has",
    ),
    ("examples/curve-cert/README.md", "flux keygen", FLUX_HERE),
    (
        "examples/curve-cert/README.md",
        "kubectl create secret",
        "takes what `flux keygen` has made",
    ),
    ("examples/diagnostics/README.md", "", FOR_EVER),
    (
        "examples/elasticity/README.md",
        "kubectl apply -f autoscaled.yaml",
        FOR_EVER,
    ),
    ("examples/gang/README.md", "", "make e2e-gang"),
    ("examples/jobset/README.md", "", "make e2e-jobset"),
    ("examples/lammps/README.md", "", REGISTRY),
    ("examples/mpi/README.md", "", REGISTRY),
    ("examples/notebook/README.md", "", REGISTRY),
    ("examples/parameter-study/README.md", "", STORAGE),
    ("examples/plain-job/README.md", "", FLUX_HERE),
    (
        "examples/python-client/README.md",
        "",
        "python/tests/test_examples.py and test_node.py",
    ),
    ("examples/pytorch/README.md", "", REGISTRY),
    ("examples/queue/README.md", "", "make e2e-kueue"),
    ("examples/rest-api/README.md", "", FOR_EVER),
    (
        "examples/restarts/README.md",
        "kubectl apply -f minicluster.yaml",
        "drains the node: make e2e-nodes does",
    ),
    ("examples/security-context/README.md", "", WHOLE_CLUSTER),
    ("examples/sidecar/README.md", "", FOR_EVER),
    ("examples/snakemake/README.md", "", REGISTRY),
    ("examples/tracing/README.md", "", TRACING),
    ("examples/trainjob/README.md", "", "make e2e-jobset"),
    (
        "examples/v1alpha1/README.md",
        "",
        "rewrites every MiniCluster of the cluster; operator/tests/helm and it/webhook.rs",
    ),
    (
        "examples/view/README.md",
        "kubectl create secret docker-registry",
        "takes a registry that serves the image",
    ),
    (
        "examples/volumes/README.md",
        "kubectl apply -f minicluster.yaml",
        "takes a folder of the node; operator/tests/e2e/examples/volumes.rs brings it",
    ),
    (
        "images/README.md",
        "make images",
        ".ci/e2e builds the images by it, for all tests on a node",
    ),
    ("images/README.md", ".ci/dist images amd64", REGISTRY),
    (
        "test-node/README.md",
        "",
        "starts and removes nodes: test-node/check and make e2e-nodes do",
    ),
];

const INSTALLS: &str =
    "changes the installation that all tests use; operator/tests/helm installs by Helm, .ci/e2e by kubectl";
const REMOVES: &str = "removes the installation: .ci/e2e and operator/tests/helm do";
const FOR_EVER: &str = "goes on until a person ends it";
const PLACEHOLDER: &str = "has a placeholder; operator/tests/e2e runs these programs of the agent";
const WHOLE_CLUSTER: &str =
    "changes a namespace of the cluster; operator/tests/e2e/examples.rs does the same in its own";
const TRACING: &str = "make e2e-tracing";
const STORAGE: &str = "takes a storage class; operator/tests/e2e/examples/volumes.rs brings volumes";
const FLUX_HERE: &str = "takes Flux on the reader's machine";
const REGISTRY: &str = "takes buildah and a registry";

/// The blocks with commands that a cluster is needed for, page by page.
pub fn pages_with_blocks() -> Vec<(PathBuf, Vec<Block>)> {
    let examples = repository().join("examples");
    let mut pages = pages::pages();
    for folder in ["chart", "images", "test-node", "examples"] {
        pages.push(repository().join(folder).join("README.md"));
    }
    let mut folders: Vec<PathBuf> = std::fs::read_dir(examples)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    folders.sort();
    pages.extend(
        folders
            .iter()
            .map(|folder| folder.join("README.md"))
            .filter(|page| page.is_file()),
    );
    let with_blocks = pages.into_iter().map(|page| {
        let is_readme = page.ends_with("README.md") && page != repository().join("README.md");
        let mut blocks = pages::blocks(&page);
        blocks.retain(|block| {
            let has_commands = matches!(block.language.as_str(), "bash" | "console");
            has_commands && (is_readme || block.word.as_deref() == Some("needs-cluster"))
        });
        (page.strip_prefix(repository()).unwrap().to_owned(), blocks)
    });
    with_blocks.filter(|(_, blocks)| !blocks.is_empty()).collect()
}

/// Why no test on a node runs this block; none: one does.
pub fn not_run(block: &Block) -> Option<&'static str> {
    NOT_RUN
        .iter()
        .find(|(page, command, _)| means(page, command, block))
        .map(|(.., reason)| *reason)
}

/// Whether an entry of a list above means this block.
pub fn means(page: &str, first_command: &str, block: &Block) -> bool {
    block.page == Path::new(page)
        && block
            .commands()
            .first()
            .is_some_and(|(command, _)| command.starts_with(first_command))
}
