"""Says what is going on and how long it will take: one line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from comparison.figures import duration

# How many runs the first guess of the overhead weighs as much as.
FORESEEN_RUNS = 4


class Progress:
    """Time is foreseen from what runs and stages took so far, and from the plan where nothing was measured yet."""

    def __init__(self, runs: int, run_s: float, stages_s: list[float], stream: TextIO = sys.stderr) -> None:
        """`runs` that take `run_s` together, without what fio needs to start; `stages_s` to prepare each stage."""
        self.runs = runs
        self.done = 0
        self.run_s_left = run_s
        self.stages_s = list(stages_s)
        self.overhead_s = 0.6
        self.stream = stream
        self.terminal = stream.isatty()
        self.began = time.monotonic()

    def left_s(self) -> float:
        """Seconds until everything is done, as far as can be foreseen."""
        return self.run_s_left + (self.runs - self.done) * self.overhead_s + sum(self.stages_s)

    def stage(self, title: str) -> None:
        """A stage is being prepared."""
        self.say(f"preparing: {title}")

    def prepared(self) -> None:
        """It is."""
        if self.stages_s:
            self.stages_s.pop(0)

    def run(self, text: str) -> None:
        """A run begins."""
        self.say(text)

    def ran(self, planned_s: float, took_s: float) -> None:
        """A run is over, with everything around it. The overhead is the mean of all, beginning with a few foreseen."""
        self.done += 1
        self.run_s_left = max(0.0, self.run_s_left - planned_s)
        self.overhead_s += (took_s - planned_s - self.overhead_s) / (self.done + FORESEEN_RUNS)

    def note(self, text: str) -> None:
        """Something to know that stays on the screen."""
        self.stream.write(("\r\x1b[K" if self.terminal else "") + text + "\n")
        self.stream.flush()

    def say(self, text: str) -> None:
        """Shows what happens now."""
        line = f"[{self.done}/{self.runs}] {text}; about {duration(self.left_s())} left"
        if self.terminal:
            width = shutil.get_terminal_size().columns
            self.stream.write(f"\r\x1b[K{line[: width - 1]}")
        else:
            self.stream.write(line + "\n")
        self.stream.flush()

    def end(self) -> None:
        """Leaves the line."""
        self.note(f"{self.done} runs in {duration(time.monotonic() - self.began)}")
