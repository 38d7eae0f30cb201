"""Trains on handwritten digits with the bare cstorch API.

    python examples/digits_cstorch.py

The same task as digits.py without Lightning: a traced training step, a traced evaluation step, step closures
for what reads values, a checkpoint closure that saves.
"""

from __future__ import annotations

import argparse
import logging
import os
import time

import cstorch
import torch
from cstorch.utils.tensorboard import SummaryWriter
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_dataloader(train: bool, batch_size: int = 64) -> DataLoader:
    """The input function: each worker of the system calls it."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen = order[320:] if train else order[:320]
    return DataLoader(TensorDataset(images[chosen], labels[chosen]), batch_size, shuffle=train, drop_last=True)


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 2 * 2, 10),
    )  # fmt: skip


def main() -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="CSX")
    parser.add_argument("--steps", type=int, default=230)
    parser.add_argument("--out", default="digits_cstorch_run", help="folder for checkpoints and logs")
    options = parser.parse_args()
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("cstorch").setLevel(logging.INFO)
    os.makedirs(options.out, exist_ok=True)

    torch.manual_seed(1)
    start = time.perf_counter()
    backend = cstorch.backend(options.backend, artifact_dir=options.out)
    with backend.device:
        model = build_model()
    compiled_model = cstorch.compile(model, backend)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)
    writer = SummaryWriter(log_dir=f"{options.out}/logs")

    @cstorch.trace
    def training_step(batch):
        inputs, targets = batch
        loss = loss_fn(compiled_model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    @cstorch.step_closure
    def log_loss(loss):
        step = executor.user_iteration
        writer.add_scalar("loss", loss.item(), step)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {executor.profiler.rate_tracker.rate:.0f} samples/s")

    @cstorch.checkpoint_closure
    def save_checkpoint():
        path = f"{options.out}/checkpoint_{executor.user_iteration}.mdl"
        cstorch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        print(f"saved {path}")

    loader = cstorch.utils.data.DataLoader(get_dataloader, True)
    executor = cstorch.utils.data.DataExecutor(
        loader, num_steps=options.steps, checkpoint_steps=options.steps, writer=writer
    )
    for batch in executor:
        loss = training_step(batch)
        log_loss(loss)
        lr_scheduler.step()
        save_checkpoint()

    model.eval()
    right = []

    @cstorch.trace
    def eval_step(batch):
        inputs, targets = batch
        with torch.no_grad():
            return (compiled_model(inputs).argmax(-1) == targets).float().mean()

    @cstorch.step_closure
    def collect(accuracy):
        right.append(accuracy.item())

    for batch in cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(get_dataloader, False)):
        collect(eval_step(batch))

    writer.close()
    if not backend.is_e2e_execution:  # `cstorch validate` traces the steps and runs none
        return 0.0
    accuracy = sum(right) / len(right)
    print(f"validation accuracy {accuracy:.3f} after {time.perf_counter() - start:.0f} s, compile included")
    backend.close()
    return accuracy


if __name__ == "__main__":
    main()
