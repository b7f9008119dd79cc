//! The costs of the agent, compared in the same run with the alternatives (`make bench`).
//!
//! ```text
//! start   exec of `flux-agent run` to exec of flux, against bash doing the documented steps
//! wait    memory, CPU, wake-ups and DNS queries of followers whose lead is missing; CPU of one that has joined
//! copy    `flux-agent view` against `cp -a`
//! ```
//!
//! Runs in its own namespaces, with its own loopback, DNS and /mnt. On the host, it writes only the copies of `copy`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a benchmark: a failure may panic"
)]

mod copy;
mod cpu;
mod dns;
mod place;
mod start;
mod wait;

fn main() {
    // This executable is also the fake flux: `place::enter` copies it to `FAKE_FLUX`.
    if std::env::args_os()
        .next()
        .is_some_and(|name| name.as_encoded_bytes().ends_with(b"flux"))
    {
        return start::fake_flux();
    }
    let agent = place::agent();
    // `cargo bench` adds the option `--bench`. Other words name parts.
    let parts: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let is_wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    place::enter(&agent);
    let mut report = test_support::report::Report::new(include_str!("../ranges.toml"));
    report.figure("binary-bytes", std::fs::metadata(&agent).unwrap().len() as f64);
    if is_wanted("start") {
        start::measure(&mut report);
    }
    if is_wanted("wait") {
        wait::measure(&mut report);
    }
    if is_wanted("copy") {
        copy::measure(&agent, &mut report);
    }
    report.print("flux-agent");
}

/// Writes a spec, and returns its path.
fn write_spec(cluster: &str) -> String {
    let path = format!("/mnt/{cluster}.toml");
    let program = "mode = \"submit\"\nwords = [\"hostname\"]\n";
    let text = format!(
        "name = \"{cluster}\"\nsize = 4\ntasks = 4\n[runner]\nlogs = \"/mnt/fluxout\"\n[runner.program]\n{program}"
    );
    std::fs::write(&path, text).unwrap();
    path
}
