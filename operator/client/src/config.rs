//! Which API server to call, as whom, and through which proxy.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::Config;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};

/// Why no API server is known.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Kubeconfig(Box<KubeconfigError>),
    #[error("there is no kubeconfig, and this program runs in no pod with a service account")]
    InCluster(#[from] InClusterError),
    #[error("the proxy {proxy} is no URL")]
    Proxy {
        proxy: String,
        source: http::uri::InvalidUri,
    },
}

impl From<KubeconfigError> for ConfigError {
    fn from(error: KubeconfigError) -> Self {
        ConfigError::Kubeconfig(Box::new(error))
    }
}

/// The configuration of a client: that of the kubeconfig at `path`, else of `$KUBECONFIG` or `~/.kube/config`. If that is
/// missing or empty, and neither `path` nor `context` is given, that of the service account of the pod in which this
/// program runs. A kubeconfig with contexts of which none is chosen is an error (kubectl then uses the service account):
/// otherwise, a mistake in it would select another cluster.
pub async fn config(path: Option<&Path>, context: Option<&str>) -> Result<Config, ConfigError> {
    let kubeconfig = match path {
        Some(path) => Kubeconfig::read_from(path)?,
        None => merged(&files(std::env::var_os("KUBECONFIG")))?,
    };
    let is_empty = kubeconfig.contexts.is_empty()
        && kubeconfig.clusters.is_empty()
        && kubeconfig.current_context.is_none();
    if is_empty && path.is_none() && context.is_none() {
        return Ok(Config::incluster()?);
    }
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    let proxy = proxy_of_context(&kubeconfig, context);
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    // kube compares NO_PROXY with the address of the proxy instead of the API server's.
    let proxy = proxy.or_else(|| proxy_of_environment(&config.cluster_url, |name| std::env::var(name).ok()));
    config.proxy_url = proxy.map(parse).transpose()?;
    // A context's empty namespace counts as missing.
    if config.default_namespace.is_empty() {
        config.default_namespace = "default".into();
    }
    Ok(config)
}

/// The files of `$KUBECONFIG`, else `~/.kube/config`.
fn files(variable: Option<OsString>) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::env::split_paths(&variable.unwrap_or_default()).collect();
    files.retain(|file| !file.as_os_str().is_empty());
    if files.is_empty() {
        files.extend(std::env::home_dir().map(|home| home.join(".kube/config")));
    }
    files
}

/// The kubeconfig of these files, as kubectl merges them: it skips files that do not exist, and an empty
/// `current-context`. `Kubeconfig::read` does neither.
fn merged(files: &[PathBuf]) -> Result<Kubeconfig, KubeconfigError> {
    let mut merged = Kubeconfig::default();
    for file in files {
        let mut next = match Kubeconfig::read_from(file) {
            Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == ErrorKind::NotFound => continue,
            read => read?,
        };
        next.current_context = next.current_context.filter(|name| !name.is_empty());
        merged = merged.merge(next)?;
    }
    Ok(merged)
}

/// `proxy-url` of the context's cluster.
fn proxy_of_context(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let context = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == context)?;
    let cluster = &context.context.as_ref()?.cluster;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == *cluster)?;
    let proxy = cluster.cluster.as_ref()?.proxy_url.clone();
    proxy.filter(|proxy| !proxy.is_empty())
}

/// The proxy for this API server, by the variables `HTTPS_PROXY` and `NO_PROXY`. As with kubectl, there is none for an API
/// server on the same machine.
fn proxy_of_environment(server: &Uri, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let either = |upper: &str, lower: &str| {
        [upper, lower]
            .iter()
            .find_map(|name| variable(name).filter(|value| !value.is_empty()))
    };
    let proxy = either("HTTPS_PROXY", "https_proxy")?;
    let host = server.host()?.trim_start_matches('[').trim_end_matches(']');
    let is_local = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    let matcher = Matcher::builder()
        .all("http://proxy") // any proxy: only NO_PROXY decides whether it is used
        .no(either("NO_PROXY", "no_proxy").unwrap_or_default())
        .build();
    (!is_local && matcher.intercept(server).is_some()).then_some(proxy)
}

/// A proxy without a scheme, such as `proxy:3128`, speaks HTTP.
fn parse(proxy: String) -> Result<Uri, ConfigError> {
    let parsed = if proxy.contains("://") {
        proxy.parse()
    } else {
        format!("http://{proxy}").parse()
    };
    parsed.map_err(|source| ConfigError::Proxy { proxy, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_of_the_environment_is_used_unless_excepted() {
        let proxy = |server: &str, variables: &[(&str, &str)]| {
            proxy_of_environment(&server.parse().unwrap(), |name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        let set = ("HTTPS_PROXY", "http://proxy.corp:3128");
        let used = Some("http://proxy.corp:3128".to_owned());
        let server = "https://api.cloud.example:6443";
        assert_eq!(proxy(server, &[]), None);
        assert_eq!(proxy(server, &[set]), used);
        assert_eq!(proxy(server, &[("https_proxy", "http://proxy.corp:3128")]), used);
        // The proxy's own address does not count.
        assert_eq!(
            proxy(server, &[set, ("NO_PROXY", ".corp,10.0.0.0/8,,localhost")]),
            used
        );
        for no_proxy in ["*", ".cloud.example", "other, api.cloud.example", "cloud.example"] {
            assert_eq!(proxy(server, &[set, ("NO_PROXY", no_proxy)]), None, "{no_proxy}");
            assert_eq!(proxy(server, &[set, ("no_proxy", no_proxy)]), None, "{no_proxy}");
        }
        assert_eq!(
            proxy("https://10.1.2.3:6443", &[set, ("NO_PROXY", "10.0.0.0/8")]),
            None
        );
        for local in [
            "https://127.0.0.1:6443",
            "https://localhost:6443",
            "https://[::1]:6443",
        ] {
            assert_eq!(proxy(local, &[set]), None, "{local}");
        }
    }

    fn kubeconfig(current: &str, name: &str) -> String {
        format!(
            "{{current-context: '{current}', contexts: [{{name: {name}, context: {{cluster: {name}}}}}], \
             clusters: [{{name: {name}, cluster: {{server: 'https://{name}'}}}}]}}"
        )
    }

    #[test]
    fn kubeconfig_skips_missing_files_and_empty_current_contexts() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let missing = folder.path().join("missing");
        let (first, second) = (file("a", &kubeconfig("", "a")), file("b", &kubeconfig("b", "b")));
        let read = merged(&[missing.clone(), first, second, file("empty", "")]).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("b"));
        let names: Vec<_> = read
            .contexts
            .iter()
            .map(|context| context.name.as_str())
            .collect();
        assert_eq!(names, ["a", "b"]);
        let none = merged(&[missing]).unwrap();
        assert!(none.contexts.is_empty() && none.clusters.is_empty());
        for wrong in ["{", "contexts: 1"] {
            merged(&[file("wrong", wrong)]).unwrap_err();
        }
        // A folder cannot be read.
        merged(&[folder.path().to_owned()]).unwrap_err();
    }

    #[tokio::test]
    async fn empty_namespace_of_a_context_is_the_default() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        let text = kubeconfig("a", "a").replace("{cluster: a}", "{cluster: a, namespace: ''}");
        std::fs::write(&file, text).unwrap();
        let config = config(Some(&file), None).await.unwrap();
        assert_eq!(config.default_namespace, "default");
    }

    #[test]
    fn kubeconfig_variable_is_a_list_and_empty_means_the_default() {
        let listed = files(Some("/a::/b".into()));
        assert_eq!(listed, [PathBuf::from("/a"), PathBuf::from("/b")]);
        let usual = files(None);
        assert!(
            usual.iter().all(|file| file.ends_with(".kube/config")),
            "{usual:?}"
        );
        assert_eq!(
            (files(Some("".into())), files(Some(":".into()))),
            (usual.clone(), usual)
        );
    }

    #[test]
    fn proxy_url_is_that_of_the_contexts_cluster() {
        let kubeconfig = Kubeconfig::from_yaml(
            "{current-context: a, contexts: [{name: a, context: {cluster: a}}, {name: b, context: {cluster: b}}], \
             clusters: [{name: a, cluster: {server: 'https://a'}}, \
             {name: b, cluster: {server: 'https://b', proxy-url: 'socks5://proxy:1080'}}]}",
        )
        .unwrap();
        assert_eq!(proxy_of_context(&kubeconfig, None), None);
        let of_b = proxy_of_context(&kubeconfig, Some("b"));
        assert_eq!(of_b.as_deref(), Some("socks5://proxy:1080"));
    }

    #[test]
    fn proxy_without_a_scheme_speaks_http() {
        assert_eq!(parse("proxy:3128".into()).unwrap(), "http://proxy:3128");
        assert_eq!(parse("https://proxy".into()).unwrap().scheme_str(), Some("https"));
        assert!(parse("http://a b".into()).is_err());
    }
}
