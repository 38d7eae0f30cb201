"""Several systems give the results of one: weights, losses, outputs; a killed system is replaced or named."""

import functools
import os
import signal
from pathlib import Path

import cstorch
import pytest
import torch
from cstorch.appliance.state import StateTable
from cstorch.distributed import ClusterConfig
from cstorch.errors import BackendError, DataError, StateError
from torch import nn
from torch.nn import functional as F

STEPS = 20


def batches(count=STEPS, size=8):
    source = torch.Generator().manual_seed(1)
    return [(torch.randn(size, 6, generator=source), torch.randint(4, (size,), generator=source)) for _ in range(count)]


def train(systems, on_step=None, dropout=0.0, attempts=1):
    """Weights and what closures saw of a run with AdamW, clipping and a schedule."""
    torch.manual_seed(0)
    seen = []
    config = ClusterConfig(num_csx=systems, restart_attempts=attempts)
    with cstorch.backend("CSX", cluster_config=config) as backend:
        model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(dropout), nn.LayerNorm(16), nn.Linear(16, 4))
        compiled = cstorch.compile(model, backend)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

        @cstorch.trace
        def step(x, y):
            out = compiled(x)
            loss = F.cross_entropy(out, y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            return loss, norm, out, (out.argmax(1) == y).sum()

        @cstorch.step_closure
        def keep(*values):
            seen.append([v.clone() for v in values])

        executor = cstorch.utils.data.DataExecutor(
            cstorch.utils.data.DataLoader(batches), num_steps=STEPS, checkpoint_steps=10
        )
        for i, (x, y) in enumerate(executor):
            if on_step is not None:
                on_step(i, backend)
            result = step(x, y)
            assert result[2].shape == (8, 4)
            keep(*result)
            schedule.step()
        weights = {name: value.cpu().clone() for name, value in model.state_dict().items()}
    return weights, seen


def test_weights_and_values_are_those_of_one_system():
    one, seen = train(1)
    for count in (2, 4):
        several, also = train(count)
        torch.testing.assert_close(several, one, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(also, seen, rtol=1e-5, atol=1e-6)


def test_each_system_runs_its_part_in_micro_batches():
    one = train(1)
    cstorch.backends.csx.performance.micro_batch_size = 2
    try:
        torch.testing.assert_close(train(2), one, rtol=1e-5, atol=1e-6)
    finally:
        del cstorch.backends.csx.performance.micro_batch_size


@functools.cache
def unbroken():
    """A run on two systems with dropout."""
    return train(2, dropout=0.5)


def accumulate(systems):
    """Weights of a run whose gradients add up over two batches."""
    torch.manual_seed(0)
    with cstorch.backend("CSX", cluster_config=ClusterConfig(num_csx=systems)) as backend:
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
        compiled = cstorch.compile(model, backend)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)

        @cstorch.trace
        def step(x, y, i):
            F.cross_entropy(compiled(x), y).div(2).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()

        for i, (x, y) in enumerate(batches(6)):
            step(x, y, i)
            if i % 2:
                schedule.step()
        return {name: value.cpu().clone() for name, value in model.state_dict().items()}


@pytest.mark.native
def test_compiled_programs_do_the_same():
    torch.testing.assert_close(accumulate(2), accumulate(1), rtol=1e-5, atol=1e-6)


PICKED = torch.tensor([1.0, 2.0, 3.0, 4.0])


def over_mask(loss_sum, mask):
    return loss_sum / mask.sum().clamp(min=1)


LOSSES = {
    "ignore_index": lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
    "ignore_index with channels": lambda out, y: F.cross_entropy(out.transpose(1, 2), y),
    "class weights": lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), PICKED.to(out.device)),
    "smoothing": lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), label_smoothing=0.1, ignore_index=-100),
    "mask": lambda out, y: over_mask((out.square().mean(-1) * (y >= 0)).sum(), y >= 0),
    "float mask": lambda out, y: (out.square().mean(-1) * (y >= 0).float()).sum() / ((y >= 0).float().sum() + 1e-6),
}


def train_on_ragged_samples(systems):
    """Losses and weights of runs whose samples count another number of labels each, by the name of the loss."""
    source, found = torch.Generator().manual_seed(1), {}
    data = []
    for _ in range(4):
        x, y = torch.randn(8, 5, 6, generator=source), torch.randint(4, (8, 5), generator=source)
        y[torch.rand(8, 5, generator=source) < torch.linspace(0.9, 0.1, 8)[:, None]] = -100
        data.append((x, y))
    with cstorch.backend("CSX", cluster_config=ClusterConfig(num_csx=systems)) as backend:
        for name, loss_of in LOSSES.items():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
            compiled = cstorch.compile(model, backend)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
            seen = []

            @cstorch.trace
            def step(x, y, loss_of=loss_of, compiled=compiled, optimizer=optimizer):
                loss = loss_of(compiled(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss

            keep = cstorch.step_closure(lambda loss, seen=seen: seen.append(loss.item()))
            for x, y in data:
                keep(step(x, y))
                schedule.step()
            found[name] = seen, {key: value.cpu().clone() for key, value in model.state_dict().items()}
    return found


def test_means_over_a_counted_part_are_those_of_the_whole_batch():
    torch.testing.assert_close(train_on_ragged_samples(2), train_on_ragged_samples(1), rtol=1e-5, atol=1e-6)


def test_dropout_follows_the_seed():
    torch.testing.assert_close(train(2, dropout=0.5), unbroken(), rtol=0, atol=0)


def test_a_killed_system_is_replaced_and_the_run_goes_on_as_if_unbroken(caplog):
    def kill(step, backend):
        if step == 7:
            os.kill(backend.appliance.pids[0], signal.SIGKILL)

    broken = train(2, kill, dropout=0.5)
    assert "was killed by SIGKILL" in caplog.text
    torch.testing.assert_close(broken, unbroken(), rtol=0, atol=0)


def test_a_killed_system_is_named_when_no_attempt_is_left():
    pids = []

    def kill(step, backend):
        pids[:] = backend.appliance.pids
        if step == 3:
            os.kill(pids[0], signal.SIGKILL)

    with pytest.raises(
        BackendError, match=r"system 1 \(process \d+\) was killed by SIGKILL in step 3.*checkpoint: none"
    ):
        train(2, kill, attempts=0)
    assert not Path(f"/proc/{pids[0]}").exists()


def test_what_cannot_be_divided_is_refused():
    with cstorch.backend("CSX", cluster_config=ClusterConfig(num_csx=2)) as backend:
        model = nn.Linear(3, 2)
        compiled = cstorch.compile(model, backend)

        @cstorch.trace
        def odd(x):
            return compiled(x)

        with pytest.raises(DataError, match="batch of 5 samples, which cannot be divided among num_csx=2"):
            odd(torch.ones(5, 3))

        @cstorch.trace
        def own_gradient(x):
            (grad,) = torch.autograd.grad(compiled(x).mean(), [model.weight])
            with torch.no_grad():
                model.weight -= 0.1 * grad

        with pytest.raises(StateError, match=r"changes a parameter of shape \(2, 3\)"):
            own_gradient(torch.ones(4, 3))


def test_running_statistics_are_averaged_and_what_the_host_writes_is_sent():
    x = torch.randn(4, 3)
    parts = [nn.BatchNorm1d(3) for _ in range(2)]
    for part, own in zip(parts, x.chunk(2), strict=True):
        part(own)
        part(own)
    with cstorch.backend("CSX", cluster_config=ClusterConfig(num_csx=2)) as backend:
        model = nn.BatchNorm1d(3)
        compiled = cstorch.compile(model, backend)
        step = cstorch.trace(lambda x: compiled(x))
        step(x)
        step(x)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            values = [getattr(part, name).float() for part in parts]
            torch.testing.assert_close(getattr(model, name).cpu().float(), (values[0] + values[1]) / 2)

        seen = []
        keep = cstorch.step_closure(lambda value: seen.append(value.clone()))
        with torch.no_grad():
            model.weight.mul_(2)
            model.bias[1:].add_(3)
        model.load_state_dict({**model.state_dict(), "running_mean": torch.ones(3), "running_var": torch.ones(3)})
        model.eval()
        keep(step(x))
        backend.check_systems()
    torch.testing.assert_close(seen[0], (x - 1) * 2 / (1 + 1e-5) ** 0.5 + torch.tensor([0.0, 3.0, 3.0]))


@pytest.mark.parametrize("counts", [True, False])
def test_only_state_that_the_host_may_have_written_to_is_sent(counts):
    with torch.inference_mode(not counts):
        state = [torch.ones(3), torch.zeros(2)]
        table = StateTable()
        assert len(table.change(0, state).pushed) == 2
        for tensor in state:
            tensor.add_(1)  # by the program, on every system
        table.ran(0, [])
        again = table.change(0, state)
        if counts:
            assert again is None
            state[1].mul_(2)
            again = table.change(0, state)
            assert [memory.tensors[0].tensor is state[1] for memory in again.pushed] == [True]
        else:  # such tensors do not say whether they were written to
            assert len(again.pushed) == 2
        other = [torch.ones(3), state[1]]
        table.ran(0, [])
        assert len(table.change(0, other).pushed) == (1 if counts else 2)
