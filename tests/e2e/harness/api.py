"""The admin API over its unix socket."""

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from .waiting import SLOWNESS


class ApiError(AssertionError):
    """The daemon refused a request."""

    def __init__(self, status: int, problem: Any) -> None:
        super().__init__(f"{status}: {problem}")
        self.status = status
        self.problem = problem
        self.id: str = problem.get("id", "") if isinstance(problem, dict) else ""


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class Api:
    """One connection a request, as scripts with curl do."""

    def __init__(self, path: Path, seconds: float = 60) -> None:
        self.path = path
        self.seconds = seconds

    def request(
        self, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = UnixConnection(self.path, self.seconds * SLOWNESS)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, target, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _json(self, method: str, target: str, body: Any = None) -> Any:
        status, text = self.request(method, target, body)
        value = json.loads(text) if text.strip() else None
        if status >= 400:
            raise ApiError(status, value)
        return value

    def get(self, target: str) -> Any:
        return self._json("GET", target)

    def post(self, target: str, body: Any = None) -> Any:
        return self._json("POST", target, body)

    def put(self, target: str, body: Any = None) -> Any:
        return self._json("PUT", target, body)

    def patch(self, target: str, body: Any = None) -> Any:
        return self._json("PATCH", target, body)

    def delete(self, target: str) -> Any:
        return self._json("DELETE", target)

    def metrics(self) -> dict[str, float]:
        """Each sample of /metrics by its name with labels, as it is written there."""
        status, text = self.request("GET", "/metrics")
        assert status == 200, text
        samples = {}
        for line in text.decode().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples
