"""How results look: tables in Markdown (which also read well on a terminal) and JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from comparison.figures import Spread, number, paired_ratio, short
from comparison.goals import Verdict, verdicts
from comparison.model import Results, Sample, side_of
from harness import between, table

DISTURBED = "!"
HEADER = (
    "work",
    "on",
    "median (range)",
    "ratio",
    "p50/p99/p99.9 us",
    "longest ms",
    "server us",
    DISTURBED,
)
LEGEND = (
    "*depth 32 x 4*: 32 requests in flight on each of 4 connections. *range*: lowest and highest round. *ratio*: to "
    "the first line of the same work, median of the ratios of rounds. *p50* to *p99.9*: of the direction with more "
    "requests, medians of rounds. *longest*: of all requests and rounds, syncs included. *server us*: CPU time of the "
    "server for each request, with the kernel's. *hits*: share of the blocks read. *!*: rounds that other processes "
    "disturbed."
)


def markdown(results: Results, about: dict[str, object], titles: dict[str, str]) -> str:
    """Everything: what was measured where, goals, a table for each group."""
    parts = [facts(about), "### Goals", goals(results)]
    for group in results.groups():
        parts += [f"### {titles.get(group, group)}", group_table(results, group)]
    parts += [LEGEND, ""]
    return "\n\n".join(parts)


def facts(about: dict[str, object]) -> str:
    """One paragraph on machine, versions and options."""
    first = [f"**INCOMPLETE: {about['incomplete']}**"] if "incomplete" in about else []
    rest = [f"{name.replace('_', ' ')} {value}" for name, value in about.items() if name not in LEFT_OUT]
    return "; ".join([*first, *rest]) + "."


def goals(results: Results) -> str:
    """Goal and reached."""
    found = verdicts(results)
    if not found:
        return "No group was run that a goal is about."
    rows = [[v.what, v.goal, v.reached + (f"; {v.note}" if v.note else ""), verdict(v)] for v in found]
    return table(["what", "goal", "reached", ""], rows)


def verdict(found: Verdict) -> str:
    """A word for a goal."""
    return "PASS" if found.passed else "MISS"


def group_table(results: Results, group: str) -> str:
    """One line for each case and target. The first line of a case names it."""
    rows = []
    extras = extra_columns(results, group)
    for case in results.cases(group):
        base: list[Sample] = []
        for target in results.targets(group):
            samples = results.of(group, case, target)
            if samples:
                extra = [cells_of[case, target] for cells_of in extras.values()]
                rows.append(["" if base else case, target, *cells(samples, base), *extra])
                base = base or samples
    header = [*HEADER, *extras]
    # Most groups are not disturbed.
    at = header.index(DISTURBED)
    if not any(row[at] for row in rows):
        del header[at]
        for row in rows:
            del row[at]
    return table(header, rows)


def cells(samples: Sequence[Sample], base: Sequence[Sample]) -> list[str]:
    """A line but for work and target. Without a base this is the base."""
    spread = Spread.of([sample.value for sample in samples])
    sides = side_of(samples)
    ratio = paired_ratio([s.value for s in samples], [s.value for s in base]) if base else None
    costs = [sample.server_us for sample in samples if sample.server_us is not None]
    longest = [sample.result.longest_us / 1e3 for sample in samples if sample.result is not None]
    count = sum(sample.disturbed for sample in samples)
    return [
        f"{number(spread.median)} {samples[0].unit} ({short(spread.low)}-{short(spread.high)})",
        number(ratio.median) if ratio else "",
        "/".join(number(statistics.median(getattr(side, name) for side in sides)) for name in LATENCIES if sides),
        number(max(longest)) if longest else "",
        number(statistics.median(costs)) if costs else "",
        f"{count}/{len(samples)}" if count else "",
    ]


LATENCIES = ("p50_us", "p99_us", "p999_us")
# Of what was measured where: the JSON has it.
LEFT_OUT = ("incomplete", "binary_built", "libnbd", "python", "repeats", "disturbed_pct", "groups")


def extra_columns(results: Results, group: str) -> dict[str, dict[tuple[str, str], str]]:
    """Columns that only some groups have: what Forebay's own counters say."""
    wanted = {"amplification": ("written / stored",), "mix": ("hits",), "hits": ("hits",), "states": ("hits",)}
    columns: dict[str, dict[tuple[str, str], str]] = {name: {} for name in wanted.get(group, ())}
    for name, cells_of in columns.items():
        for case in results.cases(group):
            for target in results.targets(group):
                samples = results.of(group, case, target)
                found = [v for s in samples if (v := s.amplification if "/" in name else s.hit_share) is not None]
                text = f"{statistics.median(found):.3f}" if found else ""
                cells_of[case, target] = text
    return columns


BEGIN, END = "<!-- bench/compare: begin -->", "<!-- bench/compare: end -->"


def write_markdown(path: Path, text: str) -> None:
    """Writes a file, or, in one that has the lines `BEGIN` and `END`, only what is between them."""
    old = path.read_text() if path.exists() else ""
    path.write_text(between(old, BEGIN, END, text) or text)


def write_json(path: Path, results: Results, about: dict[str, object]) -> None:
    """All samples, what was measured where, and the verdicts."""
    judged = [vars(verdict) for verdict in verdicts(results)]
    path.write_text(
        json.dumps({"about": about, "goals": judged, "targets": results.order, "samples": results.as_json()}, indent=1)
        + "\n"
    )
