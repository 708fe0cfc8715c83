"""Interactive shells on a terminal, in which a line and TAB are typed.

    python -m harness.shells bash|zsh SCRIPT LINE...    prints for each line what it is after TAB

SCRIPT is what `forebay completions` printed."""

import os
import pty
import re
import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from .command import run

E2E = Path(__file__).resolve().parents[1]
WITHIN_S = 60
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


def after_tab(terminal: int, line: str) -> str:
    """What a line is after TAB. A daemon that is too busy to answer at once is asked again, as by a person."""
    until = time.monotonic() + WITHIN_S
    while True:
        os.write(terminal, b"\t\x18")
        found = re.search(rb"LINE\[(.*?)\]", heard(terminal, rb"LINE\[.*?\]"))
        now = found[1].decode() if found else ""
        if now != line or time.monotonic() > until:
            return now


def main(shell: str, script: str, *lines: str) -> None:
    command, start = START[shell]
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "dumb"
        os.execvp(command[0], command)
    os.write(terminal, start.format(script=script).encode() + b"; echo be''gun\n")
    heard(terminal, b"begun\r?\n")
    for line in lines:
        os.write(terminal, line.encode())
        print(after_tab(terminal, line))
        os.write(terminal, b"\x15")
    os.write(terminal, b"exit\n")
    os.close(terminal)
    os.waitpid(child, 0)


def completed(shell: str, script: Path, lines: list[str], env: Mapping[str, str]) -> list[str]:
    """What bash or zsh makes of each line after TAB."""
    program = [sys.executable, "-m", "harness.shells", shell, script, *lines]
    return run(program, env=env, cwd=E2E).stdout.splitlines()


def completed_by_fish(script: Path, lines: list[str], env: Mapping[str, str]) -> list[str]:
    """fish prints the word and what it means; which blank follows is its own affair."""
    found: list[str] = []
    for line in lines:
        until, asked = time.monotonic() + WITHIN_S, ""
        while not asked and time.monotonic() < until:
            asked = run(["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"], env=env).stdout
        found += [f"{line.rpartition(' ')[0]} {words.split(chr(9))[0]}" for words in asked.splitlines()]
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
