"""The command line of `bench/compare`."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import harness as h
from comparison import report, servers
from comparison.figures import duration
from comparison.goals import verdicts
from comparison.model import Results, Stage
from comparison.runner import Plan, run
from comparison.scale import DEFAULT, FULL, QUICK, Scale
from comparison.stages import ALIASES, GROUPS

TOOLS = ("fio", "nbdkit", "qemu-nbd")
OUTPUT = h.ROOT / "target/bench"


def parser() -> argparse.ArgumentParser:
    """All options."""
    about = "Forebay and its peers, alternating in one run, on the same work. bench/README.md says how to read it."
    found = argparse.ArgumentParser(prog="bench/compare", description=about)
    found.add_argument("what", nargs="?", choices=["run", "list"], default="run", help="list: the groups")
    found.add_argument("--group", action="append", default=[], metavar="NAME", help="may be repeated; default: all")
    size = found.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="scale", action="store_const", const=QUICK, help=QUICK.about)
    size.add_argument("--full", dest="scale", action="store_const", const=FULL, help=FULL.about)
    found.set_defaults(scale=DEFAULT)
    found.add_argument("--seconds", type=float, help="of each run on flash, in place of what the scale says")
    found.add_argument("--rounds", type=int, help="runs of everything")
    found.add_argument("--repeats", type=int, help="a run that others disturb is repeated up to so many times")
    found.add_argument(
        "--disturbed-pct", type=float, default=5, help="percent of all processors that others may take (default 5)"
    )
    found.add_argument("--where", type=Path, help="folder on the storage under test (default $TMPDIR, or /var/tmp)")
    found.add_argument("--json", type=Path, default=OUTPUT / "compare.json", help="default: %(default)s")
    found.add_argument("--plot", type=Path, default=OUTPUT / "compare.png", help="default: %(default)s")
    found.add_argument("--no-plot", action="store_true", help="matplotlib is not needed then")
    found.add_argument("--markdown", type=Path, help="also write the tables here, or between the markers of a document")
    found.add_argument("--enforce", action="store_true", help="exit code 1 if a goal is missed")
    return found


def choose(names: Sequence[str]) -> list[str]:
    """Groups by their names and those of several together, in the order in which they are run."""
    wanted: set[str] = set()
    for name in (part for each in names for part in each.split(",")):
        if name not in GROUPS and name not in ALIASES:
            raise h.Failure(f"there is no group {name!r}: bench/compare list shows them")
        wanted.update(ALIASES.get(name, (name,)))
    return [name for name in GROUPS if not wanted or name in wanted]


def scaled(options: argparse.Namespace) -> Scale:
    """The scale with what was said otherwise."""
    scale: Scale = options.scale
    changes = {name: getattr(options, name) for name in ("seconds", "rounds", "repeats")}
    scale = replace(scale, **{name: value for name, value in changes.items() if value is not None})
    if scale.rounds < 1 or scale.seconds <= 0 or scale.repeats < 0:
        raise h.Failure("--rounds and --seconds must be more than 0, --repeats not less")
    return scale


def show_groups(scale: Scale) -> None:
    """What can be measured, and how long it takes."""
    rows = []
    for name, group in GROUPS.items():
        plan = Plan(group.stages(scale), scale.rounds, 0, 0, Path())
        runs = plan.runs()
        took = plan.progress().left_s()
        rows.append([name, group.about, str(len(runs)), duration(took) if runs else "not with this binary"])
    print(h.table(["group", "measures", "runs", f"about ({scale.name})"], rows))
    for name, names in ALIASES.items():
        print(f"{name}: {', '.join(names)}")


def check_tools(where: Path, stages: Sequence[Stage]) -> None:
    """Refuses to begin what cannot end well."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        raise h.Failure(f"not installed: {', '.join(absent)} (scripts/setup installs them)")
    if not h.FOREBAY.exists():
        raise h.Failure(f"no binary at {h.FOREBAY}: make build, or set FOREBAY")
    needed = max((stage.disk_bytes for stage in stages), default=0)
    free = shutil.disk_usage(where).free
    if free < needed + h.GIB:
        raise h.Failure(
            f"{where} has {free / h.GIB:.1f} GiB free, {needed / h.GIB + 1:.1f} are needed: "
            "choose another folder with --where, or --quick"
        )


def draw(json: Path, image: Path) -> None:
    """The plot. That it cannot be drawn (no network for matplotlib) is no reason to lose the figures."""
    image.parent.mkdir(parents=True, exist_ok=True)
    try:
        script = h.ROOT / "bench/comparison/plot.py"
        subprocess.run([str(h.environment()), str(script), str(json), str(image)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no plot: {error}", file=sys.stderr)
        return
    print(f"plot: {image}", file=sys.stderr)


def compare(options: argparse.Namespace) -> int:
    """Measures, prints, writes."""
    scale = scaled(options)
    names = choose(options.group)
    stages = [stage for name in names for stage in GROUPS[name].stages(scale)]
    with h.workspace(options.where) as probe:
        where = probe.parent
    check_tools(where, stages)
    if not servers.has_null_volume():
        print(f"there is no {h.NULL}: the null volume and its group are left out", file=sys.stderr)
    if not stages:
        raise h.Failure("nothing to do: the only group that was asked for is left out")
    about: dict[str, object] = {
        **h.machine(),
        "storage": h.storage(where),
        "scale": scale.name,
        "rounds": scale.rounds,
        "seconds": scale.seconds,
        "repeats": scale.repeats,
        "disturbed_pct": options.disturbed_pct,
        "groups": " ".join(names),
        "began": time.strftime("%Y-%m-%d %H:%M"),
    }
    plan = Plan(stages, scale.rounds, scale.repeats, options.disturbed_pct / 100, where)
    results = Results()
    try:
        run(plan, plan.progress(), results)
    except (h.Failure, KeyboardInterrupt) as failure:
        about["incomplete"] = str(failure) or "interrupted"
        raise
    finally:
        about["ended"] = time.strftime("%H:%M")
        about["cpu_pressure_avg10_after"] = h.pressure()
        if results.samples:
            publish(options, results, about)
    return int(options.enforce and any(not verdict.passed for verdict in verdicts(results)))


def publish(options: argparse.Namespace, results: Results, about: dict[str, object]) -> None:
    """Prints and writes what was found; also of a run that failed later, which is marked then."""
    titles = {name: f"{name}: {group.about}" for name, group in GROUPS.items()}
    text = report.markdown(results, about, titles)
    print(text)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    report.write_json(options.json, results, about)
    print(f"all samples: {options.json}", file=sys.stderr)
    if options.markdown:
        report.write_markdown(options.markdown, text)
    if not options.no_plot:
        draw(options.json, options.plot)


def interrupted(number: int, _frame: object) -> None:
    """Ends through the blocks that stop servers and remove files."""
    raise KeyboardInterrupt(f"signal {number}")


def main() -> int:
    """Exit code 0 done, 1 failed (or a goal missed with --enforce), 2 wrong usage, 130 interrupted."""
    options = parser().parse_args()
    signal.signal(signal.SIGTERM, interrupted)
    try:
        if options.what == "list":
            show_groups(scaled(options))
            return 0
        return compare(options)
    except h.Failure as failure:
        print(f"\nbench/compare: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbench/compare: interrupted", file=sys.stderr)
        return 130
