"""Loaded before anything else (`-p tests.plugin`): every run has an installation of its own.

Settings read the environment when they are imported, so the home has to be chosen first.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

HOME = Path(tempfile.mkdtemp(prefix="rf-test-"))
(HOME / "static").mkdir()  # whitenoise warns of a missing one
os.environ["RACKFORGE_HOME"] = str(HOME)
os.environ.setdefault("RACKFORGE_SECRET_KEY", "only for tests")


def pytest_unconfigure() -> None:
    shutil.rmtree(HOME, ignore_errors=True)
