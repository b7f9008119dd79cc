//! Examples of v1alpha1.

use super::*;

/// MiniClusters of 2023, which go through the conversion webhook. Their image has Flux in it.
const OF_V1ALPHA1: &[Expected] = &[
    // Its jobs write to files, so the log has none of their output.
    ("v1alpha1/batch/minicluster", 0, &[]),
    ("v1alpha1/cleanup/minicluster", 0, &[("cleanup-v1alpha1-0", 1)]),
    (
        "v1alpha1/commands/minicluster",
        0,
        &[
            ("I am running the pre-command", 1),
            ("on the lead", 1),
            ("commands-v1alpha1-0", 1),
            ("Finishing up...", 1),
        ],
    ),
    ("v1alpha1/container/minicluster", 0, &[("/tmp/workflow", 1)]),
    ("v1alpha1/flux/minicluster", 0, &[("flux-v1alpha1-0", 1)]),
    (
        "v1alpha1/flux-option-flags/minicluster",
        0,
        &[("flux-option-flags-v1alpha1-0", 1)],
    ),
    ("v1alpha1/flux-user/minicluster", 0, &[("fluxuser", 1)]),
    (
        "v1alpha1/hello-world/minicluster",
        0,
        &[("hello-world-v1alpha1-0", 1)],
    ),
    (
        "v1alpha1/job-labels/minicluster",
        0,
        &[("job-labels-v1alpha1-0", 1)],
    ),
    (
        "v1alpha1/launcher/minicluster",
        0,
        &[("launcher-v1alpha1-...", 2)],
    ),
    (
        "v1alpha1/life-cycle/minicluster",
        0,
        &[("life-cycle-v1alpha1-0", 1)],
    ),
    ("v1alpha1/logging/minicluster", 0, &[("logging-v1alpha1-0", 1)]),
    ("v1alpha1/pre-command/minicluster", 0, &[("1", 1)]),
    ("v1alpha1/run-flux-as-root/minicluster", 0, &[("root", 1)]),
    ("v1alpha1/tasks/minicluster", 0, &[("tasks-v1alpha1-...", 4)]),
];

#[test]
fn examples_of_v1alpha1_end_as_their_readmes_say() {
    test("examples-v1alpha1", async |fixture| {
        all_to_the_end(&fixture, OF_V1ALPHA1).await
    });
}
