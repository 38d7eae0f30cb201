"""torchmetrics in steps on csx give what they give on the cpu, at each step and at the ends of epochs."""

import warnings

import lightning as L
import pytest
import torch
import torchmetrics
from cstorch.errors import TraceError, ValueReadError
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision


class Rows(L.Callback):
    def __init__(self):
        self.rows = []

    def _row(self, trainer, module, *args):
        self.rows.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    on_train_batch_end = on_validation_batch_end = on_train_epoch_end = on_validation_epoch_end = _row


class Classifies(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.acc = MulticlassAccuracy(3)

    def logits(self, batch):
        return self.net(batch[0])

    def training_step(self, batch, batch_idx):
        logits = self.logits(batch)
        self.measure(logits, batch[1])
        return nn.functional.cross_entropy(logits, batch[1])

    def measure(self, logits, y):
        raise NotImplementedError

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)

    def train_dataloader(self):
        made = torch.Generator().manual_seed(1)
        x, y = torch.randn(24, 4, generator=made), torch.randint(0, 3, (24,), generator=made)
        return DataLoader(TensorDataset(x, y), batch_size=4)


class Documented(Classifies):
    def measure(self, logits, y):
        self.acc(logits, y)
        self.log("acc", self.acc, on_step=True, on_epoch=True)


class Batchwise(Classifies):
    def measure(self, logits, y):
        acc = self.acc(logits, y)
        self.log("acc", acc)
        self.log("error", 100 * (1 - acc), on_epoch=True, on_step=True)
        self.log("both", torch.stack([acc, acc**2]).mean())


class ComputedAtTheEnd(Classifies):
    def __init__(self):
        super().__init__()
        self.auroc = BinaryAUROC()
        self.mean = torchmetrics.MeanMetric()

    def measure(self, logits, y):
        self.acc.update(logits, y)
        self.auroc.update(logits[:, 0].sigmoid(), (y == 0).long())
        self.mean(logits.mean())
        self.log("mean", self.mean, on_step=False, on_epoch=True)

    def on_train_epoch_end(self):
        self.log_dict({"acc": self.acc.compute(), "auroc": self.auroc.compute()})
        self.acc.reset()
        self.auroc.reset()


class Collections(Classifies):
    def __init__(self):
        super().__init__()
        made = [MulticlassAccuracy(3), MulticlassPrecision(3), MulticlassF1Score(3)]
        self.logged = torchmetrics.MetricCollection(made, prefix="logged/")
        self.batchwise = self.logged.clone(prefix="batch/")
        self.own = nn.ModuleDict({"mse": torchmetrics.MeanSquaredError()})

    def measure(self, logits, y):
        self.logged(logits, y)
        self.log_dict(self.logged, on_step=True, on_epoch=True)
        self.log_dict(self.batchwise(logits, y))
        self.own["mse"](logits[:, 0].contiguous(), y.float())
        self.log("mse", self.own["mse"])


class Unregistered(Classifies):
    def __init__(self):
        super().__init__()
        self.held = {"acc": MulticlassAccuracy(3)}

    def measure(self, logits, y):
        self.log("acc", self.held["acc"](logits, y))


class InValidation(Classifies):
    def __init__(self):
        super().__init__()
        self.val_acc = MulticlassAccuracy(3, average=None)

    def measure(self, logits, y):
        pass

    def validation_step(self, batch, batch_idx):
        logits = self.logits(batch)
        self.acc.update(logits, batch[1])
        self.log("val_acc", self.acc, prog_bar=True)
        classes = self.val_acc(logits, batch[1])
        self.log_dict({f"class_{i}": value for i, value in enumerate(classes)})
        return logits

    def on_validation_batch_end(self, outputs, batch, batch_idx):
        self.val_acc.update(outputs.to(batch[1].device), batch[1])

    def val_dataloader(self):
        return self.train_dataloader()


class ResetsAndComputes(Classifies):
    def measure(self, logits, y):
        if self.global_step % 2 == 0:
            self.acc.reset()
        self.acc.update(logits, y)
        self.log("acc", self.acc.compute())


def fit(cls, accelerator, root, **options):
    L.seed_everything(1, verbose=False)
    module, rows = cls(), Rows()
    trainer = L.Trainer(accelerator=accelerator, devices=1, logger=False, callbacks=[rows], default_root_dir=root,
                        enable_progress_bar=False, enable_model_summary=False,
                        **{"max_epochs": 2, **options})  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module)
    return trainer, module, rows.rows


CASES = [Documented, Batchwise, ComputedAtTheEnd, Collections, Unregistered, InValidation, ResetsAndComputes]


@pytest.mark.parametrize("cls", CASES)
def test_metrics_equal_cpu(tmp_path, cls):
    (_, cpu, expected), (_, csx, found) = (fit(cls, a, tmp_path / a) for a in ("cpu", "csx"))
    assert len(found) == len(expected) > 10
    assert any(expected)
    for index, (row, right) in enumerate(zip(found, expected, strict=True)):
        assert row == pytest.approx(right, rel=1e-5, nan_ok=True), index
    for name, value in cpu.state_dict().items():
        torch.testing.assert_close(csx.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_persistent_states_are_saved_and_resumed(tmp_path):
    class Keeps(Documented):
        def __init__(self):
            super().__init__()
            self.total = torchmetrics.SumMetric()
            self.total.persistent(True)

        def measure(self, logits, y):
            super().measure(logits, y)
            self.total.update(logits.square().sum())

    straight = fit(Keeps, "cpu", tmp_path, max_epochs=3, enable_checkpointing=False)
    for first, then in (("csx", "csx"), ("cpu", "csx"), ("csx", "cpu")):
        root = tmp_path / (first + then)
        fit(Keeps, first, root)
        L.seed_everything(1, verbose=False)
        resumed = Keeps()
        trainer = L.Trainer(accelerator=then, devices=1, logger=False, enable_checkpointing=False, max_epochs=3,
                            enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(resumed, ckpt_path=next(root.rglob("*.ckpt")))
        torch.testing.assert_close(resumed.total.compute(), straight[1].total.compute(), rtol=1e-5, atol=1e-5)


def test_metrics_are_as_before_afterwards(tmp_path):
    _, module, _ = fit(Documented, "csx", tmp_path)
    assert "forward" not in vars(module.acc)
    assert not hasattr(module.acc.update.__wrapped__, "__wrapped__")
    assert module.acc.device.type == "cpu"
    module.acc.reset()
    assert module.acc(torch.eye(3), torch.arange(3)) == 1


def refused(tmp_path, measure, error, match):
    class Wrong(Classifies):
        def training_step(self, batch, batch_idx):
            return measure(self, self.logits(batch), batch[1])

    with pytest.raises(error, match=match):
        fit(Wrong, "csx", tmp_path)


def test_a_metric_as_part_of_the_loss_is_refused(tmp_path):
    refused(
        tmp_path,
        lambda self, logits, y: nn.functional.cross_entropy(logits, y) + self.acc(logits, y),
        TraceError,
        r"backward\(\) at .*would take a value into the step that the host computes after it.*functional form",
    )


def test_reading_a_metric_s_value_is_refused(tmp_path):
    refused(
        tmp_path,
        lambda self, logits, y: logits.sum() * float(self.acc(logits, y)),
        ValueReadError,
        r"reading what the host computes after the step at .*test_metrics\.py:\d+",
    )


def test_writing_a_metric_s_value_into_a_tensor_of_the_step_is_refused(tmp_path):
    def measure(self, logits, y):
        logits[0] = self.acc(logits, y)

    refused(tmp_path, measure, TraceError, r"__setitem__\(\) at .*test_metrics\.py:\d+")
