//! Writes to the API server, without decisions.
//!
//! Creation is a POST, which never changes an existing object. If an object of the name exists, its owner
//! decides: an object of this MiniCluster is kept, one of an earlier MiniCluster makes the reconcile wait
//! until it is deleted, and any other is an obstacle. Later changes are server-side applies or patches. They
//! carry the uid of the observed object, except the annotation that asks a pod to end: a Job does not reuse
//! the names of its pods. There is one field manager.

use flux_operator_client::dry_run;
use flux_operator_core::labels;
use flux_operator_core::observe::cluster::version;
use flux_operator_core::observe::job::{JobObject, JobSeen};
use flux_operator_core::observe::partial::Partial;
use flux_operator_core::observe::pod::PodSeen;
use flux_operator_core::observe::service::{ServiceObject, ServiceSeen, ServiceSpecPart};
use flux_operator_core::observe::{Index, Key, controller_uid, is_minicluster};
use flux_operator_core::obstacle::Obstacle;
use flux_operator_core::render::Objects;
use flux_operator_core::render::gang::GangOf;
use flux_operator_core::render::hidden_secret::HiddenSecret;
use flux_operator_core::render::overlaid::{AppliedOverlay, Overlaid};
use flux_operator_core::render::refusal::{self, DryRun};
use flux_operator_core::render::services::Member;
use flux_operator_core::vocabulary::Reason;
use flux_shared::crd::v1alpha2::{KIND, MiniCluster};
use flux_shared::{agent_spec, paths};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::{NamespaceResourceScope, Request, Status};
use kube::runtime::events::{Recorder, Reporter};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

mod deletion;
mod events;
pub mod gang;
pub mod headless;
mod past_the_cache;
mod pods;
mod requests;
pub mod storage;

use requests::{apply_request, create_request};

/// Why something could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The operator cannot continue until something else changes. The status shows why.
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
    /// An obstacle that is not the user's fault: the operator lacks a permission.
    #[error(transparent)]
    NoPermission(Obstacle),
    /// Unlike an obstacle, the status shows this only if it lasts.
    #[error("the namespace is being deleted: nothing can be created in it")]
    NamespaceTerminating,
    /// The call failed; another attempt may succeed.
    #[error("failed to {verb} {kind} {name}")]
    Api {
        verb: &'static str,
        kind: String,
        name: String,
        source: Box<kube::Error>,
    },
}

impl ApplyError {
    /// Whether the API server has no such object, or does not serve its kind.
    pub fn is_not_found(&self) -> bool {
        self.has_code(404)
    }

    /// Whether an object of the name exists already, or the object has changed.
    fn is_conflict(&self) -> bool {
        self.has_code(409)
    }

    fn has_code(&self, code: u16) -> bool {
        matches!(self, ApplyError::Api { source, .. } if matches!(source.as_ref(), kube::Error::Api(status) if status.code == code))
    }
}

/// Writes to one API server.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    recorder: Recorder,
    headless: std::sync::Arc<headless::Queue>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Writer")
    }
}

fn post_params() -> PostParams {
    PostParams {
        dry_run: false,
        field_manager: Some(labels::MANAGER.into()),
    }
}

/// Parameters to delete the object with this uid, not a newer one of the same name. The objects that it owns
/// are deleted after it.
pub(crate) fn delete_params(uid: Option<String>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid,
            resource_version: None,
        }),
        ..DeleteParams::background()
    }
}

/// Turns an error into success if the object no longer exists (404), or another one has its name (409).
pub(crate) fn ignore_gone(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    none_if_gone_or_changed(result).map(|_| ())
}

/// Turns an error into None if the object no longer exists (404), or is not as the call's preconditions say (409).
fn none_if_gone_or_changed<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        other => none_if_not_found(other),
    }
}

/// Turns the error 404 into None: the object does not exist.
fn none_if_not_found<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// The error of a call. If the API server refuses the object, or the operator lacks a permission, it is an obstacle.
/// Otherwise it is a failure to retry.
fn api_error<K: Resource<DynamicType = ()>>(
    verb: &'static str,
    name: &str,
    source: kube::Error,
) -> ApplyError {
    api_error_of(&K::kind(&()), verb, name, source)
}

/// Like [`api_error`], for a kind without a Rust type.
fn api_error_of(kind: &str, verb: &'static str, name: &str, source: kube::Error) -> ApplyError {
    let refusal = match &source {
        kube::Error::Api(status) if status.code == 403 && is_of_terminating_namespace(status) => {
            return ApplyError::NamespaceTerminating;
        }
        kube::Error::Api(status) if status.code == 403 => Some((Reason::Forbidden, status)),
        // Bad request, too large, or invalid.
        kube::Error::Api(status) if matches!(status.code, 400 | 413 | 422) => Some((Reason::Refused, status)),
        _ => None,
    };
    if let Some((reason, status)) = refusal {
        let message = format!(
            "the API server refused to {verb} {kind} {name}: {}",
            status.message
        );
        let obstacle = Obstacle::new(reason, message);
        return if lacks_permission(status) {
            ApplyError::NoPermission(obstacle)
        } else {
            obstacle.into()
        };
    }
    ApplyError::Api {
        verb,
        kind: kind.to_owned(),
        name: name.to_owned(),
        source: Box::new(source),
    }
}

/// Whether the API server refuses because the operator lacks a permission. A quota, Pod Security and policies give the
/// same code, and only the text differs.
fn lacks_permission(status: &Status) -> bool {
    let Some((object, cause)) = status.message.split_once(" is forbidden: ") else {
        return false;
    };
    // A webhook's text begins with more words than the resource and the name, and may quote such a refusal.
    let is_of_server = status.code == 403 && object.split(' ').count() <= 2;
    let is_of_authorizer = cause.starts_with("User \"") && cause.contains("\" cannot ");
    // The admission plugin OwnerReferencesPermissionEnforcement.
    let is_of_owner_references =
        cause.starts_with("cannot set blockOwnerDeletion ") || cause.starts_with("cannot set an ownerRef ");
    is_of_server && (is_of_authorizer || is_of_owner_references)
}

/// Whether the API server refuses because the namespace is being deleted.
fn is_of_terminating_namespace(status: &Status) -> bool {
    let causes = status
        .details
        .as_ref()
        .map(|details| details.causes.as_slice())
        .unwrap_or_default();
    causes
        .iter()
        .any(|cause| cause.reason == Reason::NamespaceTerminating)
}

impl Writer {
    pub fn new(client: Client) -> Writer {
        let reporter = Reporter {
            controller: labels::MANAGER.into(),
            instance: None,
        };
        Writer {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            headless: Default::default(),
        }
    }

    /// Creates the objects of a MiniCluster that do not exist yet, and the Job after everything that its pods
    /// need. If `is_deleted` (the MiniCluster was deleted meanwhile), creates no pods: they would run until
    /// the garbage collector finds them.
    pub async fn create_all(
        &self,
        index: &Index,
        objects: &Objects,
        member: &Member,
        is_deleted: impl Fn() -> bool,
    ) -> Result<(), ApplyError> {
        let Objects {
            config_map,
            secrets,
            volumes,
            network_policy,
            headless,
            services,
            gang,
            job,
            services_pod,
        } = objects;
        let key = Key::of(&job.metadata);
        let service = Key::of(&headless.metadata);
        let (config_map, headless) = tokio::join!(
            self.create_config_map(config_map, &member.uid),
            self.headless.ensure(self, index, &service, member),
        );
        config_map?;
        headless?;
        self.create_volumes(volumes, &member.uid).await?;
        for service in services {
            self.create_service(index, service, &member.uid).await?;
        }
        // The gang must exist before the pods: schedulers look for it when they see the pods. Its name contains the hash
        // of the spec, and an edit leaves it behind. So it comes after the objects that may make an edit necessary.
        if let GangOf::Object(object) = gang {
            self.create_gang(&key.namespace, object, &member.uid).await?;
        }
        // The policy and the Secrets are never changed, so they come last: if another object cannot be created, the
        // user can still edit the spec from which they are rendered. The policy must exist before the brokers do.
        if let Some(policy) = network_policy {
            self.create(policy, &member.uid).await?;
        }
        self.create_secrets(secrets).await?;
        if is_deleted() {
            return Ok(());
        }
        let created = self.create_job(job, &member.uid).await?;
        let job_seen = JobSeen::of(&created);
        let is_suspended = job_seen.is_suspended;
        index.update_job(&created.metadata, job_seen);
        // A suspended Job has no services pod.
        if let Some(pod) = services_pod
            && !is_suspended
            && !is_deleted()
        {
            self.create_services_pod(index, pod, &member.uid).await?;
        }
        tracing::info!(uid = %member.uid, "created the Job");
        // Joining the shared Service is batched; the Job does not wait for it.
        self.headless.announce(index, &service, member);
        Ok(())
    }

    /// Makes the MiniCluster an owner of the headless Service, which names its pods.
    pub async fn join(&self, index: &Index, service: &Key, member: &Member) -> Result<(), ApplyError> {
        self.headless.join(self, index, service, member).await
    }

    /// Creates the ConfigMap with the AgentSpec, or overwrites an outdated one.
    pub async fn create_config_map(&self, object: &ConfigMap, owner: &str) -> Result<(), ApplyError> {
        match self.create(object, owner).await? {
            Creation::Existed(existing) if rendered_hash(&existing) != rendered_hash(&object.metadata) => {
                // The spec changed before there was a Job: no living pod has read the earlier ConfigMap.
                let mut wanted = object.clone();
                wanted.metadata.uid = existing.uid;
                let applied = self.send_for_metadata(apply_request(&wanted)).await;
                applied
                    .map(drop)
                    .map_err(|error| api_error::<ConfigMap>("apply", &object.name_any(), error))
            }
            _ => Ok(()),
        }
    }

    /// Writes another size into the ConfigMap, before the Job starts again. The rest stays as it is: the Job's agent may
    /// be older than this operator, and would refuse fields that it does not know. A missing ConfigMap is created.
    pub async fn resize_config_map(
        &self,
        wanted: &ConfigMap,
        size: u32,
        maximum: u32,
        owner: &str,
    ) -> Result<(), ApplyError> {
        let Creation::Existed(_) = self.create(wanted, owner).await? else {
            return Ok(());
        };
        let name = wanted.name_any();
        let api: Api<ConfigMap> =
            Api::namespaced(self.client.clone(), &wanted.namespace().unwrap_or_default());
        let existing = api
            .get(&name)
            .await
            .map_err(|error| api_error::<ConfigMap>("get", &name, error))?;
        let resized = existing
            .data
            .as_ref()
            .and_then(|data| agent_spec::with_size(data.get(paths::SPEC_KEY)?, size, maximum));
        let Some(resized) = resized else {
            return self.create_config_map(wanted, owner).await;
        };
        // Without the hash, `create_config_map` overwrites the ConfigMap before the next Job is created.
        let change = json!({
            "metadata": {
                "uid": existing.metadata.uid,
                "resourceVersion": existing.metadata.resource_version,
                "annotations": { labels::RENDERED_HASH: null },
            },
            "data": { paths::SPEC_KEY: resized },
        });
        let parameters = PatchParams::apply(labels::MANAGER);
        api.patch_metadata(&name, &parameters, &Patch::Merge(change))
            .await
            .map(drop)
            .map_err(|error| api_error::<ConfigMap>("patch", &name, error))
    }

    async fn create_secrets(&self, secrets: &[HiddenSecret]) -> Result<(), ApplyError> {
        for secret in secrets {
            let secret = secret.expose();
            let name = secret.name_any();
            match self
                .send_for_metadata(create_request(secret, secret, &post_params()))
                .await
            {
                Ok(_) => {}
                // Its name contains the MiniCluster's uid, so an earlier reconcile has created it. (The operator does
                // not read Secrets, so it cannot check the owner.)
                Err(error) if flux_operator_client::is_name_taken(&error) => {}
                Err(error) => return Err(api_error::<Secret>("create", &name, error)),
            }
        }
        Ok(())
    }

    /// Creates the Service of a sidecar. An existing one may be of an earlier spec, which was edited before there was a
    /// Job: it gets the labels and ports of this one.
    pub async fn create_service(
        &self,
        index: &Index,
        service: &Service,
        owner: &str,
    ) -> Result<(), ApplyError> {
        let metadata = match self.create(service, owner).await? {
            Creation::Created(metadata) => metadata,
            Creation::Existed(existing) => self.update_service(service, existing.uid).await?,
        };
        // Only the metadata is known. The watch reports the selector.
        index.update_service(
            &metadata,
            ServiceSeen::of(&ServiceObject::new(metadata.clone(), ServiceSpecPart::default())),
        );
        Ok(())
    }

    /// Overwrites the labels and the spec of the Service with this uid. (A server-side apply would keep the former ports: a
    /// creation has another owner of the fields than an apply.)
    async fn update_service(&self, wanted: &Service, uid: Option<String>) -> Result<Metadata, ApplyError> {
        let name = wanted.name_any();
        let api: Api<Service> = Api::namespaced(self.client.clone(), &wanted.namespace().unwrap_or_default());
        let change = json!({
            "metadata": { "uid": uid, "labels": wanted.metadata.labels }, "spec": wanted.spec,
        });
        let parameters = PatchParams::apply(labels::MANAGER);
        let patched = api
            .patch_metadata(&name, &parameters, &Patch::Merge(change))
            .await;
        patched
            .map(|patched| patched.metadata)
            .map_err(|error| api_error::<Service>("patch", &name, error))
    }

    /// Creates the pod of `spec.services`.
    pub async fn create_services_pod(
        &self,
        index: &Index,
        pod: &Overlaid<Pod>,
        owner: &str,
    ) -> Result<(), ApplyError> {
        // Only the metadata is known. The watch reports the status, and may have done so if the pod existed before.
        if let Creation::Created(metadata) = self.create_as(&pod.rendered, pod, owner).await? {
            index.update_pod(&metadata, PodSeen::of(&metadata, None));
        }
        Ok(())
    }

    /// Asks the API server by a dry run whether the services pod is valid. Other errors, such as a full quota, may pass
    /// without an edit of the spec: [`Writer::create_services_pod`] reports those.
    pub async fn check_services_pod(&self, pod: &Overlaid<Pod>) -> Result<(), ApplyError> {
        match self.dry_run(&pod.rendered, pod).await {
            Err(ApplyError::Obstacle(obstacle)) if obstacle.reason == Reason::Refused => Err(obstacle.into()),
            _ => Ok(()),
        }
    }

    /// Asks the API server by a dry run whether it accepts the Job. If a Job of this name exists, [`Writer::create_all`]
    /// reports what is wrong with it, if anything.
    pub async fn check_job(&self, job: &Overlaid<Job>) -> Result<(), ApplyError> {
        match self.dry_run(&job.rendered, job).await {
            Err(error) if !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }

    /// The object as the API server would store it, if it were created as `body`. Nothing is created.
    pub async fn dry_run<K>(&self, object: &K, body: &impl Serialize) -> Result<K, ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned,
    {
        let parameters = PostParams {
            dry_run: true,
            ..post_params()
        };
        let result = self.send(create_request(object, body, &parameters)).await;
        result.map_err(|error| api_error::<K>("create", &object.name_any(), error))
    }

    /// Asks the API server by a dry run whether it accepts an object with an overlay. Unknown fields count as invalid.
    pub async fn dry_run_overlay<K>(&self, applied: &AppliedOverlay, key: &Key) -> Result<DryRun, ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let path = K::url_path(&(), Some(&key.namespace));
        let answer = dry_run::create(&self.client, &path, &applied.sent).await;
        answer
            .map(|reply| DryRun::from(reply.answer))
            .map_err(|error| api_error::<K>("create", &key.name, error))
    }

    /// Creates an object, unless it exists and is ours.
    async fn create<K>(&self, object: &K, owner: &str) -> Result<Creation, ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Serialize
            + DeserializeOwned
            + std::fmt::Debug,
    {
        self.create_as(object, object, owner).await
    }

    /// Like [`Writer::create`], but sends `body`, which is `object` with the user's overlay.
    async fn create_as<K>(
        &self,
        object: &K,
        body: &impl Serialize,
        owner: &str,
    ) -> Result<Creation, ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        match self
            .send_for_metadata(create_request(object, body, &post_params()))
            .await
        {
            Ok(created) => Ok(Creation::Created(created)),
            Err(error) => {
                let existing: Partial<K> = self.ours_if_it_exists(object, owner, error).await?;
                Ok(Creation::Existed(existing.metadata))
            }
        }
    }

    /// Creates a Job, unless it exists and is ours. Returns it as the API server has it: a queue may have changed it.
    async fn create_job(&self, job: &Overlaid<Job>, owner: &str) -> Result<JobObject, ApplyError> {
        match self
            .send(create_request(&job.rendered, job, &post_params()))
            .await
        {
            Ok(created) => Ok(created),
            Err(error) => {
                let existing: JobObject = self.ours_if_it_exists(&job.rendered, owner, error).await?;
                check_label(&existing.metadata)?;
                Ok(existing)
            }
        }
    }

    /// Handles a failed creation of `wanted`. If it failed because the object exists, and the object is ours,
    /// returns it.
    async fn ours_if_it_exists<K, S, T>(
        &self,
        wanted: &K,
        owner: &str,
        error: kube::Error,
    ) -> Result<Partial<K, S, T>, ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        Partial<K, S, T>: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let name = wanted.name_any();
        match error {
            error if flux_operator_client::is_name_taken(&error) => {
                let api: Api<Partial<K, S, T>> =
                    Api::namespaced(self.client.clone(), &wanted.namespace().unwrap_or_default());
                let existing = api
                    .get(&name)
                    .await
                    .map_err(|error| api_error::<K>("get", &name, error))?;
                check_owner::<K>(&existing.metadata, wanted.meta(), owner)?;
                Ok(existing)
            }
            error => Err(api_error::<K>("create", &name, error)),
        }
    }

    /// Sets the given fields of a Job by a merge patch. It leaves all other fields, which somebody else may have set.
    /// `fields` contains the Job's uid, so that no other Job of this name is changed.
    pub async fn patch_job(&self, index: &Index, job: &Key, fields: &Value) -> Result<(), ApplyError> {
        let api: Api<JobObject> = Api::namespaced(self.client.clone(), &job.namespace);
        let parameters = PatchParams::apply(labels::MANAGER);
        let applied = api.patch(&job.name, &parameters, &Patch::Merge(fields)).await;
        let patched = applied.map_err(|error| api_error::<Job>("patch", &job.name, error))?;
        index.update_job(&patched.metadata, JobSeen::of(&patched));
        Ok(())
    }

    /// Patches a status. `change` is a JSON patch that tests the uid. Returns the new resourceVersion; None if the
    /// MiniCluster no longer exists.
    pub async fn patch_status(&self, cluster: &Key, change: &Value) -> Result<Option<u64>, ApplyError> {
        const JSON_PATCH: http::HeaderValue = http::HeaderValue::from_static("application/json-patch+json");
        let parameters = PatchParams::apply(labels::MANAGER);
        let clusters = Request::new(MiniCluster::url_path(&(), Some(&cluster.namespace)));
        // `Patch::Merge` only serializes `change`. The content type is replaced below.
        let request = clusters.patch_subresource("status", &cluster.name, &parameters, &Patch::Merge(change));
        let answer = async {
            let mut request = request.map_err(kube::Error::BuildRequest)?;
            request
                .headers_mut()
                .insert(http::header::CONTENT_TYPE, JSON_PATCH);
            self.send_for_metadata(Ok(request)).await
        };
        match none_if_not_found(answer.await) {
            Ok(metadata) => Ok(metadata.as_ref().map(version)),
            // Not `api_error`, for which 422 is an obstacle: here it also means that a test of the patch failed. The
            // next reconcile makes a new patch.
            Err(source) => Err(ApplyError::Api {
                verb: "patch the status of",
                kind: KIND.into(),
                name: cluster.to_string(),
                source: Box::new(source),
            }),
        }
    }

    /// Patches a status only if the MiniCluster still has this resourceVersion, so that a restart is counted once.
    pub async fn patch_status_if_unchanged(
        &self,
        cluster: &Key,
        resource_version: u64,
        change: &Value,
    ) -> Result<Option<u64>, ApplyError> {
        let test = json!({
            "op": "test", "path": "/metadata/resourceVersion", "value": resource_version.to_string(),
        });
        let operations = [test]
            .into_iter()
            .chain(change.as_array().into_iter().flatten().cloned());
        self.patch_status(cluster, &Value::Array(operations.collect()))
            .await
    }

    /// Sets a Job's condition FailureTarget: the Job controller then deletes its pods and fails it. `now` is
    /// in RFC 3339. `has_start`: the Job's status has a start time.
    pub async fn fail_job(
        &self,
        cluster: &Key,
        uid: &str,
        reason: &str,
        message: &str,
        now: &str,
        has_start: bool,
    ) -> Result<(), ApplyError> {
        let mut status = json!({ "conditions": [{
            "type": "FailureTarget", "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": now, "lastProbeTime": now,
        }] });
        // A suspended Job may have no start time, and the API server accepts no end without one.
        if !has_start {
            status["startTime"] = json!(now);
        }
        let failed = self.patch_job_status(cluster, uid, &status).await;
        ignore_gone(failed).map_err(|error| api_error::<Job>("end", &cluster.name, error))
    }

    /// Removes the start time of a suspended Job, which Kubernetes keeps up to version 1.35. If the Job's deadline had
    /// passed since then, the Job controller would fail the Job as soon as it is resumed. And some versions from 1.32
    /// to 1.34 cannot replace the time of a Job that is resumed (kubernetes/kubernetes#134521).
    pub async fn forget_start(&self, cluster: &Key, uid: &str) -> Result<(), ApplyError> {
        match self
            .patch_job_status(cluster, uid, &json!({ "startTime": null }))
            .await
        {
            // The Job is no longer suspended, or has ended.
            Err(kube::Error::Api(status)) if status.code == 422 && !refusal::is_denial(&status.message) => {
                Ok(())
            }
            forgotten => {
                ignore_gone(forgotten).map_err(|error| api_error::<Job>("resume", &cluster.name, error))
            }
        }
    }

    async fn patch_job_status(&self, cluster: &Key, uid: &str, status: &Value) -> Result<(), kube::Error> {
        let api: Api<Job> = Api::namespaced(self.client.clone(), &cluster.namespace);
        let change = json!({ "metadata": { "uid": uid }, "status": status });
        let parameters = PatchParams::apply(labels::MANAGER);
        api.patch_status(&cluster.name, &parameters, &Patch::Strategic(change))
            .await
            .map(drop)
    }

    /// Deletes a MiniCluster whose time to live is over, if it still has this resourceVersion. Returns whether it had.
    pub async fn delete_minicluster(&self, cluster: &Key, version: String) -> Result<bool, ApplyError> {
        let api: Api<MiniCluster> = Api::namespaced(self.client.clone(), &cluster.namespace);
        let unchanged = DeleteParams {
            preconditions: Some(Preconditions {
                uid: None,
                resource_version: Some(version),
            }),
            ..DeleteParams::background()
        };
        let deleted = api.delete(&cluster.name, &unchanged).await;
        none_if_gone_or_changed(deleted)
            .map(|deleted| deleted.is_some())
            .map_err(|error| api_error::<MiniCluster>("delete", &cluster.name, error))
    }

    /// Deletes a Job after its pods, so that no pod of it is left when another Job is created.
    pub async fn delete_job(&self, cluster: &Key, uid: &str) -> Result<(), ApplyError> {
        let api: Api<Job> = Api::namespaced(self.client.clone(), &cluster.namespace);
        let pods_first = Some(PropagationPolicy::Foreground);
        let parameters = DeleteParams {
            propagation_policy: pods_first,
            ..delete_params(Some(uid.to_owned()))
        };
        let deleted = api.delete(&cluster.name, &parameters).await.map(drop);
        ignore_gone(deleted).map_err(|error| api_error::<Job>("delete", &cluster.name, error))
    }
}

/// Whether an object was created, or existed and is ours. With its metadata.
enum Creation {
    Created(Metadata),
    Existed(Metadata),
}

type Metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Checks that an existing object with the name we need is ours. `wanted`: the metadata that we would create it with.
/// `owner`: the MiniCluster's uid.
fn check_owner<K: Resource<DynamicType = ()>>(
    existing: &Metadata,
    wanted: &Metadata,
    owner: &str,
) -> Result<(), Obstacle> {
    check_owner_of(&K::kind(&()), existing, wanted, owner)
}

/// Like [`check_owner`], for a kind without a Rust type.
fn check_owner_of(kind: &str, existing: &Metadata, wanted: &Metadata, owner: &str) -> Result<(), Obstacle> {
    let is_deleting = existing.deletion_timestamp.is_some();
    if controller_uid(existing) == Some(owner) && !is_deleting {
        return Ok(());
    }
    let name = existing.name.as_deref().unwrap_or_default();
    if controller_uid(existing) == Some(owner) {
        return Err(own_still_deleting(kind, name));
    }
    // If an earlier MiniCluster of the same name owns it, the garbage collector will delete it.
    let is_of_previous =
        has_our_label(existing) && owner_name(existing).is_some_and(|name| Some(name) == owner_name(wanted));
    if is_deleting || is_of_previous {
        return Err(still_deleting(kind, name));
    }
    Err(name_taken(kind, name))
}

/// Checks that a MiniCluster's own Job has the label by which the operator watches it. Without this label the
/// watch would not report the Job.
fn check_label(job: &Metadata) -> Result<(), Obstacle> {
    let name = job.name.as_deref().unwrap_or_default();
    let label = labels::CLUSTER;
    // A Job that is being deleted needs no label any more.
    if job.deletion_timestamp.is_some()
        || job
            .labels
            .as_ref()
            .and_then(|all| all.get(label))
            .is_some_and(|value| value == name)
    {
        return Ok(());
    }
    // This operator creates every Job with this hash.
    let remedy = match rendered_hash(job) {
        Some(_) => format!("put it back: kubectl label job {name} --overwrite {label}={name}"),
        None => format!("another operator created it: kubectl delete job {name}"),
    };
    let message =
        format!("Job {name} belongs to this MiniCluster and lacks the label {label}={name}; {remedy}");
    Err(Obstacle::new(Reason::JobUnlabelled, message))
}

/// The hash of the object as this operator rendered it, from an annotation.
fn rendered_hash(metadata: &Metadata) -> Option<&String> {
    metadata.annotations.as_ref()?.get(labels::RENDERED_HASH)
}

/// The name of the MiniCluster that owns an object.
fn owner_name(metadata: &Metadata) -> Option<&str> {
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    owners
        .iter()
        .find(|owner| is_minicluster(owner))
        .map(|owner| owner.name.as_str())
}

/// Whether an object has one of our labels. They have our domain, so no other operator sets them.
fn has_our_label(metadata: &Metadata) -> bool {
    metadata.labels.as_ref().is_some_and(|all| {
        [labels::CLUSTER, labels::SERVICES_OF]
            .iter()
            .any(|label| all.contains_key(*label))
    })
}

/// The obstacle if an object of this MiniCluster itself is being deleted.
fn own_still_deleting(kind: &str, name: &str) -> Obstacle {
    let message = format!("{kind} {name} is being deleted, and will be recreated when it is gone");
    Obstacle::new(Reason::WaitingForPrevious, message)
}

fn still_deleting(kind: &str, name: &str) -> Obstacle {
    let message = format!("{kind} {name} of an earlier MiniCluster is still being deleted");
    Obstacle::new(Reason::WaitingForPrevious, message)
}

fn name_taken(kind: &str, name: &str) -> Obstacle {
    let message = format!(
        "{kind} {name} exists and is not this MiniCluster's: delete or rename it, or choose another name"
    );
    Obstacle::new(Reason::NameTaken, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::metrics::ReconcileOutcome;
    use crate::reconcile::error::ReconcileError;

    #[test]
    fn only_missing_permissions_are_errors_of_the_operator() {
        let outcome = |message: &str| {
            let status = json!({ "code": 403, "reason": "Forbidden", "message": message });
            let source = kube::Error::Api(serde_json::from_value(status).unwrap());
            let error = ReconcileError::from(api_error::<Job>("create", "mc", source));
            let obstacle = error.obstacle().unwrap();
            assert_eq!(obstacle.reason, Reason::Forbidden);
            assert!(obstacle.message.ends_with(message), "{obstacle}");
            error.outcome()
        };
        for message in [
            r#"jobs.batch is forbidden: User "system:serviceaccount:f:o" cannot create resource "jobs" in API group "batch" in the namespace "a""#,
            r#"jobs.batch "mc" is forbidden: User "o" cannot patch resource "jobs" in API group "batch" in the namespace "a": RBAC: role not found"#,
            r#"jobs.batch "mc" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>"#,
        ] {
            assert_eq!(outcome(message), ReconcileOutcome::Error, "{message}");
        }
        for message in [
            r#"pods "mc-0" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"#,
            r#"pods "mc-services" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false"#,
            r#"jobs.batch "mc" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: User "u" cannot do this"#,
            r#"admission webhook "w" denied the request: jobs.batch is forbidden: User "u" cannot create this"#,
            "",
        ] {
            assert_eq!(outcome(message), ReconcileOutcome::Obstacle, "{message}");
        }
    }

    /// The start time of a Job that is no longer suspended may stay. The denial of a policy has the same code.
    #[tokio::test]
    async fn forget_start_ignores_422_unless_a_policy_denies_it() {
        let denial = r#"jobs.batch "mc" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"#;
        let invalid =
            r#"Job.batch "mc" is invalid: status.startTime: Required value: startTime cannot be removed"#;
        for (message, is_done) in [(denial, false), (invalid, true)] {
            let status = json!({ "kind": "Status", "status": "Failure", "code": 422, "reason": "Invalid", "message": message });
            let client = crate::testing::client(move |_, _| Some((422, status.clone())));
            let key = Key {
                namespace: "ns".into(),
                name: "mc".into(),
            };
            let forgotten = Writer::new(client).forget_start(&key, "uid").await;
            assert_eq!(forgotten.is_ok(), is_done, "{message}");
        }
    }
}
