"""The guide's page on monitoring is right, with a real Prometheus and node_exporter, in a root and a network of its
own. It needs no block device, and so no guest."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import ROOT, run
from harness.stage import PAGES, execute
from harness.system_root import SystemRoot

PROMETHEUS = ROOT / "target/prometheus"
PROGRAMS = ("prometheus", "prometheus-node-exporter", "promtool")


@pytest.fixture
def monitored(make_root: Callable[..., SystemRoot], folder: Path) -> SystemRoot:
    """A system with Forebay, a certificate for it, and what the packages of Prometheus install."""
    if not (PROMETHEUS / "usr/bin/prometheus-node-exporter").exists():
        pytest.skip("prometheus and node_exporter are not installed (scripts/setup lab installs them)")
    need("ip", "openssl", "setpriv", "systemd-sysusers")
    system = make_root(network=True)
    for name in ("run/stage", "etc/prometheus"):
        system.path(name).mkdir(parents=True, exist_ok=True)
    # As the package has it, and in less time.
    settings = (PROMETHEUS / "etc/prometheus/prometheus.yml").read_text()
    frequent = re.sub(r"scrape_interval: *15s", "scrape_interval: 1s", settings)
    assert frequent != settings
    system.path("etc/prometheus/prometheus.yml").write_text(frequent)
    for name in PROGRAMS:
        system.path(f"usr/bin/{name}").unlink(missing_ok=True)
        shutil.copy(PROMETHEUS / "usr/bin" / name, system.path(f"usr/bin/{name}"))
    system.install()
    system.run("chown", "-R", "forebay:", "/etc/forebay")
    name = ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    key, certificate = folder / "key.pem", folder / "cert.pem"
    new = [
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-keyout",
        key,
        "-out",
        certificate,
    ]
    run(["openssl", "req", *new, *name])
    system.run("install", "-m", "600", key, "/etc/forebay/key.pem")
    system.run("install", "-m", "644", certificate, "/etc/forebay/cert.pem")
    system.run("install", "-m", "644", certificate, "/etc/prometheus/forebay-ca.pem")
    return system


def test_page_is_as_it_says(monitored: SystemRoot) -> None:
    execute(monitored, PAGES / "monitoring.md", 190)


def test_page_has_each_alert() -> None:
    rules = (ROOT / "packaging/monitoring/forebay.rules.yml").read_text()
    page = (PAGES / "monitoring.md").read_text()
    alerts = set(re.findall(r"^ *- alert: (\S+)", rules, re.M))
    assert alerts
    missing = [alert for alert in sorted(alerts) if f"\n| `{alert}` " not in page]
    assert not missing, "docs/operate/monitoring.md does not have these alerts"
