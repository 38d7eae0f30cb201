"""Trains on two Ray actors of this machine; fails with a clear error where cstorch-ray is missing."""

import cstorch
import torch
from cstorch.distributed import ClusterConfig

cluster = ClusterConfig(mgmt_address="ray://local", num_csx=2)
backend = cstorch.backend("CSX", cluster_config=cluster)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
compiled_model = cstorch.compile(model, backend)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
losses = []


@cstorch.trace
def training_step(x):
    loss = (compiled_model(x) - x.sum(-1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


@cstorch.step_closure
def note(loss):
    losses.append(loss.item())


for _ in range(50):
    note(training_step(torch.randn(32, 8)))
backend.close()
print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last")
assert losses[-1] < losses[0] / 4
