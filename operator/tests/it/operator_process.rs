//! The operator's program itself, as a process with its own log.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use test_support::api_server::operator_kubeconfig;

/// The program, until this is dropped.
pub struct OperatorProcess {
    child: Child,
    address: String,
}

impl OperatorProcess {
    pub fn start(namespace: &str, log: &str, errors: Stdio) -> OperatorProcess {
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .to_string();
        let child = Command::new(env!("CARGO_BIN_EXE_flux-operator"))
            .env("FLUX_AGENT_IMAGE", "agent:test")
            .args([
                "run",
                "--log",
                log,
                "--namespace",
                namespace,
                "--health",
                &address,
            ])
            .env("KUBECONFIG", operator_kubeconfig())
            .stdin(Stdio::null())
            .stderr(errors)
            .spawn()
            .unwrap();
        OperatorProcess { child, address }
    }

    /// All that it logs, once it has ended. It was started with a pipe for it.
    pub fn log(&mut self) -> JoinHandle<String> {
        let log = self.child.stderr.take().unwrap();
        std::thread::spawn(move || std::io::read_to_string(log).unwrap())
    }

    /// The most memory that it ever had, in bytes.
    pub fn memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    pub fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
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
