//! Schemas of fields that have Kubernetes' own types, or any value.

use serde_json::{Value, json};

/// The schema of a container's securityContext: Kubernetes' own, and the older addCapabilities.
pub fn security_context(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = generator.subschema_for::<k8s_openapi::api::core::v1::SecurityContext>();
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert(
            "addCapabilities".into(),
            json!({
                "type": "array",
                "items": { "type": "string" },
                "description": "Capabilities to add. Alias of capabilities.add, for existing manifests.",
            }),
        );
    }
    schema
}

/// The schema of a pod's securityContext: Kubernetes' own.
pub fn pod_security_context(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    generator.subschema_for::<k8s_openapi::api::core::v1::PodSecurityContext>()
}

/// The schema of a pod overlay: any object. It is atomic, so that server-side apply does not track its inner
/// fields.
pub fn overlay(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    // `nullable`, as in the generated schema of an `Option`. At most two fields: `metadata` and `spec`.
    schemars::json_schema!({
        "type": "object",
        "nullable": true,
        "maxProperties": 2,
        "x-kubernetes-preserve-unknown-fields": true,
        "x-kubernetes-map-type": "atomic",
    })
}
