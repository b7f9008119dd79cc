//! The Secret with the curve certificate: created once, never updated.

use flux_shared::curve::Certificate;
use flux_shared::validate::ValidMiniCluster;
use flux_shared::{names, paths};
use k8s_openapi::ByteString;

use super::hidden_secret::HiddenSecret;
use super::{RenderFacts, metadata};

/// The Secret with the curve certificate: the one in the spec, else `generated`. None: the spec names a Secret of the
/// user's.
pub(super) fn secret(
    cluster: &ValidMiniCluster,
    facts: &RenderFacts,
    generated: &Certificate,
) -> Option<HiddenSecret> {
    if cluster.flux.curve_cert_secret.is_some() {
        return None;
    }
    let certificate = cluster.flux.curve_cert.as_ref().unwrap_or(generated);
    let data = [(
        paths::CURVE_KEY.to_owned(),
        ByteString(certificate.to_text().into_bytes()),
    )];
    Some(HiddenSecret::new(
        metadata(
            names::curve_secret(&cluster.name, facts.uid.as_deref()),
            cluster,
            facts,
        ),
        data.into(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curve_key_is_in_the_secret_and_in_no_debug_output() {
        let cluster = crate::testing::cluster("size: 2");
        let certificate = Certificate::from_keys("mc-0", &[1; 32], &[2; 32]);
        let text = certificate.to_text();
        let secret = secret(&cluster, &RenderFacts::default(), &certificate).unwrap();
        assert_eq!(
            secret.expose().data.as_ref().unwrap()["curve.cert"].0,
            text.as_bytes()
        );
        assert_eq!(format!("{secret:?}"), "HiddenSecret(mc-curve, redacted)");
        let shown = serde_json::to_string(&secret.redacted()).unwrap();
        assert!(
            !shown.contains("\"data\"") && shown.contains("redacted"),
            "{shown}"
        );
    }
}
