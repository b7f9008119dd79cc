//! The conversion webhook's metrics.

use std::time::Duration;

use prometheus::Result;

use super::families;
use super::process::Process;
use super::registry::{Counter, Gauge, Histogram, MetricRegistry};
// The value of the label `webhook`: there is one webhook.
use crate::webhook::PATH;

/// Why a connection was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectReason {
    /// Too many connections wait for a slot already.
    QueueFull,
    /// No slot became free in time.
    NoSlot,
    /// A request took longer than the API server waits.
    Slow,
}

impl RejectReason {
    fn name(self) -> &'static str {
        match self {
            RejectReason::QueueFull => "full",
            RejectReason::NoSlot => "no_slot",
            RejectReason::Slow => "slow",
        }
    }
}

/// The webhook's metrics.
#[derive(Debug)]
pub struct WebhookMetrics {
    registry: MetricRegistry,
    process: Process,
    requests: Counter,
    time: Histogram,
    in_flight: Gauge,
    conversions: Counter,
    refusals: Counter,
    expiry: Gauge,
    renewal_failures: Counter,
}

impl WebhookMetrics {
    /// Registers all metrics. It fails only if the table of families has a mistake.
    pub fn new() -> Result<WebhookMetrics> {
        let registry = MetricRegistry::default();
        let metrics = WebhookMetrics {
            process: Process::new(&registry, "webhook")?,
            requests: registry
                .counter(&families::WEBHOOK_REQUESTS)?
                .with_series(&[PATH, "200"]),
            time: registry.histogram(&families::WEBHOOK_TIME)?.with_series(&[PATH]),
            in_flight: registry.gauge(&families::WEBHOOK_IN_FLIGHT)?,
            conversions: registry
                .counter(&families::CONVERSIONS)?
                .with_series(&["success"])
                .with_series(&["failure"]),
            refusals: registry
                .counter(&families::REFUSALS)?
                .with_series(&[RejectReason::QueueFull.name()])
                .with_series(&[RejectReason::NoSlot.name()])
                .with_series(&[RejectReason::Slow.name()]),
            expiry: registry.gauge(&families::EXPIRY)?,
            renewal_failures: registry.counter(&families::RENEWAL_FAILURES)?.with_series(&[]),
            registry,
        };
        metrics.in_flight.set(&[PATH], 0.0);
        Ok(metrics)
    }

    /// Counts a request to convert as in progress.
    pub fn request_started(&self) {
        self.in_flight.add(&[PATH], 1.0);
    }

    /// Counts a request to convert as no longer in progress: it has ended, answered or not.
    pub fn request_ended(&self) {
        self.in_flight.add(&[PATH], -1.0);
    }

    /// Records that a request to convert was answered, with this HTTP status.
    pub fn answered(&self, status: u16, took: Duration) {
        self.requests.count(&[PATH, &status.to_string()]);
        self.time.observe(&[PATH], took.as_secs_f64());
    }

    /// Counts a conversion review that was answered; `is_success` if all its objects were converted.
    pub fn converted(&self, is_success: bool) {
        self.conversions
            .count(&[if is_success { "success" } else { "failure" }]);
    }

    /// Counts a connection that was rejected.
    pub fn rejected(&self, why: RejectReason) {
        self.refusals.count(&[why.name()]);
    }

    /// Records when the served certificate expires, in seconds since 1970.
    pub fn certificate_ends(&self, at: i64) {
        self.expiry.set(&[], at as f64);
    }

    /// Counts a failure to read, renew, store or publish the certificate.
    pub fn renewal_failed(&self) {
        self.renewal_failures.count(&[]);
    }

    /// All metrics in Prometheus' text format.
    pub fn text(&self, is_ready: bool) -> String {
        self.process.update(is_ready);
        self.registry.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_metrics_count_requests_and_failures() {
        let metrics = WebhookMetrics::new().unwrap();
        assert!(
            !metrics.text(false).contains("certificate_expiry"),
            "none is served"
        );
        metrics.request_started();
        metrics.request_started();
        metrics.request_ended();
        metrics.answered(413, Duration::from_millis(3));
        metrics.converted(false);
        metrics.rejected(RejectReason::NoSlot);
        metrics.certificate_ends(1_900_000_000);
        metrics.renewal_failed();
        let text = metrics.text(true);
        for line in [
            "controller_runtime_webhook_requests_total{code=\"413\",webhook=\"/convert\"} 1",
            "controller_runtime_webhook_requests_total{code=\"200\",webhook=\"/convert\"} 0",
            "controller_runtime_webhook_requests_in_flight{webhook=\"/convert\"} 1",
            "controller_runtime_webhook_latency_seconds_bucket{webhook=\"/convert\",le=\"0.005\"} 1",
            "flux_operator_webhook_conversions_total{result=\"failure\"} 1",
            "flux_operator_webhook_conversions_total{result=\"success\"} 0",
            "flux_operator_webhook_refusals_total{reason=\"full\"} 0",
            "flux_operator_webhook_refusals_total{reason=\"no_slot\"} 1",
            "flux_operator_webhook_certificate_expiry_timestamp_seconds 1900000000",
            "flux_operator_webhook_certificate_failures_total 1",
            "flux_operator_ready{component=\"webhook\"} 1",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
        families::assert_complete(&text, families::Processes::Webhook);
    }
}
