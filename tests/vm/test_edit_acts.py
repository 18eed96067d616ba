# SPDX-License-Identifier: LGPL-2.1-or-later
"""The acts of a session in an edit with a kernel of its own, where root is let do what a container refuses to everybody."""

import pytest
from test_env_edit_escape import ALL, outcome  # noqa: F401 - fixtures
from test_isolation import world  # noqa: F401

# This kernel's configuration does not have them: nobody can.
KERNEL_CANNOT = {"name_a_helper_for_uevents"}


@pytest.mark.parametrize("name", sorted(set(ALL) - KERNEL_CANNOT))
def test_act(outcome, name):  # noqa: F811
    there, here = outcome
    assert not there[name][0], f"a session could {name}: {there[name][1]}"
    assert here[name][0], f"the act itself does not work, so nothing is shown: {here[name][1]}"
