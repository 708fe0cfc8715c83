"""Recording: what a client asks for is in the trace, with outcomes and latencies; two recorders of one volume do not
disturb each other. A recording ends by itself, by Ctrl-C, by `forebay jobs --cancel`, with its volume, and with the
daemon, and is readable each time. Conversions work over pipes; what cannot be converted is refused, and leaves no
file."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from harness import messages
from harness.clients import fio_speaks_nbd, need
from harness.command import run
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.process import Process
from harness.waiting import eventually

CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = ["{uri}"]
"""
REQUESTS = 2000
# Of the format `bin`.
RECORD_BYTES = 24


@pytest.fixture
def served(daemon: Daemon, folder: Path) -> Daemon:
    need("fio")
    if not fio_speaks_nbd():
        pytest.skip("this fio has no nbd engine")
    sparse(folder / "db.img", 128 * MIB)
    daemon.configure(CONFIG.format(folder=folder, uri=daemon.nbd("db")))
    daemon.start()
    return daemon


def record(daemon: Daemon, name: str, *options: str, volume: str = "db", recordings: int = 1) -> Process:
    """Starts a recording, and waits until so many run."""
    words = ["trace", "record", volume, "--to", daemon.folder / f"{name}.fbtrace", "--json", *options]
    recorder = daemon.forebay.start(*words, name=name)
    eventually(lambda: len(running(daemon)) == recordings, 30, f"{recordings} recordings run")
    # The job runs before its first bytes come; a recording that ends without any leaves no trace.
    trace = daemon.folder / f"{name}.fbtrace"
    eventually(lambda: trace.exists() and trace.stat().st_size > 0, 30, "the trace has begun")
    return recorder


def running(daemon: Daemon) -> list[str]:
    """The jobs that record."""
    jobs = daemon.api.get("/v1/jobs")
    return [job["id"] for job in jobs if job["kind"] == "record" and job["state"] == "running"]


def load(daemon: Daemon) -> None:
    """2000 reads and writes of 8 KiB, with FLUSHes among them."""
    how = ["--ioengine=nbd", f"--uri={daemon.nbd('db')}", "--iodepth=4", "--rw=randrw", "--bs=8k", "--size=64M"]
    run(["fio", "--name=load", *how, f"--number_ios={REQUESTS}", "--fsync=500", "--randseed=3"])


def converted(daemon: Daemon, name: str, to: Path) -> Any:
    """Converts a trace; what was done."""
    return daemon.json("trace", "convert", daemon.folder / f"{name}.fbtrace", to, "--overwrite")


def has_the_load(daemon: Daemon, name: str) -> None:
    """Reads, writes and FLUSHes are there, with outcomes and latencies."""
    text = daemon.folder / f"{name}.blkparse"
    done = converted(daemon, name, text)
    kinds = [line.split()[6][:1] for line in text.read_text().splitlines() if re.search(r" Q +(R|W|FN)", line)]
    assert kinds.count("R") + kinds.count("W") >= REQUESTS and kinds.count("F") >= 1, done
    assert done["written"] == done["read"] >= REQUESTS and done["notes"] == [], done
    # That format keeps all but outcomes (which reads and writes have) and latencies (which all have).
    assert sorted(loss["requests"] >= REQUESTS for loss in done["losses"]) == [True, True], done


def is_whole(recorder: Process) -> None:
    assert recorder.wait() == 0, recorder.tail()
    said = recorder_said(recorder)
    assert (said["lost"], said["cut_off"]) == (0, False), said


def recorder_said(recorder: Process) -> Any:
    return json.loads(recorder.stdout())


@pytest.mark.heavy
def test_two_recorders_of_one_volume(served: Daemon, folder: Path) -> None:
    two = record(served, "two", "--for", "1h")
    for seconds in (3, 20, 120):  # longer where the machine was too busy for the load
        one = record(served, "one", "--for", f"{seconds}s", "--overwrite", recordings=2)
        assert "record" in served("jobs").stdout
        load(served)
        if len(running(served)) == 2:
            break
        one.wait()
    is_whole(one)
    two.signal(signal.SIGINT)
    is_whole(two)
    has_the_load(served, "one")
    has_the_load(served, "two")

    # What-if and replay take it.
    served("what-if", "--trace", folder / "one.fbtrace", "--cache", "32MiB")
    replay = ["trace", "replay", folder / "one.fbtrace", "--to", "db", "--asap", "--depth", "4"]
    done = served.json(*replay)
    assert list(done["operations"]) == ["read"], "writes were replayed without consent"
    assert done["left_out"] > 0 and done["operations"]["read"]["recorded"]["mean_ns"] > 0, done
    served.stop()


def test_recording_is_cancelled(served: Daemon, folder: Path) -> None:
    recorder = record(served, "three", "--for", "1h")
    (job,) = running(served)
    # A second recording does not write into the file of the first.
    again = ["trace", "record", "db", "--for", "1s", "--to", folder / "three.fbtrace", "--overwrite"]
    served.refused("cli.exists", *again, mentions=[folder / "three.fbtrace"])
    served("jobs", job, "--cancel")
    assert recorder.wait() == 1, "a cancelled recording is a success"
    said = recorder_said(recorder)
    assert said["job"]["state"] == "cancelled" and not said["cut_off"], said
    messages.check("job.cancelled", messages.parse(recorder.stderr()), [], "a cancelled recording")
    converted(served, "three", folder / "three.blkparse")
    served.stop()


def test_recording_ends_at_its_size(served: Daemon, folder: Path) -> None:
    recorder = record(served, "small", "--for", "1h", "--max-size", "8KiB")
    load(served)
    assert recorder.wait() == 0, recorder.tail()
    assert (folder / "small.fbtrace").stat().st_size <= 8192
    done = converted(served, "small", folder / "small.blkparse")
    assert done["written"] > 0 and done["notes"] == [], done
    served.stop()


def test_recording_ends_with_its_volume(served: Daemon, folder: Path) -> None:
    recorder = record(served, "gone", "--for", "1h")
    served("volume", "detach", "db")
    assert recorder.wait() == 1, "the volume has gone"
    assert not recorder_said(recorder)["cut_off"], recorder.tail()
    messages.check(
        "volume.not-attached", messages.parse(recorder.stderr()), [], "a recording of a volume that was detached"
    )
    assert converted(served, "gone", folder / "gone.csv")["notes"] == [], "it is not whole"
    served.stop()


def test_recording_ends_with_a_killed_daemon(served: Daemon, folder: Path) -> None:
    recorder = record(served, "killed", "--for", "1h")
    load(served)
    records = folder / "killed.bin"

    def is_written() -> bool:
        """What is recorded follows within about a second."""
        result = served("trace", "convert", folder / "killed.fbtrace", records, "--overwrite", ok=False)
        return result.code == 0 and records.stat().st_size >= REQUESTS * RECORD_BYTES

    eventually(is_written, 30, "it is written while it runs")
    served.kill()
    assert recorder.wait() == 1, "the daemon was killed"
    assert recorder_said(recorder)["cut_off"], recorder.tail()
    ended = ("recording.ended-early", "daemon.no-answer")
    messages.check(ended, messages.parse(recorder.stderr()), [], "a recording of a killed daemon")
    done = converted(served, "killed", records)
    assert done["notes"] != [], f"it does not say that the trace was cut off: {done}"
    assert records.stat().st_size >= REQUESTS * RECORD_BYTES, "what came before is missing"


def test_recording_ends_with_a_stopped_daemon(served: Daemon) -> None:
    """The trace is whole, with all requests that were answered before the stop."""
    recorder = record(served, "stopped", "--for", "1h")
    load(served)
    served.stop()
    assert recorder.wait() == 1, "the daemon was stopped"
    assert not recorder_said(recorder)["cut_off"], recorder.tail()
    ended = ("recording.ended-early", "job.stopped")
    messages.check(ended, messages.parse(recorder.stderr()), [], "a recording of a stopped daemon")
    has_the_load(served, "stopped")


def test_formats_and_what_is_refused(served: Daemon, folder: Path) -> None:
    recorder = record(served, "one", "--for", "1h")
    load(served)
    recorder.signal(signal.SIGINT)
    is_whole(recorder)
    one, back = folder / "one.fbtrace", folder / "back.alibaba"
    # Over pipes.
    msr = served("trace", "convert", one, "-", "--to", "msr").stdout
    served("trace", "convert", "-", back, "--from", "msr", stdin=msr)
    assert len(back.read_text().splitlines()) >= REQUESTS

    served.refused("cli.exists", "trace", "convert", one, back, mentions=[back])
    bad = folder / "bad.alibaba"
    bad.write_text("1,R,0,4096,5\n1,X,0,4096,6\n")
    served.refused("trace.unreadable", "trace", "convert", bad, folder / "bad.bin", mentions=[bad, "2", "3", '"X"'])
    assert not (folder / "bad.bin").exists(), "half a conversion stays"
    served.refused(
        "trace.unreadable", "trace", "convert", one, "/dev/full", "--to", "bin", mentions=["/dev/full", "os error 28"]
    )
    nothing = folder / "nothing.fbtrace"
    served.refused("volume.unknown", "trace", "record", "nothing", "--for", "1s", "--to", nothing, mentions=["nothing"])
    assert not nothing.exists(), "a file of nothing stays"
    served.refused("cli.exists", "trace", "record", "db", "--for", "1s", "--to", one, mentions=[one])
    long = folder / "long.fbtrace"
    served.refused(
        "recording.limit", "trace", "record", "db", "--for", "31d", "--to", long, code=(1, 2), mentions=["2592000"]
    )
    served.refused("trace.target", "trace", "convert", one, one, "--overwrite", code=(1, 2), mentions=[one])
    packed = folder / "packed.csv.zst"
    served.refused("trace.target", "trace", "convert", one, packed, code=2, mentions=[packed, folder / "packed.csv"])
    served.refused("trace.format", "trace", "convert", one, folder / "x", code=(1, 2), mentions=[folder / "x", "--to"])
    assert one.stat().st_size > 0
    served.stop()


def test_refused_recording_leaves_what_was_there(served: Daemon, folder: Path) -> None:
    """The file that is to be replaced goes when the recording has begun, and this one never does."""
    recorders = [
        record(served, name, "--for", "1h", recordings=number) for number, name in enumerate(("a", "b", "c", "d"), 1)
    ]
    old = folder / "old.fbtrace"
    old.write_text("precious")
    again = ["trace", "record", "db", "--for", "1s", "--to", old, "--overwrite"]
    failed = served(*again, ok=False)
    assert "4 recordings" in failed.stderr, failed
    assert old.read_text() == "precious"
    for recorder in recorders:
        recorder.signal(signal.SIGINT)
        recorder.wait()
    served.stop()
