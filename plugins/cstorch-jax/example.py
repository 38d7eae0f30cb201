"""Trains a small network through JAX; fails with a clear error where cstorch-jax is missing."""

import cstorch
import torch

backend = cstorch.backend("jax")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
compiled_model = cstorch.compile(model, backend)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
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


for _ in range(200):
    note(training_step(torch.randn(32, 8)))
print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last")
assert losses[-1] < losses[0] / 4
