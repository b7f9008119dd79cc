//! Secrets that the operator creates: never updated, and without their content in `Debug` output.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// A Secret whose `Debug` output has only its name.
#[derive(Clone, PartialEq)]
pub struct HiddenSecret(Secret);

impl HiddenSecret {
    pub(super) fn new(metadata: ObjectMeta, data: BTreeMap<String, ByteString>) -> HiddenSecret {
        HiddenSecret(Secret {
            metadata,
            data: Some(data),
            immutable: Some(true),
            type_: Some("Opaque".into()),
            ..Secret::default()
        })
    }

    /// The object to send to the API server.
    pub fn expose(&self) -> &Secret {
        &self.0
    }

    /// The Secret to show to a person: with the keys of its data, and placeholders for the values.
    pub fn redacted(&self) -> Secret {
        let mut secret = self.0.clone();
        let keys = secret.data.take().unwrap_or_default().into_keys();
        // Not `data`, which would show the placeholders in base64.
        secret.string_data = Some(keys.map(|key| (key, "(redacted)".to_owned())).collect());
        secret
    }
}

impl std::fmt::Debug for HiddenSecret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "HiddenSecret({}, redacted)",
            self.0.metadata.name.as_deref().unwrap_or_default()
        )
    }
}
