"""Several systems give the results of one: weights, losses, outputs; a killed system is replaced or named."""

import functools
import os
import signal
from pathlib import Path

import cstorch
import pytest
import torch
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
