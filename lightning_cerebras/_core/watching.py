"""Hooks that a logger hangs on a module to log its gradients (`WandbLogger.watch`): on csx they run after each step.

They read values, which a traced step has none of. A hook counts as a logger's where the logger's own class or that of
its experiment, or another module of their package, has made it; any other hook is part of the step.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cstorch
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from lightning_cerebras._core.private import MODULE_HOOKS

_NO_LOGGER = {"builtins", "abc", "torch", "lightning", "pytorch_lightning", "lightning_fabric", "__main__"}
"""Packages that a logger's class or base class may be in, and whose hooks are not for logging."""


class Watching:
    """The hooks of a Trainer's loggers on a LightningModule.

    Args:
        trainer: The trainer.
        module: The LightningModule.
    """

    def __init__(self, trainer: Any, module: nn.Module) -> None:
        self._trainer, self._module = trainer, module
        self._users = {_package(type(part)) for part in module.modules()} | _NO_LOGGER
        self._warned: set[tuple[int, str]] = set()
        self._seen = -1
        self._key = ""

    def key(self) -> str:
        """What differs between calls of a step before and after a logger begins, or ends, to watch."""
        if self._seen != RemovableHandle.next_id:
            self._key = repr(sorted(key for *_, hooks in self._places() for key in self._logged(hooks)))
            self._seen = RemovableHandle.next_id
        return self._key

    @contextlib.contextmanager
    def called_later(self) -> Iterator[None]:
        """Within, a step is traced: hooks on gradients wait for values, hooks on modules have to do without."""
        before = []
        for later, hooks in self._places():
            for key, logger in self._logged(hooks).items():
                hook = hooks[key]
                before.append((hooks, key, hook))
                hooks[key] = functools.partial(later, hooks, key, hook, logger)
        try:
            yield
        finally:
            for hooks, key, hook in before:
                hooks[key] = hook

    def _places(self) -> Iterator[tuple[Callable[..., Any], dict[int, Any]]]:
        for parameter in self._module.parameters():
            yield self._gradient_later, parameter._backward_hooks or {}
            yield self._parameter_later, parameter._post_accumulate_grad_hooks or {}
        for part in self._module.modules():
            for name in MODULE_HOOKS:
                yield self._without_values, getattr(part, name, {})

    def _logged(self, hooks: dict[int, Any]) -> dict[int, Any]:
        """The loggers that have made some of `hooks`, by the keys of these."""
        if not hooks:
            return {}
        loggers = self._trainer.loggers
        return {key: lg for key, hook in hooks.items() for lg in loggers if _is_made_by(lg, hook, self._users)}

    # -- what stands in for a hook ---------------------------------------------------------------------------

    def _gradient_later(self, hooks: Any, key: int, hook: Any, logger: Any, gradient: torch.Tensor) -> None:
        self._warn_of_gradients(logger)

        @cstorch.step_closure
        def call(value: torch.Tensor) -> None:
            if key in hooks:  # else it was removed
                version = value._version
                if hook(value) is not None or value._version != version:
                    raise _changes(hook, logger)

        call(gradient)

    def _parameter_later(self, hooks: Any, key: int, hook: Any, logger: Any, parameter: torch.Tensor) -> None:
        self._warn_of_gradients(logger)

        @cstorch.step_closure
        def call(value: torch.Tensor, gradient: Any) -> None:
            if key in hooks:
                like = nn.Parameter(value)
                like.grad = gradient
                versions = like._version, gradient._version
                hook(like)
                if like.grad is not gradient or versions != (like._version, gradient._version):
                    raise _changes(hook, logger)

        call(parameter.detach(), parameter.grad)

    def _without_values(self, hooks: Any, key: int, hook: Any, logger: Any, *args: Any, **kwargs: Any) -> Any:
        self._warn(
            logger,
            "hooks on modules",
            f", such as that of {_line(hook)}. They run only while a step is traced with "
            "accelerator='csx', without values: the graph of the module can be logged, its parameters and outputs are "
            "not. Log those with self.log, or with cstorch.summarize_tensor in the step.",
        )
        try:
            return hook(*args, **kwargs)
        except cstorch.errors.ValueReadError:
            return None

    def _warn_of_gradients(self, logger: Any) -> None:
        self._warn(
            logger,
            "gradients",
            ". With accelerator='csx' its hooks are called after each step, for which every gradient is "
            "brought to the host, whatever its frequency of logging is. It costs less to log what is wanted in "
            "on_before_optimizer_step, with self.log or cstorch.summarize_tensor.",
        )

    def _warn(self, logger: Any, kind: str, what_follows: str) -> None:
        if (id(logger), kind) not in self._warned:
            self._warned.add((id(logger), kind))
            warnings.warn(f"{type(logger).__name__} watches {kind}{what_follows}", stacklevel=2)


def _changes(hook: Any, logger: Any) -> ValueError:
    return ValueError(
        f"the hook {_line(hook)}, which {type(logger).__name__} has registered, changes a gradient. With "
        "accelerator='csx' the hooks of a logger are called after the step, which has used the gradient by then. "
        "Change gradients in a hook of the module, such as on_after_backward, which is part of the step."
    )


def _code(hook: Any) -> Any:
    """The function or method that a hook is."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    return hook if hasattr(hook, "__qualname__") else type(hook).__call__


def _line(hook: Any) -> str:
    code = getattr(_code(hook), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(hook)


def _package(owner: Any) -> str:
    return str(owner.__module__).partition(".")[0]


def _is_made_by(logger: Any, hook: Any, packages: set[str]) -> bool:
    """Whether `hook` is code of the logger: of its class, its experiment's, or a package that is none of `packages`."""
    code = _code(hook)
    for kind in (type(logger), type(vars(logger).get("_experiment"))):
        for owner in kind.__mro__:
            of_class = code.__module__ == owner.__module__ and code.__qualname__.startswith(f"{owner.__qualname__}.")
            if of_class or _package(code) == _package(owner) not in packages:
                return True
    return False
