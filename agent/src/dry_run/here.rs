//! `dry-run --here`: the plan of this container's entrypoint, from the pod's own spec and facts.

use flux_agent_plan::dry_run::{DryRunError, Format, PlannedContainer, Source, render_json, render_text};

use crate::commands::OwnContainer;
use crate::report::failure::{Failure, chain, refused};

/// The plan of the container as text or JSON.
pub fn here(container: OwnContainer, format: Format) -> Result<String, Failure> {
    let OwnContainer {
        spec,
        facts,
        container,
        waits,
        is_known,
    } = container;
    let plan = flux_agent_plan::plan::build(&spec, &facts, &container)
        .map_err(|error| refused(&error))?
        .with_waits(waits);
    let notice =
        "process 1 is not this container's entrypoint: its options, environment and terminal are not known";
    let notices = if is_known {
        Vec::new()
    } else {
        vec![notice.to_owned()]
    };
    let source = Source::here(spec, notices);
    let pods = [PlannedContainer {
        indexes: plan.index.to_string(),
        plan,
    }];
    match format {
        Format::Text => Ok(render_text(&source, &facts, &pods)),
        Format::Json => render_json(&source, &facts, &pods)
            .map_err(|source| Failure::internal(chain(&DryRunError::Json { source }))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use flux_agent_plan::facts::Facts;

    use super::*;

    #[test]
    fn here_shows_the_waits_and_an_unknown_entrypoint() {
        let output = |is_known: bool, format| {
            let spec =
                flux_shared::agent_spec::AgentSpec::from_toml("name = 'mc'\nsize = 2\n[flux]\nlead_gone = 5")
                    .unwrap();
            let facts = Facts {
                hostname: "mc-1".into(),
                index: Some(1),
                ..Facts::default()
            };
            let waits = flux_agent_plan::plan::Waits {
                lead_silent: Some(6),
                ..Default::default()
            };
            let container = flux_agent_plan::plan::PodContainer::Runner;
            here(
                OwnContainer {
                    spec,
                    facts,
                    container,
                    waits,
                    is_known,
                },
                format,
            )
            .unwrap()
        };
        assert!(output(false, Format::Text).contains("Notice: process 1 is not this container's entrypoint"));
        let text = output(true, Format::Text);
        assert!(
            text.contains("Detected host") && !text.contains("Notice: process 1"),
            "{text}"
        );
        assert!(
            text.contains("name has been missing for 5 s") && text.contains("has not answered for 6 s"),
            "{text}"
        );
        let schema =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("plan/schema/dry-run.json"))
                .unwrap();
        let validator = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
        assert!(validator.is_valid(&serde_json::from_str(&output(true, Format::Json)).unwrap()));
    }
}
