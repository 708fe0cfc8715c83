"""Ports of the loopback interface."""

from __future__ import annotations

import socket

_given: set[int] = set()


def free_port(host: str = "127.0.0.1") -> int:
    """One that is free now, and none that was given before; whoever gets it should listen soon."""
    while True:
        with socket.socket() as trial:
            trial.bind((host, 0))
            port = int(trial.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port
