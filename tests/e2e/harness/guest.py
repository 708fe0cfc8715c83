"""Tests that run in a guest: those with the mark `guest(BOOT)`, all tests of one BOOT in one boot of it
(tests/guest/run).

The first test of a boot that is to run starts the guest with all tests of that boot. In the guest pytest runs them, in
their order, with E2E_IN_GUEST set; this plugin writes a line for each report, which the host reads and passes on as its
own. A test without a report has failed: the guest has died, or was ended at its limit.

- `guest("ublk")`: in a guest where this machine has no ublk; directly where it has.
- `guest("guide", always=True)`: in a guest in any case, since it changes devices of the machine.
- `guest("ublk", prepare=FUNCTION)`: the host calls FUNCTION(FOLDER) before; the guest has that folder as `SHARED`.

The guest's / is that of this machine, read-only; its /run is its own, and TMPDIR. One guest runs at a time: `one_guest`
is for tests that start one of their own."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from .command import BINARY, ROOT, run
from .process import Process
from .slots import one_guest, slots

BOOT = os.environ.get("E2E_IN_GUEST", "")
GUEST = ROOT / "tests/guest"
E2E = ROOT / "tests/e2e"
OUT = Path("/run/out")
SHARED = OUT / "shared"
REPORTS = "reports"
# On emulated processors everything takes so many times as long.
TCG_SLOWNESS = 4
BOOT_SECONDS = 40
MEMORY = "2G"
LIMIT_SECONDS = 200
LOGS = Path(os.environ.get("LOGS", ROOT / "target/e2e-logs"))


def boot_of(item: pytest.Item) -> str:
    """The boot that a test runs in, or nothing if it runs here."""
    mark = item.get_closest_marker("guest")
    if BOOT or mark is None:
        return ""
    directly = os.geteuid() == 0 and Path("/dev/ublk-control").exists() and not mark.kwargs.get("always")
    return "" if directly else str(mark.args[0])


def group_of(nodeid: str) -> str:
    """Tests of one group are run by the same worker of pytest-xdist: those in guests, as one guest runs at a time, and
    those of a file that has the mark `xdist_group(NAME)`, for what they make once. (Marks alone do not reach the
    scheduler of xdist 3.8.)"""
    with contextlib.suppress(OSError):
        text = (E2E / nodeid.partition("::")[0]).read_text()
        if "pytest.mark.guest(" in text:
            return "guest"
        if found := re.search(r"pytest\.mark\.xdist_group\(\"([\w-]+)\"\)", text):
            return found[1]
    return nodeid


def accelerator() -> str:
    """`kvm` if guests really come up with it here, or `tcg`. Makes what is booted, if need be."""
    run([GUEST / "setup"], seconds=600)
    return run([GUEST / "setup", "--accelerator"]).stdout.strip()


def slowness() -> float:
    """How many times as long things take in a guest."""
    return TCG_SLOWNESS if accelerator() == "tcg" else 1


def user_mode_linux(folder: Path, script: Path, limit: float) -> list[str]:
    """In place of tests/guest/run: a newer kernel, where one was built (bench/kernel-peers/setup)."""
    out, peers = folder / "out", ROOT / "bench/kernel-peers"
    linux = Path(os.environ.get("KERNEL_PEERS_DIR", "/var/tmp/forebay-kernel-peers")) / "linux"
    assert linux.exists(), f"there is no {linux}: bench/kernel-peers/setup builds one"
    (out / "settings").write_text(f"SCRIPT={shlex.quote(str(script))}\n")
    root = ["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={peers}/guest/init"]
    command = [linux, f"mem={MEMORY}", "ncpus=2", "seccomp=on", *root, "con0=null,fd:1", "con=null"]
    command += [f"PEERS_DIR={peers}", f"PEERS_OUT={out}"]
    limited = ["env", "--unset=TMPDIR", "setpriv", "--pdeathsig", "TERM", "timeout", "--kill-after=5", str(int(limit))]
    return [*limited, *map(str, command)]


class Guest:
    """A guest that runs a script, in the background. What the script leaves in /run/out is in the folder `out`."""

    def __init__(
        self, folder: Path, *words: object, limit: float, name: str = "guest", command: list[str] | None = None
    ) -> None:
        """`words` are for tests/guest/run: options, the script, and NAME=VALUE. Or `command` in place of that."""
        self.out = folder / "out"
        default = [GUEST / "run", "--limit", int(limit), "--out", self.out, *words]
        self.process = Process(command or [str(word) for word in default], folder / f"{name}.err")

    def qemu(self) -> int:
        """The process number of QEMU, or 0 before it is started."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.out / "pid").read_text())
        return 0

    def cut_power(self) -> None:
        """The guest ends at once."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.is_running and (pid := self.qemu()):
                os.kill(pid, signal.SIGKILL)
        self.process.popen.wait(60)

    def clean_up(self) -> None:
        if self.process.is_running:
            # It ends QEMU too, which may just be starting.
            self.process.popen.terminate()
            self.cut_power()

    def console(self) -> str:
        """What its kernel and systemd said, without colours, and without what systemd shows of what it waits for."""
        path = self.out / "console"
        text = path.read_text(errors="replace") if path.exists() else ""
        lines = re.sub(r"\x1b\[[0-9;]*[mK]|\x1bM", "", text).replace("\r", "\n").splitlines()
        return "\n".join(line for line in lines if line.strip() and not re.match(r"\[[* ]+\] ", line))

    def last_words(self) -> str:
        """What is known of how it ended."""
        log = self.out / "log"
        said = log.read_text(errors="replace")[-5000:] if log.exists() else ""
        return f"{self.process.tail()}\n--- its console:\n{self.console()[-3000:]}\n--- pytest in it:\n{said}"


class Boot:
    """One boot of the guest with tests in it, and their reports."""

    def __init__(self, config: pytest.Config, name: str, items: list[pytest.Item]) -> None:
        self.config = config
        self.name = name
        self.reports: dict[str, list[Any]] = {}
        self.finished: set[str] = set()
        self.offset = 0
        self.names = [item.nodeid for item in items]
        with contextlib.ExitStack() as held:
            # In this order everywhere: a test that waits for the guest must hold up no others.
            held.enter_context(one_guest())
            held.enter_context(slots(2))
            self.start(items, held)
            self.held = held.pop_all()

    def start(self, items: list[pytest.Item], held: contextlib.ExitStack) -> None:
        self.factor = slowness()
        self.folder = Path(tempfile.mkdtemp(prefix="forebay-guest."))
        held.callback(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / "out/shared").mkdir(parents=True)
        (self.folder / "out/logs").mkdir()
        for prepare in {mark.kwargs["prepare"] for item in items for mark in marks(item) if "prepare" in mark.kwargs}:
            prepare(self.folder / "out/shared")
        limit = BOOT_SECONDS + sum(limit_of(item) * self.factor for item in items)
        script = self.write_script()
        if os.environ.get("KERNEL") == "uml":
            self.guest = Guest(self.folder, limit=limit, command=user_mode_linux(self.folder, script, limit))
        else:
            self.guest = Guest(self.folder, "--memory", MEMORY, script, limit=limit)

    def write_script(self) -> Path:
        # Without what is for debuggers it is read much faster.
        binary = self.folder / "forebay"
        if run(["strip", "-o", binary, BINARY], ok=False).code != 0:
            shutil.copy(BINARY, binary)
        environment = {
            "E2E_IN_GUEST": self.name,
            "E2E_SLOWNESS": str(self.factor),
            "FOREBAY": str(binary),
            "LOGS": str(OUT / "logs"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        for name in ("CI", "ALL"):
            if name in os.environ:
                environment[name] = os.environ[name]
        if "RECORD_MESSAGE_IDS" in os.environ:
            environment["RECORD_MESSAGE_IDS"] = str(OUT / "ids")
        root = Path(str(self.config.rootpath))
        (self.folder / "tests").write_text("".join(f"{name}\n" for name in self.names))
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "pytest_timeout", f"@{self.folder}/tests"]
        lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
        lines += [f"cd {shlex.quote(str(root))}", f"exec {shlex.join(command)}"]
        script = self.folder / "script"
        script.write_text("\n".join(lines) + "\n")
        return script

    def read(self) -> None:
        """Reports that have come since."""
        path = self.folder / "out" / REPORTS
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self.offset)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            value = json.loads(line)
            if "report" in value:
                self.reports.setdefault(value["name"], []).append(value["report"])
            else:
                self.finished.add(value["name"])

    def reports_of(self, item: pytest.Item) -> list[pytest.TestReport]:
        """Waits for the end of a test. If the guest ends before, that is its failure."""
        name = item.nodeid
        while True:
            runs = self.guest.process.is_running
            self.read()
            if name in self.finished or not runs:
                break
            time.sleep(0.1)
        reports = []
        for data in self.reports.get(name, []):
            report = self.config.hook.pytest_report_from_serializable(config=self.config, data=data)
            if isinstance(report.longrepr, list):  # JSON has no tuples, and that of a skip is one
                report.longrepr = tuple(report.longrepr)
            reports.append(report)
        if name not in self.finished:
            text = f"the guest ({self.name}) ended before this test did.\n{self.guest.last_words()}"
            keywords = dict.fromkeys(item.keywords, 1)
            reports.append(pytest.TestReport(item.nodeid, item.location, keywords, "failed", text, "call"))
        return reports

    def close(self) -> None:
        """Ends the guest, in which nothing is left to do, and keeps what it left."""
        self.guest.clean_up()
        left = self.folder / "out/logs"
        if any(left.iterdir()):
            shutil.copytree(left, LOGS, dirs_exist_ok=True)
        ids = self.folder / "out/ids"
        if ids.exists() and (record := os.environ.get("RECORD_MESSAGE_IDS")):
            with Path(record).open("a") as file:
                file.write(ids.read_text())
        self.held.close()


def marks(item: pytest.Item) -> Iterable[pytest.Mark]:
    return item.iter_markers("guest")


def limit_of(item: pytest.Item) -> float:
    mark = item.get_closest_marker("limit")
    return float(mark.args[0]) if mark else LIMIT_SECONDS


class OnHost:
    """Runs boots, and passes on what they report."""

    def __init__(self) -> None:
        self.boot: Boot | None = None
        self.over: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Tests in guests first, since they take longest, and those of one boot side by side."""
        del config
        order = {name: at for at, name in enumerate(dict.fromkeys(boot_of(item) for item in items if boot_of(item)))}
        items.sort(key=lambda item: order.get(boot_of(item), len(order)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from xdist.scheduler import LoadGroupScheduling  # noqa: PLC0415

        class Scheduling(LoadGroupScheduling):
            def _split_scope(self, nodeid: str) -> str:
                return group_of(nodeid)

        return Scheduling(config, log)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        name = boot_of(item)
        if not name:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self.reports_of(item, name):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if self.boot and (nextitem is None or boot_of(nextitem) != name):
            self.end_boot()
        return True

    def reports_of(self, item: pytest.Item, name: str) -> list[pytest.TestReport]:
        if os.geteuid() != 0:
            return [outcome(item, "skipped", "the guest has the files of this user, and what it does needs root's")]
        try:
            if self.boot is None:
                fresh = [other for other in item.session.items if boot_of(other) == name]
                self.boot = Boot(item.config, name, fresh if name not in self.over else [item])
                self.over.add(name)
        except (AssertionError, OSError) as error:
            return [outcome(item, "failed", f"the guest cannot be made: {error}")]
        return self.boot.reports_of(item)

    def end_boot(self) -> None:
        if self.boot:
            self.boot.close()
            self.boot = None

    @pytest.hookimpl
    def pytest_sessionfinish(self) -> None:
        self.end_boot()


def outcome(item: pytest.Item, how: str, why: str) -> pytest.TestReport:
    """A report of a test that was not begun."""
    if how == "skipped" and os.environ.get("CI"):
        how = "failed"
    where: Any = (str(item.path), item.location[1] or 0, f"Skipped: {why}") if how == "skipped" else why
    return pytest.TestReport(item.nodeid, item.location, dict.fromkeys(item.keywords, 1), how, where, "setup")  # type: ignore[arg-type]


class InGuest:
    """Writes each report down for the host."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.file = (OUT / REPORTS).open("w")

    def write(self, value: dict[str, Any]) -> None:
        self.file.write(json.dumps(value) + "\n")
        self.file.flush()

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.write({"name": report.nodeid, "report": data})

    @pytest.hookimpl
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.write({"name": nodeid})


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(InGuest(config) if BOOT else OnHost())
