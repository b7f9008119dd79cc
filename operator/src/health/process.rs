//! Metrics that the operator and the webhook both have: the version, whether it is ready, and the process' use of
//! resources.

use prometheus::Result;

use super::families;
use super::registry::{Counter, Gauge, MetricRegistry};

/// Metrics that the operator and the webhook both have.
#[derive(Debug)]
pub struct Process {
    component: &'static str,
    ready: Gauge,
    cpu: Counter,
    resident: Gauge,
    virtual_memory: Gauge,
    open_files: Gauge,
    max_files: Gauge,
    started: Gauge,
}

impl Process {
    /// Registers the metrics. `component` is `operator` or `webhook`.
    pub fn new(registry: &MetricRegistry, component: &'static str) -> Result<Process> {
        registry
            .gauge(&families::BUILD_INFO)?
            .set(&[component, env!("CARGO_PKG_VERSION")], 1.0);
        Ok(Process {
            component,
            ready: registry.gauge(&families::READY)?,
            cpu: registry.counter(&families::CPU)?,
            resident: registry.gauge(&families::RESIDENT)?,
            virtual_memory: registry.gauge(&families::VIRTUAL)?,
            open_files: registry.gauge(&families::OPEN_FILES)?,
            max_files: registry.gauge(&families::MAX_FILES)?,
            started: registry.gauge(&families::STARTED)?,
        })
    }

    /// Sets the metrics to the current values.
    pub fn update(&self, is_ready: bool) {
        self.ready.set(&[self.component], f64::from(u8::from(is_ready)));
        // What cannot be read from /proc keeps its last value.
        let _ = self.update_from_proc();
    }

    fn update_from_proc(&self) -> procfs::ProcResult<()> {
        let process = procfs::process::Process::myself()?;
        let stat = process.stat()?;
        let ticks = procfs::ticks_per_second() as f64;
        self.cpu.raise_to((stat.utime + stat.stime) as f64 / ticks);
        self.resident
            .set(&[], stat.rss as f64 * procfs::page_size() as f64);
        self.virtual_memory.set(&[], stat.vsize as f64);
        self.started.set(
            &[],
            procfs::boot_time_secs()? as f64 + stat.starttime as f64 / ticks,
        );
        self.open_files.set(&[], process.fd_count()? as f64);
        // Without a limit, the metric is absent.
        if let procfs::process::LimitValue::Value(limit) = process.limits()?.max_open_files.soft_limit {
            self.max_files.set(&[], limit as f64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_metrics_have_plausible_values() {
        let registry = MetricRegistry::default();
        let process = Process::new(&registry, "operator").unwrap();
        process.update(true);
        let text = registry.text();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("{name} is not in\n{text}"))
                .trim()
                .parse()
                .unwrap()
        };
        assert!(
            value("process_resident_memory_bytes ") > 1e5 && value("process_virtual_memory_bytes ") > 1e6
        );
        assert!(value("process_open_fds ") >= 3.0 && value("process_max_fds ") >= value("process_open_fds "));
        assert!(value("process_cpu_seconds_total ") >= 0.0);
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        let age = now - value("process_start_time_seconds ");
        assert!((-2.0..3600.0).contains(&age), "{age}");
        assert_eq!(value("flux_operator_ready{component=\"operator\"} "), 1.0);
        process.update(false);
        assert!(
            registry
                .text()
                .contains("flux_operator_ready{component=\"operator\"} 0\n")
        );
    }
}
