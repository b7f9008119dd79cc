//! Idioms of public manifests: their result with the Go operator, from its code, and their result here, from a
//! run. Rows that differ are in docs/migrating.md or docs/COMPATIBILITY.md.

use std::fmt::Write as _;

use super::{codes, minicluster};

/// The result of an idiom with the newest Go operator. If the operator of 2024 gave another one, `Other` has that too:
/// most of the public manifests are from that year.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Go {
    /// The same result as here.
    Same,
    /// Another result, in words.
    Other(&'static str),
}
use Go::{Other, Same};

struct Row {
    idiom: &'static str,
    go: Go,
    size: u32,
    /// Fields of `spec.logging` in addition to `quiet`.
    fields: &'static str,
    container: &'static str,
    /// Exit code and standard output of the lead.
    here: (i32, &'static str),
}

const fn row(
    idiom: &'static str,
    go: Go,
    size: u32,
    container: &'static str,
    here: (i32, &'static str),
) -> Row {
    Row {
        idiom,
        go,
        size,
        fields: "",
        container,
        here,
    }
}

const fn with(row: Row, fields: &'static str) -> Row {
    Row { fields, ..row }
}

const ROWS: &[Row] = &[
    row(
        "a snippet reads ${viewroot} and ${hosts}",
        Same,
        2,
        "launcher: true\ncommand: cat /tmp/seen\ncommands:\n  \
        pre: echo $viewroot ${hosts} >/tmp/seen\n",
        (0, "/mnt/flux/view mc-[0-1]\n"),
    ),
    row(
        "the same in init",
        Other("empty"),
        2,
        "launcher: true\ncommand: cat /tmp/seen\ncommands:\n  \
        init: echo $viewroot ${hosts} >/tmp/seen\n",
        (0, "/mnt/flux/view mc-[0-1]\n"),
    ),
    row(
        "R by written-out path and hosts",
        Other("2024: used; newest: ignored below view"),
        2,
        "launcher: true\n\
        command: flux resource list -no '{nnodes} {ncores}'\ncommands:\n  \
        pre: flux R encode --hosts=mc-[0-1] --cores=0 >/mnt/flux/view/etc/flux/system/R\n",
        (0, "2 2\n"),
    ),
    row(
        "R below ${configroot} in init",
        Other("overwritten"),
        2,
        "launcher: true\n\
        command: flux resource list -no '{nnodes} {ncores}'\ncommands:\n  \
        init: flux R encode --hosts=${hosts} --cores=0-1 >${configroot}/etc/flux/system/R\n",
        (0, "2 4\n"),
    ),
    row(
        "post reads a file that only the lead has",
        Same,
        2,
        "command: sh -c 'echo recorded >/tmp/out'\ncommands:\n  \
        post: cat /tmp/out\n",
        (0, "recorded\n"),
    ),
    row(
        "post fails on every pod",
        Same,
        2,
        "command: echo ran\ncommands:\n  post: cat /tmp/nowhere\n",
        (0, "ran\n"),
    ),
    row(
        "a failing program with a post",
        Other("exit code 0"),
        1,
        "command: sh -c 'exit 3'\ncommands:\n  \
        post: echo post\n",
        (3, "post\n"),
    ),
    // `$NOW` is not set, so the script has `<>`. `sed` removes this, and the pipe to `tr`.
    row(
        "an unescaped variable in a here-document",
        Same,
        1,
        "launcher: true\ncommand: sh /tmp/run.sh\ncommands:\n  \
        pre: |\n    cat <<EOT >/tmp/run.sh\n    X=\\$(echo later)\n    echo <$NOW> \\$X | tr -d '<>'\n    EOT\n    \
        sed -i 's/<>//;s/ | tr.*//' /tmp/run.sh\n",
        (0, "later\n"),
    ),
    row(
        "a profile script reads variables that are not set",
        Same,
        1,
        "command: sh -c 'echo $MANPATH'\ncommands:\n  \
        pre: |\n    [ -z \"$SPACK_ROOT\" ] && SPACK_ROOT=/opt\n    if [ \"$PS1\" ]; then :; fi\n    \
        export MANPATH=/a:$MANPATH\n",
        (0, "/a:\n"),
    ),
    row(
        "a failing command in pre",
        Other("the program runs all the same"),
        1,
        "command: echo ran\ncommands:\n  \
        pre: cat /nowhere\n",
        (1, ""),
    ),
    with(
        row(
            "the same with strict: false",
            Same,
            1,
            "command: echo ran\ncommands:\n  pre: cat /nowhere\n",
            (0, "ran\n"),
        ),
        "strict: false",
    ),
    row(
        "asFlux as sudo",
        Other("ignored"),
        1,
        "command: sh -c 'echo $OWN'\ncommands:\n  \
        pre: asFlux=\"sudo -u root -E OWN=mine\"\n",
        (0, "mine\n"),
    ),
    row(
        "export, unset, cd and a function in pre",
        Same,
        1,
        "launcher: true\ncommand: sh -c 'echo $A$B $PWD'\n\
        environment: {B: b}\ncommands:\n  pre: export A=a; unset B; cd /tmp\n",
        (0, "a /tmp\n"),
    ),
    row(
        "a background process in pre",
        Same,
        1,
        "launcher: true\ncommand: sh -c 'sleep 1; cat /tmp/late'\ncommands:\n  \
        pre: (sleep 0.2; echo late >/tmp/late) &\n",
        (0, "late\n"),
    ),
    row(
        "post of the lead alone",
        Same,
        2,
        "command: echo ran\ncommands:\n  \
        post: 'if [[ ${JOB_COMPLETION_INDEX} -eq 0 ]]; then echo lead; fi'\n",
        (0, "ran\nlead\n"),
    ),
    row(
        "$NAME in command",
        Same,
        1,
        "launcher: true\ncommand: echo $MINE\ncommands: {init: export MINE=word}\n",
        (0, "word\n"),
    ),
    row(
        "$(...) in command",
        Other("run by the entrypoint"),
        1,
        "launcher: true\ncommand: echo $(hostname)\n",
        (0, "$(hostname)\n"),
    ),
    row(
        "quotes in command",
        Other("an interactive cluster"),
        1,
        "launcher: true\ncommand: sh -c \"echo a b\"\n",
        (0, "a b\n"),
    ),
    row(
        "several lines in command",
        Same,
        1,
        "launcher: true\ncommand: |\n  echo one\n  two\n",
        (0, "one two\n"),
    ),
    row(
        "commands.script with escaped variables",
        Same,
        1,
        "launcher: true\ncommands:\n  script: |\n    #!/bin/sh\n    \
        A=a\n    echo \\${A}\n",
        (0, "a\n"),
    ),
    row(
        "a batch whose post reads its output",
        Same,
        2,
        "batch: true\ncommand: |\n  echo hello\ncommands:\n  \
        post: cat /tmp/fluxout/job-0.out\n",
        (0, "hello\n"),
    ),
    row(
        "brokerOptions that a snippet adds",
        Same,
        1,
        "launcher: true\ncommand: flux getattr log-level\ncommands:\n  \
        pre: brokerOptions=\"$brokerOptions -Slog-level=3\"\n",
        (0, "3\n"),
    ),
    row(
        "ulimit into a file that shells read",
        Same,
        1,
        "command: echo ran\ncommands:\n  \
        pre: mkdir -p /root && echo 'ulimit -n 256' >>/root/.bashrc\n",
        (0, "ran\n"),
    ),
];

#[test]
fn idiom_of_public_manifests_ends_as_listed() {
    let (mut wrong, mut table) = (String::new(), String::new());
    for row in ROWS {
        let pods = minicluster(
            row.size,
            &format!("logging: {{quiet: true, {}}}", row.fields),
            row.container,
        );
        for image in &pods.images {
            image.with_programs(&["sed"]);
        }
        let ended = pods.run();
        let followers = &codes(&ended)[1..];
        let got = (ended[0].code, ended[0].stdout.as_str());
        writeln!(table, "{}: Go {:?}; here {:?}", row.idiom, row.go, got).unwrap();
        if got != row.here || followers.iter().any(|code| *code != 0) {
            writeln!(
                wrong,
                "{}: want {:?}, got {got:?}, followers {followers:?}\n{}",
                row.idiom, row.here, ended[0].stderr
            )
            .unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}\n{table}");
}
