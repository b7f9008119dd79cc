//! The script of a batch, with one job per line, and the files that the batch needs.

use flux_shared::agent_spec::BatchLine;
use flux_shared::{command_words, submission};

use super::shell_quote::quote;
use super::{Content, Mode, PlanError, Resolved, Step};

/// Flux's default for `exec.kill-timeout`, in seconds: the time between SIGTERM and SIGKILL when Flux ends a job.
const FLUX_KILL_TIMEOUT: f64 = 5.0;
/// Seconds that the batch's instance needs to shut down.
const SHUTDOWN_RESERVE: f64 = 4.0;
/// Options of `flux submit` without a value. The value of any other option follows a `=` or, if the option is a single
/// letter, the letter; otherwise it is the next word.
const OPTIONS_WITHOUT_VALUE: [&str; 15] = [
    "-l",
    "--label-io",
    "-u",
    "--unbuffered",
    "-v",
    "--verbose",
    "-x",
    "--exclusive",
    "--dry-run",
    "--jps",
    "--list-plugins",
    "--progress",
    "--quiet",
    "--wait",
    "--watch",
];
/// What follows the lines of a batch. It uses only commands of the shell and of Flux: the image may have no others.
const END: &str = r#"
# A line that ends with & may not be submitted yet: its file with the exit code of its submission is missing. Then wait for
# this line. Do not wait for others: what they have left in the background is another program, and may never end.
for flux_agent_line in $flux_agent_background; do
	flux_agent_file=$flux_agent_codes${flux_agent_line%:*}
	[ -e "$flux_agent_file" ] || wait "${flux_agent_line#*:}"
	# Its last process is not its submission if it has two &. The process of that is not known, so wait for all.
	[ -e "$flux_agent_file" ] || wait
done
flux queue idle
flux jobs -a
# `flux job wait` waits for the jobs with the flag `waitable`, and fails if one has failed.
flux_agent_result=0
flux job wait --all || flux_agent_result=1

# A line can have several jobs, so a file marks it as failed. A job that the line itself has named is listed by that name.
flux_agent_failed=
for flux_agent_name in $(flux jobs -n -c 0 -f failed,canceled,timeout -o '{name}'); do
	case $flux_agent_name in
	line-*) echo >"$flux_agent_codes${flux_agent_name#line-}.failed"; continue ;;
	esac
	case " $flux_agent_failed " in
	*" $flux_agent_name "*) ;;
	*) flux_agent_failed="$flux_agent_failed $flux_agent_name" ;;
	esac
done
# If a line's file is missing, the line was not run, for example because its input does not exist.
flux_agent_missing=
for flux_agent_line in $flux_agent_lines; do
	flux_agent_file=$flux_agent_codes$flux_agent_line
	read -r flux_agent_code 2>/dev/null <"$flux_agent_file" || flux_agent_code=1
	[ $flux_agent_code = 0 ] || flux_agent_missing="$flux_agent_missing $flux_agent_line"
	# What follows `&&` or a `|` in a line runs here, and may fail although the line was submitted.
	if [ $flux_agent_code = 0 ] && [ -e "$flux_agent_file.ended" ]; then
		flux_agent_result=1
		echo >"$flux_agent_file.failed"
	fi
	[ ! -e "$flux_agent_file.failed" ] || flux_agent_failed="$flux_agent_failed $flux_agent_line"
done
flux_agent_report() {
	flux_agent_text="$1 ($(($# - 1))):"
	shift
	# 50 keep the line readable.
	flux_agent_left=50
	for flux_agent_name in "$@"; do
		[ $flux_agent_left -gt 0 ] || { flux_agent_text="$flux_agent_text ..."; break; }
		flux_agent_text="$flux_agent_text $flux_agent_name"
		flux_agent_left=$((flux_agent_left - 1))
	done
	[ $# = 0 ] || echo "$flux_agent_text"
}
flux_agent_report 'failed lines' $flux_agent_failed
flux_agent_report 'lines that were not submitted' $flux_agent_missing
[ -z "$flux_agent_missing" ] || flux_agent_result=1
exit $flux_agent_result
"#;

/// The script's path. It is in the pod's own folder, since MiniClusters may share a working directory. Flux names
/// the batch job after the script.
pub fn path(resolved: &Resolved) -> String {
    format!("{}/flux-job.batch", resolved.paths.config_root())
}

/// The step that writes the script.
pub fn file(resolved: &Resolved, text: String) -> Step {
    Step::File {
        path: path(resolved),
        mode: Mode(0o755),
        owner: resolved.identity.owner,
        content: Content::Text(text),
    }
}

/// The option of `flux batch` that makes the brokers of the batch read [`config_file`]. The file gives the batch's jobs
/// the time to end that a program gets, less a reserve for the shutdown of the batch's instance. None if Flux's default
/// is at least as long, or if these brokers may run in pods of another cluster, which lack the file. (If a node is
/// lost, the batch does not take longer to end: the surrounding instance loses the node as well, and does not wait
/// that long.)
pub fn config_option(resolved: &Resolved) -> Option<String> {
    let has_config_file = kill_timeout(resolved).is_some();
    has_config_file.then(|| {
        format!(
            "--broker-opts=--config-path={}",
            resolved.paths.batch_config_dir()
        )
    })
}

/// The step that writes the configuration of the batch's brokers, into the folder that [`config_option`] names.
pub fn config_file(resolved: &Resolved) -> Option<Step> {
    let seconds = kill_timeout(resolved)?;
    let file = Step::File {
        path: format!("{}/exec.toml", resolved.paths.batch_config_dir()),
        mode: Mode(0o644),
        owner: resolved.agent_owner(),
        content: Content::Text(format!("[exec]\nkill-timeout = \"{seconds}s\"\n")),
    };
    Some(file)
}

/// The kill-timeout of the batch's instance, in seconds. None: Flux's default is long enough, or some brokers of
/// the batch may lack the file.
fn kill_timeout(resolved: &Resolved) -> Option<f64> {
    let network = &resolved.spec.network;
    if network.lead.is_some() || network.hostlist.is_some() {
        return None;
    }
    let seconds = super::resolved::time_to_end(resolved) - SHUTDOWN_RESERVE;
    (seconds > FLUX_KILL_TIMEOUT).then_some(seconds)
}

/// The script for a list of jobs. It submits one job per line, with the user's text unchanged. Then it waits until
/// the queue is idle, and lists the jobs. It names the failed lines last: the agent shows only the end of the output.
pub fn script(resolved: &Resolved, lines: &[BatchLine]) -> Result<String, PlanError> {
    let logs = resolved.logs.trim_end_matches('/');
    let submit: Vec<String> = submission::with_empty_input(&resolved.spec.flux.submit_command)
        .iter()
        .map(|word| quote(word))
        .collect();
    let submit = submit.join(" ");
    let numbers: Vec<String> = lines.iter().map(|line| line.number.to_string()).collect();
    let numbers = numbers.join(" ");
    let mut script = resolved.shebang("the batch script")?;
    // A function, and not a check of `$?` after each line: the rest of a line, such as a pipe, is the user's own. In a
    // pipe or with `&`, the function runs in a subshell. So it leaves the exit code in a file, not in a variable. The
    // file is in the folder of the batch's broker, which removes the folder. A second function notes a line that ended with
    // another status than 0, and the last process that a line has started in the background.
    script += &format!(
        "flux_agent_lines='{numbers}'\n\
         flux_agent_codes=${{FLUX_URI#local://}}.line-\n\
         flux_agent_submit() {{\n\
         \tflux_agent_line=$1\n\
         \tshift\n\
         \t{submit} --flags waitable --job-name=\"line-$flux_agent_line\" \"$@\"\n\
         \tflux_agent_code=$?\n\
         \techo $flux_agent_code >\"$flux_agent_codes$flux_agent_line\"\n\
         \t[ $flux_agent_code = 0 ] || echo \"line $flux_agent_line was not submitted\" >&2\n\
         \treturn $flux_agent_code\n\
         }}\n\
         flux_agent_background= flux_agent_process=\n\
         flux_agent_after() {{\n\
         \t[ \"$2\" = 0 ] || echo >\"$flux_agent_codes$1.ended\"\n\
         \t[ \"$3\" = \"$flux_agent_process\" ] || flux_agent_background=\"$flux_agent_background $1:$3\"\n\
         \tflux_agent_process=$3\n\
         }}\n"
    );
    for BatchLine { number, text } in lines {
        // Flux replaces `{cc}` by the copy's number. Otherwise all copies would write to one file.
        let copy = if has_copies(text) { "-{cc}" } else { "" };
        let output = |suffix: &str| quote(&format!("{logs}/job-{number}{copy}.{suffix}"));
        let (err, out) = (output("err"), output("out"));
        script += &format!("flux_agent_submit {number} --error={err} --output={out} {text}\n");
        script += &format!("flux_agent_after {number} \"$?\" \"${{!-}}\"\n");
    }
    script += END;
    Ok(script)
}

/// Whether a line's options submit several copies of the job: `--cc` or `--bcc` before the command.
fn has_copies(line: &str) -> bool {
    // The text need not be valid here: only a shell reads all of it.
    let mut words = command_words::split_literal(line).unwrap_or_default().into_iter();
    while let Some(word) = words.next() {
        let (name, has_value) = match word.split_once('=') {
            Some((name, _)) => (name, true),
            None => (word.as_str(), false),
        };
        if ["--cc", "--bcc"].contains(&name) {
            return true;
        }
        if !name.starts_with('-') || name == "--" {
            return false;
        }
        let has_value = has_value || !name.starts_with("--") && name.len() > 2;
        if !has_value && !OPTIONS_WITHOUT_VALUE.contains(&name) {
            words.next();
        }
    }
    false
}

/// The options for `flux batch` in the directives of a script: lines such as `# flux: -N 2` (RFC 36). Options of the
/// command line override them.
pub fn directives(script: &str) -> Vec<String> {
    let options = script.lines().filter_map(|line| {
        let line = line.trim_start_matches(|letter: char| !letter.is_alphanumeric() && letter != '_');
        line.strip_prefix("flux:").or_else(|| line.strip_prefix("FLUX:"))
    });
    let words = options.flat_map(|options| {
        let words = command_words::split_leniently(options);
        words.into_iter().take_while(|word| !word.starts_with('#'))
    });
    words.collect()
}

/// Whether one of these options sets the number of nodes or slots.
pub fn sets_size(options: &[String]) -> bool {
    options.iter().any(|option| {
        let name = option.split('=').next().unwrap_or_default();
        let is_short = ["-n", "-N"].iter().any(|short| option.starts_with(short));
        is_short || ["--nslots", "--nodes"].contains(&name)
    })
}

/// Whether one of these options makes the batch's brokers read another configuration.
pub fn sets_config(options: &[String]) -> bool {
    let values = options.iter().enumerate().filter_map(|(position, option)| {
        let rest = option.strip_prefix("--broker-opt")?;
        match rest.strip_prefix('s').unwrap_or(rest) {
            "" => options.get(position + 1).map(String::as_str),
            rest => rest.strip_prefix('='),
        }
    });
    let mut words = values.flat_map(|value| value.split(','));
    words.any(|word| word.starts_with("-c") || word.starts_with("--config"))
}

/// The user's own script, with a `#!` line if it has none, and a newline at its end.
pub fn raw(resolved: &Resolved, text: &str) -> Result<String, PlanError> {
    let mut script = super::snippets::with_shebang(resolved, text, "the batch script")?;
    if !script.ends_with('\n') {
        script.push('\n');
    }
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use flux_shared::agent_spec::AgentSpec;

    #[test]
    fn each_copy_of_a_line_has_its_own_output_files() {
        let submitted = |text: &str| {
            let spec = AgentSpec::from_toml("name='mc'\n[runner]\nlogs='/out'").unwrap();
            let facts = Facts::default();
            let line = BatchLine {
                number: 0,
                text: text.to_owned(),
            };
            let script = script(&Resolved::new(&spec, &facts).unwrap(), &[line]).unwrap();
            let prefix = "flux_agent_submit 0 ";
            let line = script.lines().find_map(|line| line.strip_prefix(prefix));
            line.unwrap().to_owned()
        };
        for text in [
            "--cc=1-3 echo $FLUX_JOB_CC",
            "--bcc 1-3 true",
            "-n 4 -c2 -x --quiet --job-name='a b' --env A=b --cc=1-3 true",
        ] {
            assert_eq!(
                submitted(text),
                format!("--error='/out/job-0-{{cc}}.err' --output='/out/job-0-{{cc}}.out' {text}")
            );
        }
        for text in [
            "echo --cc=1",
            "-n 4 echo --cc 1",
            "-x echo --bcc=1",
            "-- echo --cc=1",
            "sh -c 'true --cc=1'",
            "echo 'not closed --cc=1",
        ] {
            assert_eq!(
                submitted(text),
                format!("--error=/out/job-0.err --output=/out/job-0.out {text}")
            );
        }
    }
}
