//! The metrics of a process: registers them from the table of families, and writes them in Prometheus' text format.

use prometheus::{
    CounterVec, Error, GaugeVec, HistogramOpts, HistogramVec, Opts, Registry, Result, TextEncoder,
};

use super::families::{Family, Kind};

/// A family of counters.
#[derive(Debug, Clone)]
pub struct Counter(CounterVec);

/// A family of gauges.
#[derive(Debug, Clone)]
pub struct Gauge(GaugeVec);

/// A family of histograms.
#[derive(Debug, Clone)]
pub struct Histogram(HistogramVec);

// `labels` are the values of the family's labels, in their order. The methods ignore a wrong number of them, since
// a metric must not stop a reconcile. The tests use every family, so they find such a mistake.
impl Counter {
    /// Creates the series at 0: for Prometheus, the first count is then an increase.
    pub fn with_series(self, labels: &[&str]) -> Counter {
        self.add(labels, 0.0);
        self
    }

    pub fn add(&self, labels: &[&str], more: f64) {
        if let Ok(series) = self.0.get_metric_with_label_values(labels) {
            // A counter never decreases.
            series.inc_by(more.max(0.0));
        }
    }

    pub fn count(&self, labels: &[&str]) {
        self.add(labels, 1.0);
    }

    /// Raises the counter, which has no labels, to a total that is counted elsewhere. It never decreases.
    pub fn raise_to(&self, total: f64) {
        if let Ok(series) = self.0.get_metric_with_label_values::<&str>(&[]) {
            series.inc_by((total - series.get()).max(0.0));
        }
    }
}

impl Gauge {
    pub fn set(&self, labels: &[&str], value: f64) {
        if let Ok(series) = self.0.get_metric_with_label_values(labels) {
            series.set(value);
        }
    }

    pub fn add(&self, labels: &[&str], more: f64) {
        if let Ok(series) = self.0.get_metric_with_label_values(labels) {
            series.add(more);
        }
    }
}

impl Histogram {
    pub fn observe(&self, labels: &[&str], value: f64) {
        if let Ok(series) = self.0.get_metric_with_label_values(labels) {
            series.observe(value);
        }
    }

    /// Creates the series without observations.
    pub fn with_series(self, labels: &[&str]) -> Histogram {
        let _ = self.0.get_metric_with_label_values(labels);
        self
    }
}

/// The metrics of one process.
#[derive(Debug, Default)]
pub struct MetricRegistry(Registry);

/// The error if the table of families has another kind than the one to register.
fn wrong_kind(family: &Family) -> Error {
    Error::Msg(format!("{} is a {}", family.name, family.kind.name()))
}

impl MetricRegistry {
    pub fn counter(&self, family: &Family) -> Result<Counter> {
        let Kind::Counter = family.kind else {
            return Err(wrong_kind(family));
        };
        let counter = CounterVec::new(Opts::new(family.name, family.help), family.labels)?;
        self.0.register(Box::new(counter.clone()))?;
        Ok(Counter(counter))
    }

    pub fn gauge(&self, family: &Family) -> Result<Gauge> {
        let Kind::Gauge = family.kind else {
            return Err(wrong_kind(family));
        };
        let gauge = GaugeVec::new(Opts::new(family.name, family.help), family.labels)?;
        self.0.register(Box::new(gauge.clone()))?;
        Ok(Gauge(gauge))
    }

    pub fn histogram(&self, family: &Family) -> Result<Histogram> {
        let Kind::Histogram(bounds) = family.kind else {
            return Err(wrong_kind(family));
        };
        let options = HistogramOpts::new(family.name, family.help).buckets(bounds.to_vec());
        let histogram = HistogramVec::new(options, family.labels)?;
        self.0.register(Box::new(histogram.clone()))?;
        Ok(Histogram(histogram))
    }

    /// All metrics in Prometheus' text format.
    pub fn text(&self) -> String {
        // Encoding fails only for a family without series or name, and `gather` leaves out the former.
        TextEncoder::new()
            .encode_to_string(&self.0.gather())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::families;
    use super::*;

    #[test]
    fn family_registers_once_and_only_as_its_kind() {
        let registry = MetricRegistry::default();
        assert!(registry.counter(&families::READY).is_err() && registry.gauge(&families::ADDS).is_err());
        registry.counter(&families::CPU).unwrap().raise_to(1.5);
        assert!(registry.counter(&families::CPU).is_err(), "once");
        let text = registry.text();
        assert!(
            text.contains("# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 1.5\n"),
            "{text}"
        );
    }

    #[test]
    fn external_counter_never_decreases() {
        let registry = MetricRegistry::default();
        let cpu = registry.counter(&families::CPU).unwrap();
        for (total, wanted) in [(2.0, "2"), (1.0, "2"), (5.0, "5")] {
            cpu.raise_to(total);
            assert!(
                registry
                    .text()
                    .ends_with(&format!("process_cpu_seconds_total {wanted}\n"))
            );
        }
    }
}
