"""What a run of the tests prints, and when it fails: a skip that is not listed fails it. Keeps logs of failures."""

import os
import shutil
from pathlib import Path

import pytest

E2E = Path(__file__).resolve().parents[1]
LOGS = Path(os.environ.get("LOGS", E2E.parents[1] / "target/e2e-logs"))


def allowed_skips() -> set[str]:
    """Names of tests in skips-allowed: one a line, a reason behind it."""
    lines = (E2E / "skips-allowed").read_text().splitlines()
    return {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """A skip fails the test where CI is set; a failure gets the logs of what the test started."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CI") and item.nodeid.split("/")[-1] not in allowed_skips():
        report.outcome = "failed"
        report.longrepr = f"skipped, and not in tests/e2e/skips-allowed: {report.longrepr[-1]}"
    if report.failed and (folder := getattr(item, "funcargs", {}).get("folder")):
        keep_logs(item, report, folder, str(call.when))


def keep_logs(item: pytest.Item, report: pytest.TestReport, folder: Path, when: str) -> None:
    kept = LOGS / item.nodeid.split("/")[-1].replace("::", ".").replace("[", ".").rstrip("]")
    kept.mkdir(parents=True, exist_ok=True)
    for log in sorted(folder.glob("*.log")) + sorted(folder.glob("*.err")) + sorted(folder.glob("*.out")):
        if log.is_file() and log.stat().st_size < 10 << 20:
            shutil.copy(log, kept / log.name)
            text = log.read_text(errors="replace").splitlines()
            if text and log.suffix == ".log":
                report.sections.append((f"the end of {log.name} ({when})", "\n".join(text[-25:])))
    if isinstance(report.longrepr, str):
        return
    (kept / "failure.txt").write_text(str(report.longrepr))
