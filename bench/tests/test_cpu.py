"""Who used the processor."""

from __future__ import annotations

import os
import subprocess
import sys

from comparison import cpu
from comparison.cpu import Meter, Process

OURS = 100


def test_a_name_with_blanks_and_parentheses_does_not_shift_the_fields() -> None:
    line = "42 (a) (b c) R 7 42 42 0 -1 4194304 1 2 3 4 11 22 33 44 20 0 1 0 5 6 7"
    assert cpu.parse_stat(line) == Process(pid=42, parent=7, ticks=33, ticks_children=77)


def test_pressure_and_steal() -> None:
    assert cpu.parse_pressure("some avg10=1.00 avg60=2.00 avg300=3.00 total=4567\nfull avg10=0 total=1\n") == 4567
    assert cpu.parse_steal("cpu  1 2 3 4 5 6 7 89 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n") == 89
    assert cpu.parse_steal("cpu 0") == 0


def test_our_tree_and_kernel_threads_are_not_foreign() -> None:
    processes = [
        Process(1, 0, 5, 7),
        Process(2, 0, 1000, 0),
        Process(20, 2, 1000, 0),
        Process(OURS, 50, 1000, 1000),
        Process(101, OURS, 1000, 0),
        Process(102, 101, 1000, 0),
        Process(50, 1, 3, 0),
        Process(51, 50, 2, 0),
    ]
    assert cpu.foreign_ticks(processes, OURS) == 5 + 7 + 3 + 2


def test_time_of_a_process_that_ends_does_not_vanish() -> None:
    compiling = [Process(1, 0, 5, 0), Process(60, 1, 10, 0), Process(61, 60, 90, 0)]
    done = [Process(1, 0, 5, 0), Process(60, 1, 10, 90)]
    assert cpu.foreign_ticks(compiling, OURS) == cpu.foreign_ticks(done, OURS)


def test_a_process_whose_parent_is_not_visible_is_foreign() -> None:
    assert cpu.foreign_ticks([Process(70, 69, 4, 0)], OURS) == 4


def test_the_meter_sees_what_a_child_uses_and_does_not_call_it_foreign() -> None:
    spin = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    child = subprocess.Popen([sys.executable, "-c", spin])
    try:
        meter = Meter([child.pid])
        while meter.read().server_cpu_s < 0.2:
            assert child.poll() is None
        usage = meter.read()
        by_others = cpu.foreign_ticks(cpu.read_processes(), os.getpid())
        with_child = cpu.foreign_ticks(cpu.read_processes(), -1)
    finally:
        child.kill()
        child.wait()
    assert usage.elapsed_s >= 0.15
    assert 0 <= usage.pressure <= 1
    assert 0 <= usage.foreign <= 1
    assert with_child - by_others >= 0.2 * cpu.TICKS_PER_S
