"""Methods and hooks of a LightningModule that the other tests leave out: on csx as on the cpu, or refused by name."""

import copy
import warnings

import cstorch
import lightning as L
import pytest
import torch
from cstorch.errors import OptimizerError, ValueReadError
from lightning.pytorch.loggers import TensorBoardLogger
from modules import Linear
from torch import nn
from torch.utils.data import DataLoader

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


class Rows(L.Callback):
    """What a person would see of each step."""

    def __init__(self):
        self.rows = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        weights = [p.detach().cpu().clone() for p in module.parameters()]
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.rows.append((batch_idx, trainer.global_step, weights, metrics))


def fit(accelerator, module, tmp_path, **options):
    L.seed_everything(1, verbose=False)
    module, rows = module(), Rows()
    trainer = L.Trainer(accelerator=accelerator, devices=1, default_root_dir=tmp_path, callbacks=[rows],
                        **{**QUIET, "max_epochs": 2, **options})  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module)
    return trainer, module, rows.rows


@pytest.mark.parametrize("manual", [True, False])
def test_copies_of_a_module_that_a_step_brings_to_the_host(tmp_path, manual):
    class Keeps(Linear):
        automatic_optimization = not manual

        def __init__(self):
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
            self.kept = {}

        def keep(self, when, batch_idx):
            twin = copy.deepcopy(self.layer)
            with torch.no_grad():
                twin[0].weight.mul_(2)
            self.kept[when, batch_idx] = twin.cpu().state_dict()

        def training_step(self, batch, batch_idx):
            self.keep("before", batch_idx)
            loss = super().training_step(batch, batch_idx)
            if manual:
                self.optimizers().zero_grad()
                self.manual_backward(loss)
                self.optimizers().step()
                self.keep("after", batch_idx)
            return loss

    kept = [fit(accelerator, Keeps, tmp_path)[1].kept for accelerator in ("cpu", "csx")]
    assert len(kept[1]) == (8 if manual else 4)
    for place, state in kept[0].items():
        torch.testing.assert_close(dict(kept[1][place]), dict(state))


class SkipsBatches(Linear):
    """`return -1` ends an epoch early."""

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if self.current_epoch == 0 and batch_idx == 2 else None


class MovesBatches(Linear):
    """Batches change on their way."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch + self.trainer.global_step

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return super().transfer_batch_to_device(batch * 2, device, dataloader_idx)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch.clamp(max=1 + 0.1 * self.trainer.global_step)


class MadeLate(Linear):
    """`configure_model` makes the layer."""

    def __init__(self):
        super().__init__()
        del self.layer

    def configure_model(self):
        if not hasattr(self, "layer"):
            self.layer = nn.Linear(4, 2)

    def configure_callbacks(self):
        return [Halves()]


class Halves(L.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        trainer.optimizers[0].param_groups[0]["lr"] *= 0.5


class Gathers(Linear):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        gathered = self.all_gather(loss)
        self.log("gathered", gathered.mean())
        assert gathered.shape == loss.shape
        return loss


class Returns(Linear):
    """Outputs of all kinds beside the loss."""

    def training_step(self, batch, batch_idx):
        out = self.layer(batch)
        return {"loss": out.square().mean(), "out": [out, {"name": "x", "index": batch_idx}], "nothing": None}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        out, rest = outputs["out"]
        assert rest == {"name": "x", "index": batch_idx}
        assert outputs["nothing"] is None
        assert float(out.square().mean()) == pytest.approx(float(outputs["loss"]))


class ManyKindsOfBatch(Linear):
    """A batch of nested containers."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch["x"][0], batch_idx) * batch["weight"].mean()

    def train_dataloader(self):
        made = torch.arange(32.0).reshape(8, 4) / 32
        return DataLoader([{"x": (x, i), "weight": 1.0 + i, "name": str(i)} for i, x in enumerate(made)], batch_size=2)


class ShortLast(Linear):
    """The last batch of an epoch has one sample."""

    def train_dataloader(self):
        return DataLoader(torch.arange(28.0).reshape(7, 4) / 32, batch_size=2)


CASES = [SkipsBatches, MovesBatches, MadeLate, Gathers, Returns, ManyKindsOfBatch, ShortLast]


@pytest.mark.parametrize("cls", CASES, ids=lambda cls: cls.__name__)
def test_equals_the_cpu(tmp_path, cls):
    (cpu, _, expected), (csx, _, found) = (fit(a, cls, tmp_path / a) for a in ("cpu", "csx"))
    assert len(found) == len(expected) > 4
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert csx.fit_loop.state_dict() == cpu.fit_loop.state_dict()


def test_the_module_is_an_ordinary_one_afterwards(tmp_path):
    _, module, _ = fit("csx", Linear, tmp_path)
    x = torch.ones(3, 4)
    by_hand = x @ module.layer.weight.T + module.layer.bias
    torch.testing.assert_close(module.layer(x), by_hand)
    module.layer(x).sum().backward()
    assert module.layer.bias.grad.tolist() == [3.0, 3.0]
    assert module.device.type == "cpu"
    twin = Linear()
    twin.load_state_dict(module.state_dict())
    torch.save(module, tmp_path / "whole.pt")
    torch.testing.assert_close(torch.load(tmp_path / "whole.pt", weights_only=False).layer(x), by_hand)


class Scripted(Linear):
    def forward(self, x):
        return self.layer(x)


@pytest.mark.filterwarnings("ignore")
def test_torchscript_of_a_trained_module(tmp_path):
    _, module, _ = fit("csx", Scripted, tmp_path)
    script = module.to_torchscript(tmp_path / "x.pt", method="trace", example_inputs=torch.ones(1, 4))
    x = torch.rand(3, 4)
    torch.testing.assert_close(script(x), module(x))
    torch.testing.assert_close(torch.jit.load(tmp_path / "x.pt")(x), module(x))


@pytest.mark.parametrize("accelerator", ["cpu", "csx"])
def test_several_optimizers_need_manual_optimisation(tmp_path, accelerator):
    class Two(Linear):
        def configure_optimizers(self):
            return [super(Two, self).configure_optimizers() for _ in range(2)]

    with pytest.raises(RuntimeError, match="multiple optimizers is only supported with manual optimization"):
        fit(accelerator, Two, tmp_path)


def test_lbfgs_is_refused_by_name(tmp_path):
    class Second(Linear):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters())

    with pytest.raises(OptimizerError, match=r"torch\.optim\.LBFGS cannot be part of a traced step"):
        fit("csx", Second, tmp_path)


WAYS = {
    "print": lambda module, loss: module.print(f"{loss}"),
    "float": lambda module, loss: float(loss),
    "tensorboard": lambda module, loss: module.logger.experiment.add_scalar("x", loss),
    "loggers": lambda module, loss: [each.log_metrics({"x": loss.item()}) for each in module.loggers],
}


@pytest.mark.parametrize("way", WAYS)
def test_reading_in_a_step_points_to_the_remedies(tmp_path, way):
    class Reads(Linear):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            WAYS[way](self, loss)
            return loss

    with pytest.raises(ValueReadError, match=r"test_module_methods\.py:\d+.*step_closure.*self\.log"):
        fit("csx", Reads, tmp_path, logger=TensorBoardLogger(tmp_path))


def test_a_step_closure_writes_to_the_logger_at_each_step(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Writes(Linear):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.write(loss, self.global_step)
            return loss

        @cstorch.step_closure
        def write(self, loss, step):
            self.logger.experiment.add_scalar("mine", loss, step)
            self.logger.experiment.add_histogram("weights", self.layer.weight, step)

    logger = TensorBoardLogger(tmp_path)
    fit("csx", Writes, tmp_path, logger=logger)
    events = EventAccumulator(logger.log_dir).Reload()
    assert [e.step for e in events.Scalars("mine")] == list(range(8))
    assert len({e.value for e in events.Scalars("mine")}) == 8
    assert events.Histograms("weights")[-1].step == 7


@pytest.mark.parametrize("kind", ["module", "layer", "in place"])
def test_a_module_that_was_compiled_with_torch_trains_as_on_the_cpu(tmp_path, kind):
    weights = []
    for accelerator in ("cpu", "csx"):
        L.seed_everything(1, verbose=False)
        module = Linear()
        given = torch.compile(module, backend="eager") if kind == "module" else module
        if kind == "layer":
            module.layer = torch.compile(module.layer, backend="eager")
        if kind == "in place":
            module.layer.compile(backend="eager")
        trainer = L.Trainer(accelerator=accelerator, devices=1, default_root_dir=tmp_path, max_epochs=1, **QUIET)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            trainer.fit(given)
        weights.append([p.detach() for p in module.parameters()])
    torch.testing.assert_close(weights[1], weights[0])
    assert len([w for w in said if "torch.compile has no effect with accelerator='csx'" in str(w.message)]) == 1
