//! The object that makes schedulers start a Job's pods together. It is JSON, since there are no Rust types
//! for its APIs. In all functions here, `owner` is the MiniCluster's uid.

use flux_operator_core::labels;
use flux_operator_core::observe::{Key, controller_uid};
use flux_operator_core::render::gang::{GangApi, GangObject, GangRef};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::json;

use super::{ApplyError, Writer, api_error_of, check_owner_of, delete_params, ignore_gone, post_params};
use crate::api::pages::all_metadata;

impl Writer {
    fn gangs(&self, namespace: &str, api: GangApi) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(api.group(), api.version(), GangApi::KIND);
        let resource = ApiResource::from_gvk_with_plural(&kind, GangApi::PLURAL);
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }

    /// Creates the gang's object, unless it exists and is ours.
    pub async fn create_gang(
        &self,
        namespace: &str,
        object: &GangObject,
        owner: &str,
    ) -> Result<(), ApplyError> {
        let GangObject {
            at: GangRef { api, name },
            body,
        } = object;
        let error_of = |verb, error| api_error_of(GangApi::KIND, verb, name, error);
        let gangs = self.gangs(namespace, *api);
        let wanted: DynamicObject = serde_json::from_value(body.clone())
            .map_err(|error| error_of("create", kube::Error::SerdeError(error)))?;
        match gangs.create(&post_params(), &wanted).await {
            Ok(_) => Ok(()),
            Err(error) if flux_operator_client::is_name_taken(&error) => {
                let existing = gangs
                    .get_metadata(name)
                    .await
                    .map_err(|error| error_of("get", error))?;
                Ok(check_owner_of(
                    GangApi::KIND,
                    &existing.metadata,
                    &wanted.metadata,
                    owner,
                )?)
            }
            Err(error) => Err(error_of("create", error)),
        }
    }

    /// Changes the number of pods in the gang.
    pub async fn resize_gang(
        &self,
        namespace: &str,
        at: &GangRef,
        count: u32,
        owner: &str,
    ) -> Result<(), ApplyError> {
        let Some(uid) = self.find_own_gang(namespace, at, owner).await? else {
            return Ok(());
        };
        let parameters = PatchParams::apply(labels::MANAGER);
        let mut change = at.api.with_count(count);
        change["metadata"] = json!({ "uid": uid });
        let patched = self
            .gangs(namespace, at.api)
            .patch(&at.name, &parameters, &Patch::Merge(change))
            .await
            .map(drop);
        ignore_gone(patched).map_err(|error| api_error_of(GangApi::KIND, "patch", &at.name, error))
    }

    /// Deletes the gang's object, if the MiniCluster owns it.
    pub async fn delete_gang(&self, namespace: &str, at: &GangRef, owner: &str) -> Result<(), ApplyError> {
        match self.find_own_gang(namespace, at, owner).await? {
            Some(uid) => self.delete_found(namespace, at, uid).await,
            None => Ok(()),
        }
    }

    async fn delete_found(&self, namespace: &str, at: &GangRef, uid: String) -> Result<(), ApplyError> {
        let deleted = self
            .gangs(namespace, at.api)
            .delete(&at.name, &delete_params(Some(uid)))
            .await
            .map(drop);
        ignore_gone(deleted).map_err(|error| api_error_of(GangApi::KIND, "delete", &at.name, error))
    }

    /// Deletes the MiniCluster's gangs except the one with the name `kept`. Finds them by a list, since their
    /// Jobs may be unknown to this operator.
    pub async fn delete_gangs_except(
        &self,
        cluster: &Key,
        owner: &str,
        api: GangApi,
        kept: Option<&str>,
    ) -> Result<(), ApplyError> {
        let Key { namespace, name } = cluster;
        let found = all_metadata(
            &self.gangs(namespace, api),
            &format!("{}={name}", labels::CLUSTER),
        )
        .await;
        let found = found.map_err(|error| api_error_of(GangApi::KIND, "list", name, error))?;
        let must_delete = |metadata: &ObjectMeta| {
            controller_uid(metadata) == Some(owner) && metadata.deletion_timestamp.is_none()
        };
        for existing in found.into_iter().filter(must_delete) {
            let (Some(gang_name), Some(uid)) = (existing.name, existing.uid) else {
                continue;
            };
            if Some(gang_name.as_str()) != kept {
                let gang = GangRef { api, name: gang_name };
                self.delete_found(namespace, &gang, uid).await?;
            }
        }
        Ok(())
    }

    /// The uid of the gang's object that a Job names. None: it does not exist, or the MiniCluster does not
    /// own it. (A user who may edit the Job may have written another name into it.)
    async fn find_own_gang(
        &self,
        namespace: &str,
        at: &GangRef,
        owner: &str,
    ) -> Result<Option<String>, ApplyError> {
        let GangRef { api, name } = at;
        let found = self.gangs(namespace, *api).get_metadata_opt(name).await;
        let found = found.map_err(|error| api_error_of(GangApi::KIND, "get", name, error))?;
        let Some(existing) = found else { return Ok(None) };
        if controller_uid(&existing.metadata) != Some(owner) {
            tracing::warn!(gang = %at, "the Job names a gang that another object owns: left unchanged");
            return Ok(None);
        }
        Ok(existing.metadata.uid)
    }
}
