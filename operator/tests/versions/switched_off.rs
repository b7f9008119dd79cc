//! `v1alpha1.enabled` is changed in a running installation.

use flux_operator::definition;

use super::*;

/// The CRD that the chart renders.
fn shipped_crd(v1alpha1: bool) -> Value {
    let mut installation = Installation::whole(&json!({ "v1alpha1": { "enabled": v1alpha1 } }));
    installation
        .objects
        .retain(|object| object["kind"] == "CustomResourceDefinition");
    installation.objects.remove(0)
}

/// The CRD that `flux-operator crd --without-conversion` prints.
fn printed_crd() -> Value {
    let options = definition::Options {
        without_conversion: true,
        ..definition::Options::default()
    };
    serde_saphyr::from_str(&definition::crd(&options).unwrap()).unwrap()
}

/// Server-side apply, as Helm 4 and Argo CD use it, leaves the caBundle in the CRD, because the webhook has set it.
#[test]
fn v1alpha1_is_switched_off_and_on_by_server_side_apply() {
    test(
        |_| shipped_crd(true),
        async |fixture| {
            let webhook = fixture.webhook_at(fixture.port);
            let authority = || {
                let path = "jsonpath={.spec.conversion.webhook.clientConfig.caBundle}";
                let bundle =
                    fixture
                        .plane
                        .kubectl(&["get", "crd", "miniclusters.flux-framework.org", "-o", path])?;
                if bundle.is_empty() {
                    Err("the CRD has none".to_owned())
                } else {
                    Ok(bundle)
                }
            };
            let first = until("there is an authority", async || authority()).await;
            webhook.abort();
            let _ = webhook.await;
            let apply = |crd: Value| {
                let crd = yaml::document(&crd).unwrap();
                fixture.plane.apply(&crd).unwrap()
            };
            let serves_v1alpha1 = || {
                let path = "/apis/flux-framework.org/v1alpha1";
                fixture.plane.kubectl(&["get", "--raw", path]).is_ok()
            };
            for (round, without_v1alpha1) in [shipped_crd(false), printed_crd()].into_iter().enumerate() {
                apply(without_v1alpha1);
                until("v1alpha1 is not served", async || {
                    if serves_v1alpha1() {
                        Err("it is".to_owned())
                    } else {
                        Ok(())
                    }
                })
                .await;
                // No webhook runs, and none is called.
                let (name, spec) = (
                    format!("mc-{round}"),
                    json!({ "size": 2, "containers": [{ "image": "a" }] }),
                );
                fixture.apply(Version::V1alpha2, &name, spec).await.unwrap();
                fixture
                    .merge(Version::V1alpha2, &name, json!({ "spec": { "size": 3 } }))
                    .await;
                let all = fixture
                    .api(Version::V1alpha2)
                    .list(&Default::default())
                    .await
                    .unwrap();
                assert_eq!(all.items.len(), round + 1);

                apply(shipped_crd(true));
                until("v1alpha1 is served", async || {
                    if serves_v1alpha1() {
                        Ok(())
                    } else {
                        Err("it is not".to_owned())
                    }
                })
                .await;
                assert_eq!(authority().unwrap(), first);
            }
        },
    );
}
