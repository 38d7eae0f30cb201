"""A run on two systems whose processes are started by others: torchrun, or `cstorch system`. Prints the losses."""

import sys

import cstorch
import torch
from cstorch.distributed import ClusterConfig
from torch import nn
from torch.nn import functional as F


def losses(config):
    """Of five steps."""
    torch.manual_seed(0)
    seen = []
    with cstorch.backend("CSX", cluster_config=config) as backend:
        model = nn.Linear(6, 4)
        compiled = cstorch.compile(model, backend)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        @cstorch.trace
        def step(x, y):
            loss = F.cross_entropy(compiled(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        @cstorch.step_closure
        def keep(loss):
            seen.append(round(loss.item(), 5))

        source = torch.Generator().manual_seed(1)
        data = [(torch.randn(8, 6, generator=source), torch.randint(4, (8,), generator=source)) for _ in range(5)]
        loader = cstorch.utils.data.DataLoader(lambda: data)
        for x, y in cstorch.utils.data.DataExecutor(loader, num_steps=5, checkpoint_steps=5):
            keep(step(x, y))
    return seen


if __name__ == "__main__":
    address, credentials = [*sys.argv[1:], None, None][:2]
    print(losses(ClusterConfig(num_csx=2, mgmt_address=address, credentials_path=credentials)))
