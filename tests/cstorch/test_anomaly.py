"""`torch.autograd.detect_anomaly` around a traced step raises at the step, and says what, as in eager PyTorch."""

import re

import cstorch
import pytest
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return torch.sqrt(self.layer(x) * 0 + x[:, :2]).sum()


def failing_step(run, xs):
    """The number of the step that raises, and what it says."""
    for number, x in enumerate(xs):
        try:
            with torch.autograd.detect_anomaly():
                run(x)
        except RuntimeError as error:
            return number, str(error)
    return None


BATCHES = [torch.ones(2, 3), torch.full((2, 3), 4.0), torch.zeros(2, 3), torch.ones(2, 3)]  # sqrt'(0) is infinite


@pytest.mark.filterwarnings("ignore:Anomaly Detection has", "ignore:Error detected in", "ignore:.*is traced again")
@pytest.mark.parametrize("systems", [1, 2])
def test_the_step_and_the_function_are_those_of_eager(systems):
    eager = Net()
    expected = failing_step(lambda x: eager(x).backward(), BATCHES)
    config = cstorch.distributed.ClusterConfig(num_csx=systems)
    with cstorch.backend("CSX", cluster_config=config) as backend:
        model = Net()
        compiled = cstorch.compile(model, backend)
        step = cstorch.trace(lambda x: compiled(x).backward())
        found = failing_step(step, BATCHES)
        assert found[0] == expected[0] == 2
        said = re.escape(expected[1].rstrip("."))
        assert re.match(rf"{said}\. It is the backward of the call at .*test_anomaly\.py.*layer\(x\) \* 0", found[1])
        step(BATCHES[2])  # not looked at: another program
        assert "detect_anomaly was True when the step was traced" in step.programs[-1].why


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_the_traceback_of_the_forward_call_is_shown():
    with cstorch.backend("CSX") as backend:
        compiled = cstorch.compile(Net(), backend)
        step = cstorch.trace(lambda x: compiled(x).backward())
        with pytest.warns(UserWarning, match=r"Error detected in MulBackward0\. Traceback of forward"):
            failing_step(step, BATCHES)
