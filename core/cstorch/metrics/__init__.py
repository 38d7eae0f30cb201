"""Metrics that are gathered on the device and read after the loop, `cerebras.pytorch.metrics`."""

from cstorch.metrics.means import AccuracyMetric, FBetaScoreMetric, MeanMetric, PerplexityMetric
from cstorch.metrics.metric import Metric, get_all_metrics

__all__ = ["AccuracyMetric", "FBetaScoreMetric", "MeanMetric", "Metric", "PerplexityMetric", "get_all_metrics"]
