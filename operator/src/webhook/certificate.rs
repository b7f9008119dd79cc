//! The webhook's certificate. Each certificate has its own authority (CA), which signs nothing else and whose key is
//! not kept: the server's key is the only one to protect. A renewal creates a new authority. The bundle then has the
//! new authority and the previous one.

use std::collections::BTreeMap;
use std::sync::Arc;

use flux_operator_core::labels;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::{SignedDuration, Timestamp, tz::TimeZone};
use parking_lot::RwLock;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

/// Lifetime of a certificate.
const LIFETIME: SignedDuration = SignedDuration::from_hours(24 * 365);
/// How long before its expiry a certificate is renewed.
const RENEWAL: SignedDuration = SignedDuration::from_hours(24 * 90);
/// How long, at least, before its creation a certificate begins to be valid: API servers' clocks may be behind.
const SLACK: SignedDuration = SignedDuration::from_hours(24);

/// Keys of the Secret: the certificate, its private key, and the authorities, as PEM.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const BUNDLE: &str = "ca.crt";
/// Annotations of the Secret: when the certificate expires, and the names that it is for, separated by commas.
const NOT_AFTER: &str = "flux-framework.org/not-after";
const NAMES: &str = "flux-framework.org/names";
/// The last line of a certificate in PEM.
const END: &str = "-----END CERTIFICATE-----";

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("failed to create a certificate")]
    Make(#[from] rcgen::Error),
    #[error("failed to read a certificate: {0}")]
    Read(String),
}

/// A certificate, its key, and the bundle of authorities, all as PEM.
#[derive(Clone, PartialEq)]
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
    /// The authorities as PEM, this certificate's own first.
    pub(super) bundle: String,
    /// When the certificate expires (RFC 3339), up to a day too late: the certificate itself has only the day.
    not_after: String,
    /// Names and addresses that the certificate is for, separated by commas.
    names: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Pair({} until {})", self.names, self.not_after)
    }
}

impl Pair {
    /// Creates a certificate with its own authority. `before` is the bundle in use, if there is one.
    pub(super) fn make(
        names: &[String],
        before: Option<&str>,
        now: Timestamp,
    ) -> Result<Pair, CertificateError> {
        let end = now + LIFETIME;
        let authority_key = KeyPair::generate()?;
        let mut authority = params(&[], now, end)?;
        authority
            .distinguished_name
            .push(DnType::CommonName, format!("flux-operator webhook, {now}"));
        // 0: the authority signs no other authorities.
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority_text = authority.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(authority, authority_key);

        let key = KeyPair::generate()?;
        let mut server = params(names, now, end)?;
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        server.use_authority_key_identifier_extension = true;
        let certificate = server.signed_by(&key, &issuer)?.pem();
        Ok(Pair {
            certificate,
            key: key.serialize_pem(),
            bundle: format!(
                "{authority_text}{}",
                before.and_then(first_of).unwrap_or_default()
            ),
            not_after: end.to_string(),
            names: names.join(","),
        })
    }

    /// Reads a Secret; None if there is no usable certificate in it.
    pub(super) fn of_secret(secret: &Secret) -> Option<Pair> {
        let text = |key: &str| String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok();
        let annotation = |key: &str| secret.metadata.annotations.as_ref()?.get(key).cloned();
        let pair = Pair {
            certificate: text(CERTIFICATE)?,
            key: text(KEY)?,
            bundle: text(BUNDLE)?,
            not_after: annotation(NOT_AFTER)?,
            names: annotation(NAMES)?,
        };
        pair.certified().ok().map(|_| pair)
    }

    /// The Secret to write. `before` is the metadata of the Secret that it replaces, if there is one. Its resource
    /// version makes the write fail if another replica has written first. Its owner stays, and `owner` is ignored.
    pub(super) fn to_secret(
        &self,
        namespace: &str,
        name: &str,
        owner: Option<OwnerReference>,
        before: Option<ObjectMeta>,
    ) -> Secret {
        let bytes = |text: &String| ByteString(text.clone().into_bytes());
        let (version, owners) = match before {
            Some(before) => (before.resource_version, before.owner_references),
            None => (None, owner.map(|owner| vec![owner])),
        };
        Secret {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some(namespace.into()),
                resource_version: version,
                owner_references: owners,
                labels: Some([(labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned())].into()),
                annotations: Some(
                    [
                        (NOT_AFTER.to_owned(), self.not_after.clone()),
                        (NAMES.to_owned(), self.names.clone()),
                    ]
                    .into(),
                ),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/tls".into()),
            data: Some(BTreeMap::from([
                (CERTIFICATE.to_owned(), bytes(&self.certificate)),
                (KEY.to_owned(), bytes(&self.key)),
                (BUNDLE.to_owned(), bytes(&self.bundle)),
            ])),
            ..Secret::default()
        }
    }

    /// Whether the certificate must be renewed: it is for other names than `names`, it expires soon (`RENEWAL`), or its
    /// expiry cannot be read.
    pub(super) fn is_stale(&self, names: &[String], now: Timestamp) -> bool {
        let expires_soon = |end: Timestamp| end - RENEWAL <= now;
        self.names != names.join(",") || self.not_after.parse().map_or(true, expires_soon)
    }

    /// The certificate and key in the form that the TLS server needs.
    pub(super) fn certified(&self) -> Result<CertifiedKey, CertificateError> {
        certified(self.certificate.as_bytes(), self.key.as_bytes())
    }
}

/// A certificate chain and its key from PEM, for the TLS server.
pub(super) fn certified(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, CertificateError> {
    let read_error = |error: &dyn std::fmt::Display| CertificateError::Read(error.to_string());
    let chain = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| read_error(&error))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| read_error(&error))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|error| read_error(&error))
}

/// The common parameters of an authority and a certificate. Only the days of the times count.
fn params(names: &[String], now: Timestamp, end: Timestamp) -> Result<CertificateParams, CertificateError> {
    let day = |time: Timestamp| {
        let date = time.to_zoned(TimeZone::UTC).date();
        // Month and day are positive: `unsigned_abs` only converts their type.
        rcgen::date_time_ymd(
            date.year().into(),
            date.month().unsigned_abs(),
            date.day().unsigned_abs(),
        )
    };
    let mut params = CertificateParams::new(names)?;
    params.not_before = day(now - SLACK);
    params.not_after = day(end);
    // Empty: rcgen's default is the name `rcgen self signed cert`.
    params.distinguished_name = rcgen::DistinguishedName::new();
    Ok(params)
}

/// Most authorities in a caBundle. A replica adds its new authority before it writes the Secret, so replicas that renew
/// at the same time add one each, though only one is used.
const AUTHORITIES: usize = 6;

/// A bundle with the certificates of `wanted` first, and then the other ones of `known`. Beyond `AUTHORITIES`, the last
/// ones are dropped. None: `known` has all of `wanted`.
pub(super) fn merge_bundles(wanted: &str, known: &str) -> Option<String> {
    let split = |bundle: &str| -> Vec<String> {
        let all = bundle.split_inclusive(END).filter(|text| text.contains(END));
        all.map(|text| text.trim().to_owned()).collect()
    };
    let (mut all, known) = (split(wanted), split(known));
    if all.iter().all(|certificate| known.contains(certificate)) {
        return None;
    }
    for certificate in known {
        if !all.contains(&certificate) {
            all.push(certificate);
        }
    }
    all.truncate(AUTHORITIES);
    Some(all.iter().map(|certificate| format!("{certificate}\n")).collect())
}

/// The first certificate of a bundle.
fn first_of(bundle: &str) -> Option<String> {
    bundle
        .find(END)
        .map(|at| format!("{}\n", &bundle[..at + END.len()]))
}

/// The certificate for new connections; None before there is one.
#[derive(Debug, Default)]
pub(super) struct Current(RwLock<Option<Arc<CertifiedKey>>>);

/// When a certificate ends, in seconds since 1970.
fn end_of(certified: &CertifiedKey) -> Option<i64> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certified.cert.first()?).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

impl Current {
    pub(super) fn set(&self, certified: CertifiedKey) {
        *self.0.write() = Some(Arc::new(certified));
    }

    fn get(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }

    /// The end of the certificate that is served, in seconds since 1970.
    pub(super) fn ends(&self) -> Option<i64> {
        end_of(&*self.get()?)
    }

    pub(super) fn is_set(&self) -> bool {
        self.get().is_some()
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn certificate_is_read_back_from_its_secret_and_hides_its_key() {
        let names = ["a.b.svc".to_owned(), "127.0.0.1".to_owned()];
        let pair = Pair::make(&names, None, at("2026-03-31T12:00:00Z")).unwrap();
        let secret = pair.to_secret("ns", "name", None, None);
        assert_eq!(Pair::of_secret(&secret).unwrap(), pair);
        assert_eq!(
            format!("{pair:?}"),
            "Pair(a.b.svc,127.0.0.1 until 2027-03-31T12:00:00Z)"
        );
        let mut broken = secret;
        broken
            .data
            .as_mut()
            .unwrap()
            .insert("tls.key".into(), ByteString(b"x".to_vec()));
        assert_eq!(Pair::of_secret(&broken), None);
        assert_eq!(Pair::of_secret(&Secret::default()), None);
    }

    #[test]
    fn expiry_of_the_served_certificate_is_known() {
        let current = Current::default();
        assert_eq!(current.ends(), None);
        let pair = Pair::make(&["a".to_owned()], None, at("2026-03-31T12:00:00Z")).unwrap();
        current.set(pair.certified().unwrap());
        assert_eq!(
            current.ends(),
            Some(at("2027-03-31T00:00:00Z").as_second()),
            "whole days"
        );
    }

    #[test]
    fn certificate_is_renewed_early_and_for_other_names() {
        let names = ["a".to_owned()];
        let pair = Pair::make(&names, None, at("2026-01-01T00:00:00Z")).unwrap();
        assert!(!pair.is_stale(&names, at("2026-09-30T00:00:00Z")));
        assert!(pair.is_stale(&names, at("2026-10-04T00:00:00Z")));
        assert!(pair.is_stale(&["b".to_owned()], at("2026-01-01T00:00:00Z")));
    }

    #[test]
    fn bundle_keeps_other_authorities_and_drops_the_oldest() {
        let one = |name: &str| format!("{name}\n{END}\n");
        let both = merge_bundles(&one("a"), &one("b")).unwrap();
        assert_eq!(both, format!("{}{}", one("a"), one("b")));
        assert_eq!(merge_bundles(&one("b"), &both), None, "nobody has to write again");
        assert_eq!(merge_bundles(&one("a"), "").unwrap(), one("a"));
        let many = (0..20).fold(String::new(), |known, number| {
            merge_bundles(&one(&number.to_string()), &known).unwrap()
        });
        assert_eq!(many.matches(END).count(), AUTHORITIES);
        assert!(many.starts_with("19\n") && many.contains("18\n"));
    }

    #[test]
    fn renewed_bundle_has_only_the_new_and_previous_authority() {
        let names = ["a".to_owned()];
        let make = |before: Option<&str>| {
            Pair::make(&names, before, at("2026-01-01T00:00:00Z"))
                .unwrap()
                .bundle
        };
        let first = make(None);
        let second = make(Some(&first));
        let third = make(Some(&second));
        assert_eq!(
            [&first, &second, &third].map(|bundle| bundle.matches(END).count()),
            [1, 2, 2]
        );
        assert!(second.ends_with(&first));
        assert!(!third.contains(first.trim_end()));
    }
}
