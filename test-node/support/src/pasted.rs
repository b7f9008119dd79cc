//! The command blocks that the end-to-end test pastes into a shell, and the reasons why it leaves out others.
//! The blocks are those of the pages, and of the READMEs of `examples/`, `chart/`, `images/` and `test-node/`.

use std::path::{Path, PathBuf};

use crate::pages::{self, Block, repository};

/// Blocks that the end-to-end test leaves out.
pub struct LeftOut {
    pub page: &'static str,
    /// How the first command of the block begins. None: all blocks of the page.
    pub first_command: Option<&'static str>,
    /// The reason, and perhaps what runs the block instead.
    pub reason: &'static str,
}

impl LeftOut {
    pub fn matches(&self, block: &Block) -> bool {
        let begins_as_named = |command: &str| {
            self.first_command
                .is_none_or(|beginning| command.starts_with(beginning))
        };
        let commands = block.commands();
        let first = commands.first();
        block.page == Path::new(self.page) && first.is_some_and(|(command, _)| begins_as_named(command))
    }
}

const fn block(page: &'static str, first_command: &'static str, reason: &'static str) -> LeftOut {
    LeftOut {
        page,
        first_command: Some(first_command),
        reason,
    }
}

const fn page(page: &'static str, reason: &'static str) -> LeftOut {
    LeftOut {
        page,
        first_command: None,
        reason,
    }
}

/// Every other block runs as it stands (`operator/tests/e2e/pasted.rs`).
pub const LEFT_OUT: &[LeftOut] = &[
    block(
        "chart/README.md",
        "helm install flux-framework chart --namespace flux-operator --create-namespace \\",
        INSTALLS,
    ),
    block(
        "chart/README.md",
        "helm install flux-framework chart --namespace flux-operator --create-namespace --values",
        INSTALLS,
    ),
    block(
        "chart/README.md",
        "helm install flux-framework chart --namespace flux-operator --take-ownership",
        INSTALLS,
    ),
    block(
        "chart/README.md",
        "helm install flux-framework chart --namespace team-a",
        INSTALLS,
    ),
    block(
        "chart/README.md",
        "kubectl label namespace flux-operator",
        "is for an installation by Helm; operator/manifests has this label",
    ),
    block(
        "chart/README.md",
        "kubectl create namespace flux-operator",
        INSTALLS,
    ),
    block(
        "chart/README.md",
        "kubectl --namespace NAMESPACE create secret docker-registry",
        "has placeholders: a namespace, and a registry with a user",
    ),
    block("chart/README.md", "helm upgrade", INSTALLS),
    block("chart/README.md", "helm history", INSTALLS),
    block("chart/README.md", "helm uninstall", INSTALLS),
    block(
        "chart/README.md",
        "kubectl delete miniclusters --all --all-namespaces",
        REMOVES,
    ),
    block(
        "chart/README.md",
        "kubectl --namespace flux-operator logs job/flux-operator-delete-miniclusters",
        "needs a failed pre-delete hook of Helm; operator/tests/versions/deletion.rs tests its message",
    ),
    block(
        "chart/README.md",
        "kubectl delete namespace flux-operator",
        REMOVES,
    ),
    block(
        "docs/getting-started.md",
        "kind load",
        "needs kind, which needs Docker",
    ),
    block("docs/getting-started.md", "minikube image", "needs minikube"),
    block(
        "docs/getting-started.md",
        "k3d image",
        "needs k3d, which needs Docker",
    ),
    block("docs/getting-started.md", "helm install", INSTALLS),
    block(
        "docs/getting-started.md",
        "kubectl apply --server-side -f operator/manifests/namespace.yaml",
        INSTALLS,
    ),
    block(
        "docs/migrating.md",
        "kubectl -n operator-system scale",
        "needs an installation of the Go operator",
    ),
    block(
        "docs/migrating.md",
        "kubectl apply --server-side --force-conflicts -k dist/install",
        INSTALLS,
    ),
    block(
        "docs/tasks/fast-networks.md",
        "kubectl apply -f efa-check.yaml",
        "needs EFA devices; operator/tests/e2e/pasted.rs runs it with a MiniCluster that requests none",
    ),
    block(
        "docs/tasks/fast-networks.md",
        "kubectl minicluster connect efa-check",
        "needs EFA devices",
    ),
    page(
        "docs/tasks/gpus.md",
        "needs GPUs; operator/tests/e2e/gpus.rs runs it with a device plugin",
    ),
    block(
        "docs/tasks/interactive.md",
        ". /mnt/flux/flux-view.sh",
        "is for a shell in a pod; operator/tests/e2e/examples.rs does the same",
    ),
    block("docs/tasks/interactive.md", "kubectl port-forward", FOR_EVER),
    block("docs/tasks/monitoring.md", "helm upgrade", INSTALLS),
    page("docs/tasks/queues.md", "`make e2e-kueue` tests it"),
    block(
        "docs/tasks/run-a-job.md",
        "kubectl get minicluster exit-code",
        "shows the result of examples/exit-code, whose README is run",
    ),
    page(
        "docs/tasks/sizing.md",
        "changes the installation that all tests use; operator/tests/helm runs it",
    ),
    block(
        "docs/tasks/teams.md",
        "kubectl create namespace",
        "creates a namespace; operator/tests/it/install.rs tests the role `edit` in its own",
    ),
    block("docs/tasks/teams.md", "kubectl label namespace", WHOLE_CLUSTER),
    block("docs/tasks/teams.md", "helm template", INSTALLS),
    page("docs/tasks/tracing.md", TRACING),
    page(
        "docs/tasks/storage.md",
        "needs a claim; operator/tests/e2e/examples/volumes.rs runs it",
    ),
    block(
        "docs/troubleshooting.md",
        "kubectl get minicluster NAME",
        PLACEHOLDER,
    ),
    block(
        "docs/troubleshooting.md",
        "kubectl exec POD",
        "has the placeholder POD; operator/tests/e2e/hostile.rs runs `status` and `preflight`",
    ),
    block(
        "docs/troubleshooting.md",
        "kubectl minicluster jobs NAME",
        "is for a shell in a pod whose image has gdb",
    ),
    block(
        "docs/troubleshooting.md",
        "kubectl minicluster connect NAME -- flux cancel",
        PLACEHOLDER,
    ),
    block("docs/upgrade.md", "kubectl apply", INSTALLS),
    block("docs/upgrade.md", "helm upgrade", INSTALLS),
    block("docs/upgrade.md", "kubectl delete miniclusters", REMOVES),
    block("docs/upgrade.md", "kubectl delete --ignore-not-found", REMOVES),
    block("docs/upgrade.md", "helm uninstall", REMOVES),
    page("examples/archive/README.md", STORAGE),
    page("examples/autoscale/README.md", "`make e2e-autoscale` tests it"),
    block(
        "examples/cores/README.md",
        "kubectl apply -f guaranteed.yaml",
        CORES,
    ),
    block("examples/curve-cert/README.md", "flux keygen", FLUX_HERE),
    block(
        "examples/curve-cert/README.md",
        "kubectl create secret",
        "needs the file that `flux keygen` writes",
    ),
    page("examples/diagnostics/README.md", FOR_EVER),
    block(
        "examples/elasticity/README.md",
        "kubectl apply -f autoscaled.yaml",
        FOR_EVER,
    ),
    page("examples/gang/README.md", "`make e2e-gang` tests it"),
    page("examples/jobset/README.md", "`make e2e-jobset` tests it"),
    page("examples/lammps/README.md", REGISTRY),
    page("examples/mpi/README.md", REGISTRY),
    page("examples/notebook/README.md", REGISTRY),
    page("examples/parameter-study/README.md", STORAGE),
    page("examples/plain-job/README.md", FLUX_HERE),
    page(
        "examples/python-client/README.md",
        "python/tests/test_examples.py and test_node.py test it",
    ),
    page("examples/pytorch/README.md", REGISTRY),
    page("examples/queue/README.md", "`make e2e-kueue` tests it"),
    page("examples/rest-api/README.md", FOR_EVER),
    block(
        "examples/restarts/README.md",
        "kubectl apply -f minicluster.yaml",
        "drains the node; `make e2e-nodes` does the same",
    ),
    page("examples/security-context/README.md", WHOLE_CLUSTER),
    page("examples/sidecar/README.md", FOR_EVER),
    page("examples/snakemake/README.md", REGISTRY),
    page("examples/tracing/README.md", TRACING),
    page("examples/trainjob/README.md", "`make e2e-jobset` tests it"),
    page(
        "examples/v1alpha1/README.md",
        "rewrites every MiniCluster of the cluster; operator/tests/versions/main.rs does the same",
    ),
    page(
        "examples/v1alpha1/archive/README.md",
        "leaves a PersistentVolume and a folder on the node",
    ),
    page("examples/v1alpha1/diagnostics/README.md", FOR_EVER),
    page("examples/v1alpha1/existing-volumes/README.md", STORAGE),
    page("examples/v1alpha1/flux-restful/README.md", FOR_EVER),
    page("examples/v1alpha1/pod/README.md", CORES),
    page(
        "examples/v1alpha1/resources/README.md",
        "needs a device that no node has",
    ),
    page(
        "examples/v1alpha1/run-flux/README.md",
        "needs images from ghcr.io",
    ),
    page(
        "examples/v1alpha1/volumes-csi/README.md",
        "needs the CSI driver of a cloud",
    ),
    page(
        "examples/v1alpha1/volumes/README.md",
        "shows a volume of the namespace `default`; operator/tests/e2e/v1alpha1.rs tests one of its own",
    ),
    block(
        "examples/view/README.md",
        "kubectl create secret docker-registry",
        "needs a registry that serves the image",
    ),
    block(
        "examples/volumes/README.md",
        "kubectl apply -f minicluster.yaml",
        "needs a folder of the node; operator/tests/e2e/examples/volumes.rs brings it",
    ),
    block(
        "images/README.md",
        "make images",
        ".ci/e2e builds the images by it, for all tests on a node",
    ),
    block("images/README.md", ".ci/dist images amd64", REGISTRY),
    page(
        "test-node/README.md",
        "starts and removes nodes; test-node/check and `make e2e-nodes` do the same",
    ),
];

const INSTALLS: &str =
    "changes the installation that all tests use; operator/tests/helm installs by Helm, .ci/e2e by kubectl";
const REMOVES: &str = "removes the installation; .ci/e2e and operator/tests/helm do the same";
const FOR_EVER: &str = "goes on until a person ends it";
const PLACEHOLDER: &str = "has the placeholder NAME, a MiniCluster of the reader";
const WHOLE_CLUSTER: &str =
    "changes a namespace of the cluster; operator/tests/e2e/examples.rs does the same in its own";
const TRACING: &str = "`make e2e-tracing` tests it";
const STORAGE: &str = "needs a storage class; operator/tests/e2e/examples/volumes.rs brings volumes";
const FLUX_HERE: &str = "needs Flux on the reader's machine";
const CORES: &str = "needs more free cores than a small node has";
const REGISTRY: &str = "needs buildah and a registry";

/// The command blocks that need a cluster, page by page. From the book's pages only those marked
/// `needs-cluster`: other words after the language say why a block is not run. From READMEs every block.
pub fn blocks_by_page() -> Vec<Vec<Block>> {
    let examples = repository().join("examples");
    let mut pages = pages::pages();
    for folder in ["chart", "images", "test-node", "examples"] {
        pages.push(repository().join(folder).join("README.md"));
    }
    let mut folders: Vec<PathBuf> = [&examples, &examples.join("v1alpha1")]
        .into_iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    folders.sort();
    pages.extend(
        folders
            .iter()
            .map(|folder| folder.join("README.md"))
            .filter(|page| page.is_file()),
    );
    let blocks_by_page = pages.into_iter().map(|page| {
        // The README.md at the top counts as a page of the book.
        let is_readme = page.ends_with("README.md") && page != repository().join("README.md");
        let mut blocks = pages::blocks(&page);
        blocks.retain(|block| {
            let has_commands = matches!(block.language.as_str(), "bash" | "console");
            has_commands && (is_readme || block.word.as_deref() == Some("needs-cluster"))
        });
        blocks
    });
    blocks_by_page.filter(|blocks| !blocks.is_empty()).collect()
}

/// Why the end-to-end test leaves out this block. None if it runs the block.
pub fn why_left_out(block: &Block) -> Option<&'static str> {
    let entry = LEFT_OUT.iter().find(|entry| entry.matches(block))?;
    Some(entry.reason)
}
