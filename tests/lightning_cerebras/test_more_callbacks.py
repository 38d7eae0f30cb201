"""Callbacks and loggers that the other tests leave out: on csx as on the cpu, or refused by name."""

import inspect
import json
import warnings

import lightning as L
import pytest
import torch
from lightning.fabric.utilities.spike import TrainingSpikeException
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks.spike import SpikeDetection
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from modules import Linear, Module, assert_equal_fits, fit, loader
from torch import nn
from torch.utils.data import DataLoader

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def trainer(accelerator, tmp_path, **options):
    return L.Trainer(
        accelerator=accelerator, devices=1, default_root_dir=tmp_path, **{**QUIET, "max_epochs": 1, **options}
    )


def quietly(run, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(*args, **kwargs)


def assert_equal_weights(cpu, csx):
    for name, value in cpu.state_dict().items():
        torch.testing.assert_close(csx.state_dict()[name].cpu(), value, rtol=1e-5, atol=1e-6)


# -- callbacks -------------------------------------------------------------------------------------------------


class Normed(Linear):
    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))

    def train_dataloader(self):
        return DataLoader(torch.randn(24, 4, generator=torch.Generator().manual_seed(1)), batch_size=8)


class NoGradients(callbacks.Callback):
    """On the cpu the epoch for batch norm ends with a step along the gradients of the epoch before."""

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 4 and trainer.strategy.root_device.type == "cpu":
            module.zero_grad()


def test_swa_with_batch_norm_equals_the_cpu(tmp_path):
    made = []
    for accelerator in ("cpu", "csx"):
        L.seed_everything(1, verbose=False)
        made.append(Normed())
        swa = callbacks.StochasticWeightAveraging(0.05, swa_epoch_start=1, annealing_epochs=1)
        quietly(trainer(accelerator, tmp_path, callbacks=[swa, NoGradients()], max_epochs=4).fit, made[-1])
    assert_equal_weights(*made)


def test_pruning_equals_the_cpu(tmp_path):
    made = []
    for accelerator in ("cpu", "csx"):
        L.seed_everything(1, verbose=False)
        made.append(Module())
        prune = callbacks.ModelPruning("l1_unstructured", amount=0.3, use_lottery_ticket_hypothesis=False)
        run = trainer(accelerator, tmp_path, callbacks=[prune], max_epochs=3)
        quietly(run.fit, made[-1], loader("mlp"))
    assert_equal_weights(*made)


def test_the_throughput_monitor_logs_samples(tmp_path):
    names = []
    for accelerator in ("cpu", "csx"):
        logger = CSVLogger(tmp_path / accelerator)
        monitor = callbacks.ThroughputMonitor(batch_size_fn=lambda batch: len(batch), window_size=3)
        run = trainer(accelerator, tmp_path, callbacks=[monitor], logger=logger, log_every_n_steps=2, max_epochs=2)
        quietly(run.fit, Linear())
        names.append(set(logger.experiment.metrics_keys))
    assert names[0] == names[1]
    assert any("samples" in name for name in names[1])


class Spikes(Linear):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + 100 * (batch[0, 0] > 0.7))


@pytest.mark.parametrize("accelerator", ["cpu", "csx"])
def test_a_spike_is_detected(tmp_path, accelerator):
    with pytest.raises(TrainingSpikeException, match="Training spike detected"):
        quietly(trainer(accelerator, tmp_path, callbacks=[SpikeDetection(atol=0.5)]).fit, Spikes())
    assert json.loads((tmp_path / "skip_batches.json").read_text()) == [2, 3]
    quietly(trainer(accelerator, tmp_path, callbacks=[SpikeDetection(atol=0.5)]).fit, Linear())


class Sized(Linear):
    def __init__(self):
        super().__init__()
        self.batch_size = 1

    def train_dataloader(self):
        return DataLoader(torch.arange(64.0).reshape(16, 4) / 64, batch_size=self.batch_size)


@pytest.mark.parametrize(("way", "mode"), [("tuner", "power"), ("callback", "binsearch")])
def test_the_batch_size_finder_finds_what_it_finds_on_the_cpu(tmp_path, mode, way):
    found = []
    for accelerator in ("cpu", "csx"):
        module = Sized()
        options = {"mode": mode, "max_trials": 2, "steps_per_trial": 2}
        if way == "tuner":
            run = trainer(accelerator, tmp_path)
            quietly(L.pytorch.tuner.Tuner(run).scale_batch_size, module, **options)
        else:
            run = trainer(accelerator, tmp_path, callbacks=[callbacks.BatchSizeFinder(**options)])
        quietly(run.fit, module)
        found.append((module.batch_size, run.global_step))
    assert found[0] == found[1]
    assert found[1][0] > 1


def test_the_learning_rate_finder_sets_the_rate_of_the_cpu(tmp_path):
    class Rated(Linear):
        def __init__(self):
            super().__init__()
            self.lr = 0.1

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=self.lr)

    rates, made = [], []
    for accelerator in ("cpu", "csx"):
        L.seed_everything(1, verbose=False)
        made.append(Rated())
        finder = callbacks.LearningRateFinder(num_training_steps=30, early_stop_threshold=None)
        quietly(trainer(accelerator, tmp_path, callbacks=[finder]).fit, made[-1])
        rates.append(made[-1].lr)
    assert rates[1] == pytest.approx(rates[0])
    assert_equal_weights(*made)


def test_a_checkpoint_between_steps_and_at_an_exception(tmp_path):
    class Saves(callbacks.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            trainer.save_checkpoint(tmp_path / name / f"{trainer.global_step}.ckpt")
            if trainer.global_step == 3:
                raise KeyError("stop")

    at_exception = "save_on_exception" in inspect.signature(callbacks.ModelCheckpoint).parameters
    states = {}
    for name in ("cpu", "csx"):
        L.seed_everything(1, verbose=False)
        options = {"save_on_exception": True} if at_exception else {}
        saves = [Saves(), callbacks.ModelCheckpoint(tmp_path / name / "mc", **options)]
        run = trainer(name, tmp_path, callbacks=saves, enable_checkpointing=True)
        with pytest.raises(KeyError, match="stop"):
            quietly(run.fit, Linear())
        files = sorted(path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("*.ckpt"))
        states[name] = {str(f): torch.load(tmp_path / name / f, weights_only=True)["state_dict"] for f in files}
    assert states["csx"].keys() == states["cpu"].keys()
    assert len(states["csx"]) == 3 + at_exception
    torch.testing.assert_close(states["csx"], states["cpu"], rtol=1e-5, atol=1e-6)


def test_model_checkpoint_names_and_order_equal_the_cpu(tmp_path):
    keepers = []
    for accelerator in ("cpu", "csx"):
        keeper = callbacks.ModelCheckpoint(
            tmp_path / accelerator,
            monitor="train_loss_step",
            save_top_k=3,
            every_n_train_steps=2,
            filename="{epoch}-{train_loss_step:.3f}",
            auto_insert_metric_name=False,
        )
        quietly(fit, accelerator, tmp_path / accelerator, callbacks=[keeper], max_epochs=3)
        keepers.append(keeper)
    names = [[path.rsplit("/", 1)[1] for path in keeper.best_k_models] for keeper in keepers]
    assert names[0] == names[1]
    assert float(keepers[1].best_model_score) == pytest.approx(float(keepers[0].best_model_score), rel=1e-4)


def test_callback_state_and_parameters_of_groups_follow(tmp_path):
    """A callback that changes weights on the host, keeps state and reads gradients' norms through the log."""

    class Nudges(callbacks.Callback):
        def __init__(self):
            self.seen = []

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            with torch.no_grad():
                module.net[0].weight.mul_(0.9)
            self.seen.append(float(module.net[0].weight.detach().norm()))

        def state_dict(self):
            return {"seen": self.seen}

    nudges = []

    def make():
        nudges.append(Nudges())
        return [nudges[-1]]

    assert_equal_fits(*(quietly(fit, a, tmp_path / a, callbacks=make()) for a in ("cpu", "csx")))
    assert nudges[1].seen == pytest.approx(nudges[0].seen, rel=1e-5)


# -- loggers ---------------------------------------------------------------------------------------------------


class Notes(Logger):
    """What a logger of another package is told."""

    name = version = "notes"

    def __init__(self):
        self.metrics, self.calls = [], []

    def log_metrics(self, metrics, step=None):
        self.metrics.append((step, metrics))

    def log_hyperparams(self, params, *args, **kwargs):
        self.calls.append(("hyperparameters", dict(params)))

    def log_graph(self, model, input_array=None):
        self.calls.append("graph")

    def after_save_checkpoint(self, checkpoint_callback):
        self.calls.append("saved")

    def save(self):
        self.calls.append("save")

    def finalize(self, status):
        self.calls.append(status)


def test_a_logger_of_any_package_is_told_what_it_is_told_on_the_cpu(tmp_path):
    told = {}
    for accelerator in ("cpu", "csx"):
        logger, second = Notes(), CSVLogger(tmp_path / accelerator)
        quietly(fit, accelerator, tmp_path / accelerator, logger=[logger, second], log_every_n_steps=2)
        told[accelerator] = logger
    assert told["csx"].calls == told["cpu"].calls
    assert len(told["csx"].metrics) == len(told["cpu"].metrics) > 4
    for (step, metrics), (cpu_step, cpu_metrics) in zip(told["csx"].metrics, told["cpu"].metrics, strict=True):
        assert step == cpu_step
        assert metrics == pytest.approx(cpu_metrics, rel=1e-5)
        assert {type(value) for value in metrics.values()} <= {float, int}


def test_the_graph_of_a_module_reaches_tensorboard(tmp_path):
    class Shown(Linear):
        example_input_array = torch.ones(2, 4)

        def forward(self, x):
            return self.layer(x)

    logger = TensorBoardLogger(tmp_path, log_graph=True)
    quietly(trainer("csx", tmp_path, logger=logger).fit, Shown())
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert EventAccumulator(logger.log_dir).Reload().Tags()["graph"]
