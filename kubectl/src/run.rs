//! `run`: creates a MiniCluster, follows it until its job ends, and deletes it. The exit code is that of the job.

mod follow;
mod manifest;

use std::cell::Cell;
use std::time::Duration;

use flux_operator_client::retry::until_done;
use flux_operator_core::offline::OfflineError;
use flux_shared::crd::v1alpha2::MiniCluster;
use kube::ResourceExt;
use kube::api::PostParams;
use kube::core::Request;
use serde_json::json;
use tokio::time::Instant;

use crate::failure::{self, Failure};
use crate::input::read;
use crate::output::Output;
use crate::screen::{self, Screen};
use crate::signals::Interrupts;
use crate::stop;
use crate::target::Target;
use follow::{ClusterId, Followed, Leftover, RunEnd};
use manifest::Wanted;

/// Annotation with random letters. It tells the MiniCluster of this run from another one with the same name.
const RUN_ANNOTATION: &str = "flux-framework.org/run";
/// Letters of the `RUN_ANNOTATION`. Two runs never draw the same ones, as may happen with the few of a name.
const RUN_LETTERS: usize = 16;
/// Letters that complete a generated name.
const NAME_LETTERS: usize = 5;
/// Most attempts to create the MiniCluster, to list its pods after the job's end, and to delete it.
const MOST_ATTEMPTS: u32 = 5;
/// Time between two attempts.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long the API server may be away when the operator is asked to delete a MiniCluster that has ended. Until then,
/// attempts without its answer do not count.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(180);

/// Arguments of `run`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub wanted: Wanted,
    /// Print the name and exit; the job keeps running
    #[arg(long, short)]
    pub detach: bool,
}

/// Creates the MiniCluster and follows it; returns the job's exit code. Rejects a file that names another namespace than
/// `--namespace`.
pub async fn create_and_follow(mut target: Target, args: &Args, output: Output) -> Result<u8, Failure> {
    if !args.detach {
        output.refuse(
            "run",
            "it prints the job's output. With --detach it prints the MiniCluster",
        )?;
    }
    let file = match &args.wanted.from {
        Some(path) => Some(read(path.as_ref())?),
        None => None,
    };
    if file.is_none() && args.wanted.command.is_empty() && !args.detach {
        return Err(Failure::Message(
            "give a command after `--`, or --detach: then the instance stays up, and `connect` opens a shell in it"
                .into(),
        ));
    }
    let mut built = manifest::build(&args.wanted, file.as_deref(), &letters(NAME_LETTERS)?)
        .map_err(OfflineError::Problems)?;
    let annotations = built.cluster.annotations_mut();
    annotations.insert(RUN_ANNOTATION.into(), letters(RUN_LETTERS)?);
    if let Some(namespace) = built.namespace {
        if target.access.namespace.is_some() && namespace != target.namespace {
            let given = &target.namespace;
            return Err(Failure::Message(format!(
                "the file's namespace is {namespace}, and --namespace is {given}"
            )));
        }
        target.namespace.clone_from(&namespace);
        target.access.namespace = Some(namespace);
    }
    built
        .notes
        .iter()
        .for_each(|note| screen::tell(&format!("note: {note}")));
    if args.detach {
        let created = create(&target, &mut built.cluster).await?;
        return output
            .show(&created, || format!("{}\n", created.name_any()))
            .map(|()| 0);
    }
    let mut interrupts = Interrupts::listen()?;
    let created = create_unless_interrupted(&target, &mut built.cluster, &mut interrupts).await?;
    let name = built.cluster.name_any();
    let Some((created, is_interrupted)) = created else {
        let ending = RunEnd::Interrupted(None);
        ending
            .text(&target.access, &name)
            .iter()
            .for_each(|text| screen::tell(text));
        return Ok(ending.code());
    };
    let screen = Screen::open();
    screen.say(&format!(
        "created MiniCluster {name} with {}",
        pods(created.spec.size)
    ));
    let uid = created.uid().unwrap_or_default();
    let id = ClusterId {
        name: &name,
        uid: &uid,
    };
    let is_kept = args.wanted.keep;
    let leftover = if is_kept {
        Leftover::Kept
    } else if created.spec.cleanup || created.spec.ttl_seconds_after_finished.is_some() {
        Leftover::AsInSpec
    } else {
        Leftover::Expires
    };
    let followed = follow::until_end(&target, id, &screen, &mut interrupts, is_interrupted, leftover).await;
    screen.end();
    let followed = followed?;
    if let Some(text) = followed.end.text(&target.access, &name) {
        screen.say(&text);
    }
    tokio::select! {
        text = tidy_up(&target, id, &followed, is_kept) => text.iter().for_each(|text| screen::tell(text)),
        () = interrupts.next() => screen::tell(&format!(
            "it is unknown whether {name} will be deleted: {} deletes it",
            target.access.command("stop --now", &name)
        )),
    }
    Ok(followed.end.code())
}

fn pods(size: i32) -> String {
    if size == 1 {
        "1 pod".into()
    } else {
        format!("{size} pods")
    }
}

/// Asks the operator to delete the MiniCluster once it has ended (`spec.cleanup`). For this, the user needs no
/// permission to delete. Keeps it with `--keep`, or if its output was not printed completely. Output that nobody reads
/// (`RunEnd::Unread`) does not count. Stops a MiniCluster that the operator cannot use: otherwise it may run later,
/// when nobody follows it. Returns the message for the user; None: there is nothing to report.
async fn tidy_up(target: &Target, id: ClusterId<'_>, followed: &Followed, keep: bool) -> Option<String> {
    let ClusterId { name, uid } = id;
    match followed.end {
        RunEnd::Finished { .. } | RunEnd::Unread => {}
        RunEnd::Invalid(_) if keep => {
            return Some(format!(
                "kept {name}: {} deletes it",
                target.access.command("stop --now", name)
            ));
        }
        RunEnd::Invalid(_) => {
            let stopped = retry(|| stop::at_once(target, name, Some(uid))).await;
            return Some(stopped.map_or_else(|failure| failure.to_string(), |way| way.text(name)));
        }
        // The MiniCluster is already deleted, or is left as it is.
        RunEnd::Deleted { .. } | RunEnd::Unseen | RunEnd::Interrupted(_) => return None,
    }
    let should_keep = keep || !followed.is_whole;
    if followed.is_deleted {
        return should_keep
            .then(|| format!("{name} is not kept: its `cleanup`, or somebody else, deletes it"));
    }
    if should_keep {
        let why = if followed.is_whole {
            ""
        } else {
            ", since its output could not be printed whole"
        };
        let until = followed.time_to_live.map_or(String::new(), |seconds| {
            format!(" until {seconds} s after its end (`ttlSecondsAfterFinished`)")
        });
        return Some(format!(
            "kept {name}{until}{why}: {}, {}",
            target.access.command("logs", name),
            target.access.command("stop --now", name)
        ));
    }
    let failure = clean_up(target, id).await.err()?;
    match stop::find(target, name, Some(uid)).await {
        // Its `ttlSecondsAfterFinished`, or somebody else, was faster.
        Ok(None) => None,
        _ => Some(format!("{failure}; not deleted")),
    }
}

/// Asks the operator to delete the MiniCluster (`spec.cleanup`), which needs no permission to delete.
async fn clean_up(target: &Target, id: ClusterId<'_>) -> Result<(), Failure> {
    let doing = format!("clean up MiniCluster {}", id.name);
    let cleanup = || stop::patch(target, id.name, Some(id.uid), json!({ "cleanup": true }));
    let (begin, mut tries, mut printed) = (Instant::now(), 1, String::new());
    let judge = |error: kube::Error| {
        let is_away = failure::may_pass(&error);
        tries += u32::from(!is_away || begin.elapsed() >= CLEANUP_TIMEOUT);
        // 403: an API server that has just started does not know all roles yet. 409: another change, at the same time.
        let may_help = is_away || failure::is_code(&error, 403) || failure::is_code(&error, 409);
        let failure = Failure::call(&doing)(error);
        if !may_help || tries > MOST_ATTEMPTS {
            return Err(failure);
        }
        let text = failure.to_string();
        if text != printed {
            screen::tell(&format!("{text}; retrying"));
            printed = text;
        }
        Ok(())
    };
    until_done(RETRY_PAUSE, cleanup, judge).await.map(|_| ())
}

/// Makes a call, and repeats it while its failure may pass: `MOST_ATTEMPTS` attempts at most.
async fn retry<T, C: Future<Output = Result<T, Failure>>>(call: impl FnMut() -> C) -> Result<T, Failure> {
    let mut tries = 1;
    let judge = |failure: Failure| {
        tries += 1;
        if failure.may_pass() && tries <= MOST_ATTEMPTS {
            screen::tell(&format!("{failure}; retrying"));
            Ok(())
        } else {
            Err(failure)
        }
    };
    until_done(RETRY_PAUSE, call, judge).await
}

/// Creates the MiniCluster; also returns whether this was interrupted meanwhile. None: this was interrupted twice, and it
/// is unknown whether the MiniCluster was created.
async fn create_unless_interrupted(
    target: &Target,
    cluster: &mut MiniCluster,
    interrupts: &mut Interrupts,
) -> Result<Option<(MiniCluster, bool)>, Failure> {
    let mut creating = Box::pin(create(target, cluster));
    tokio::select! {
        created = &mut creating => return Ok(Some((created?, false))),
        () = interrupts.next() => screen::tell(
            "it is stopped once it is created; press Ctrl-C again not to wait for that",
        ),
    }
    tokio::select! {
        created = creating => Ok(Some((created?, true))),
        () = interrupts.next() => Ok(None),
    }
}

/// Random lower case letters.
fn letters(count: usize) -> Result<String, Failure> {
    let mut bytes = vec![0; count];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::Message(format!("failed to get random letters: {error}")))?;
    Ok(bytes.iter().map(|byte| char::from(b'a' + byte % 26)).collect())
}

/// Creates the MiniCluster. If another one has its generated name, it gets another name.
async fn create(target: &Target, cluster: &mut MiniCluster) -> Result<MiniCluster, Failure> {
    let mut tries = 1;
    loop {
        if let Some(created) = create_or_find(target, cluster).await? {
            return Ok(created);
        }
        let name = cluster.name_any();
        match &cluster.metadata.generate_name {
            Some(prefix) if tries < MOST_ATTEMPTS => {
                cluster.metadata.name = Some(format!("{prefix}{}", letters(NAME_LETTERS)?));
            }
            _ => {
                return Err(Failure::Message(format!(
                    "failed to create MiniCluster {name}: the name is taken; choose another with --name"
                )));
            }
        }
        tries += 1;
    }
}

/// Creates the MiniCluster, with retries. If the answer to an attempt was lost, a later attempt finds it, or it is
/// deleted after the last attempt. None: another one has its name.
async fn create_or_find(target: &Target, cluster: &MiniCluster) -> Result<Option<MiniCluster>, Failure> {
    let name = cluster.name_any();
    let doing = format!("create MiniCluster {name}");
    let may_exist = Cell::new(false);
    let created = retry(async || {
        let error = match create_once(target, cluster).await {
            Ok(created) => return Ok(Some(created)),
            Err(error) if flux_operator_client::is_name_taken(&error) => {
                return find_own(target, cluster).await;
            }
            Err(error) => error,
        };
        // A conflict is temporary: for example, another creation has just changed the namespace's quota. After a lost
        // answer, an API server that has just started may refuse what it allows a moment later.
        let may_help = failure::is_code(&error, 409) || may_exist.get() && failure::is_code(&error, 403);
        may_exist.set(may_exist.get() || failure::may_be_done(&error));
        if may_help {
            let (doing, why) = (doing.clone(), failure::cause_of(&error));
            return Err(Failure::Call {
                doing,
                why,
                passes: true,
            });
        }
        Err(Failure::call(&doing)(error))
    });
    let failure = match created.await {
        Err(failure) if may_exist.get() => failure,
        created => return created,
    };
    // The API server may still be creating it.
    tokio::time::sleep(RETRY_PAUSE).await;
    let undone = retry(async || match find_own(target, cluster).await? {
        Some(own) => stop::at_once(target, &name, own.uid().as_deref()).await.map(Some),
        None => Ok(None),
    });
    match undone.await {
        Ok(None) => Err(failure),
        Ok(Some(way)) => {
            screen::tell(&way.text(&name));
            Err(failure)
        }
        Err(_) => Err(Failure::Message(format!(
            "{}. It may exist nevertheless: {} deletes it",
            failure.with_server(&target.server),
            target.access.command("stop --now", &name)
        ))),
    }
}

/// One attempt to create the MiniCluster. A field that the cluster's CRD lacks is an error: the CRD may be older than this
/// plugin.
async fn create_once(target: &Target, cluster: &MiniCluster) -> Result<MiniCluster, kube::Error> {
    let bytes = serde_json::to_vec(cluster).map_err(kube::Error::SerdeError)?;
    let clusters = target.clusters();
    let mut request = Request::new(clusters.resource_url())
        .create(&PostParams::default(), bytes)
        .map_err(kube::Error::BuildRequest)?;
    flux_operator_client::refuse_unknown_fields(&mut request)?;
    clusters.into_client().request(request).await
}

/// The MiniCluster with this name, if this run has created it: it has the same `RUN_ANNOTATION`.
async fn find_own(target: &Target, cluster: &MiniCluster) -> Result<Option<MiniCluster>, Failure> {
    let name = cluster.name_any();
    let existing = target.clusters().get_opt(&name).await;
    let existing = existing.map_err(Failure::call(format!("get MiniCluster {name}")))?;
    let run_of = |object: &MiniCluster| object.annotations().get(RUN_ANNOTATION).cloned();
    Ok(existing.filter(|existing| run_of(existing) == run_of(cluster)))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::{Answer, answering, failed, failed_because, in_other, never_waiting};

    fn finished(is_whole: bool, is_deleted: bool) -> Followed {
        let end = RunEnd::Finished {
            exit_code: Some(0),
            is_complete: true,
            reason: String::new(),
            message: String::new(),
        };
        Followed {
            end,
            is_whole,
            is_deleted,
            time_to_live: None,
        }
    }

    /// Answers with this code to the first requests of this method.
    fn unavailable(method: &'static str, code: u16, mut count: u32) -> impl FnMut(&str) -> Answer {
        move |request| {
            if request.starts_with(method) && count > 0 {
                count -= 1;
                return failed(code);
            }
            Answer::Json(200, cluster_json())
        }
    }

    fn cluster_json() -> Value {
        json!({ "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
            "metadata": { "name": "mc", "uid": "u" }, "spec": { "containers": [{ "image": "a" }] } })
    }

    #[tokio::test(start_paused = true)]
    async fn cleanup_is_asked_for_again_after_a_passing_failure() {
        // 503: the API server is away, for minutes at most. 403 and 409: it answers.
        for (code, count, is_done) in [
            (503, 120, true),
            (503, 1000, false),
            (403, MOST_ATTEMPTS - 1, true),
            (403, MOST_ATTEMPTS, false),
            (409, MOST_ATTEMPTS - 1, true),
            (400, 1, false),
        ] {
            let (target, _) = answering(unavailable("PATCH", code, count));
            let text = tidy_up(&target, ID, &finished(true, false), false).await;
            assert_eq!(text.is_none(), is_done, "{code}, {count}: {text:?}");
        }
    }

    /// The API server was away, and does not know all roles yet.
    #[tokio::test(start_paused = true)]
    async fn cleanup_outlasts_a_refusal_after_no_answer() {
        let (mut unanswered, mut refusing) = (120, unavailable("PATCH", 403, 2));
        let (target, _) = answering(move |request| {
            if unanswered == 0 {
                return refusing(request);
            }
            unanswered -= 1;
            failed(503)
        });
        assert_eq!(tidy_up(&target, ID, &finished(true, false), false).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn created_minicluster_is_found_after_a_passing_failure() {
        let mut gets = unavailable("GET", 503, 2);
        let (target, _) = answering(move |request| {
            if request.starts_with("POST") {
                failed_because(409, "AlreadyExists")
            } else {
                gets(request)
            }
        });
        let mut cluster = serde_json::from_value(cluster_json()).unwrap();
        create(&target, &mut cluster).await.unwrap();
    }

    /// The other's annotation has the letters of its name, as older versions of the plugin wrote it.
    #[tokio::test]
    async fn generated_name_of_another_run_is_drawn_again() {
        let mut taken = 2;
        let (target, requests) = answering(move |request| {
            if let Some((_, letters)) = request.split_once("/run-") {
                let mut other = cluster_json();
                other["metadata"]["annotations"] = json!({ RUN_ANNOTATION: letters });
                return Answer::Json(200, other);
            }
            if taken == 0 {
                return Answer::Json(201, cluster_json());
            }
            taken -= 1;
            failed_because(409, "AlreadyExists")
        });
        let wanted = Wanted {
            image: Some("app:1".into()),
            ..Wanted::default()
        };
        let args = Args { wanted, detach: true };
        let code = create_and_follow(target, &args, Output::default()).await;
        assert_eq!(code.unwrap(), 0);
        let requests = requests.lock().unwrap();
        let methods: Vec<_> = requests
            .iter()
            .filter_map(|request| request.split(' ').next())
            .collect();
        assert_eq!(methods, ["POST", "GET", "POST", "GET", "POST"], "{requests:?}");
        assert_ne!(requests[1], requests[3]);
        assert!(requests[0].ends_with("&fieldValidation=Strict"), "{requests:?}");
    }

    /// An API server that answers all attempts to create the MiniCluster with 503. `exists`: it has stored it.
    #[tokio::test(start_paused = true)]
    async fn creation_without_an_answer_is_undone_or_reported() {
        let text = "failed to create MiniCluster mc: refused";
        let hint = ". It may exist nevertheless: `kubectl minicluster stop --now mc` deletes it";
        for (looks_lost, exists, deleted, hint) in [
            (0, true, 1, ""),
            (MOST_ATTEMPTS - 1, true, 1, ""),
            (MOST_ATTEMPTS - 1, false, 0, ""),
            (MOST_ATTEMPTS, true, 0, hint),
        ] {
            let mut looks = unavailable("GET", 503, looks_lost);
            let (target, requests) = answering(move |request| match request {
                post if post.starts_with("POST") => failed(503),
                get if get.starts_with("GET") => match looks(get) {
                    Answer::Json(200, _) if !exists => failed(404),
                    answer => answer,
                },
                _ => Answer::Json(200, cluster_json()),
            });
            let mut cluster = serde_json::from_value(cluster_json()).unwrap();
            let failure = create(&target, &mut cluster).await.unwrap_err();
            assert_eq!(
                failure.to_string(),
                format!("{text}{hint}"),
                "{looks_lost}, {exists}"
            );
            let requests = requests.lock().unwrap();
            let deletions = requests
                .iter()
                .filter(|request| request.starts_with("DELETE"))
                .count();
            assert_eq!(deletions, deleted, "{requests:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn creation_that_is_never_answered_ends() {
        let target = never_waiting(answering(|_| Answer::Never));
        let mut cluster = serde_json::from_value(cluster_json()).unwrap();
        let creation = tokio::time::timeout(Duration::from_secs(900), create(&target, &mut cluster));
        let failure = creation.await.unwrap().unwrap_err().to_string();
        assert!(failure.contains("no answer from the API server"), "{failure}");
        assert!(failure.contains("It may exist nevertheless"), "{failure}");
    }

    /// An API server that has just started does not know all roles yet.
    #[tokio::test(start_paused = true)]
    async fn creation_outlasts_a_refusal_after_no_answer() {
        for (unanswered, is_done) in [(1, true), (0, false)] {
            let (mut losing, mut refusing) =
                (unavailable("POST", 503, unanswered), unavailable("POST", 403, 2));
            let (target, requests) = answering(move |request| match losing(request) {
                Answer::Json(200, _) => refusing(request),
                lost => lost,
            });
            let mut cluster = serde_json::from_value(cluster_json()).unwrap();
            let created = create(&target, &mut cluster).await;
            assert_eq!(created.is_ok(), is_done, "{created:?}");
            let count = requests.lock().unwrap().len();
            assert_eq!(
                count,
                if is_done { 4 } else { 1 },
                "a refusal is final if nothing was lost"
            );
        }
    }

    /// For example, several creations change the namespace's quota at the same time.
    #[tokio::test(start_paused = true)]
    async fn conflict_at_creation_is_retried_not_reported_as_taken() {
        for (mut conflicts, is_done) in [(MOST_ATTEMPTS - 1, true), (MOST_ATTEMPTS, false)] {
            let (target, _) = answering(move |_| {
                if conflicts == 0 {
                    return Answer::Json(201, cluster_json());
                }
                conflicts -= 1;
                failed_because(409, "Conflict")
            });
            let mut cluster = serde_json::from_value(cluster_json()).unwrap();
            let created = create(&target, &mut cluster).await;
            assert_eq!(created.is_ok(), is_done, "{created:?}");
            if let Err(failure) = created {
                assert_eq!(failure.to_string(), "failed to create MiniCluster mc: refused");
            }
        }
    }

    const ID: ClusterId = ClusterId { name: "mc", uid: "u" };

    #[tokio::test]
    async fn cleanup_of_a_deleted_minicluster_reports_nothing() {
        let (target, _) = answering(|_| failed(404));
        assert_eq!(tidy_up(&target, ID, &finished(true, false), false).await, None);
    }

    #[tokio::test]
    async fn minicluster_that_deletes_itself_is_not_called_kept() {
        let (target, requests) = answering(|_| failed(404));
        assert_eq!(tidy_up(&target, ID, &finished(true, true), false).await, None);
        let text = tidy_up(&target, ID, &finished(false, true), false).await.unwrap();
        assert!(text.starts_with("mc is not kept"), "{text}");
        assert!(requests.lock().unwrap().is_empty());
    }

    /// Without the option, a command that is pasted may delete another MiniCluster of the name.
    #[tokio::test(start_paused = true)]
    async fn commands_in_messages_have_the_namespace_option() {
        let (target, _) = in_other(answering(|request| {
            if request.contains("/namespaces/other/") {
                failed(503)
            } else {
                failed(404)
            }
        }));
        let invalid = Followed {
            end: RunEnd::Invalid(String::new()),
            ..finished(true, false)
        };
        let mut texts = vec![
            tidy_up(&target, ID, &finished(true, false), true).await.unwrap(),
            tidy_up(&target, ID, &invalid, true).await.unwrap(),
            RunEnd::Interrupted(None).text(&target.access, "mc").unwrap(),
        ];
        let mut cluster = serde_json::from_value(cluster_json()).unwrap();
        texts.push(create(&target, &mut cluster).await.unwrap_err().to_string());
        for text in texts {
            let commands = text.matches("`kubectl").count();
            assert!(
                commands > 0 && text.matches("mc -n other`").count() == commands,
                "{text}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn namespace_of_a_file_is_in_the_commands_of_messages() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mc.yaml");
        let mut document = cluster_json();
        document["metadata"] = json!({ "name": "mc", "namespace": "team" });
        std::fs::write(&file, document.to_string()).unwrap();
        let wanted = Wanted {
            from: Some(file.to_str().unwrap().to_owned()),
            ..Wanted::default()
        };
        let (target, requests) = answering(|_| failed(503));
        let args = Args { wanted, detach: true };
        let failure = create_and_follow(target, &args, Output::default())
            .await
            .unwrap_err();
        assert!(
            failure.to_string().contains("stop --now mc -n team`"),
            "{failure}"
        );
        let requests = requests.lock().unwrap();
        assert!(
            requests
                .iter()
                .all(|request| request.contains("/namespaces/team/")),
            "{requests:?}"
        );
    }

    #[tokio::test]
    async fn minicluster_is_kept_for_its_time_to_live_only() {
        let (target, _) = answering(|_| failed(404));
        let followed = Followed {
            time_to_live: Some(60),
            ..finished(false, false)
        };
        let text = tidy_up(&target, ID, &followed, false).await.unwrap();
        assert!(text.starts_with("kept mc until 60 s after its end"), "{text}");
    }
}
