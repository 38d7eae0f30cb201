"""The activity is found by name and times the steps."""

import time

import cstorch
import torch
from cstorch import plugins


def test_the_plugin_is_installed_and_works():
    (plugin,) = [p for p in plugins.list() if p.name == "step_times"]
    assert plugin.problem is None


def test_a_slow_step_is_seen(tmp_path):
    with cstorch.backend("CPU", artifact_dir=tmp_path):
        loader = cstorch.utils.data.DataLoader(lambda: [torch.ones(4, 1)] * 5)
        executor = cstorch.utils.data.DataExecutor(loader, profiler_activities=["step_times"])
        for _ in executor:
            if executor.on_final_iteration:
                time.sleep(0.05)
    found = executor.profiler.step_times
    assert found["slowest"] >= 0.05 > found["fastest"]
