"""The commands of the lab."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import harness

from . import (
    binaries,
    blobs,
    crash,
    device,
    docs,
    flash,
    latency,
    ledger,
    oltp,
    oltp_cards,
    report,
    runner,
    store,
    tpcc,
)
from .experiment import Detailed, Experiment, Lies, Refused, Row, Scale

HOME = harness.ROOT / "target/lab"
RUNS = HOME / "runs"
LEDGERS = HOME / "ledger"

app = typer.Typer(
    help="Published flash-cache experiments, repeated on this machine.", no_args_is_help=True, add_completion=False
)
# Files and pipes have no width: tables are not squeezed there.
out = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
err = Console(stderr=True, highlight=False)

Quick = Annotated[bool, typer.Option("--quick", help="Minutes: shows the shape.")]
Full = Annotated[bool, typer.Option("--full", help="As long as the original, where that is sensible.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Seconds: only that everything works.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Do not go on with a run that has not ended.")]
Once = Annotated[bool, typer.Option("--once", help="Do not measure again what others have disturbed.")]
Only = Annotated[list[str], typer.Option("--row", help="Measure this row only; may be repeated.")]
Chips = Annotated[
    int, typer.Option("--chips", min=1, max=1000, help="oltp-cards: one of so many of a card's chips; row raw says it.")
]
Where = Annotated[Path, typer.Option("--where", help="Folder to work in: on the flash that is to be used.")]


def experiments(where: Path, chips: int = oltp_cards.CHIPS) -> list[Experiment]:
    """All there are."""
    return [
        oltp.Oltp(),
        oltp_cards.OltpCards(chips),
        tpcc.Tpcc(),
        crash.Crash(),
        device.Device(where),
        flash.Flash(),
        latency.Latency(),
        blobs.Blobs(),
    ]


def scale_of(quick: bool, full: bool, smoke: bool) -> Scale:
    """The one that was asked for; quick, if none was."""
    asked = [scale for scale, wanted in ((Scale.QUICK, quick), (Scale.FULL, full), (Scale.SMOKE, smoke)) if wanted]
    if len(asked) > 1:
        raise Refused("--quick, --full and --smoke exclude each other")
    return asked[0] if asked else Scale.QUICK


class Shown(runner.Watcher):
    """Progress on the terminal, or a line for each row where there is none."""

    def __init__(self, rows: list[Row]) -> None:
        self.left = sum(row.seconds for row in rows)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]about {task.fields[left]} left"),
            console=err,
            disable=not err.is_terminal,
        )
        self.task = self.bar.add_task("", total=len(rows), left=minutes(self.left))
        self.now = Row("", 0)

    def row(self, row: Row, number: int) -> None:
        self.now = row
        again = f" (again, {number})" if number > 1 else ""
        self.bar.update(self.task, description=f"{row.name}{again}")

    def progress(self, seconds: float) -> None:
        self.bar.update(self.task, left=minutes(self.left - min(seconds, self.now.seconds)))

    def measured(self, row: Row, attempt: store.Attempt) -> None:
        note = f", disturbed: others used {attempt.foreign:.0%} of the processors" if attempt.disturbed else ""
        err.print(f"{row.name}: {attempt.elapsed_s:.1f} s{note}")

    def done(self, row: Row) -> None:
        self.left -= row.seconds
        self.bar.update(self.task, advance=1, left=minutes(self.left))


def minutes(seconds: float) -> str:
    """A time to be waited for."""
    seconds = max(0, round(seconds))
    return f"{seconds // 60} min {seconds % 60:02} s" if seconds >= 60 else f"{seconds} s"


def catalogue() -> str:
    """The experiments and how long they take. `lab/list.txt` is the same, for who has not installed the lab."""
    lines = []
    for experiment in experiments(HOME):
        quick, full = (
            minutes(sum(row.seconds for row in experiment.rows(scale))) for scale in (Scale.QUICK, Scale.FULL)
        )
        lines.append(f"{experiment.name:<11} {experiment.title}\n{'':<11} quick {quick}, full {full}\n")
    return "".join(lines)


def chosen(experiment: Experiment, scale: Scale, only: Sequence[str]) -> list[Row]:
    """The rows of a scale, or those of them that were asked for."""
    rows = list(experiment.rows(scale))
    unknown = sorted(set(only) - {row.name for row in rows})
    if unknown:
        names = ", ".join(row.name for row in rows)
        raise Refused(f"{experiment.name} has no row {', '.join(unknown)} at this scale: there are {names}")
    return [row for row in rows if not only or row.name in only]


def perform(
    experiment: Experiment,
    scale: Scale,
    where: Path,
    options: dict[str, str],
    *,
    fresh: bool,
    once: bool,
    only: Sequence[str] = (),
) -> None:
    """Measures what is missing and writes the report."""
    missing = [command for command in experiment.needs() if shutil.which(command) is None]
    if missing:
        raise Refused(
            f"there is no {', '.join(missing)} on this machine: scripts/setup all installs what Debian has of it"
        )
    binaries.build(experiment.binaries())
    measured = binaries.hashes(experiment.binaries())
    rows = chosen(experiment, scale, only)
    run = store.begin(RUNS, experiment.name, scale, experiment.rows(scale), runner.machine(), options, measured)
    before = None if fresh else store.unfinished(RUNS, run, rows)
    if before is not None:
        run = before
        err.print(
            f"goes on with {run.path.name}: {len(run.missing)} of {len(run.rows)} rows are missing"
            " (--fresh begins anew)"
        )
    shown = Shown([row for row in run.missing if row in rows])
    with shown.bar:
        attempts = 1 if once else runner.ATTEMPTS[scale]
        runner.go(experiment, run, runner.Place(where, LEDGERS, attempts), shown, rows)
    page = report.write(experiment, run)
    show(experiment, run)
    out.print(f"report: {page}", soft_wrap=True)
    if run.wrong:
        raise Lies("; ".join(f"{name}: {why}" for name, why in run.wrong.items()))


def show(experiment: Experiment, run: store.Run) -> None:
    """The figures, on the terminal."""
    for one in report.said_first(run):
        out.print(one, style="yellow" if out.is_terminal else None, markup=False)
    results = run.results()
    tables = [experiment.table(results)]
    if isinstance(experiment, Detailed):
        tables.append(experiment.details(results))
    for number, frame in enumerate(tables):
        table = Table(title=f"{experiment.title} ({run.scale})" if number == 0 else None, title_justify="left")
        for column, name in enumerate(frame.columns):
            table.add_column(str(name), justify="left" if column == 0 else "right")
        for values in frame.astype(str).to_numpy().tolist():
            table.add_row(*values)
        out.print(table)


@app.command("list")
def list_command() -> None:
    """The experiments, how long they take, and the runs there are."""
    print(catalogue(), end="")
    for run in store.all_runs(RUNS):
        state = f"{len(run.missing)} rows missing" if run.missing else "complete"
        out.print(f"{run.path.name}: {state}")


@app.command("run")
def run_command(
    experiment: Annotated[str, typer.Argument(help="A name of `lab list`, or all.")],
    quick: Quick = False,
    full: Full = False,
    smoke: Smoke = False,
    where: Where = HOME / "work",
    fresh: Fresh = False,
    once: Once = False,
    row: Only = [],  # noqa: B006 (typer reads it)
    chips: Chips = oltp_cards.CHIPS,
) -> None:
    """Runs an experiment, or `all`; goes on with one that has not ended."""
    where = workable(where)
    known = experiments(where, chips)
    names = [one.name for one in known]
    if experiment not in (*names, "all"):
        raise Refused(f"there is no experiment {experiment!r}: there are {', '.join(names)}, and all")
    if experiment == "all" and row:
        raise Refused("--row names rows of one experiment: name that as well")
    scale = scale_of(quick, full, smoke)
    options = {"where": str(where), "storage": harness.storage(where)}
    for one in known:
        if experiment in (one.name, "all"):
            perform(one, scale, where, options, fresh=fresh, once=once, only=row)


def workable(where: Path) -> Path:
    """The folder, as a path that means the same to whoever undoes what is made there.

    Raises `Refused` if nothing can be written there.
    """
    where = where.resolve()
    try:
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=where):
            return where
    except OSError as error:
        raise Refused(f"{where} cannot be worked in ({error.strerror}): name a folder with --where") from None


@app.command("device")
def device_command(
    path: Annotated[Path, typer.Argument(help="A folder, or a block device.")],
    destroy: Annotated[bool, typer.Option("--destroy-data", help="Write over the block device.")] = False,
    quick: Quick = False,
    full: Full = False,
    smoke: Smoke = False,
    fresh: Fresh = False,
    once: Once = False,
) -> None:
    """Measures a device by itself."""
    path = path.resolve()
    found = device.on(path, destroy=destroy)
    where = path if path.is_dir() else HOME / "work"
    options = {"device": str(path), "storage": harness.storage(path)}
    perform(found, scale_of(quick, full, smoke), where, options, fresh=fresh, once=once)


@app.command("report")
def report_command(
    run: Annotated[
        str,
        typer.Argument(help="A run of `lab list`; an experiment, or all: the newest of the longest; or the newest."),
    ] = "",
    document: Annotated[Path | None, typer.Option("--document", help="Put it into this document as well.")] = None,
) -> None:
    """Makes the report of a run again."""
    known = {one.name: one for one in experiments(HOME)}
    runs = [one for one in store.all_runs(RUNS) if one.experiment in known]
    found = named(runs, run, list(known))
    if not found:
        raise Refused(f"there is no run {run!r}: see lab list" if run else "nothing was run yet: see lab list")
    for chosen in found:
        experiment = known[chosen.experiment]
        show(experiment, chosen)
        out.print(f"report: {report.write(experiment, chosen)}", soft_wrap=True)
        if document is not None and (run != "all" or docs.has_place(chosen, document)):
            docs.write(experiment, chosen, document)


def named(runs: Sequence[store.Run], name: str, known: Sequence[str]) -> list[store.Run]:
    """The runs that a word means. Of an experiment: the newest of the longest scale that has measured something."""
    if name not in (*known, "all"):
        return [one for one in runs if name in ("", one.path.name)][-1:]
    found = []
    for experiment in [name] if name in known else known:
        some = [one for one in runs if one.experiment == experiment and one.kept]
        by_scale = [[one for one in some if one.scale is scale] for scale in Scale]
        found += [same[-1] for same in by_scale if same][-1:]
    return found


@app.command("clean")
def clean_command() -> None:
    """Undoes what labs that were killed have left behind."""
    failed: list[str] = []
    for left in ledger.left_behind(LEDGERS):
        if left.running:
            out.print(f"{left.path.name}: its lab still runs, left alone")
            continue
        for entry in reversed(left.entries):
            out.print(f"undoing: {entry}")
        failures = ledger.undo_all(left.entries)
        failed += failures
        if not failures:
            left.path.unlink()
    if failed:
        raise Refused(f"could not be undone: {'; '.join(failed)}")


def end_in_order() -> None:
    """Who asks the lab to end gets what it made undone first."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def main() -> None:
    """Runs a command; refusals are one line and exit code 1."""
    end_in_order()
    try:
        app()
    except Refused as error:
        err.print(f"lab: {error}", style="red" if err.is_terminal else None, markup=False, soft_wrap=True)
        sys.exit(1)
    except Lies as error:
        err.print(f"lab: wrong, so nothing of this row counts: {error}", markup=False, soft_wrap=True)
        sys.exit(1)
