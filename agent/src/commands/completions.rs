//! Completions for a shell: the subcommands and their options, from the command line's own description. By
//! hand, since `clap_complete` (4.6.11) completes nothing in bash behind a subcommand of a program with a
//! hyphen in its name (clap issue 6421).

use clap::Command;

/// A shell that completions are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CompletionShell {
    Bash,
    Fish,
    Zsh,
}

/// The script of completions, to be sourced: `source <(flux-agent completions bash)`.
pub fn script(shell: CompletionShell, command: &Command) -> String {
    let words = |names: &mut dyn Iterator<Item = String>| names.collect::<Vec<String>>().join(" ");
    let commands = || command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let all = words(&mut commands().map(|sub| sub.get_name().to_owned()));
    let options = |sub: &Command| {
        let shown = sub.get_arguments().filter(|argument| !argument.is_hide_set());
        words(&mut shown.filter_map(|argument| Some(format!("--{}", argument.get_long()?))))
    };
    if shell == CompletionShell::Fish {
        let mut text = format!("complete -c flux-agent -f -n __fish_use_subcommand -a '{all}'\n");
        for sub in commands() {
            let (name, options) = (sub.get_name(), options(sub));
            text +=
                &format!("complete -c flux-agent -n '__fish_seen_subcommand_from {name}' -a '{options}'\n");
        }
        return text;
    }
    let mut text = String::from(if shell == CompletionShell::Zsh {
        "autoload -U +X bashcompinit && bashcompinit\n"
    } else {
        ""
    });
    text += "_flux_agent() {\n  local words\n  case ${COMP_WORDS[1]} in\n";
    for sub in commands() {
        text += &format!("  {}) words='{}' ;;\n", sub.get_name(), options(sub));
    }
    text += &format!("  esac\n  [ \"$COMP_CWORD\" -gt 1 ] || words='{all}'\n");
    text + "  COMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n}\n\
            complete -o default -F _flux_agent flux-agent\n"
}
