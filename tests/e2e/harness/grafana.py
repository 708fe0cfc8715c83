"""Asks a Prometheus every expression of a Grafana dashboard.

Variables stand for everything, and `$__rate_interval` for what Grafana makes of a scrape each second.
Expressions of alerts (annotations) need no series: there are none where nothing is wrong."""

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .waiting import eventually

VARIABLES = {"$__rate_interval": "10s", "$instance": ".*", "$pool": ".*", "$volume": ".*"}


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[Any]:
        """The series of an expression; what cannot be computed is no series."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=20) as answer:
                result = json.load(answer)["data"]["result"]
        except OSError as error:
            raise AssertionError(f"{expression}: {error}") from error
        return [series for series in result if series["value"][1] != "NaN"]

    def value(self, expression: str) -> float:
        """The value of the first series."""
        found = self.query(expression)
        assert found, f"no series for {expression}"
        return float(found[0]["value"][1])


def expressions(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def queries_of_variables(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Of label_values(SELECTOR, LABEL), the selector; its label must be one of the series."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            selector, label = variable["definition"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
            yield f"variable {variable['name']}", f'{selector} and {selector.split("{")[0]}{{{label}!=""}}'


def concrete(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def all_have_series(prometheus: Prometheus, dashboard: Path, seconds: float = 60) -> None:
    """Every expression of the dashboard gives a series, within a while."""
    parsed = json.loads(dashboard.read_text())
    left = [*expressions(parsed), *queries_of_variables(parsed)]
    assert left, f"{dashboard} has no expressions"

    def none_left() -> bool:
        nonlocal left
        left = [(title, one) for title, one in left if not prometheus.query(concrete(one))]
        assert not left, "no series for:\n" + "\n".join(f"{title}: {one}" for title, one in left)
        return True

    eventually(none_left, seconds, "series for every expression of the dashboard")
