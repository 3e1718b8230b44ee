"""pytest plugin: ``pytest -p tests.compiled`` runs the tests and the brokers that they start with the compiled modules.

It is imported before all others, and ends the run if there is no usable build.
"""

import os

from broker.compiled.finder import SWITCH, use_build

os.environ[SWITCH] = "on"
USED = use_build()
if not USED.modules:
    raise SystemExit(f"no compiled modules: {USED.reason}")
