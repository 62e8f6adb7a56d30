"""These tests need verl, which cannot share TRL's environment: `make test-verl` runs them.

verl looks for a device while it is imported, so the stand-in is named before.
"""

import importlib.util
import os

from engines.verl.launch import ENVIRONMENT

if importlib.util.find_spec("verl") is None:
    collect_ignore_glob = ["*.py"]
else:
    os.environ.update(ENVIRONMENT)
