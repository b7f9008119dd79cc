//! The Secrets with credentials: the passwords of `spec.users`, and the key, user name and token of the Flux RESTful
//! API. Passwords, keys and tokens that the spec leaves out are generated.

use std::collections::BTreeMap;

use flux_shared::validate::ValidMiniCluster;
use flux_shared::{names, paths};
use k8s_openapi::ByteString;

use super::hidden_secret::HiddenSecret;
use super::{Generated, RenderFacts, metadata};

/// Length of a generated password. Each character has 5 random bits, so these are 130 bits.
const PASSWORD_LENGTH: usize = 26;

/// The Secrets with credentials that the cluster needs: none, one or two.
pub(super) fn build(
    cluster: &ValidMiniCluster,
    facts: &RenderFacts,
    generated: &Generated,
) -> Vec<HiddenSecret> {
    // The operator generates at least as many random words as are taken here (`reconcile/random.rs`). After them,
    // `words` yields placeholders without end, for output without random words. So the `unwrap_or_default` below never
    // applies.
    let mut random_words = generated.words();
    let secret = |name: String, data: BTreeMap<String, String>| {
        let data = data
            .into_iter()
            .map(|(key, value)| (key, ByteString(value.into_bytes())))
            .collect();
        HiddenSecret::new(metadata(name, cluster, facts), data)
    };
    let mut secrets = Vec::new();
    if !cluster.users.is_empty() {
        let passwords = cluster.users.iter().map(|user| {
            let password = user.password.clone().unwrap_or_else(|| {
                let random_word = random_words.next().unwrap_or_default();
                random_word.chars().take(PASSWORD_LENGTH).collect()
            });
            (user.name.clone(), password)
        });
        secrets.push(secret(
            names::users_secret(&cluster.name, facts.uid.as_deref()),
            passwords.collect(),
        ));
    }
    if let Some(restful) = &cluster.restful {
        let random_key = random_words.next().unwrap_or_default();
        let random_token = random_words.next().unwrap_or_default();
        let data = [
            (
                paths::RESTFUL_SECRET_KEY,
                restful.secret_key.clone().unwrap_or(random_key),
            ),
            (paths::RESTFUL_USERNAME, restful.username.clone()),
            (
                paths::RESTFUL_TOKEN,
                restful.token.clone().unwrap_or(random_token),
            ),
        ];
        let data = data.map(|(key, value)| (key.to_owned(), value)).into();
        secrets.push(secret(
            names::restful_secret(&cluster.name, facts.uid.as_deref()),
            data,
        ));
    }
    secrets
}

#[cfg(test)]
mod tests {
    use flux_shared::curve::Certificate;

    use super::*;

    #[test]
    fn given_secrets_are_kept_and_missing_ones_generated() {
        let spec = "users: [{name: ada, password: butter}, {name: bob}]\nfluxRestful: {token: mine}";
        let cluster = crate::testing::cluster(&format!("{spec}\ncontainers: [{{image: a}}]"));
        let words = ["2".repeat(32), "key".to_owned(), "token".to_owned()];
        let generated = Generated::new(Certificate::from_keys("mc-0", &[1; 32], &[2; 32]), words.into());
        let found = build(&cluster, &RenderFacts::default(), &generated);
        let text = |i: usize, key: &str| {
            String::from_utf8(found[i].expose().data.as_ref().unwrap()[key].0.clone()).unwrap()
        };
        assert_eq!(
            (text(0, "ada").as_str(), text(0, "bob").as_str()),
            ("butter", "2".repeat(26).as_str())
        );
        assert_eq!(
            (text(1, "secret-key").as_str(), text(1, "token").as_str()),
            ("key", "mine")
        );
        assert_eq!(text(1, "username"), "flux");
        assert!(!format!("{found:?} {cluster:?}").contains("butter"));
    }
}
