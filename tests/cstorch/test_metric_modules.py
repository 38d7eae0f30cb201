"""Metrics of `cstorch.metrics`: gathered in traced steps, read after the loop, against values by hand."""

import gc
import math

import cerebras.pytorch as cstorch
import pytest
import torch
from torch import nn

LABELS = torch.tensor([[0, 1, 2], [2, 2, 0], [1, 1, 1]], dtype=torch.int32)
SAID = torch.tensor([[0, 2, 2], [2, 1, 0], [1, 0, 1]], dtype=torch.int32)
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]])


def gather(csx, make, *batches):
    """The metric after a traced step for each batch, and its value after each step."""
    metric, seen = make(), []

    @cstorch.trace
    def step(batch):
        cstorch.step_closure(seen.append)(metric(*batch))

    for batch in zip(*batches, strict=True):
        step(tuple(part.to("csx") for part in batch))
    return metric, [float(value) for value in seen]


def test_accuracy(csx):
    metric, seen = gather(csx, cstorch.metrics.AccuracyMetric, LABELS, SAID)
    assert seen == pytest.approx([2 / 3, 4 / 6, 6 / 9])
    assert float(metric) == pytest.approx(6 / 9)
    metric.reset()
    assert math.isnan(float(metric))


def test_accuracy_with_weights(csx):
    metric, _ = gather(csx, cstorch.metrics.AccuracyMetric, LABELS, SAID, MASK)
    assert float(metric) == pytest.approx(4 / 6)


def test_perplexity(csx):
    losses = torch.tensor([2.0, 3.0, 1.0])
    metric, seen = gather(csx, cstorch.metrics.PerplexityMetric, LABELS, losses, MASK)
    assert seen == pytest.approx([math.exp(2 / 3), math.exp(5 / 5), math.exp(6 / 6)], rel=1e-5)
    assert float(metric) == pytest.approx(math.e, rel=1e-5)


def test_mean(csx):
    _, seen = gather(csx, cstorch.metrics.MeanMetric, torch.tensor([1.0, 2.0, 6.0]))
    assert seen == pytest.approx([1, 1.5, 3])


@pytest.mark.parametrize("average", ["micro", "macro"])
@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_f_score(csx, average, beta):
    def make():
        return cstorch.metrics.FBetaScoreMetric(4, beta, average, ignore_labels=[0])

    metric, _ = gather(csx, make, LABELS, SAID)
    scores, totals = [], torch.zeros(3)
    for kind in (1, 2, 3):
        are, said = kind == LABELS, kind == SAID
        counts = torch.tensor([(are & said).sum(), are.sum(), said.sum()])
        totals += counts
        right, labelled, predicted = counts.tolist()
        of_all = beta**2 * labelled + predicted
        scores.append((1 + beta**2) * right / of_all if of_all else 0)
    right, labelled, predicted = totals.tolist()
    micro = (1 + beta**2) * right / (beta**2 * labelled + predicted)
    assert float(metric) == pytest.approx(micro if average == "micro" else sum(scores) / 3)


def test_a_metric_of_a_model_trains_along(csx):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.accuracy = nn.Linear(3, 4), cstorch.metrics.AccuracyMetric("training")

        def forward(self, x, y):
            scores = self.layer(x)
            self.accuracy(labels=y, predictions=scores.argmax(-1))
            return nn.functional.cross_entropy(scores, y)

    torch.manual_seed(0)
    model = Model()
    truth = Model()
    truth.load_state_dict(model.state_dict())
    truth.to("cpu")
    compiled = cstorch.compile(model, cstorch.backend())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in (model, truth)]

    @cstorch.trace
    def step(x, y):
        loss = compiled(x, y)
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()

    for n in range(4):
        x, y = torch.randn(8, 3), torch.randint(0, 4, (8,))
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.5 / (n + 1)
        step(x.to("csx"), y.to("csx"))
        optimizers[1].zero_grad()
        truth(x, y).backward()
        optimizers[1].step()
    assert float(model.accuracy) == pytest.approx(float(truth.accuracy))
    assert not any("accuracy" in key for key in model.state_dict())


def test_metrics_are_known_by_name():
    first, second = cstorch.metrics.MeanMetric("loss"), cstorch.metrics.MeanMetric("loss")
    found = dict(cstorch.metrics.get_all_metrics())
    assert found["loss"] is first
    assert found["loss_1"] is second
    del first, found
    gc.collect()
    assert "loss" not in dict(cstorch.metrics.get_all_metrics())


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"labels of shape \(2,\) and predictions of shape \(2, 3\).*argmax"):
        cstorch.metrics.AccuracyMetric()(labels=torch.zeros(2), predictions=torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r'average_type is \'mean\'. Expected "micro" or "macro"'):
        cstorch.metrics.FBetaScoreMetric(3, average_type="mean")


def test_one_hot(csx):
    seen = []

    @cstorch.trace
    def step(x):
        cstorch.step_closure(seen.append)(cstorch.nn.functional.one_hot(x, 3))

    for row in LABELS:
        step(row.to("csx"))
    for found, row in zip(seen, LABELS, strict=True):
        assert torch.equal(found, nn.functional.one_hot(row.long(), 3))
    assert torch.equal(cstorch.nn.functional.one_hot(LABELS), nn.functional.one_hot(LABELS.long()))
