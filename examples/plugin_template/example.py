"""Ten steps, timed by the plugin."""

import cstorch
import torch

cstorch.backend("CPU")
loader = cstorch.utils.data.DataLoader(lambda: [torch.ones(32, 256)] * 10)
executor = cstorch.utils.data.DataExecutor(loader, profiler_activities=["step_times"])
for batch in executor:
    batch @ batch.T

print(f"the slowest step took {executor.profiler.step_times['slowest'] * 1000:.2f} ms")
