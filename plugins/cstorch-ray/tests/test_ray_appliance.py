"""Programs run on Ray actors with the numbers of eager PyTorch, through the death of an actor as well."""

import os
import signal
import time

import cstorch
import pytest
import ray
import torch
from cstorch import plugins
from cstorch.distributed import ClusterConfig
from cstorch.errors import BackendError
from cstorch.testing import PROGRAMS, check
from cstorch_ray.appliance import RayAppliance


@pytest.fixture(scope="module", autouse=True)
def local_ray():
    """One Ray of two workers for all tests here; the appliance uses it."""
    os.environ["CSTORCH_INTERPRET"] = "1"
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def config(systems=2, restarts=1):
    made = ClusterConfig(mgmt_address="ray://local", num_csx=systems)
    made.restart_attempts = restarts
    return made


@pytest.fixture(scope="module")
def two_systems(local_ray):
    """One appliance for several backends, since an actor takes seconds to import torch."""
    shared = RayAppliance("ray://local", config())
    end, shared.close = shared.close, lambda: None
    yield shared
    end()


@pytest.mark.parametrize("program", PROGRAMS)
def test_conformance(program, two_systems, monkeypatch):
    monkeypatch.setattr("cstorch_ray.appliance.RayAppliance", lambda *arguments: two_systems)
    check(program, "CSX", cluster_config=config())


def held_by(appliance):
    """How many programs each system has."""
    return ray.get([system.__ray_call__.remote(lambda self: len(self._programs)) for system in appliance.systems])


def test_programs_are_dealt_out_to_the_systems(two_systems, monkeypatch):
    monkeypatch.setattr("cstorch_ray.appliance.RayAppliance", lambda *arguments: two_systems)
    before = held_by(two_systems)
    with cstorch.backend("CSX", cluster_config=config()):
        first, second = cstorch.trace(lambda x: x + 1), cstorch.trace(lambda x: x * 2)
        first(torch.ones(2))
        second(torch.ones(2))
    assert [now - then for now, then in zip(held_by(two_systems), before)] == [1, 1]


def train(kill=None, steps=6, **options):
    """Weights and losses of a training with dropout, whose system is killed before step `kill`."""
    torch.manual_seed(0)
    losses, appliance = [], None
    with cstorch.backend("CSX", **options) as backend:
        appliance = backend.appliance
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
        call = cstorch.compile(model, backend)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

        @cstorch.trace
        def step(x):
            loss = call(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cstorch.step_closure(lambda value: losses.append(value.item()))(loss)

        for index in range(steps):
            if index == kill:
                for system in appliance.systems:
                    os.kill(process_of(system), signal.SIGKILL)
            step(torch.full((5, 6), index / 4))
        return losses, [t.detach().cpu() for t in model.parameters()]


def process_of(system):
    return ray.get(system.__ray_call__.remote(lambda self: os.getpid()))


def test_dropout_and_updates_are_those_of_the_embedded_appliance():
    assert [p.problem for p in plugins.list() if p.name == "ray"] == [None]
    losses, weights = train(cluster_config=config(1))
    expected_losses, expected = train()
    torch.testing.assert_close(losses, expected_losses)
    torch.testing.assert_close(weights, expected)


def test_a_killed_system_is_started_anew_and_nothing_is_lost():
    losses, weights = train(kill=3, cluster_config=config(1))
    expected_losses, expected = train()
    torch.testing.assert_close(losses, expected_losses)
    torch.testing.assert_close(weights, expected)


def test_a_killed_system_that_may_not_restart_is_named_within_seconds():
    start = time.monotonic()
    with pytest.raises(BackendError, match="system 0 has died in the step 'step' and may not be started anew"):
        train(kill=3, cluster_config=config(1, restarts=0))
    assert time.monotonic() - start < 30


def test_what_raises_in_a_program_says_where():
    with cstorch.backend("CSX", cluster_config=config(1)):
        step = cstorch.trace(lambda x, i: x[i])
        with pytest.raises(BackendError, match=r"system 0 of 'ray://local' failed: .*out of (bounds|range)"):
            step(torch.ones(3), torch.tensor([7]))


def test_more_systems_than_processors_are_refused(monkeypatch):
    monkeypatch.setattr(RayAppliance, "ROOM", 1.0)
    with pytest.raises(cstorch.errors.PluginError, match=r"no room for num_csx=5 systems .* it has 4 in all"):
        cstorch.backend("CSX", cluster_config=config(5))


def test_nothing_is_left_after_close():
    before = ray.available_resources().get("CPU")
    with cstorch.backend("CSX", cluster_config=config()):
        pass
    until = time.monotonic() + 20
    while ray.available_resources().get("CPU") != before and time.monotonic() < until:
        time.sleep(0.1)
    assert ray.available_resources()["CPU"] == before
