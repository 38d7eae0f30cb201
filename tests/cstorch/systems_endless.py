"""Trains on two systems until it is stopped; writes the step and the process ids of systems to the file it is told."""

import os
import signal
import sys
import warnings
from pathlib import Path

import cstorch
import torch
from cstorch.distributed import ClusterConfig
from torch import nn

warnings.simplefilter("ignore")

if __name__ == "__main__":
    progress = Path(sys.argv[1])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background
    with cstorch.backend("CSX", cluster_config=ClusterConfig(num_csx=2)) as backend:
        model = nn.Linear(6, 4)
        compiled = cstorch.compile(model, backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @cstorch.trace
        def step(x):
            loss = compiled(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        loader = cstorch.utils.data.DataLoader(lambda: [torch.ones(4, 6)] * 10)
        for i, x in enumerate(cstorch.utils.data.DataExecutor(loader, num_steps=10**9)):
            step(x)
            written = progress.with_suffix(".new")
            written.write_text(f"{i} {' '.join(map(str, backend.appliance.pids))}")
            os.replace(written, progress)
