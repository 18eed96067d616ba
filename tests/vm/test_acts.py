# SPDX-License-Identifier: LGPL-2.1-or-later
"""The acts of tests/system whose control fails in a container, where even root may not do them: with a kernel of its own the
machine lets root, and the run still fails.
"""

import pytest
from test_isolation import CONTAINER_CANNOT, outcome, world  # noqa: F401 - fixtures


@pytest.mark.parametrize("name", sorted(CONTAINER_CANNOT))
def test_act(outcome, name):  # noqa: F811
    there, here = outcome
    assert not there[name][0], f"a run could {name}: {there[name][1]}"
    assert here[name][0], f"the act itself does not work, so nothing is shown: {here[name][1]}"


def test_no_other_act_works(outcome):  # noqa: F811
    """This kernel has more in it than a container's: none of the acts succeeds in a run."""
    there, _ = outcome
    assert {name: seen for name, (done, seen) in there.items() if done} == {}
