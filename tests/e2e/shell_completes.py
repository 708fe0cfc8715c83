"""Types a line and TAB into an interactive shell, and prints the line that there is then.

    shell_completes.py bash|zsh SCRIPT LINE...

SCRIPT is what `forebay completions` printed. Standard library only."""

import os
import pty
import re
import select
import sys
import time

WITHIN_S = 30
START = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        'PS1="ready> "; source {script}; bind -x \'"\\C-x": printf "\\nLINE[%s]\\n" "$READLINE_LINE"\'',
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        "PS1='ready> '; autoload -U compinit; compinit -D; source {script}; "
        "show() {{ print -r -- \"\nLINE[$BUFFER]\" }}; zle -N show; bindkey '^X' show",
    ),
}


def heard(terminal: int, pattern: bytes) -> bytes:
    """What the shell prints until it has printed the pattern."""
    text, until = b"", time.monotonic() + WITHIN_S
    while not re.search(pattern, text):
        ready, _, _ = select.select([terminal], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise SystemExit(f"no {pattern!r} within {WITHIN_S} s: {text!r}")
        text += os.read(terminal, 4096)
    return text


def main(shell: str, script: str, *lines: str) -> None:
    command, start = START[shell]
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "dumb"
        os.execvp(command[0], command)
    os.write(terminal, start.format(script=script).encode() + b"; echo be''gun\n")
    heard(terminal, b"begun\r?\n")
    for line in lines:
        os.write(terminal, line.encode() + b"\t\x18")
        found = re.search(rb"LINE\[(.*?)\]", heard(terminal, rb"LINE\[.*?\]"))
        print(found[1].decode() if found else "")
        os.write(terminal, b"\x15")
    os.write(terminal, b"exit\n")
    os.close(terminal)
    os.waitpid(child, 0)


main(*sys.argv[1:])
