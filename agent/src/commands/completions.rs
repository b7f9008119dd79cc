//! Completions for a shell: the subcommands and their options, as clap knows them. Written by hand: in bash,
//! `clap_complete` (4.6.11) completes nothing after a subcommand if the program's name has a hyphen (clap issue 6421).

use clap::Command;

/// A shell that completions are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CompletionShell {
    Bash,
    Fish,
    Zsh,
}

/// The script that `source <(flux-agent completions bash)` reads. `command` is the whole command line.
pub fn script(shell: CompletionShell, command: &Command) -> String {
    let join = |names: &mut dyn Iterator<Item = String>| names.collect::<Vec<String>>().join(" ");
    let commands = || command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let subcommands = join(&mut commands().map(|sub| sub.get_name().to_owned()));
    let options = |sub: &Command| {
        let shown = sub.get_arguments().filter(|argument| !argument.is_hide_set());
        join(&mut shown.filter_map(|argument| Some(format!("--{}", argument.get_long()?))))
    };
    if shell == CompletionShell::Fish {
        let mut text = format!("complete -c flux-agent -f -n __fish_use_subcommand -a '{subcommands}'\n");
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
    text += &format!("  esac\n  [ \"$COMP_CWORD\" -gt 1 ] || words='{subcommands}'\n");
    text + "  COMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n}\n\
            complete -o default -F _flux_agent flux-agent\n"
}
