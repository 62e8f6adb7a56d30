"""These tests need verl, which cannot share TRL's environment: `make test-verl` runs them.

verl looks for a device while it is imported, so the stand-in is named before.
"""

import importlib.util
import os

if importlib.util.find_spec("verl") is None:
    collect_ignore_glob = ["*.py"]

from engines.verl.launch import ENVIRONMENT

os.environ.update(ENVIRONMENT)
