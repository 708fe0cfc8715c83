"""The arithmetic of `bench/frontier`: factors, their reasons, and tables."""

from __future__ import annotations

from tracing import frontier

ORACLE = {
    "trace": 0,
    "share_pct": 10,
    "reads": 800,
    "client": 200,
    "belady": {"hits": 500, "fills": 300},
    "curve": [[0, 0, 0]],
}
RUN = {
    **{"trace": 0, "share_pct": 10, "policy": "lru", "admission": "always", "survivors_max_pct": 75, "client": 200},
    **{"hits": 600, "misses": 200, "fills": 200, "moves": 100, "device": 600, "flash": 900},
}


def test_the_factors_multiply_to_the_ratio() -> None:
    found = frontier.point(RUN | {"oracle_fills": 50, "bound_fills": 25}, frontier.asked(ORACLE))
    assert (found.misses_pct, found.written, found.ratio, found.ratio_bound) == (25, 0.9, 3.6, 4)
    assert found.factors == {"fills": 1.6, "moves": 1.25, "headers": 1.2, "device": 1.5}
    assert found.reason == "fills"


def test_what_is_near_the_oracle_needs_no_reason() -> None:
    near = frontier.point(RUN | {"oracle_fills": 620, "bound_fills": 0}, 1000)
    assert near.ratio is not None and 1.09 < near.ratio < 1.1
    assert near.reason == "-"
    assert frontier.point(RUN | {"client": 0, "oracle_fills": 0, "bound_fills": 0}, 1000).ratio is None


def test_a_brief_table_has_the_default_alone() -> None:
    lines = [ORACLE, *(RUN | {"survivors_max_pct": pct, "oracle_fills": 50, "bound_fills": 25} for pct in (10, 75))]
    assert frontier.table(["vm"], lines, brief=False).count("lru") == 2
    assert frontier.table(["vm"], lines, brief=True).count("lru") == 1
