"""Reading a value in a traced step raises at the user's line; what a step returns is read in closures."""

import re

import cstorch
import pytest
import torch
from cstorch.errors import TraceError, ValueReadError
from programs import line_of, linear


def reads(compiled):
    def printing(x):
        print(compiled(x).sum())  # here

    def item(x):
        return compiled(x).sum().item()  # here

    def condition(x):
        if compiled(x).sum() > 1:  # here
            return x
        return -x

    def formatting(x):
        return f"{compiled(x).sum()}"  # here

    def to_list(x):
        return compiled(x).tolist()  # here

    def to_numpy(x):
        return compiled(x).detach().numpy()  # here

    def to_cpu(x):
        return compiled(x).cpu()  # here

    return [printing, item, condition, formatting, to_list, to_numpy, to_cpu]


@pytest.mark.parametrize("index", range(7))
def test_reading_a_value_names_the_line_and_the_remedies(csx, index):
    step = reads(linear()[1])[index]
    with pytest.raises(ValueReadError, match="outside of a step closure") as caught:
        cstorch.trace(step)(torch.ones(2, 8))
    message = str(caught.value)
    assert line_of(step, "# here") in message
    assert "@cstorch.step_closure" in message
    assert "torch.where" in message


def test_a_returned_tensor_is_read_in_closures_only(csx):
    _, compiled = linear()
    seen = []
    result = cstorch.trace(lambda x: compiled(x).sum())(torch.ones(2, 8))
    with pytest.raises(ValueReadError):
        result.item()
    with pytest.raises(ValueReadError):
        print(result)
    with pytest.raises(ValueReadError):
        result * 2
    cstorch.step_closure(seen.append)(result)
    assert seen[0].item() == pytest.approx(model_sum(compiled), rel=1e-5)


def model_sum(compiled):
    return compiled(torch.ones(2, 8).to("csx")).sum().item()


@pytest.mark.parametrize(
    "operation",
    [
        lambda y: y.nonzero(),
        lambda y: y[y > 0],
        lambda y: y.unique(),
        lambda y: bool(torch.equal(y, y)),
        lambda y: torch.where(y > 0),
    ],
)
def test_shapes_that_depend_on_values_are_refused_with_a_remedy(csx, operation):
    _, compiled = linear()
    with pytest.raises(TraceError, match=re.escape(__file__)):
        cstorch.trace(lambda x: operation(compiled(x)))(torch.ones(2, 8))


def test_torch_tensor_of_traced_values_stays_alive(csx):
    seen = []

    @cstorch.trace
    def step(x):
        both = torch.tensor([x.sum(), x.max()])
        cstorch.step_closure(seen.append)(both)

    for i in range(3):
        step(torch.full((2,), float(i)))
    assert [t.tolist() for t in seen] == [[0.0, 0.0], [2.0, 1.0], [4.0, 2.0]]
