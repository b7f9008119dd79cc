//! Users in Flux Accounting, with a `flux` that records its arguments.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use crate::image::{agent, folder};

struct Instance(tempfile::TempDir);

impl Instance {
    /// An instance whose `flux` fails if its arguments contain `fails`.
    fn new(fails: &str) -> Instance {
        let top = folder();
        let flux = top.path().join("flux");
        let record = top.path().join("said");
        let text = format!(
            "#!/bin/sh\necho \"$@\" >>{}\ncase \"$*\" in *{fails}*) exit 5 ;; esac\n",
            record.display()
        );
        fs::write(&flux, text).unwrap();
        fs::set_permissions(&flux, fs::Permissions::from_mode(0o755)).unwrap();
        Instance(top)
    }

    fn run(&self) -> Output {
        let path = format!("{}:{}", self.0.path().display(), std::env::var("PATH").unwrap());
        let database = format!("--database={}/db", self.0.path().display());
        let mut command = Command::new(agent());
        command.args([
            "accounting",
            &database,
            "--user=ada",
            "--user=bob",
            "--",
            "sh",
            "-c",
            "echo job; exit 3",
        ]);
        command.env("PATH", path).output().unwrap()
    }

    fn take_record(&self) -> String {
        let text = fs::read_to_string(self.0.path().join("said")).unwrap();
        fs::remove_file(self.0.path().join("said")).unwrap();
        text.replace(&format!("{}/", self.0.path().display()), "")
    }
}

#[test]
fn users_are_added_once_and_command_code_is_kept() {
    let instance = Instance::new("nothing");
    let output = instance.run();
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(3), b"job\n".as_slice())
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("ada, bob are in Flux Accounting"));
    let want = "account -p db create-db\naccount-service --test-background -p db\naccount -p db add-bank root 1\n\
                account -p db add-bank --parent-bank=root default 1\naccount -p db add-user --username ada --bank default\n\
                account -p db add-user --username bob --bank default\n";
    assert_eq!(instance.take_record(), want);
    // In a second run of the container, the database exists.
    fs::write(instance.0.path().join("db"), "").unwrap();
    assert_eq!(instance.run().status.code(), Some(3));
    assert_eq!(instance.take_record(), VIEWS);
}

/// The commands of a run that finds everything in the database.
const VIEWS: &str = "account-service --test-background -p db\naccount -p db view-bank root\n\
                     account -p db view-bank default\naccount -p db view-user ada\naccount -p db view-user bob\n";

#[test]
fn missing_user_is_added_when_the_database_exists() {
    // `?` matches the blank, which a pattern of `case` cannot contain unquoted.
    let instance = Instance::new("view-user?bob");
    fs::write(instance.0.path().join("db"), "").unwrap();
    let output = instance.run();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("ada, bob are in Flux Accounting"));
    let add = "account -p db add-user --username bob --bank default\n";
    assert_eq!(instance.take_record(), format!("{VIEWS}{add}"));
}

#[test]
fn failed_accounting_logs_one_line_and_command_runs() {
    let instance = Instance::new("root");
    let output = instance.run();
    assert_eq!(output.status.code(), Some(3));
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        messages.contains("failed to add the users to Flux Accounting") && messages.contains("code 5"),
        "{messages}"
    );
    assert_eq!(messages.lines().count(), 1, "{messages}");
}
