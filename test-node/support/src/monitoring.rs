//! The alerts and the dashboard of the chart.

use serde_json::Value;

use crate::repository::repository;

/// An alerting rule.
#[derive(Debug)]
pub struct Alert {
    pub name: String,
    /// `$namespace` stands for the operator's namespace.
    pub expression: String,
    /// How long the expression has to hold (`for`).
    pub lasts: String,
    pub severity: String,
}

/// A panel of the dashboard.
#[derive(Debug)]
pub struct Panel {
    pub title: String,
    pub expressions: Vec<String>,
}

fn read(name: &str) -> String {
    std::fs::read_to_string(repository().join("chart/files").join(name)).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// All alerts, in the order of docs/tasks/alerts.md.
pub fn alerts() -> Vec<Alert> {
    let rules = ["alerts/operator.yaml", "alerts/webhook.yaml"].map(|file| {
        let rules: Vec<Value> = serde_saphyr::from_str(&read(file)).unwrap();
        rules
    });
    let alert = |rule: &Value| Alert {
        name: text(&rule["alert"]),
        expression: text(&rule["expr"]),
        lasts: text(&rule["for"]),
        severity: text(&rule["labels"]["severity"]),
    };
    rules.iter().flatten().map(alert).collect()
}

/// All panels of the dashboard.
pub fn panels() -> Vec<Panel> {
    let dashboard: Value = serde_json::from_str(&read("dashboard.json")).unwrap();
    let panel = |panel: &Value| Panel {
        title: text(&panel["title"]),
        expressions: panel["targets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|target| text(&target["expr"]))
            .collect(),
    };
    dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .map(panel)
        .collect()
}
