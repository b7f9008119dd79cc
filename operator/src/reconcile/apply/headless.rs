//! The headless Service, which the MiniClusters of a namespace may share. They own it (at most `OWNERS_MAX` do), so it
//! is deleted with the last owner. MiniClusters that join at the same time are added by one write.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use flux_operator_core::labels;
use flux_operator_core::observe::service::{OWNERS_MAX, ServiceObject, ServiceSeen, is_headless};
use flux_operator_core::observe::{Index, Key};
use flux_operator_core::obstacle::Obstacle;
use flux_operator_core::render::services::{self, Member};
use flux_operator_core::vocabulary::Reason;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;

use super::requests::{apply_request, create_request};
use super::{ApplyError, Writer, api_error, name_taken, post_params};

/// The Services that are to be written, each with its new members. A MiniCluster first needs the Service to exist
/// (`ensure`), since its pods look for names there. When its Job exists, it is noted as a member that waits
/// (`announce`). Its next reconcile, or that of another member, then adds all members that wait (`join`).
#[derive(Debug, Default)]
pub struct Queue {
    waiting: Mutex<HashMap<Key, PendingMembers>>,
}

/// One Service that is to be written.
#[derive(Debug, Default)]
struct PendingMembers {
    /// Members that are to be added, by uid.
    members: BTreeMap<String, Member>,
    /// Held by the task that writes the Service.
    lock: Arc<tokio::sync::Mutex<()>>,
}

impl Queue {
    /// Creates the Service unless it exists.
    pub(super) async fn ensure(
        &self,
        writer: &Writer,
        index: &Index,
        service: &Key,
        member: &Member,
    ) -> Result<(), ApplyError> {
        if index.headless(service).is_some() {
            return Ok(());
        }
        let lock = self.enter(service, None);
        let guard = lock.lock().await;
        let result = match index.headless(service) {
            Some(_) => Ok(()),
            None => self.create(writer, index, service, member).await.map(drop),
        };
        drop(guard);
        self.leave(service);
        result
    }

    /// Notes that `member` is to join, unless it has joined. The next write of the Service adds it.
    pub(super) fn announce(&self, index: &Index, service: &Key, member: &Member) {
        if !is_served(index, service, member) {
            self.enter(service, Some(member));
        }
    }

    /// Makes `member` an owner of the Service. If the member needs names for all pods (it is not `minimal`), also
    /// makes the Service select all pods.
    pub(super) async fn join(
        &self,
        writer: &Writer,
        index: &Index,
        service: &Key,
        member: &Member,
    ) -> Result<(), ApplyError> {
        let lock = self.enter(service, Some(member));
        let result = if is_served(index, service, member) {
            Ok(())
        } else {
            let _guard = lock.lock().await;
            self.join_while_locked(writer, index, service, member).await
        };
        // Also after an error: the next reconcile of this MiniCluster calls `join` again.
        self.forget(service, member);
        self.leave(service);
        result
    }

    /// Adds `member` and all other waiting members by one write. The caller holds the Service's lock.
    async fn join_while_locked(
        &self,
        writer: &Writer,
        index: &Index,
        service: &Key,
        member: &Member,
    ) -> Result<(), ApplyError> {
        let existing = match index.headless(service) {
            Some(existing) => existing,
            None => self.create(writer, index, service, member).await?,
        };
        if existing.serves(&member.uid, member.minimal) {
            return Ok(());
        }
        if existing.is_deleting {
            let message = format!("Service {} is being deleted, and will be recreated", service.name);
            return Err(Obstacle::new(Reason::WaitingForPrevious, message).into());
        }
        // If the write fails, each of the others still joins in a reconcile of its own.
        let mut members = self.take(service);
        members.insert(member.uid.clone(), member.clone());
        // If the Service selects leads only, all its owners are minimal. Otherwise each may need all names.
        for (name, uid) in &existing.owners {
            let known = Member {
                name: name.clone(),
                uid: uid.clone(),
                minimal: existing.is_minimal,
            };
            members.entry(uid.clone()).or_insert(known);
        }
        let mut members: Vec<Member> = members.into_values().collect();
        // Owners beyond the limit may be left out. They still use the Service, and it is created again for them if all
        // its owners are deleted. Minimal ones are left out first: the Service selects all pods only if an owner is not
        // minimal. Of these, the new ones are left out first.
        members.sort_by_key(|member| (member.minimal, !existing.is_owned_by(&member.uid)));
        members.truncate(OWNERS_MAX);
        let mut wanted = services::headless(&service.namespace, &service.name, &members);
        wanted.metadata.uid = Some(existing.uid.clone());
        let applied = writer.send(apply_request(&wanted)).await;
        let mut applied: ServiceObject =
            applied.map_err(|error| api_error::<Service>("apply", &service.name, error))?;
        if ServiceSeen::of(&applied).is_minimal && members.iter().any(|member| !member.minimal) {
            applied = self.widen(writer, service, applied).await?;
        }
        index.update_service(&applied.metadata, ServiceSeen::of(&applied));
        Ok(())
    }

    /// Creates the Service, owned by `member`. If it exists and is ours, which the index did not know, it is not
    /// changed: `member` then still has to join. Stores the Service in the index, and returns it.
    async fn create(
        &self,
        writer: &Writer,
        index: &Index,
        service: &Key,
        member: &Member,
    ) -> Result<Arc<ServiceSeen>, ApplyError> {
        let api: Api<ServiceObject> = Api::namespaced(writer.client.clone(), &service.namespace);
        let wanted = services::headless(&service.namespace, &service.name, std::slice::from_ref(member));
        let object = match writer
            .send(create_request(&wanted, &wanted, &post_params()))
            .await
        {
            Ok(created) => created,
            Err(error) if flux_operator_client::is_name_taken(&error) => {
                let existing = api
                    .get(&service.name)
                    .await
                    .map_err(|error| api_error::<Service>("get", &service.name, error))?;
                if !is_headless(&existing.metadata) {
                    return Err(name_taken("Service", &service.name).into());
                }
                existing
            }
            Err(error) => return Err(api_error::<Service>("create", &service.name, error)),
        };
        let seen = ServiceSeen::of(&object);
        index.update_service(&object.metadata, seen.clone());
        Ok(Arc::new(seen))
    }

    /// Removes the lead's index from the selector if the apply has not removed it. This happens if another
    /// field manager (an operator of an earlier version, or a person) has set it too: an apply leaves a field
    /// that two managers own.
    async fn widen(
        &self,
        writer: &Writer,
        service: &Key,
        applied: ServiceObject,
    ) -> Result<ServiceObject, ApplyError> {
        let api: Api<ServiceObject> = Api::namespaced(writer.client.clone(), &service.namespace);
        let metadata =
            json!({ "uid": applied.metadata.uid, "resourceVersion": applied.metadata.resource_version });
        let change =
            json!({ "metadata": metadata, "spec": { "selector": { labels::COMPLETION_INDEX: null } } });
        let parameters = PatchParams::apply(labels::MANAGER);
        let patched = api.patch(&service.name, &parameters, &Patch::Merge(change)).await;
        patched.map_err(|error| api_error::<Service>("patch", &service.name, error))
    }

    /// Notes that the caller waits for the Service, and that `member`, if given, is to be added. Returns the lock to
    /// hold while writing.
    fn enter(&self, service: &Key, member: Option<&Member>) -> Arc<tokio::sync::Mutex<()>> {
        let mut waiting = self.waiting.lock();
        let entry = waiting.entry(service.clone()).or_default();
        if let Some(member) = member {
            entry.members.insert(member.uid.clone(), member.clone());
        }
        entry.lock.clone()
    }

    /// Removes and returns the members that are to be added.
    fn take(&self, service: &Key) -> BTreeMap<String, Member> {
        let mut waiting = self.waiting.lock();
        waiting
            .get_mut(service)
            .map(|entry| std::mem::take(&mut entry.members))
            .unwrap_or_default()
    }

    /// Removes a member that no longer has to be added.
    fn forget(&self, service: &Key, member: &Member) {
        let mut waiting = self.waiting.lock();
        if let Some(entry) = waiting.get_mut(service) {
            entry.members.remove(&member.uid);
        }
    }

    /// Forgets the Service if no member and no other task waits. The lock has one reference here, one in the
    /// caller, and one in each other task.
    fn leave(&self, service: &Key) {
        let mut waiting = self.waiting.lock();
        let is_idle =
            |entry: &PendingMembers| entry.members.is_empty() && Arc::strong_count(&entry.lock) <= 2;
        if waiting.get(service).is_some_and(is_idle) {
            waiting.remove(service);
        }
    }
}

/// Whether the Service already names the member's pods, so that nothing has to be written.
fn is_served(index: &Index, service: &Key, member: &Member) -> bool {
    index
        .headless(service)
        .is_some_and(|seen| seen.serves(&member.uid, member.minimal))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing;

    /// The watch of Services may lag behind the creation of the Service, such as by another replica of the operator.
    #[tokio::test]
    async fn member_joins_a_service_that_the_index_did_not_know() {
        fn existing(owner: &str) -> Value {
            let key = Key::new("ns", "flux-service");
            let owner = Member {
                name: owner.into(),
                uid: owner.into(),
                minimal: false,
            };
            let mut service = services::headless(&key.namespace, &key.name, &[owner]);
            service.metadata.uid = Some("earlier".into());
            json!(service)
        }
        let client = testing::client(|request, applied| {
            Some(match request.method.as_str() {
                "POST" => (
                    409,
                    json!({ "status": "Failure", "reason": "AlreadyExists", "code": 409 }),
                ),
                "GET" => (200, existing("earlier")),
                _ => (200, applied),
            })
        });
        let index = Index::default();
        let key = Key::new("ns", "flux-service");
        let mine = Member {
            name: "mine".into(),
            uid: "mine".into(),
            minimal: false,
        };
        let writer = Writer::new(client);
        writer.join(&index, &key, &mine).await.unwrap();
        let seen = index.headless(&key).unwrap();
        assert!(
            seen.is_owned_by("mine") && seen.is_owned_by("earlier"),
            "{seen:?}"
        );
    }

    /// No later `join` would remove such a MiniCluster from the queue. The next write of the Service would then add it
    /// as an owner, even if it was deleted since.
    #[test]
    fn owner_of_the_service_does_not_wait_to_join_it() {
        let (index, queue) = (Index::default(), Queue::default());
        let service = Key {
            namespace: "ns".into(),
            name: "flux-service".into(),
        };
        let member = |uid: &str| Member {
            name: "mc".into(),
            uid: uid.into(),
            minimal: false,
        };
        let metadata = kube::core::ObjectMeta {
            namespace: Some(service.namespace.clone()),
            name: Some(service.name.clone()),
            labels: Some([(labels::HEADLESS.to_owned(), service.name.clone())].into()),
            ..Default::default()
        };
        let seen = ServiceSeen {
            owners: vec![("mc".into(), "made-it".into())],
            ..ServiceSeen::default()
        };
        index.update_service(&metadata, seen);
        queue.announce(&index, &service, &member("made-it"));
        assert!(queue.waiting.lock().is_empty());
        queue.announce(&index, &service, &member("another"));
        assert_eq!(queue.waiting.lock()[&service].members.len(), 1);
        let _lock = queue.enter(&service, None);
        queue.forget(&service, &member("another"));
        queue.leave(&service);
        assert!(queue.waiting.lock().is_empty());
    }
}
