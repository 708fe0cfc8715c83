"""Ports of the loopback interface."""

from __future__ import annotations

import socket


def free_port(host: str = "127.0.0.1") -> int:
    """One that is free now; whoever gets it should listen soon."""
    with socket.socket() as trial:
        trial.bind((host, 0))
        return int(trial.getsockname()[1])
