"""Metrics that are means: of a value, of right answers, of a loss per token, and F-scores."""

from __future__ import annotations

import torch

from cstorch.metrics.metric import Metric


class MeanMetric(Metric):
    """The mean of all values, or their weighted mean.

    Args:
        name: Of the metric.
    """

    total: torch.Tensor
    weight: torch.Tensor

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.register_state("total", torch.zeros((), dtype=torch.float32))
        self.register_state("weight", torch.zeros((), dtype=torch.float32))

    def reset(self) -> None:
        """Forget what was gathered."""
        self.total.zero_()
        self.weight.zero_()

    def _add(self, values: torch.Tensor, weights: torch.Tensor | None) -> None:
        values = values.detach().float()
        weights = torch.ones_like(values) if weights is None else weights.detach().float().expand_as(values)
        self.total.add_((values * weights).sum())
        self.weight.add_(weights.sum())

    def update(self, values: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        """Gather values.

        Args:
            values: Numbers of any shape and dtype.
            weights: Of each value, in a shape that expands to theirs; default 1.
        """
        self._add(values, weights)

    def compute(self) -> torch.Tensor:
        """The mean so far, a 0-d float32 tensor."""
        return self.total / self.weight


class AccuracyMetric(MeanMetric):
    """The part of predictions that are the label: `AccuracyMetric()(labels=y, predictions=logits.argmax(-1))`."""

    def update(  # type: ignore[override]
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Gather a batch.

        Args:
            labels: Whole numbers.
            predictions: Likewise, in the shape of the labels.
            weights: Of each label, such as a mask of padding; default 1.
            dtype: Accepted; the metric always counts in float32.

        Raises:
            ValueError: the shapes differ.
        """
        _check_shapes("AccuracyMetric", labels, predictions)
        self._add(labels == predictions, weights)


class PerplexityMetric(MeanMetric):
    """The exponential of the loss per token: `PerplexityMetric()(labels=y, loss=summed_loss, weights=mask)`."""

    def update(  # type: ignore[override]
        self,
        labels: torch.Tensor,
        loss: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Gather a batch.

        Args:
            labels: The tokens; only their number counts.
            loss: The sum of the losses of all tokens in nats, or a loss for each.
            weights: Of each token, such as a mask of padding; the tokens then count by their sum.
            dtype: Accepted; the metric always sums in float32.
        """
        self.total.add_(loss.detach().float().sum())
        counted = torch.ones_like(labels) if weights is None else weights
        self.weight.add_(counted.detach().float().sum())

    def compute(self) -> torch.Tensor:
        """The perplexity so far, a 0-d float32 tensor."""
        return torch.exp(self.total / self.weight)


class FBetaScoreMetric(Metric):
    """The F-score of a classifier, micro- or macro-averaged over its classes.

    Args:
        num_classes: How many classes there are.
        beta: How much more recall counts than precision.
        average_type: "micro" (over all answers) or "macro" (the mean of the classes' scores).
        ignore_labels: Classes whose score does not count.
        name: Of the metric.

    Raises:
        ValueError: `average_type` is something else.
    """

    counted: torch.Tensor
    right: torch.Tensor
    labelled: torch.Tensor
    predicted: torch.Tensor

    def __init__(
        self,
        num_classes: int,
        beta: float = 1.0,
        average_type: str = "micro",
        ignore_labels: list[int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if average_type not in ("micro", "macro"):
            raise ValueError(f'average_type is {average_type!r}. Expected "micro" or "macro".')
        self.num_classes, self.beta, self.average_type = num_classes, beta, average_type
        counts = [float(i not in (ignore_labels or ())) for i in range(num_classes)]
        self.register_state("counted", torch.tensor(counts))
        for state in ("right", "labelled", "predicted"):
            self.register_state(state, torch.zeros(num_classes))

    def reset(self) -> None:
        """Forget what was gathered."""
        for state in (self.right, self.labelled, self.predicted):
            state.zero_()

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Gather a batch.

        Args:
            labels: Classes, whole numbers from 0.
            predictions: Likewise, in the shape of the labels.
            weights: Of each label, default 1.
            dtype: Accepted; the metric always counts in float32.

        Raises:
            ValueError: the shapes differ.
        """
        _check_shapes("FBetaScoreMetric", labels, predictions)
        classes = torch.arange(self.num_classes, device=labels.device)
        are, said = (x.detach().reshape(-1, 1) == classes for x in (labels, predictions))
        weight = torch.ones_like(labels) if weights is None else weights
        weight = weight.detach().float().expand_as(labels).reshape(-1, 1)
        for state, found in ((self.right, are & said), (self.labelled, are), (self.predicted, said)):
            state.add_((found * weight).sum(0))

    def compute(self) -> torch.Tensor:
        """The score so far, a 0-d float32 tensor; a class that never occurred and was never said counts as 0."""
        states = [state * self.counted for state in (self.right, self.labelled, self.predicted)]
        right, labelled, predicted = [s.sum() for s in states] if self.average_type == "micro" else states
        factor = self.beta**2
        of_all = factor * labelled + predicted
        scores = torch.where(of_all > 0, (1 + factor) * right / torch.where(of_all > 0, of_all, 1), 0)
        return scores if self.average_type == "micro" else scores.sum() / self.counted.sum()


def _check_shapes(metric: str, labels: torch.Tensor, predictions: torch.Tensor) -> None:
    if labels.shape != predictions.shape:
        raise ValueError(
            f"{metric} got labels of shape {tuple(labels.shape)} and predictions of shape "
            f"{tuple(predictions.shape)}. Expected one shape: give the classes, such as logits.argmax(-1)."
        )
