"""What public programs for cerebras.pytorch do and plain PyTorch would trip over."""

import dataclasses
import re
import typing
import warnings
from pathlib import Path

import cstorch
import pytest
import torch
import torch.nn.functional as F
from torch import nn

LOSSES = {
    "cross_entropy": lambda x, y: F.cross_entropy(x, y),
    "module": lambda x, y: nn.CrossEntropyLoss(ignore_index=2, label_smoothing=0.1)(x, y),
    "nll": lambda x, y: F.nll_loss(F.log_softmax(x, -1), y, weight=torch.ones_like(x)[0]),
    "one_hot": lambda x, y: (F.one_hot(y, 5) * x).sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_class_labels_of_int32(csx, name):
    step = cstorch.trace(lambda x, y: LOSSES[name](x, y))
    seen = []
    keep = cstorch.step_closure(seen.append)
    for seed in range(3):
        x, y = torch.randn(4, 5), torch.randint(5, (4,), generator=torch.Generator().manual_seed(seed))
        keep(step(x, y.int()))
        torch.testing.assert_close(seen[-1], LOSSES[name](x, y).to(seen[-1].dtype))


def train(input_fn, steps=6):
    """The losses of a few steps."""
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    compiled = cstorch.compile(model, cstorch.backend())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    keep = cstorch.step_closure(lambda loss: losses.append(loss.item()))

    @cstorch.trace
    def step(batch):
        loss = F.cross_entropy(compiled(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for batch in cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(input_fn), num_steps=steps):
        keep(step(batch))
    return losses


def data(index):
    source = torch.Generator().manual_seed(index)
    return torch.randn(4, 3, generator=source), torch.randint(4, (4,), generator=source)


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return data(index)


def of_a_generator():
    yield from map(data, range(3))


def of_torch_workers():
    return torch.utils.data.DataLoader(Items(), batch_size=None, num_workers=1, persistent_workers=True)


def test_input_functions_of_client_programs(csx):
    expected = train(lambda: [data(i) for i in range(3)])
    assert len(set(expected)) == 6
    assert train(of_a_generator) == expected
    assert train(of_torch_workers) == expected


def parameters(model):
    yield from model.parameters()


ITERATORS = {
    "expression": (lambda model: (p for p in model.parameters()), list, "exhausts left, which"),
    "function": (parameters, list, "exhausts left, which"),
    "list": (lambda model: iter(list(model.parameters())), list, "exhausts left, which"),
    "next": (lambda model: iter([1.0, 2.0, 3.0]), next, "takes values from left, which"),
    "some": (lambda model: (float(n) for n in range(9)), next, "takes values from left, which"),
}


@pytest.mark.parametrize("kind", ITERATORS)
def test_an_iterator_of_the_closure_is_named(csx, kind):
    make, take, message = ITERATORS[kind]
    model = nn.Linear(2, 2)
    left = make(cstorch.compile(model, csx)._model)

    @cstorch.trace
    def step(x):
        taken = take(left)
        return model(x).sum() * (taken if isinstance(taken, float) else 1)

    with pytest.warns(UserWarning, match=f"the traced step 'step' {message} is an iterator"):
        step(torch.ones(1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(torch.ones(1, 2))


def test_an_iterator_that_the_step_leaves_alone_is_not_named(csx):
    left = (p for p in [1])
    step = cstorch.trace(lambda x: x * (1 if left is not None else 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(torch.ones(1, 2))
    assert list(left) == [1]


def test_one_line_makes_either_backend():
    for kind in ("CPU", "CSX"):
        config = cstorch.distributed.ClusterConfig(num_workers_per_csx=1)
        with cstorch.backend(kind, cluster_config=config) as made:
            assert made.cluster_config is config
        with pytest.raises(TypeError, match="cluster_config is a int, expected a ClusterConfig"):
            cstorch.backend(kind, cluster_config=2)


def test_fields_of_cluster_config_make_command_line_options():
    """Parsers of dataclasses know plain types, and unions of one with None."""
    hints = typing.get_type_hints(cstorch.distributed.ClusterConfig)
    for field in dataclasses.fields(cstorch.distributed.ClusterConfig):
        kinds = [kind for kind in typing.get_args(hints[field.name]) or [hints[field.name]] if kind is not type(None)]
        assert len(kinds) == 1, field.name


EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "README.md"


def after(number):
    """The lines of the porting page's `number`th difference as they are after it."""
    found = re.findall(r"```diff\n(.*?)```", EXAMPLES.read_text(), re.DOTALL)[number]
    return "".join(f"{line[1:]}\n" for line in found.splitlines() if not line.startswith("-"))


def test_the_porting_page_from_pytorch_is_a_program(capsys):
    scope = {"torch": torch, "F": F, "Net": lambda: nn.Linear(3, 4), "make_loader": lambda: [data(0), data(1)]}
    exec(after(0).replace("=1000", "=101"), scope)
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert losses[1] < losses[0]
    torch.testing.assert_close(torch.load("model.pt")["bias"], scope["model"].bias.detach().cpu())
