"""The inside of a flash device: a model beside two published cards, and what the layouts of caches make of it.

- *cards*: random writes by how full the device is, in the model of each card and as published.
- *layouts*: the device is full, the cache works. What Forebay's engine and the FlashCache model write for the same
  requests goes to models with the spare area of each card: how much is written to flash for each byte that clients
  write, how long a card of 400 GB and 3,000 erasures a block lasts, and how fast it is beside an empty one. Erase
  blocks are a quarter of Forebay's segments, or as large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from . import cards, flash_bench
from .experiment import Binary, Lies, Measured, Original, Picture, Results, Row, Scale, Work
from .plots import bars, curves, figure, finish

LETTERS = ("D", "T")
WORKLOADS = ("uniform-4k", "zipf-4k", "zipf-16k", "mix-16k")
LAYOUTS = ("forebay", "forebay-discards", "flashcache")
# Erase blocks in thousandths of the device; Forebay's segments are four of them at these sizes.
BLOCKS = {"quarter": 1, "whole": 4}
# Of each card. The ratio of lives is to Forebay's; WA: bytes written to flash for each of clients; speed: beside the
# empty card.
COLUMNS = (
    *(f"{what} {letter}" for what in ("life ratio", "WA", "speed") for letter in LETTERS),
    *("life TB D", "life TB T", "of cache", "past %"),
)


@dataclass(frozen=True)
class Size:
    """How large the models are at a scale."""

    pages: int
    cache_mib: int
    rounds: int
    workloads: Sequence[str]
    row_s: float


SIZES = {
    Scale.SMOKE: Size(32_768, 64, 1, ("uniform-4k", "mix-16k"), 1),
    Scale.QUICK: Size(65_536, 256, 4, WORKLOADS, 4),
    Scale.FULL: Size(262_144, 1024, 4, WORKLOADS, 30),
}


@dataclass(frozen=True)
class Flash:
    """The experiment; it needs no device."""

    name: str = "flash"
    title: str = "Flash from the inside, as a model"
    warm_up: str = (
        "the device is written as a whole, then written over as many times as are counted afterwards; "
        "a model in virtual time: its figures depend neither on this machine nor on how busy it was"
    )

    def needs(self) -> Sequence[str]:
        return []

    def binaries(self) -> Sequence[Binary]:
        return [Binary.FLASH_BENCH]

    def rows(self, scale: Scale) -> Sequence[Row]:
        size = SIZES[scale]
        rows = [Row("cards", size.row_s, {"pages": size.pages}, timed=False)]
        for workload in size.workloads:
            for block, times in BLOCKS.items():
                for layout in LAYOUTS:
                    parameters: dict[str, float | str] = {"workload": workload, "layout": layout, "rounds": size.rounds}
                    parameters |= {"cache-mib": size.cache_mib, "block-kib": size.cache_mib * times}
                    rows.append(Row(named(workload, block, layout), size.row_s, parameters, timed=False))
        return rows

    def measure(self, row: Row, work: Work) -> Measured:
        what = "--cards" if row.name == "cards" else "--layouts"
        options = [text for key, value in row.parameters.items() for text in (f"--{key}", str(value))]
        frame = flash_bench.run([what, *options], work)
        return Measured(frame, of_cards(frame) if row.name == "cards" else of_layout(frame))

    def table(self, results: Results) -> pd.DataFrame:
        lines = [*self.lines_of_cards(results), *self.lines_of_layouts(results)]
        names = ("row", "collection", *COLUMNS)
        return pd.DataFrame([{name: line.get(name, "-") for name in names} for line in lines])

    def lines_of_cards(self, results: Results) -> list[dict[str, object]]:
        """How fast each card is when it is full."""
        if "cards" not in results.samples:
            return []
        full = results.samples["cards"].query("used_pct == 100")
        model: dict[str, object] = {"row": "cards at 100 %", "collection": "greedy"}
        published: dict[str, object] = {"row": "cards, published", "collection": "-"}
        for _, line in full.iterrows():
            model[f"speed {line['card']}"] = line["model_of_emptiest"]
            model[f"WA {line['card']}"] = line["write_amplification"]
            published[f"speed {line['card']}"] = line["published_of_emptiest"]
        return [model, published]

    def lines_of_layouts(self, results: Results) -> list[dict[str, object]]:
        """What each layout makes of each device."""
        lines: list[dict[str, object]] = []
        for row in results.rows:
            if row.name == "cards":
                continue
            ours = results.samples.get(row.name.removesuffix(f"-{row.parameters['layout']}") + "-forebay")
            by_collection: dict[str, dict[str, object]] = {}
            for number, (_, line) in enumerate(results.samples[row.name].iterrows()):
                collection, card = str(line["collection"]), line["card"]
                base = {"row": row.name, "collection": collection, "of cache": line["cache_wa"]}
                one = by_collection.setdefault(collection, base)
                if ours is not None:
                    one[f"life ratio {card}"] = round(line["life_user_tb"] / ours["life_user_tb"].iloc[number], 2)
                one |= {f"WA {card}": line["total_wa"], f"speed {card}": line["speed_of_empty"]}
                one |= {f"life TB {card}": line["life_user_tb"], "past %": line["past_cache_pct"]}
            lines += by_collection.values()
        return lines

    def pictures(self, results: Results) -> Sequence[Picture]:
        layouts = [self.by_layout(results, letter, block) for letter in LETTERS for block in BLOCKS]
        return [*self.by_fill(results), *(picture for some in layouts for picture in some)]

    def by_fill(self, results: Results) -> Sequence[Picture]:
        """The model of each card beside what was published."""
        if "cards" not in results.samples:
            return []
        drawn, panels = figure(len(LETTERS))
        frame = results.samples["cards"]
        for axes, letter in zip(panels, LETTERS, strict=True):
            mine = frame[frame["card"] == letter]
            for column, label in (("published_mib_s", cards.name(letter)), ("model_mib_s", "model")):
                curves(axes, mine["used_pct"].tolist(), mine[column].tolist(), label)
            finish(axes, "used %", "random writes, MiB/s")
        return [Picture("cards", "How full the card is", drawn)]

    def by_layout(self, results: Results, letter: str, block: str) -> Sequence[Picture]:
        """Bytes written to flash, and life, for each layout."""
        rows = [row for row in results.rows if f"-{block}-" in row.name]
        if not rows:
            return []
        workloads = list(dict.fromkeys(str(row.parameters["workload"]) for row in rows))
        drawn, panels = figure(2)
        for axes, (key, what) in zip(
            panels, (("total_wa", "flash bytes per user byte"), ("life_user_tb", "life, user TB")), strict=True
        ):
            groups = {
                layout: [
                    float(results.summaries.get(named(workload, block, layout), {}).get(f"{key}_{letter}", 0))
                    for workload in workloads
                ]
                for layout in LAYOUTS
            }
            bars(axes, workloads, groups)
            finish(axes, "", what)
        title = f"Layouts on a full {cards.name(letter)}: erase blocks of a {block} segment, greedy collection"
        return [Picture(f"layouts-{letter}-{block}", title, drawn)]

    def originals(self) -> Sequence[Original]:
        return [Original(cards.WHAT, cards.CARDS)]


def named(workload: str, block: str, layout: str) -> str:
    """The name of a row."""
    return f"{workload}-{block}-{layout}"


def of_cards(frame: pd.DataFrame) -> dict[str, float | str]:
    """How well the model fits; ends with `Lies` if it was fitted to other figures than those shown beside it."""
    summary: dict[str, float | str] = {}
    for letter in LETTERS:
        mine = frame[frame["card"] == letter]
        if mine["published_mib_s"].tolist() != cards.CARDS[cards.name(letter)].tolist():
            raise Lies(f"the model of card {letter} was fitted to other figures")
        summary[f"rms_error_{letter}"] = float(mine["rms_error_of_card"].iloc[0])
        summary[f"fall_{letter}"] = round(1 / float(mine["model_of_emptiest"].iloc[-1]), 2)
    return summary


def of_layout(frame: pd.DataFrame) -> dict[str, float | str]:
    """What is drawn: greedy collection, each card."""
    summary: dict[str, float | str] = {"past_cache_pct": float(frame["past_cache_pct"].iloc[0])}
    greedy = frame[frame["collection"] == "greedy"]
    for letter in LETTERS:
        mine = greedy[greedy["card"] == letter]
        for key in ("total_wa", "flash_wa", "life_user_tb"):
            summary[f"{key}_{letter}"] = float(mine[key].iloc[0])
    return summary
