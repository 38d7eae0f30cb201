"""The backend trains as eager PyTorch does, on the programs of cstorch.testing and on what they leave out."""

import pytest
from cstorch.testing import PROGRAMS, check


@pytest.mark.parametrize("program", PROGRAMS)
def test_conformance(program):
    check(program, "jax")
