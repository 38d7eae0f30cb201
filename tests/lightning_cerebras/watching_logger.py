"""Stands in for the package of a logger that watches modules, as that of Weights & Biases does."""

import torch
from lightning.pytorch.loggers import Logger


class History:
    """Hooks that read values every `every` calls."""

    def __init__(self, every):
        self.every, self.rows, self.handles = every, [], []

    def due(self, count):
        count[0] += 1
        if count[0] < self.every:
            return False
        count[0] = 0
        return True

    def note(self, name, tensor):
        flat = tensor.detach().clone().reshape(-1)
        low, high = flat.min().item(), flat.max().item()
        self.rows.append((name, low, high, torch.histc(flat, bins=8, min=low, max=high).cpu().tolist()))

    def on_gradient(self, name, parameter):
        def callback(gradient, count):
            if self.due(count):
                self.note(name, gradient.data)

        count = [0]
        self.handles.append(parameter.register_hook(lambda gradient: callback(gradient, count)))

    def on_parameter(self, name, parameter):
        self.handles.append(
            parameter.register_post_accumulate_grad_hook(
                lambda p: self.rows.append((name, p.norm().item(), p.grad.norm().item()))
            )
        )

    def on_module(self, module):
        def callback(module, inputs, output):
            for name, parameter in module.named_parameters():
                self.note(name, parameter.data.cpu())

        self.handles.append(module.register_forward_hook(callback))


class Run:
    """What is `logger.experiment`."""

    def __init__(self, every):
        self.history = History(every)

    def watch(self, module, log):
        for name, parameter in module.named_parameters():
            if log == "gradients":
                self.history.on_gradient(name, parameter)
            if log == "halved":
                parameter.register_hook(self.halve)
            if log == "doubled":
                parameter.register_hook(lambda gradient: gradient.mul_(2).norm().item() and None)
            if log == "after":
                self.history.on_parameter(name, parameter)
        if log == "parameters":
            self.history.on_module(module)

    def halve(self, gradient):
        return gradient / 2 if gradient.norm().item() > 0 else None


class Watcher(Logger):
    """A logger with `watch`."""

    name = version = "watcher"

    def __init__(self, every=1):
        self._experiment = Run(every)

    @property
    def experiment(self):
        return self._experiment

    def watch(self, module, log="gradients"):
        self.experiment.watch(module, log)

    def log_metrics(self, metrics, step=None):
        self.experiment.history.rows.append(("metrics", step))

    def log_hyperparams(self, params, *args, **kwargs):
        pass
