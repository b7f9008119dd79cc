//! The Secrets with what users log in with: the passwords of `spec.users`, and the key and token of the Flux
//! RESTful API. Missing values are generated, once.

use std::collections::BTreeMap;

use flux_shared::validate::ValidMiniCluster;
use flux_shared::{names, paths};
use k8s_openapi::ByteString;

use super::hidden_secret::HiddenSecret;
use super::{Generated, RenderFacts, metadata};

/// Characters of a password: 130 bits of a word, which has five in each.
const PASSWORD: usize = 26;

pub(super) fn build(
    cluster: &ValidMiniCluster,
    facts: &RenderFacts,
    generated: &Generated,
) -> Vec<HiddenSecret> {
    let mut words = generated.words();
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
            let random = words.next().unwrap_or_default();
            let password = user
                .password
                .clone()
                .unwrap_or_else(|| random.chars().take(PASSWORD).collect());
            (user.name.clone(), password)
        });
        secrets.push(secret(
            names::users_secret(&cluster.name, facts.uid.as_deref()),
            passwords.collect(),
        ));
    }
    if let Some(restful) = &cluster.restful {
        let (key, token) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let data = [
            (
                paths::RESTFUL_SECRET_KEY,
                restful.secret_key.clone().unwrap_or(key),
            ),
            (paths::RESTFUL_USERNAME, restful.username.clone()),
            (paths::RESTFUL_TOKEN, restful.token.clone().unwrap_or(token)),
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
        let words = [
            "unused".to_owned(),
            "2".repeat(32),
            "key".to_owned(),
            "token".to_owned(),
        ];
        let generated = Generated::new(Certificate::from_keys("mc-0", &[1; 32], &[2; 32]), words.into());
        let found = build(&cluster, &RenderFacts::default(), &generated);
        let text = |i: usize, key: &str| {
            String::from_utf8(found[i].expose().data.as_ref().unwrap()[key].0.clone()).unwrap()
        };
        // 32 letters are equally likely: 26 of them are 130 bits.
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
