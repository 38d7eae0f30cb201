"""One step of automatic optimisation as one program: training_step, zero_grad, backward, clipping, optimizer step.

Lightning's loop asks `make_closure` for a closure and either calls it (accumulation) or hands it to the
strategy with the optimizer. Both ways end in `AutomaticOptimization.run`, which calls one traced function.
"""

from __future__ import annotations

from typing import Any

import cstorch
import torch

from lightning_cerebras._core.closure import NOT_EXECUTED, StepClosure
from lightning_cerebras._core.own_batches import fetch, hand_over, refuse_accumulation
from lightning_cerebras._core.private import loop_of
from lightning_cerebras._core.step_context import StepContext


class AutomaticOptimization:
    """Traces and replays the training step of one `Trainer.fit`.

    Args:
        strategy: The CSX strategy.
        trainer: The trainer.
        module: The LightningModule.
        context: The surroundings of its steps.
    """

    def __init__(self, strategy: Any, trainer: Any, module: Any, context: StepContext) -> None:
        self.strategy, self.trainer, self.module = strategy, trainer, module
        self.loop = loop_of(trainer)
        self._context = context
        self._values: tuple[Any, Any] | None = None
        self._steps: dict[Any, Any] = {}
        self.loop._make_closure = self.make_closure

    def close(self) -> None:
        """Give the loop its own closures back."""
        self.loop.__dict__.pop("_make_closure", None)

    def make_closure(self, kwargs: Any, optimizer: Any, batch_idx: int) -> StepClosure:
        """What `_AutomaticOptimization._make_closure` returns on csx."""
        refuse_accumulation(kwargs.values(), self.trainer.accumulate_grad_batches)
        backward = not self.loop._skip_backward
        zero = self.loop._make_zero_grad_fn(batch_idx, optimizer) is not None
        closure: StepClosure = self.strategy.closure_class(self, dict(kwargs), optimizer, batch_idx, zero, backward)
        return closure

    def run(self, closure: StepClosure, optimizer: Any) -> Any:
        """Run one step, with the optimizer's update when `optimizer` is given; its ClosureResult."""
        if not closure.backward:  # an epoch for the statistics of batch norm, after averaging: no gradients, no update
            optimizer = None
        variant = (
            closure.zero,
            closure.backward,
            optimizer is not None,
            self.trainer.accumulate_grad_batches,
        )
        step = self._traced(variant, self._step)
        given = dict(zip(closure.kwargs, fetch(tuple(closure.kwargs.values())), strict=True))
        self._context.call(step, given, closure.optimizer, optimizer, closure.zero, closure.backward)
        if closure.zero:
            progress = self.loop.optim_progress.optimizer.zero_grad
            progress.increment_ready()
            progress.increment_started()
            progress.increment_completed()
        if self._values is None:
            raise cstorch.errors.NotExecutedError(
                "the training step was traced, and the backend was made with validate_only or compile_only: nothing is "
                "run, so the Trainer cannot go on to the next step. Make the backend without them to train."
            )
        loss, extra = self._values
        return self.loop.output_result_cls(loss, extra=extra)

    def optimizer_step(self, optimizer: Any, closure: Any, **kwargs: Any) -> Any:
        """`Strategy.optimizer_step`: the whole step for a closure of ours, the update alone after any other."""
        if isinstance(closure, StepClosure) and not kwargs:
            closure._result = self.run(closure, optimizer)
            return closure._result.loss
        result = closure() if closure is not None else None
        self._context.call(self._traced("optimizer_step", self._step_optimizer), optimizer, kwargs)
        return result

    def _traced(self, variant: Any, function: Any) -> Any:
        """The traced step of a variant; each variant is a function of its own, with its own programs."""
        if variant not in self._steps:

            def step(inputs: Any, *args: Any) -> None:
                with self._context.tracing(inputs):
                    function(*args)

            step.__name__ = variant if isinstance(variant, str) else "training_step"
            self._steps[variant] = cstorch.trace(step)
        return self._steps[variant]

    # -- what is traced ----------------------------------------------------------------------------------

    def _step(
        self,
        kwargs: dict[str, Any],
        owner: Any,
        optimizer: Any,
        zero: bool,
        backward: bool,
    ) -> None:
        keep = cstorch.step_closure(self._keep)
        result: Any = None

        def training_step(*arguments: Any) -> Any:
            return self.loop._training_step(dict(zip(kwargs, arguments, strict=True)))

        def closure() -> Any:
            nonlocal result
            with torch.enable_grad():
                result = hand_over("training_step", tuple(kwargs.values()), training_step)
                if result.closure_loss is None:
                    self.strategy.closure_class.warning_cache.warn(
                        "`training_step` returned `None`. If this was on purpose, ignore this warning..."
                    )
                if zero:
                    self._zero_grad(owner, kwargs.get("batch_idx", 0))
                if backward and result.closure_loss is not None:
                    self.strategy.backward(result.closure_loss, owner)
            return result.closure_loss

        if optimizer is None:
            closure()
        else:
            try:
                self.strategy.precision_plugin.optimizer_step(optimizer, model=self.module, closure=closure)
            except cstorch.errors.ClosureNotCalledError as error:
                raise self.strategy.accelerator.misconfiguration(f"{NOT_EXECUTED} {error}") from error
        keep(result.loss, result.extra)

    def _step_optimizer(self, optimizer: Any, kwargs: dict[str, Any]) -> None:
        plugin = self.strategy.precision_plugin
        plugin.optimizer_step(optimizer, model=self.module, closure=lambda: None, **kwargs)

    def _zero_grad(self, optimizer: Any, batch_idx: Any) -> None:
        self.loop._on_before_zero_grad(optimizer)
        self.loop._optimizer_zero_grad(batch_idx, optimizer)

    def _keep(self, loss: torch.Tensor | None, extra: dict[str, Any]) -> None:
        self._values = loss, extra
