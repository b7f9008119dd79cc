//! The operator's program as a separate process.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

/// A running operator, which is killed when this is dropped.
pub struct OperatorProcess {
    child: Child,
    address: String,
}

impl OperatorProcess {
    /// Starts `flux-operator run` with these arguments. `errors` gets its log.
    pub fn start(
        program: &Path,
        kubeconfig: impl AsRef<OsStr>,
        arguments: &[&str],
        errors: Stdio,
    ) -> OperatorProcess {
        // A free port: the listener is closed at once.
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .to_string();
        let child = Command::new(program)
            .env("FLUX_AGENT_IMAGE", "agent:test")
            .args(["run", "--health", &address])
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .stderr(errors)
            .spawn()
            .unwrap();
        OperatorProcess { child, address }
    }

    /// The address of its health checks and metrics.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The whole log, which is complete when the program has ended. [`OperatorProcess::start`] must have got a pipe as
    /// `errors`.
    pub fn log(&mut self) -> JoinHandle<String> {
        let log = self.child.stderr.take().unwrap();
        std::thread::spawn(move || std::io::read_to_string(log).unwrap())
    }

    /// A field of /proc/PID/status in KiB, such as `VmHWM` (the peak of the memory in use).
    pub fn memory_kib(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// The HTTP response with the metrics.
    pub fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        // The operator closes the connection after its answer.
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for OperatorProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
