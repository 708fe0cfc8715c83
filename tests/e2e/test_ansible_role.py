"""The Ansible role: it installs the package, writes the configuration and starts the service; a second time it
changes nothing. A changed configuration is read by the daemon, which goes on; a wrong one never gets to its place. A
newer package takes over."""

import os
import re
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.clients import need
from harness.command import ROOT, run
from harness.system_root import SystemRoot, wait_for_service

ANSIBLE = ROOT / "target/ansible/bin"
PLAY = """\
- hosts: localhost
  connection: local
  gather_facts: false
  vars: {{ ansible_python_interpreter: /usr/bin/python3 }}
  roles:
    - role: {role}
      vars:
        forebay_deb: {deb}
        forebay_config: |
{config}
"""
POOL = """\
[pool.fast]
devices = [{{ path = "/srv/forebay/flash.img", size = "64MiB" }}]
reclaim_policy = "{policy}"
"""
SETTINGS = {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "False"}


class Managed:
    """A machine (a root) that is managed with the role."""

    def __init__(self, system: SystemRoot, role: Path) -> None:
        self.system = system
        self.role = role

    def play(self, deb: Path, config: str, *, ok: bool = True) -> int:
        """Runs the role; how many of its tasks have changed something."""
        text = PLAY.format(role=self.role, deb=deb, config=textwrap.indent(config, " " * 10))
        playbook = self.system.folder / "play.yml"
        playbook.write_text(text)
        env = {**SETTINGS, "HOME": "/root"}
        env["PATH"] = f"{ANSIBLE}:/usr/sbin:/usr/bin:/sbin:/bin"
        done = self.system.run(
            ANSIBLE / "ansible-playbook", "-i", "localhost,", playbook, ok=False, seconds=300, env=env
        )
        assert (done.code == 0) == ok, done.describe()
        recap = re.search(r"^localhost .* changed=(\d+) ", done.stdout, re.M)
        assert recap, done.describe()
        return int(recap.group(1))

    def policy(self) -> str:
        return self.system.forebay("get", "--pool", "fast", "reclaim_policy").stdout.strip()


@pytest.fixture
def ansible() -> None:
    need("dpkg-deb", "setpriv")
    if not (ANSIBLE / "ansible-playbook").exists():
        pytest.skip("there is no Ansible (scripts/setup lab installs it)")


@pytest.fixture
def managed(ansible: None, make_root: Callable[..., SystemRoot], folder: Path) -> Managed:
    del ansible
    if run(["/usr/bin/python3", "-c", "import apt"], ok=False).code != 0:
        pytest.skip("python3-apt is not installed (scripts/setup lab installs it)")
    shutil.copytree(ROOT / "packaging/ansible", folder / "ansible")
    system = make_root()
    apt = system.path("etc/apt")
    (apt / "sources.list").unlink(missing_ok=True)
    for source in (apt / "sources.list.d").iterdir():
        source.unlink()
    system.run("install", "-d", "-m", "777", "/srv/forebay")
    return Managed(system, folder / "ansible/roles/forebay")


@pytest.mark.long
@pytest.mark.limit(600)
def test_ansible_lint_finds_nothing(ansible: None, folder: Path) -> None:
    del ansible
    shutil.copytree(ROOT / "packaging/ansible", folder / "ansible")
    env = {**os.environ, **SETTINGS, "PATH": f"{ANSIBLE}:{os.environ['PATH']}", "HOME": str(folder)}
    command = ["ansible-lint", "--offline", "--nocolor", "--profile", "production", "roles/forebay"]
    run(command, env=env, cwd=folder / "ansible", seconds=500)


@pytest.mark.long
@pytest.mark.limit(900)
def test_role_changes_only_what_is_new(managed: Managed, deb: Callable[[str], Path]) -> None:
    system, old = managed.system, deb("0.1.1")
    fifo, lru = (POOL.format(policy=policy) for policy in ("fifo", "lru"))
    managed.play(old, fifo)
    before = wait_for_service(system)
    assert managed.policy() == "fifo"
    assert system.path("run/enabled").exists(), "the service is not enabled"
    assert managed.play(old, fifo) == 0, "it changes something again"

    managed.play(old, lru)
    assert managed.policy() == "lru", "the daemon has not read the change"
    managed.play(old, f"{lru.rstrip()} nonsense\n", ok=False)
    system.forebay("config", "check")
    assert system.main_pid() == before, "the daemon was restarted"

    managed.play(deb("0.1.2"), lru)
    assert system.main_pid() != before, "the old program is the daemon"
    assert system.forebay.json("pool", "show", "fast")
    # Except what writes the metrics of the daemon into a file.
    asked = [line for line in system.asked_of_systemctl() if "restart" in line]
    assert all(line.endswith(" forebay-textfile.service") for line in asked), asked
