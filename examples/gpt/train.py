"""Trains a small GPT on byte tokens in the style of programs for cerebras.pytorch.

    python examples/gpt/train.py
    python examples/gpt/train.py --resume gpt_run/checkpoint_160.mdl --steps 400

A traced training step with clipping and a schedule, a traced evaluation step, checkpoints that a run goes on from,
TensorBoard logs. `--backend CPU` runs the steps as they are.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

import cerebras.pytorch as cstorch
import torch
from cerebras.pytorch.utils.tensorboard import SummaryWriter
from configuration import Config, parse_config
from data import batches
from model import GPT, loss_of
from optimization import make_optimizer, make_schedule


def main(config: Config) -> float:
    """Train, evaluating every so many steps; the last loss of the evaluation text, in nats a byte."""
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("cstorch").setLevel(logging.INFO)
    out = Path(config.out)
    torch.manual_seed(config.seed)
    backend = cstorch.backend(config.backend, artifact_dir=out)
    with backend.device:
        model = GPT(config)
    compiled_model = cstorch.compile(model, backend)
    optimizer = make_optimizer(model, config)
    scheduler = make_schedule(optimizer, config)
    done = 0
    if config.resume:
        state = cstorch.load(config.resume)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        done = state["step"]
    writer = SummaryWriter(log_dir=out / "logs")

    @cstorch.trace
    def training_step(batch):
        tokens, labels = batch
        loss = loss_of(compiled_model(tokens), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_gradient_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss

    @cstorch.trace
    @torch.no_grad()
    def eval_step(batch):
        tokens, labels = batch
        return loss_of(compiled_model(tokens), labels)

    @cstorch.step_closure
    def log_loss(loss):
        step = done + executor.user_iteration
        writer.add_scalar("train/loss", loss.item(), step)
        if step % 50 == 0 or executor.on_final_iteration:
            rate = executor.profiler.rate_tracker.rate
            print(f"step {step}: loss {loss.item():.3f}, {rate:.0f} samples/s")

    @cstorch.checkpoint_closure
    def save_checkpoint():
        step = done + executor.user_iteration
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        cstorch.save({**state, "step": step}, out / f"checkpoint_{step}.mdl")
        print(f"saved {out / f'checkpoint_{step}.mdl'}")

    losses: list[float] = []

    @cstorch.step_closure
    def collect(loss):
        losses.append(loss.item())

    mean = math.nan
    while done < config.steps:
        steps = min(config.eval_every, config.steps - done)
        loader = cstorch.utils.data.DataLoader(batches, "train", config, done)
        executor = cstorch.utils.data.DataExecutor(loader, num_steps=steps, checkpoint_steps=steps)
        model.train()
        for batch in executor:
            log_loss(training_step(batch))
            save_checkpoint()
        done += steps

        losses.clear()
        model.eval()
        loader = cstorch.utils.data.DataLoader(batches, "eval", config)
        for batch in cstorch.utils.data.DataExecutor(loader, num_steps=config.eval_batches):
            collect(eval_step(batch))
        if not backend.is_e2e_execution:  # `cstorch validate` traces the steps and runs none
            break
        mean = sum(losses) / len(losses)
        writer.add_scalar("eval/loss", mean, done)
        print(f"step {done}: evaluation loss {mean:.3f} nats a byte, {mean / math.log(2):.2f} bits")
    writer.close()
    backend.close()
    return mean


if __name__ == "__main__":
    main(parse_config(__doc__))
