"""Puts this folder where its tests find their subjects."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
