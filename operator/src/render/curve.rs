//! The Secret with the curve certificate: created once, never updated. It has no `Debug` of the key.

use flux_shared::curve::Certificate;
use flux_shared::validate::ValidMiniCluster;
use flux_shared::{names, paths};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::{Facts, metadata};

/// A Secret whose content shows up in no `Debug` output.
#[derive(Clone, PartialEq)]
pub struct CurveSecret(Secret);

impl CurveSecret {
    /// The object to send to the API server.
    pub fn expose(&self) -> &Secret {
        &self.0
    }

    /// The same object for a person to look at: the keys of the data, not the values.
    pub fn redacted(&self) -> Secret {
        let mut secret = self.0.clone();
        let keys = secret.data.take().unwrap_or_default().into_keys();
        secret.string_data = Some(keys.map(|key| (key, "(redacted: made at random, once)".to_owned())).collect());
        secret
    }
}

impl std::fmt::Debug for CurveSecret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "CurveSecret({}, redacted)", self.0.metadata.name.as_deref().unwrap_or_default())
    }
}

pub(super) fn secret(cluster: &ValidMiniCluster, facts: &Facts, made: Certificate) -> CurveSecret {
    let certificate = cluster.flux.curve_cert.clone().unwrap_or(made);
    let data = [(paths::CURVE_KEY.to_owned(), ByteString(certificate.to_text().into_bytes()))];
    CurveSecret(Secret {
        metadata: metadata(names::curve_secret(&cluster.name), cluster, facts),
        data: Some(data.into()),
        immutable: Some(true),
        type_: Some("Opaque".into()),
        ..Secret::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_in_the_secret_and_in_no_debug_output() {
        let cluster = crate::testing::cluster("size: 2");
        let certificate = Certificate::from_keys("mc-0", &[1; 32], &[2; 32]);
        let text = certificate.to_text();
        let secret = secret(&cluster, &Facts::default(), certificate);
        assert_eq!(secret.expose().data.as_ref().unwrap()["curve.cert"].0, text.as_bytes());
        assert_eq!(format!("{secret:?}"), "CurveSecret(mc-curve, redacted)");
        let shown = serde_json::to_string(&secret.redacted()).unwrap();
        assert!(!shown.contains("\"data\"") && shown.contains("redacted"), "{shown}");
    }
}
