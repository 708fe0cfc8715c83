//! `forebay completions SHELL`: prints a script that makes the shell ask this program for words,
//! which `complete` provides.

use clap_complete::Shell;
use clap_complete::env::Shells;
use forebay_admin::MessageId;

use crate::failure::{Failure, system};
use crate::screen;

/// Variable that selects the completion engine.
const VARIABLE: &str = "COMPLETE";
/// zsh runs the file of a command's first completion as that completion. No blank follows `KEY=`:
/// the value comes next.
const MORE_OF_ZSH: &str = r#"
_forebay_describe() {
    setopt localoptions extendedglob
    local -a open=(${(M)other:#[^:]##=(|:*)}) whole=(${other:#[^:]##=(|:*)})
    [[ -n $open ]] && _describe -V 'values' open -S ''
    [[ -n $whole ]] && _describe -V 'values' whole
}

[ "$funcstack[1]" = "_forebay" ] && _clap_dynamic_completer_forebay "$@"
"#;
/// Function with which the script of zsh shows words, and its replacement from [`MORE_OF_ZSH`].
const DESCRIBE: [&str; 2] = ["_describe -V 'values' other", "_forebay_describe"];
/// Readline also splits a line at `=` and `:`, and keeps the text before the last of them. forebay
/// expects whole words.
const MORE_OF_BASH: &str = r#"
_forebay() {
    local at word gap whole line=${COMP_LINE:0:COMP_POINT} words=()
    for ((at = 0; at <= COMP_CWORD; at++)); do
        gap=${line%%[^[:space:]]*}
        line=${line#"$gap"}
        word=${COMP_WORDS[at]}
        [[ $at -lt $COMP_CWORD ]] || word=$line
        line=${line#"$word"}
        if [[ $at -gt 0 && -z $gap ]]; then
            words[${#words[@]}-1]+=$word
        else
            words+=("$word")
        fi
    done
    whole=${words[${#words[@]}-1]}
    local COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1))
    _clap_complete_forebay "$1" "$whole" "$3"
    local breaks=${COMP_WORDBREAKS//[^=:]/}
    [[ -z $breaks || $whole != *[$breaks]* ]] || COMPREPLY=("${COMPREPLY[@]#"${whole%"${whole##*[$breaks]}"}"}")
}
complete -o nospace -o bashdefault -o nosort -F _forebay forebay 2>/dev/null ||
    complete -o nospace -o bashdefault -F _forebay forebay
"#;

/// Options of `forebay completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The shell asks forebay for words: volumes, pools, jobs and alarms that the daemon knows, settings and their values.
Example: forebay completions bash > ~/.local/share/bash-completion/completions/forebay")]
pub(crate) struct Options {
    /// The shell to complete for
    shell: Shell,
}

/// Prints the script.
pub(crate) fn execute(options: &Options) -> Result<(), Failure> {
    let name = options.shell.to_string();
    let shells = Shells::builtins();
    let shell = shells
        .completer(&name)
        .ok_or_else(|| Failure::new(MessageId::CliUnsupported, format!("{name}: is not supported")))?;
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, "forebay", "forebay", "forebay", &mut script)
        .map_err(system("completions"))?;
    screen::print(&finished(options.shell, &String::from_utf8_lossy(&script)))
}

/// Returns the script with the additions that the shells need.
fn finished(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Zsh => script.replace(DESCRIBE[0], DESCRIBE[1]) + MORE_OF_ZSH,
        Shell::Bash => script.to_owned() + MORE_OF_BASH,
        _ => script.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shells themselves test their effect (`tests/e2e/test_completions.py`).
    #[test]
    fn completion_scripts_are_adapted() {
        let script = |shell: Shell| {
            let (mut script, shells) = (Vec::new(), Shells::builtins());
            let completer = shells.completer(&shell.to_string()).unwrap();
            completer.write_registration(VARIABLE, "forebay", "forebay", "forebay", &mut script).unwrap();
            finished(shell, &String::from_utf8(script).unwrap())
        };
        let zsh = script(Shell::Zsh);
        assert_eq!((zsh.matches(DESCRIBE[0]).count(), zsh.matches(DESCRIBE[1]).count()), (0, 2), "{zsh}");
        assert!(script(Shell::Bash).contains("\n_clap_complete_forebay() {"));
    }
}
