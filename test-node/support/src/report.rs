//! The report of a benchmark: its figures with their goals and usual ranges (`ranges.toml`), and order statistics.
//!
//! A goal is the wanted value. A range has the values measured on a small, busy machine, with a margin. The report
//! names figures outside of their range: something has changed, for better or worse. The benchmark does not fail for
//! a missed goal or a figure outside of its range.

/// A figure's line in the range file: `name = { low = 0, high = 5, goal = 3, unit = "ms" }`. The goal is an
/// upper bound.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    low: f64,
    high: f64,
    goal: Option<f64>,
    unit: String,
}

pub struct Report {
    ranges: std::collections::BTreeMap<String, Range>,
    rows: Vec<[String; 4]>,
    remarks: Vec<String>,
}

impl Report {
    /// `ranges` is the text of a range file.
    pub fn new(ranges: &str) -> Report {
        Report {
            ranges: toml::from_str(ranges).expect("the range file"),
            rows: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Records a figure; one without a line in the range file is shown too.
    pub fn figure(&mut self, name: &str, value: f64) {
        let range = self.ranges.get(name);
        let unit = range.map_or("", |range| &range.unit);
        let goal = range.and_then(|range| range.goal);
        eprintln!("  {name} {} {unit}", number(value));
        self.rows.push([
            name.to_owned(),
            format!("{} {unit}", number(value)).trim_end().to_owned(),
            goal.map_or("-".into(), |goal| {
                format!(
                    "{} {}",
                    number(goal),
                    if value <= goal { "met" } else { "MISSED" }
                )
            }),
            range.map_or("-".into(), |range| {
                format!("{} to {}", number(range.low), number(range.high))
            }),
        ]);
        if let Some(range) = range
            && !(range.low..=range.high).contains(&value)
        {
            let (low, high) = (number(range.low), number(range.high));
            self.remarks.push(format!(
                "{name} = {} has left its range, {low} to {high}",
                number(value)
            ));
        }
    }

    /// Prints the table, then a line for each figure that left its range.
    pub fn print(&self, title: &str) {
        println!("\n{title} ({})\n", machine());
        println!("| figure | measured | goal, at most | range |\n| --- | --- | --- | --- |");
        for row in &self.rows {
            println!("| {} |", row.join(" | "));
        }
        println!();
        self.remarks.iter().for_each(|remark| println!("{remark}"));
    }
}

fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let count = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or_default();
    format!(
        "{count} x {}, Linux {}, load {load}",
        model.map_or("?", |(_, name)| name),
        kernel.trim()
    )
}

/// A figure as text, with fewer decimals the larger it is.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 || value == value.trunc() => {
            format!("{value:.1}").trim_end_matches(".0").to_owned()
        }
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The value below which the share `part` of `values` lies.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1).expect("values");
    sorted[(part * last as f64).round() as usize]
}

pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// A number from the environment variable `name`, or `usual`.
pub fn setting(name: &str, usual: usize) -> usize {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")),
        Err(_) => usual,
    }
}
