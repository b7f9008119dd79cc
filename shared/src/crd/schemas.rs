//! Schemas of fields that have Kubernetes' own types, or any value.

use serde_json::{Value, json};

/// The schema of a container's securityContext: Kubernetes' own, and the older addCapabilities.
pub fn security_context(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = generator.subschema_for::<k8s_openapi::api::core::v1::SecurityContext>();
    inline(&mut schema, generator);
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
    let mut schema = generator.subschema_for::<k8s_openapi::api::core::v1::PodSecurityContext>();
    inline(&mut schema, generator);
    schema
}

/// The schema of a pod overlay: any object. It is atomic, so that server-side apply does not track its inner
/// fields.
pub fn overlay(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    // At most two fields: `metadata` and `spec`.
    schemars::json_schema!({
        "type": "object",
        "nullable": true,
        "maxProperties": 2,
        "x-kubernetes-preserve-unknown-fields": true,
        "x-kubernetes-map-type": "atomic",
    })
}

/// Replaces a reference by what it refers to: a CRD's schema has no references.
fn inline(schema: &mut schemars::Schema, generator: &schemars::SchemaGenerator) {
    let name = schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|path| path.rsplit('/').next());
    if let Some(found) = name.and_then(|name| generator.definitions().get(name)).cloned()
        && let Ok(found) = schemars::Schema::try_from(found)
    {
        *schema = found;
    }
}
