//! A job that tries to become root in its pod, with volumes as they are on a real node. It changes what it
//! may in our folders, /home, /run and /var. Then root enters the pod, the container restarts, and `post` runs.

use kube::ResourceExt;
use serde_json::json;

use test_support::node::{app_image, test};

/// If root runs a changed file, it leaves a word in a volume that outlives the container.
///
/// - The names with `(deleted)` are those that the kernel gives in /proc/PID/exe if the program's file was removed.
/// - `*/run/flux/*` and `*/scripts/*` stay: the broker's folder, and the script that is running.
/// - The links to /etc have the name of the agent's folder, in which root writes: `/mnt/flux/config/agent`.
const ATTACK: &str = r#"
cat >/scratch/tell <<'end'
#!/bin/sh
[ "$(id -u)" != 0 ] || echo root >>/scratch/rooted
end
chmod 755 /scratch/tell
cp /scratch/tell ~/.profile; cp /scratch/tell ~/.bashrc; cp /scratch/tell ~/.bash_profile
for file in $(find /mnt/flux /opt/software /etc/flux-agent /home /run /var -type f -o -type l) \
    '/mnt/flux/flux-agent (deleted)' '/etc/flux-agent/bin/flux-agent (deleted)'; do
    case $file in */run/flux/* | */scripts/*) continue ;; esac
    cp /scratch/tell "$file" || { rm -f "$file" && cp /scratch/tell "$file"; }
    chmod 755 "$file"
done 2>/dev/null
for folder in /etc/flux-agent/bin /mnt/flux/config/etc /mnt/flux/config /mnt/flux/view /mnt/flux; do
    mv "$folder" "$folder.old" && mkdir -p "$folder" && cp /scratch/tell "$folder/flux-agent"
    ln -s /etc "$folder/agent"
done 2>/dev/null
"#;

#[test]
fn a_job_does_not_become_root_by_what_root_runs_in_its_pod() {
    test("hostile", async |fixture| {
        let wait = "while [ ! -e /scratch/go ]; do sleep 0.2; done";
        let job = format!(
            "[ ! -e /scratch/attempt ] || exit 0\necho >/scratch/attempt\n{ATTACK}echo attacked\n{wait}\nexit 1\n"
        );
        let last = ". /mnt/flux/flux-view.sh; sh -lc :; /mnt/flux/flux-agent status || :; [ ! -e /scratch/rooted ] || exit 9";
        let object = json!({
            "apiVersion": "flux-framework.org/v1alpha2",
            "kind": "MiniCluster",
            "metadata": { "name": "hostile" },
            "spec": {
                "size": 1,
                "pod": { "restartPolicy": "OnFailure" },
                // With this, a `post` that fails decides the exit code.
                "logging": { "strict": true },
                "containers": [{
                    "image": app_image(),
                    "fluxUser": { "name": "flux", "uid": 1002 },
                    "commands": { "script": job, "post": last },
                    "volumes": { "scratch": { "path": "/scratch", "emptyDir": true } },
                }],
            },
        });
        fixture.kubectl(&["apply", "-f", "-"], &object.to_string());
        let lead = fixture
            .until("the job has done what it could", async || {
                let lead = fixture.lead("hostile").await?;
                let log = fixture.log(&lead).await;
                log.contains("attacked\n").then(|| lead.name_any())
            })
            .await;
        let enter = |command: &[&str]| fixture.kubectl(&[&["exec", &lead, "--"], command].concat(), "");
        assert_eq!(
            enter(&["/mnt/flux/flux-agent", "connect", "--", "id", "-u"]).trim(),
            "1002"
        );
        enter(&["/mnt/flux/flux-agent", "status"]);
        enter(&[
            "sh",
            "-c",
            ". /mnt/flux/flux-view.sh; sh -lc :; /mnt/flux/flux-agent preflight || :",
        ]);
        assert_eq!(
            enter(&[
                "sh",
                "-c",
                "cat /scratch/rooted 2>/dev/null || :; touch /scratch/go"
            ]),
            ""
        );
        let status = fixture.when_finished("hostile").await;
        assert_eq!(
            status["exitCode"], 0,
            "9: root ran what the job had written; {status:#}"
        );
    });
}
