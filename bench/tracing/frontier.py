"""Arithmetic of `bench/frontier`: how many blocks the engine writes to flash for each that an oracle writes, and why.

A block written to flash is one of these, from the inside to the outside: a client's write or a fill; a block that
reclaim moves; a header, summary or checkpoint; a page that the device moves. So the ratio to the oracle is a product of
four factors, and the largest one is the reason for most of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import harness as h

# Above this a point needs a reason.
ENOUGH = 1.10
DEFAULT_SURVIVORS_PCT = 75
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Point:
    """One run of the engine. The factors multiply to `ratio`, which is `None` if the oracle writes nothing."""

    misses_pct: float
    # Blocks written to flash for each block that the trace asks for.
    written: float
    ratio: float | None
    # The same, if the oracle writes no more than the bound.
    ratio_bound: float | None
    factors: dict[str, float]

    @property
    def reason(self) -> str:
        """The largest factor, if one is needed."""
        if self.ratio is None or self.ratio <= ENOUGH:
            return "-"
        return max(self.factors, key=lambda name: self.factors[name])


def point(line: Line, asked: int) -> Point:
    """From a line with settings; `asked` is all blocks of the trace's requests."""
    wanted = line["client"] + line["fills"]
    oracle, bound = (line["client"] + line[name] for name in ("oracle_fills", "bound_fills"))
    factors = {
        "fills": wanted / max(oracle, 1),
        "moves": (wanted + line["moves"]) / max(wanted, 1),
        "headers": line["device"] / max(wanted + line["moves"], 1),
        "device": line["flash"] / max(line["device"], 1),
    }
    return Point(
        misses_pct=100 * line["misses"] / max(line["hits"] + line["misses"], 1),
        written=line["flash"] / asked,
        ratio=line["flash"] / oracle if oracle else None,
        ratio_bound=line["flash"] / bound if bound else None,
        factors=factors,
    )


def asked(oracle: Line) -> int:
    """Blocks that the trace asks for."""
    total: int = oracle["reads"] + oracle["client"]
    return total


def ideal(oracle: Line, hits: int, fills: int) -> tuple[float, float]:
    """Misses in percent, and blocks written for each that is asked for, of a cache that knows the future."""
    return 100 * (oracle["reads"] - hits) / max(oracle["reads"], 1), (oracle["client"] + fills) / asked(oracle)


def series(line: Line) -> str:
    """The name of a line of the plot."""
    admission, policy = str(line["admission"]), str(line["policy"])
    return policy + ("" if admission == "always" else f", {admission}")


def table(names: Sequence[str], lines: Sequence[Line], brief: bool) -> str:
    """All points, or those with the default of `survivors_max_pct`, below what Belady and the oracle do."""
    header = ["trace", "cache", "policy", "survivors", "misses", "written", "of oracle's", "of bound"]
    header += ["fills", "moves", "headers", "device", "reason"]
    rows, oracle = [], lines[0]
    for line in lines:
        start = [names[line["trace"]], f"{line['share_pct']} %"]
        if "curve" in line:
            oracle = line
            hits, fills, bound = line["curve"][-1]
            for name, (misses, written) in {
                "Belady, all filled": ideal(line, line["belady"]["hits"], line["belady"]["fills"]),
                "oracle": ideal(line, hits, fills),
                "bound": ideal(line, hits, bound),
            }.items():
                rows.append([*start, name, "", f"{misses:.1f}", f"{written:.3f}", *[""] * 7])
        elif not brief or line["survivors_max_pct"] == DEFAULT_SURVIVORS_PCT:
            found = point(line, asked(oracle))
            ratios = ["-" if ratio is None else f"{ratio:.2f}" for ratio in (found.ratio, found.ratio_bound)]
            rows.append(
                [
                    *start,
                    series(line),
                    str(line["survivors_max_pct"]),
                    f"{found.misses_pct:.1f}",
                    f"{found.written:.3f}",
                    *ratios,
                    *(f"{factor:.2f}" for factor in found.factors.values()),
                    found.reason,
                ]
            )
    return h.table(header, rows)
