"""Asks a Prometheus every expression of a Grafana dashboard, and fails for those that give no series.

grafana_expressions.py DASHBOARD URL

Variables stand for everything, and `$__rate_interval` for what Grafana makes of a scrape each second.
Expressions of alerts (annotations) need no series: nothing may be wrong.
"""

import json
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLES = {"$__rate_interval": "10s", "$pool": ".*", "$volume": ".*"}
WITHIN_S = 40.0


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


def result_of(url: str, expression: str) -> list[Any]:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}") as answer:
        result = json.load(answer)["data"]["result"]
    # What cannot be computed is no series either.
    return [series for series in result if series["value"][1] != "NaN"]


def main() -> int:
    path, url = sys.argv[1:]
    dashboard = json.loads(Path(path).read_text())
    left = [*expressions(dashboard), *queries_of_variables(dashboard)]
    print(f"{len(left)} expressions")
    deadline = time.monotonic() + WITHIN_S
    while left and time.monotonic() < deadline:
        left = [(title, expression) for title, expression in left if not result_of(url, expression)]
        time.sleep(0.5)
    for title, expression in left:
        print(f"{title}: no series for {expression}")
    return 1 if left else 0


sys.exit(main())
