"""What there is for Prometheus: both texts of /metrics, the rules and their tests, the token for looking, and a real
Prometheus that scrapes the port without a token. Every expression of the Grafana dashboard has series there, and
alerts come. A pool that does not answer hides no other, neither there nor from commands."""

import base64
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.clients import need, qemu_io
from harness.command import ROOT, run
from harness.daemon import Daemon
from harness.devices import MIB, sparse
from harness.grafana import Prometheus, all_have_series
from harness.hold_thread import held
from harness.process import Process
from harness.waiting import eventually

MONITORING = ROOT / "packaging/monitoring"
CONFIG = """
[pool.fast]
devices = [{{ path = "{folder}/flash.img", size = "64MiB" }}]

[pool.second]
devices = [{{ path = "{folder}/second.img", size = "64MiB" }}]

[volume.far]
pool = "second"
backing = "file:{folder}/far.img"
exports = []

[volume.db]
pool = "fast"
backing = "file:{folder}/db.img"
exports = ["{db}"]
flush_period = "1h"

[volume.old]
pool = "fast"
backing = "file:{folder}/old.img"
exports = ["{old}"]
idle_delay = "off"
"""
# Each is the beginning of a line of /metrics.
SERIES = [
    r'forebay_build_info\{version="[0-9.]*"\} 1',
    r'forebay_pool_state\{pool="fast",state="open"\} 1',
    r'forebay_volume_mode\{pool="fast",volume="db",mode="writeback"\} 1',
    r'forebay_flush_period_seconds\{pool="fast",volume="db"\} 3600.0',
    r'forebay_alarms\{severity="error"\} 0',
    r"process_resident_memory_bytes [1-9]",
    r'forebay_cache_written_bytes_total\{pool="fast"\} [1-9]',
]


@pytest.fixture
def tcp(free_port: Callable[[], int]) -> int:
    """The port of the admin API."""
    return free_port()


@pytest.fixture
def open_port(free_port: Callable[[], int]) -> int:
    """The port of /metrics without a token."""
    return free_port()


@pytest.fixture
def served(daemon: Daemon, folder: Path, tcp: int, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{ROOT}/target/prometheus/usr/bin")
    need("prometheus", "promtool", "qemu-io")
    for name in ("db", "old", "far"):
        sparse(folder / f"{name}.img", 64 * MIB)
    for name in ("token", "read-token"):
        (folder / name).touch(0o600)
        (folder / name).write_bytes(base64.b64encode(os.urandom(32)))
    listen = f'admin_tcp = {{ listen = "127.0.0.1:{tcp}", token_file = "{folder}/token"'
    text = CONFIG.format(folder=folder, db=daemon.nbd("db"), old=daemon.nbd("old"))
    daemon.configure(text, f'{listen}, read_token_file = "{folder}/read-token" }}')
    daemon.start()
    qemu_io(daemon.nbd("db"), "write 0 4M", "flush", "read 2M 8M")
    qemu_io(daemon.nbd("old"), "write 0 1M", "flush")
    return daemon


@pytest.fixture
def prometheus(served: Daemon, folder: Path, open_port: int, free_port: Callable[[], int]) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the daemon each second."""
    served("set", "--daemon", f"metrics_listen=127.0.0.1:{open_port}")
    config = f"""
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: ["{MONITORING}/forebay.rules.yml"]
scrape_configs:
  - job_name: forebay
    static_configs: [{{ targets: ["127.0.0.1:{open_port}"] }}]
"""
    (folder / "prometheus.yml").write_text(config)
    listen = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb", "--log.level=warn"]
    server = Process(["prometheus", *options, f"--web.listen-address={listen}"], folder / "prometheus.log")
    asked = Prometheus(f"http://{listen}")
    eventually(lambda: asked.value('up{job="forebay"}') == 1, 90, "Prometheus reaches the daemon")
    yield asked
    server.kill()


def answer_of(url: str, token: str | None = None) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, ""


def alerts(prometheus: Prometheus, name: str, seconds: float = 60) -> None:
    eventually(lambda: prometheus.value(f'count(ALERTS{{alertname="{name}"}})') == 1, seconds, f"an alert {name}")


def test_both_texts_of_the_metrics(served: Daemon) -> None:
    status, text = served.api.request("GET", "/metrics")
    assert status == 200
    lint = run(["promtool", "check", "metrics"], stdin=text)
    assert lint.stdout + lint.stderr == ""
    status, open_metrics = served.api.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text"})
    assert status == 200 and open_metrics.splitlines()[-1] == b"# EOF", open_metrics[-200:]
    missing = [series for series in SERIES if not re.search(f"^{series}", text.decode(), re.M)]
    assert not missing, missing
    served.stop()


def test_metrics_over_tcp(served: Daemon, folder: Path, tcp: int, open_port: int) -> None:
    assert answer_of(f"http://127.0.0.1:{tcp}/metrics")[0] == 401
    code, text = answer_of(f"http://127.0.0.1:{tcp}/metrics", (folder / "read-token").read_text().strip())
    assert code == 200 and text.count("\nforebay_build_info{") == 1, text
    served.refused(
        "setting.value", "set", "--daemon", "metrics_listen=0.0.0.0:1", code=2, mentions=["0.0.0.0", "admin_tcp"]
    )
    served.refused(
        "config.conflict", "set", "--daemon", f"metrics_listen=127.0.0.1:{tcp}", code=2, mentions=["127.0.0.1"]
    )
    said = served("set", "--daemon", f"metrics_listen=127.0.0.1:{open_port}")
    assert f"http://127.0.0.1:{open_port}/metrics" in said.stdout + said.stderr
    code, text = answer_of(f"http://127.0.0.1:{open_port}/metrics")
    assert code == 200 and text.count("\nforebay_build_info{") == 1, text
    served.stop()


def test_rules_pass_their_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{ROOT}/target/prometheus/usr/bin")
    need("promtool")
    run(["promtool", "check", "rules", MONITORING / "forebay.rules.yml"])
    run(["promtool", "test", "rules", MONITORING / "forebay.rules.test.yml"])


def test_dashboard_has_series_and_alerts_come(served: Daemon, prometheus: Prometheus) -> None:
    db = served.nbd("db")

    def use(round: int) -> None:
        qemu_io(db, f"write {round + 5}M 1M", "flush", f"read {round}M 2M", "discard 40M 1M")

    # A rate needs two scrapes with something between them.
    for round in range(4):
        scrapes = prometheus.value("count_over_time(up[1h])")
        use(round)
        eventually(lambda: prometheus.value("count_over_time(up[1h])") > scrapes, 30, "another scrape")  # noqa: B023

    served("volume", "detach", "old", "--keep")
    alerts(prometheus, "ForebayVolumeAbsentWithDirtyData")
    dirty = "sum(forebay_dirty_bytes) + sum(forebay_absent_dirty_bytes)"
    # The rule is computed each second, and what is dirty changes.
    same = lambda: prometheus.value("sum(forebay:pool_dirty_bytes)") == prometheus.value(dirty)  # noqa: E731
    eventually(same, 60, "the rule has the dirty bytes of the pools")
    absent = lambda: prometheus.value("sum(forebay_absent_dirty_bytes)") == MIB  # noqa: E731
    eventually(absent, 60, "the dirty data of the absent volume")
    all_have_series(prometheus, MONITORING / "forebay.dashboard.json")

    served.stop()
    alerts(prometheus, "ForebayDown")


def states_while_held(daemon: Daemon) -> None:
    """Each command shows what answers and what does not."""
    pools = {pool["name"]: pool for pool in daemon.json("pool", "list")}
    assert pools["second"]["not_answering"] and not pools["fast"]["not_answering"], pools
    volumes = {volume["name"]: volume["state"] for volume in daemon.json("volume", "list")}
    assert volumes == {"far": "unknown", "db": "serving", "old": "serving"}, volumes
    status = daemon.json("status", ok=False)
    assert [pool["not_answering"] for pool in status["pools"]] == [False, True], status
    assert [pool["not_answering"] for pool in daemon.api.get("/v1/overview")["pools"]] == [False, True]
    for screen in (["status"], ["pool", "list"], ["volume", "list"]):
        text = daemon(*screen, ok=False).stdout
        assert "second" in text and "fast" in text, text


def test_pool_that_hangs_hides_no_other(served: Daemon, prometheus: Prometheus, folder: Path, root: None) -> None:
    del root

    def is_as_it_should_be() -> bool:
        states_while_held(served)
        return True

    with held(folder, served.pid, "pool-second"):
        # The other pool may be late for once on a busy machine.
        eventually(is_as_it_should_be, 60, "the held pool is shown, and the other one as well")
        assert json.loads(served("stats", "db", "--format", "json").stdout)["volume"] == "db"
        served("alarms")
        served.refused("pool.not-answering", "stats", "far")
        metrics = lambda state: prometheus.value(f"forebay_pool_state{{{state}}}") == 1  # noqa: E731
        eventually(lambda: metrics('pool="second",state="not-answering"'), 60, "/metrics shows the held pool")
        eventually(lambda: metrics('pool="fast",state="open"'), 60, "/metrics shows the other pool")
    answers = lambda: not any(pool["not_answering"] for pool in served.json("pool", "list"))  # noqa: E731
    eventually(answers, 30, "both pools answer")
    served.stop()
