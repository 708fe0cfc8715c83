"""Garbage on the socket, half a request, requests beyond all bounds: the daemon goes on serving and nothing is
changed."""

import pytest
from harness import abuse
from harness.clients import is_served, need
from harness.daemon import RunVolume
from harness.devices import MIB
from harness.proc import memory

CASES = [
    abuse.garbage,
    abuse.garbage_after_handshake,
    abuse.half_a_write,
    abuse.vanish_with_requests_in_flight,
    abuse.out_of_range,
    abuse.huge,
]


@pytest.mark.heavy
def test_bad_clients_change_nothing(volume: RunVolume) -> None:
    need("nbdinfo")
    volume.make_backing(64 * MIB)
    volume.start()
    oracle = volume.oracle()
    oracle.write(seconds=1)
    for case in CASES:
        case(volume.socket)
        assert is_served(volume.uri) == 64 * MIB, case.__name__
    oracle.verify("after clients that do not behave")
    abuse.unaligned(volume.socket)
    assert "panicked at" not in volume.running.stderr()
    assert memory(volume.pid, "VmHWM") < 1 << 30, "a client made the daemon take memory"
    volume.stop()
