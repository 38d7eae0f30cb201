"""Metrics that are gathered on the device and read after the loop, `cerebras.pytorch.metrics`."""

from cstorch.metrics.means import AccuracyMetric, FBetaScoreMetric, MeanMetric, PerplexityMetric
from cstorch.metrics.metric import Metric, compute_all_metrics, get_all_metrics

__all__ = [
    "AccuracyMetric",
    "FBetaScoreMetric",
    "MeanMetric",
    "Metric",
    "PerplexityMetric",
    "compute_all_metrics",
    "get_all_metrics",
]
