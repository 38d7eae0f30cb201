"""Counts what ten steps on the cpu cost the machine; fails with a clear error where cstorch-psutil is missing."""

import cstorch
import torch

cstorch.backend("CPU")
loader = cstorch.utils.data.DataLoader(lambda: [torch.ones(32, 256)] * 10)
executor = cstorch.utils.data.DataExecutor(loader, profiler_activities=["process_memory", "process_cpu", "page_faults"])
for batch in executor:
    batch @ batch.T

memory, cpu = executor.profiler.process_memory, executor.profiler.process_cpu
print(f"peak {memory['peak_rss'] / 2**20:.0f} MiB, {cpu['user'] + cpu['system']:.2f} s of CPU")
