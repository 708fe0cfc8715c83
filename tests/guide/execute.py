"""Executes pages of the guide (docs/operate) line by line, as root, in a system that may be changed.

    execute.py [--list] PAGE...

What of a page is executed:

- Blocks ```console: a line behind the prompt `# ` is a command (a line that ends with a backslash goes on). The lines
  below it are what it prints, both streams: `...` stands for any lines, `…` for any text in a line, more spaces than
  one for one. Without such lines anything may be printed. It must end with exit code 0, or with N if the line `exit N`
  (`exit N or M`) is below it.
- Blocks whose first line is a comment with an absolute path (`# /etc/fstab`, `<!-- /path -->`): the file of that name
  gets the block as its content; with `# /path, at its end` it is added to.
- Directions to the stage (`<!-- guide: COMMAND -->`), which a reader does not see: functions of stage.sh, for what
  happens by itself on a real system (load, a device that fails) and for what must be true in the end. The first one of
  a page says how it begins.

A page ends at the first line that is not as it says, and the others go on; the exit code is then 1. Standard library
only."""

import dataclasses
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# Everything takes longer where processors are emulated.
LIMIT_SECONDS = 60 * float(os.environ.get("E2E_SLOWNESS", "1"))
NAMED = re.compile(r"^(?:#|<!--) (/\S+?)(, at its end)?(?: -->)?$")
DIRECTION = re.compile(r"^<!-- guide: (.*) -->$")


@dataclasses.dataclass
class Step:
    """One thing to do: where it stands, and what is expected of it."""

    line: int
    kind: str  # command, file, direction
    text: str
    expected: list[str] = dataclasses.field(default_factory=list)
    codes: tuple[int, ...] = (0,)
    path: str = ""
    append: bool = False


class Wrong(Exception):
    """The page, or what it says, is wrong."""


def steps_of(page: pathlib.Path) -> list[Step]:
    steps: list[Step] = []
    lines = page.read_text().splitlines()
    at = 0
    while at < len(lines):
        direction = DIRECTION.match(lines[at])
        fence = re.match(r"^```(\w+)$", lines[at])
        if direction:
            steps.append(Step(at + 1, "direction", direction[1]))
        if fence:
            end = lines.index("```", at + 1)
            block = lines[at + 1 : end]
            named = NAMED.match(block[0]) if block else None
            if fence[1] == "console":
                steps += commands(block, at + 2)
            elif named:
                content = "".join(f"{line}\n" for line in block[1:])
                steps.append(Step(at + 2, "file", content, path=named[1], append=bool(named[2])))
            at = end
        at += 1
    if not steps or steps[0].kind != "direction":
        raise Wrong(f"{page}: the first thing to do is no `<!-- guide: ... -->` that says how the page begins")
    return steps


def commands(block: list[str], first_line: int) -> list[Step]:
    steps: list[Step] = []
    goes_on = False
    for offset, line in enumerate(block):
        if goes_on:
            steps[-1].text += "\n" + line
        elif line.startswith("# "):
            steps.append(Step(first_line + offset, "command", line[2:]))
        elif not steps:
            raise Wrong(f"line {first_line + offset}: a block begins with the prompt `# `, not with {line!r}")
        elif re.fullmatch(r"exit \d+( or \d+)*", line):
            steps[-1].codes = tuple(int(code) for code in line[5:].split(" or "))
        else:
            steps[-1].expected.append(line)
        goes_on = (goes_on or line.startswith("# ")) and line.endswith("\\")
    return steps


def same(expected: list[str], printed: list[str]) -> bool:
    """`...` is any number of lines."""
    if not expected:
        return not printed
    if expected[0].strip() == "...":
        return any(same(expected[1:], printed[skipped:]) for skipped in range(len(printed) + 1))
    return bool(printed) and line_matches(expected[0], printed[0]) and same(expected[1:], printed[1:])


def line_matches(expected: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in " ".join(expected.split()).split("…"))
    return re.fullmatch(pattern, " ".join(printed.split())) is not None


def run(step: Step) -> None:
    if step.kind == "file":
        path = pathlib.Path(step.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if step.append else "w") as file:
            file.write(step.text)
        return
    text = step.text
    if step.kind == "direction":
        text = f"set -e; . {shlex.quote(str(HERE / 'stage.sh'))}; {text}"
    # Into a file: what stays in the background must not be waited for.
    with pathlib.Path("/run/guide-output").open("w+") as output:
        try:
            code = subprocess.run(
                ["bash", "-c", text],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/root",
                timeout=LIMIT_SECONDS,
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
        output.seek(0)
        printed = output.read().replace("\r", "\n").splitlines()
    said = "\n".join(f"    | {line}" for line in printed)
    if code not in step.codes:
        wanted_codes = " or ".join(str(wanted) for wanted in step.codes)
        how = f"is not done after {LIMIT_SECONDS:.0f} s" if code is None else f"ended with {code}, not {wanted_codes}"
        raise Wrong(f"line {step.line}: {step.text}\n  {how}:\n{said}")
    if step.expected and not same(step.expected, printed):
        wanted = "\n".join(f"    | {line}" for line in step.expected)
        raise Wrong(f"line {step.line}: {step.text}\n  printed\n{said}\n  where the page has\n{wanted}")


def main(arguments: list[str]) -> int:
    only_list = arguments[:1] == ["--list"]
    pages = [pathlib.Path(name) for name in arguments[only_list:]]
    if not pages:
        print(__doc__, file=sys.stderr)
        return 2
    wrong_pages = 0
    for page in pages:
        began = time.monotonic()
        try:
            steps = steps_of(page)
            for step in steps:
                if only_list:
                    print(f"{page.name}:{step.line}: {step.kind}: {step.path or step.text}")
                else:
                    before = time.monotonic()
                    run(step)
                    print(f"{page.name}:{step.line}: {time.monotonic() - before:.1f} s: {step.path or step.text}")
        except Wrong as wrong:
            print(f"{page.name}: {wrong}", flush=True)
            wrong_pages += 1
            continue
        if not only_list:
            print(f"{page.name}: {len(steps)} steps as it says, {time.monotonic() - began:.0f} s", flush=True)
    return 1 if wrong_pages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
