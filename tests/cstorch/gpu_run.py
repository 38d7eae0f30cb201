"""The GPU backend in two processes, on the cpu through gloo; each leaves what it saw in the folder it is told."""

import json
import os
import sys
from pathlib import Path

import cstorch
import torch
from cstorch.backends import gpu_backend
from torch import nn
from torch.nn import functional as F


def train(backend, batch_size, part, folder):
    """Losses and weights of five steps, each on `part` of a batch."""
    torch.manual_seed(backend.rank if backend.is_gpu else 0)  # the first process's weights must win
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    compiled = cstorch.compile(model, backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []

    @cstorch.trace
    def step(x, y):
        loss = F.cross_entropy(compiled(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    @cstorch.step_closure
    def keep(loss):
        losses.append(loss.item())

    @cstorch.checkpoint_closure
    def save(number):
        cstorch.save({"model": model.state_dict(), "rank": getattr(backend, "rank", 0)}, folder / f"{number}.mdl")

    source = torch.Generator().manual_seed(1)
    data = [
        (torch.randn(batch_size, 6, generator=source)[part], torch.randint(4, (batch_size,), generator=source)[part])
        for _ in range(5)
    ]
    executor = cstorch.utils.data.DataExecutor(
        cstorch.utils.data.DataLoader(lambda: data), num_steps=5, checkpoint_steps=5
    )
    for x, y in executor:
        keep(step(x, y))
        save(executor.user_iteration)
    return losses, {name: value.flatten().tolist() for name, value in model.state_dict().items()}


if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    gpu_backend.device_of = lambda local_rank: torch.device("cpu")
    options = {"enable_distributed": True, "main_process_id": 1, "dist_backend": "gloo", "sync_batchnorm": True}
    with cstorch.backend("GPU", **options) as backend:
        assert (backend.is_gpu, backend.rank, backend.world_size) == (True, rank, 2)
        assert cstorch.distributed.get_ordinal() == rank
        losses, weights = train(backend, 8, slice(4 * rank, 4 * rank + 4), folder)
        compiled = cstorch.compile(nn.Linear(2, 2), backend)
        with torch.no_grad():
            if rank == 1:  # alone: nobody is waited for
                compiled(torch.ones(1, 2))
        norms = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        try:
            cstorch.compile(norms, backend)
        except ValueError as error:
            said = str(error)
    seen = {"losses": losses, "weights": weights, "said": said}
    (folder / f"{rank}.json").write_text(json.dumps(seen))
