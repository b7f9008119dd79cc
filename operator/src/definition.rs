//! The CustomResourceDefinition as YAML. `make generate` writes it to a file of the chart.

use clap::Args;
use flux_shared::crd::definition::{Conversion, DefinitionError, WebhookClient, definition};

use flux_operator_core::labels;
use flux_operator_core::yaml::{self, YamlError};

use crate::webhook;

/// The port of the webhook's Service.
const SERVICE_PORT: i32 = 443;

/// Arguments of `crd`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Namespace of the operator, whose webhook converts
    #[arg(long, default_value = labels::OPERATOR)]
    pub namespace: String,
    /// Serve v1alpha2 only, so that the API server calls no conversion webhook
    #[arg(long)]
    pub without_conversion: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            namespace: labels::OPERATOR.into(),
            without_conversion: false,
        }
    }
}

/// Why the definition could not be generated: a bug in this program.
#[derive(Debug, thiserror::Error)]
pub enum CrdError {
    #[error("failed to generate the CustomResourceDefinition")]
    Definition(#[from] DefinitionError),
    #[error(transparent)]
    Yaml(#[from] YamlError),
}

/// The CustomResourceDefinition as YAML.
pub fn crd(options: &Options) -> Result<String, CrdError> {
    let mut crd = definition(&Conversion::Webhook {
        client: WebhookClient::Service {
            namespace: options.namespace.clone(),
            name: webhook::NAME.into(),
            path: webhook::PATH.into(),
            port: SERVICE_PORT,
        },
        // The webhook adds its authority when it runs (`webhook/certificate_renewal.rs`).
        ca_bundle: Vec::new(),
    })?;
    if options.without_conversion {
        // `conversion` stays, as in the chart (`chart/templates/crd.yaml` says why).
        crd.spec.versions.retain(|version| version.storage);
    }
    Ok(yaml::document(&crd)?)
}
