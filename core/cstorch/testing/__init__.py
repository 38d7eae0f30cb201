"""A conformance kit for authors of backends and appliances: small programs that must train as in eager PyTorch.

A backend's test file is four lines:

    import pytest
    from cstorch.testing import PROGRAMS, check

    @pytest.mark.parametrize("program", PROGRAMS)
    def test_conformance(program):
        check(program, "my backend")
"""

from cstorch.testing.check import check
from cstorch.testing.programs import PROGRAMS

__all__ = ["PROGRAMS", "check"]
