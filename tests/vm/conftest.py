# SPDX-License-Identifier: LGPL-2.1-or-later
"""The same fixtures as in tests/system; here the machine has a kernel of its own, with all cgroup controllers."""

import importlib.util
import pathlib
import sys

SYSTEM = pathlib.Path(__file__).resolve().parent.parent / "system"
sys.path.insert(0, str(SYSTEM))

# Both files are named conftest.py, so not by `import`.
_spec = importlib.util.spec_from_file_location("system_conftest", SYSTEM / "conftest.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
globals().update({name: member for name, member in vars(_module).items() if not name.startswith("_")})
