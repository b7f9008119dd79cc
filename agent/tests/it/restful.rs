//! The Flux RESTful API, started from a repository that starts up like the real one: a list of requirements,
//! alembic, a script for the database, and `app.main:app` for uvicorn. Needs git, and python3 with pip.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::image::{agent, folder};
use crate::live::eventually;

/// A fake uvicorn. It listens, answers every request with what it was started with, and, like the real API,
/// prints output that nobody should see. It fails if its logging configuration is not JSON.
const UVICORN: &str = r#"
import asyncio, json, os, sys
options = dict(word.lstrip("-").split("=") for word in sys.argv[2:])
names = ["FLUX_USER", "FLUX_TOKEN", "FLUX_SECRET_KEY", "FLUX_REQUIRE_AUTH", "FLUX_NUMBER_NODES", "FLUX_OPTION_FLAGS"]
async def answer(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    body = json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "db": open("flux-restful.db").read(),
        **{name: os.environ.get(name) for name in names}})
    writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + body.encode())
    await writer.drain()
    writer.close()
async def serve():
    server = await asyncio.start_server(answer, host=options["host"], port=int(options["port"]))
    await server.serve_forever()
print("serving with", os.environ["FLUX_TOKEN"], flush=True)
json.load(open(options["log-config"]))
asyncio.run(serve())
"#;
/// Like the real script it parses its arguments with argparse. It also reports which process shows a password
/// to other processes.
const DATABASE: &str = r#"
import argparse, glob, sys
parser = argparse.ArgumentParser()
commands = parser.add_subparsers(dest="command")
user = commands.add_parser("add-user")
user.add_argument("username")
user.add_argument("password")
commands.add_parser("init")
words, _ = parser.parse_known_args()
told = [words.command] + ([words.username, words.password] if words.command == "add-user" else [])
if words.command == "add-user":
    for name in glob.glob("/proc/[0-9]*/cmdline") + ["/proc/self/environ"]:
        try:
            if words.password in open(name, errors="replace").read():
                told.append("shown in " + name)
        except OSError:
            pass
if __name__ == "__main__":
    open('flux-restful.db', 'a').write(' '.join(told) + '\n')
"#;
const ALEMBIC: &str = "import sys\nopen('flux-restful.db', 'a').write('alembic ' + sys.argv[1] + '\\n')\n";

fn run(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// The repository, with one branch.
fn repository(at: &Path) -> PathBuf {
    let place = at.join("repository");
    for (name, text) in [
        ("requirements.txt", ""),
        ("uvicorn/__main__.py", UVICORN),
        ("alembic/__main__.py", ALEMBIC),
        ("app/db/init_db.py", DATABASE),
    ] {
        let file = place.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command
            .args(["-c", "user.name=test", "-c", "user.email=test@localhost"])
            .args(words)
            .current_dir(&place);
        assert!(run(&mut command).status.success(), "git {words:?}; git is needed");
    };
    git(&["init", "--quiet", "--initial-branch=main"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message=all"]);
    place
}

/// A password that no other process of this machine has on its command line. It begins with a dash, so the script
/// takes it for an option unless `--` precedes it.
const PASSWORD: &str = "-butter-by-the-bucket";

struct Server {
    top: tempfile::TempDir,
    port: u16,
}

impl Server {
    fn new() -> Server {
        let top = folder();
        let keys = top.path().join("restful");
        fs::create_dir_all(keys.join("users")).unwrap();
        for (name, text) in [
            ("secret-key", "key"),
            ("username", "flux"),
            ("token", "t0ken"),
            ("users/ada", PASSWORD),
        ] {
            fs::write(keys.join(name), text).unwrap();
        }
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        Server { top, port }
    }

    fn command(&self, repository: &Path, branch: &str) -> Command {
        let mut command = Command::new(agent());
        command.arg("restful").arg(format!(
            "--directory={}",
            self.top.path().join("restful").display()
        ));
        command
            .arg(format!("--repository={}", repository.display()))
            .arg(format!("--branch={branch}"));
        command.args([&format!("--port={}", self.port), "--nodes=4", "--user=ada"]);
        command
            .arg("--option-flags=-ompi=openmpi@5")
            .env("FLUX_OPTION_FLAGS", "-ocpu-affinity=off");
        command.env_remove("PYTHONPATH");
        command
    }

    fn answer(&self, child: &mut Child) -> serde_json::Value {
        let text = eventually("the server answers", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("it ended with {status}");
            }
            get(("127.0.0.1", self.port))
        });
        // Also over IPv6 if available.
        if TcpListener::bind("[::1]:0").is_ok() {
            assert!(get(("::1", self.port)).is_some(), "no answer by IPv6");
        }
        serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap()
    }
}

fn get(address: (&str, u16)) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

fn stop(mut child: Child) -> Option<i32> {
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    child.wait().unwrap().code()
}

#[test]
fn restful_api_is_fetched_once_and_served_until_a_signal() {
    let server = Server::new();
    let repository = repository(server.top.path());
    for round in 0..2 {
        let mut child = server
            .command(&repository, "main")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = child.stdout.take().unwrap();
        let answer = server.answer(&mut child);
        assert_eq!(answer["FLUX_TOKEN"], "t0ken");
        assert_eq!(
            (&answer["FLUX_USER"], &answer["FLUX_SECRET_KEY"]),
            (&"flux".into(), &"key".into())
        );
        assert_eq!(
            (&answer["FLUX_REQUIRE_AUTH"], &answer["FLUX_NUMBER_NODES"]),
            (&"true".into(), &"4".into())
        );
        assert_eq!(answer["FLUX_OPTION_FLAGS"], "-ocpu-affinity=off -ompi=openmpi@5");
        assert_eq!(answer["argv"][0], "app.main:app");
        let made = format!("alembic revision\nalembic upgrade\ninit\nadd-user ada {PASSWORD}\n");
        assert_eq!(answer["db"], made, "round {round}");
        assert_eq!(stop(child), Some(128 + 15));
        let mut text = String::new();
        printed.read_to_string(&mut text).unwrap();
        assert!(!text.contains("t0ken"), "{text}");
        // The second round finds no repository: a restart fetches nothing again. (There, this rename fails.)
        fs::rename(&repository, repository.with_file_name("away")).unwrap_or(());
    }
}

#[test]
fn pinned_commit_is_served_though_the_branch_has_moved() {
    let server = Server::new();
    let repository = repository(server.top.path());
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command
            .args(["-c", "user.name=test", "-c", "user.email=test@localhost"])
            .args(words)
            .current_dir(&repository);
        let output = run(&mut command);
        assert!(output.status.success(), "git {words:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let pinned = git(&["rev-parse", "HEAD"]);
    fs::write(
        repository.join("uvicorn/__main__.py"),
        "raise SystemExit('changed by somebody')",
    )
    .unwrap();
    git(&["commit", "--quiet", "--all", "--message=changed"]);
    let mut command = server.command(&repository, "main");
    let mut child = command
        .arg(format!("--commit={pinned}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(server.answer(&mut child)["argv"][0], "app.main:app");
    assert_eq!(stop(child), Some(128 + 15));
}

#[test]
fn restful_api_failure_is_one_line_without_secrets() {
    let server = Server::new();
    let repository = repository(server.top.path());
    let assert_fails = |command: &mut Command, code: i32, text: &str| {
        let output = run(command.stdout(Stdio::null()).stderr(Stdio::piped()));
        let messages = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{messages}");
        let lines: Vec<&str> = messages.lines().filter(|line| line.contains(text)).collect();
        assert_eq!(lines.len(), 1, "{messages}");
        assert!(
            !messages.contains(PASSWORD) && !messages.contains("t0ken"),
            "{messages}"
        );
    };
    assert_fails(
        &mut server.command(&repository, "nowhere"),
        128,
        "failed to fetch",
    );
    assert_fails(
        server.command(&repository, "main").env("PATH", "/nowhere"),
        127,
        "needs git",
    );
    let only_git = server.top.path().join("bin");
    fs::create_dir(&only_git).unwrap();
    let git = run(Command::new("sh").args(["-c", "command -v git"]));
    let git = String::from_utf8(git.stdout).unwrap();
    std::os::unix::fs::symlink(git.trim(), only_git.join("git")).unwrap();
    assert_fails(
        server.command(&repository, "main").env("PATH", &only_git),
        127,
        "needs python3",
    );
    fs::write(repository.join("requirements.txt"), "no-such-module-of-ours\n").unwrap();
    let commit = [
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@l",
        "commit",
        "--quiet",
        "--all",
        "--message=more",
    ];
    assert!(
        run(Command::new("git").args(commit).current_dir(&repository))
            .status
            .success()
    );
    let mut command = server.command(&repository, "main");
    assert_fails(
        command
            .env("PIP_INDEX_URL", "http://127.0.0.1:9/")
            .env("PIP_RETRIES", "0"),
        1,
        "failed to install",
    );
}
