//! Helpers for the tests of several modules.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{SigSet, Signal, kill};
use test_support::waiting::eventually;

/// The variable with a test's folder. It is set in the separate process of that test.
pub const FOLDER_VARIABLE: &str = "FLUX_AGENT_TEST_FOLDER";

/// Runs `work`, the body of the test with the path `test`, in a separate process, since a supervisor receives all
/// signals and waits for all children. For this, that process runs the test again. Returns the output of that process;
/// empty in that process itself.
pub fn alone(test: &str, work: impl FnOnce(&Path)) -> String {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        work(Path::new(&folder));
        return String::new();
    }
    let folder = tempfile::tempdir().unwrap();
    let before = SigSet::thread_get_mask().unwrap();
    // All threads of the separate process inherit this mask. `signals::block` there would be too late for the
    // threads of the test harness.
    SigSet::all().thread_block().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(FOLDER_VARIABLE, folder.path());
    let done = command.output();
    before.thread_set_mask().unwrap();
    let done = done.unwrap();
    let output = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && output.contains("1 passed"), "{output}");
    output
}

/// Runs a future to its end on a runtime of its own.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// Changes to a user without other processes. Unlike root's, its processes can be limited. `folder` stays
/// writable.
pub fn become_user(uid: u32, folder: &Path) {
    std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    nix::unistd::setuid(nix::unistd::Uid::from_raw(uid)).unwrap();
}

/// Lets this process, the only one of its user, have `more` additional threads and children.
pub fn allow_processes(more: u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    let threads: u64 = threads.unwrap().trim().parse().unwrap();
    let limit = nix::sys::resource::Resource::RLIMIT_NPROC;
    let (_, hard) = nix::sys::resource::getrlimit(limit).unwrap();
    nix::sys::resource::setrlimit(limit, threads + more, hard).unwrap();
}

/// Sends a signal to this process from another one.
pub fn signal_from_another_process(signal: Signal) {
    let number = signal as i32;
    let script = format!("kill -{number} $PPID");
    // A supervisor of this process may wait for the child before this does: then there is no status.
    let _ = Command::new("/bin/sh").args(["-c", &script]).status();
}

/// Sends a signal to this process. As a second stop, it counts for nothing: the sender is this process.
pub fn signal(signal: Signal) {
    kill(nix::unistd::Pid::this(), signal).unwrap();
}

/// Sends SIGTERM to this process once `path` exists.
pub fn stop_after(path: PathBuf) {
    std::thread::spawn(move || {
        eventually("the program runs", || path.exists().then_some(()));
        signal(Signal::SIGTERM);
    });
}
