"""What tests of the Java side need; they are left out, with the reason, where it is missing."""

from __future__ import annotations

import shutil

import pytest

from forebay_lab import java
from forebay_lab.experiment import Refused


def need_java() -> None:
    """Builds the Java programs, or leaves the test out. Sources that do not compile are a failure."""
    missing = [command for command in java.NEEDS if shutil.which(command) is None]
    if missing:
        pytest.skip(f"there is no {', '.join(missing)} here")
    try:
        java.build()
    except Refused as error:
        if "Could not transfer artifact" in str(error) or "offline" in str(error):
            pytest.skip(f"Maven cannot fetch what is needed: {error}")
        raise
