"""Callbacks, loggers, profilers and closures of a Trainer on csx do what they do on the cpu."""

import csv
import datetime
import warnings
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    BasePredictionWriter,
    Callback,
    DeviceStatsMonitor,
    EarlyStopping,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    RichModelSummary,
    RichProgressBar,
    Timer,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins import AsyncCheckpointIO
from lightning.pytorch.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from modules import Linear, Module, assert_equal_fits, fit, loader

IN_GRAPH = {
    "training_step", "validation_step", "test_step", "predict_step", "forward", "backward", "optimizer_zero_grad",
    "on_before_backward", "on_after_backward", "on_before_zero_grad", "on_before_optimizer_step",
    "configure_gradient_clipping",
}  # fmt: skip


def both(tmp_path, **options):
    make = options.pop("callbacks", list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(fit(a, tmp_path / a, callbacks=make(), **options) for a in ("cpu", "csx"))


def trainer(accelerator, tmp_path, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 1}
    return L.Trainer(accelerator=accelerator, devices=1, default_root_dir=tmp_path / accelerator, **quiet | options)


def hooks(cls):
    return sorted(
        name
        for name in set(dir(cls)) | IN_GRAPH
        if hasattr(cls, name) and (name.startswith("on_") or name in {"setup", "teardown"} | IN_GRAPH)
    )


class Order:
    """Makes a module and a callback that note the names of their hooks as they run."""

    def __init__(self):
        self.calls = []

    def noting(self, base):
        def note(name):
            def hook(this, *args, **kwargs):
                self.calls.append(f"{base.__name__}.{name}")
                return getattr(super(made, this), name)(*args, **kwargs)

            return hook

        made = type(base.__name__, (base,), {name: note(name) for name in hooks(base)})
        return made


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"val_check_interval": 2}], ids=str)
def test_hooks_run_in_the_order_of_the_cpu(tmp_path, options):
    found = {}
    for accelerator in ("cpu", "csx"):
        order = Order()
        module, callback = order.noting(Module)(), order.noting(Callback)()
        run = trainer(accelerator, tmp_path, callbacks=[callback], num_sanity_val_steps=1, **options)
        run.fit(module, loader("mlp"), loader("mlp", 2))
        run.validate(module, loader("mlp", 2), verbose=False)
        run.test(module, loader("mlp", 2), verbose=False)
        run.predict(module, loader("mlp", 2))
        found[accelerator] = order.calls
    traced = [call for call in found["cpu"] if call.rpartition(".")[2] in IN_GRAPH]
    assert [c for c in found["csx"] if c in set(found["cpu"]) - set(traced)] == [
        c for c in found["cpu"] if c not in traced
    ]
    assert set(found["csx"]) == set(found["cpu"])
    first = found["cpu"].index("Module.on_train_batch_end")
    assert found["csx"][:first] == found["cpu"][:first]  # the first batch runs everything, in the cpu's order


OLD_RICH = pytest.mark.skipif(
    L.__version__.startswith(("2.4", "2.5")), reason="its bar does not start with rich 14.1, on every accelerator"
)


@pytest.mark.parametrize(
    "make",
    [
        lambda: EarlyStopping("val_loss", patience=0, mode="max"),
        lambda: EarlyStopping("train_loss_step", check_on_train_epoch_end=True, stopping_threshold=10.0),
        lambda: TQDMProgressBar(refresh_rate=2),
        pytest.param(lambda: RichProgressBar(), marks=OLD_RICH),
        lambda: RichModelSummary(),
        lambda: Timer(datetime.timedelta(hours=1)),
        lambda: OnExceptionCheckpoint("x"),
        lambda: ModelCheckpoint(every_n_train_steps=2, save_top_k=-1),
        lambda: ModelCheckpoint(train_time_interval=datetime.timedelta(seconds=0), save_last="link"),
        lambda: ModelCheckpoint(monitor="train_loss_epoch", save_on_train_epoch_end=True, save_weights_only=True),
    ],
    ids=["stop", "threshold", "tqdm", "rich", "summary", "timer", "exception", "every2", "time", "weights"],
)
def test_callbacks_leave_what_they_leave_on_the_cpu(tmp_path, make):
    shows = {"enable_progress_bar": True, "enable_model_summary": True}
    cpu, csx = both(tmp_path, callbacks=lambda: [make()], max_epochs=3, **shows)
    assert_equal_fits(cpu, csx)
    files = [sorted(p.name for p in (tmp_path / a).rglob("*") if "ckpt" in p.name) for a in ("cpu", "csx")]
    assert files[0] == files[1]


def test_progress_bars_show_the_values_of_the_cpu(tmp_path):
    shown = {"cpu": [], "csx": []}
    for accelerator, rows in shown.items():

        class Shown(TQDMProgressBar):
            def get_metrics(self, trainer, module, rows=rows):
                found = super().get_metrics(trainer, module)
                rows.append({k: round(float(v), 4) for k, v in found.items()})
                return found

        L.seed_everything(1, verbose=False)
        run = trainer(accelerator, tmp_path, callbacks=[Shown()], enable_progress_bar=True)
        run.fit(Module(), loader("mlp"), loader("mlp", 2))
    assert shown["csx"] == [pytest.approx(row, abs=2e-4) for row in shown["cpu"]]


def test_lambda_callbacks_run_at_each_batch(tmp_path):
    seen = []
    callback = LambdaCallback(
        on_train_batch_end=lambda trainer, module, outputs, batch, index: seen.append(index),
        on_after_backward=lambda trainer, module: seen.append("backward"),
    )
    trainer("csx", tmp_path, callbacks=[callback]).fit(Linear())
    assert seen == ["backward", 0, "backward", 1, "backward", 2, "backward", 3]


def rows_of(logger):
    with open(Path(logger.log_dir) / "metrics.csv") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


@pytest.mark.parametrize("interval", [None, "step", "epoch"])
def test_the_learning_rate_monitor_logs_the_rates_of_the_cpu(tmp_path, interval):
    rows = {}
    for accelerator in ("cpu", "csx"):
        logger = CSVLogger(tmp_path / accelerator)
        monitor = LearningRateMonitor(logging_interval=interval)
        fit(accelerator, tmp_path, logger=logger, log_every_n_steps=1, callbacks=[monitor])
        rows[accelerator] = rows_of(logger)
    assert any("lr-AdamW" in row for row in rows["cpu"])
    assert rows["csx"] == [pytest.approx(row, rel=1e-5) for row in rows["cpu"]]


def test_tensorboard_has_the_scalars_of_the_cpu(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for accelerator in ("cpu", "csx"):
        logger = TensorBoardLogger(tmp_path / accelerator)
        fit(accelerator, tmp_path, logger=logger, log_every_n_steps=2)
        events = EventAccumulator(logger.log_dir).Reload()
        found[accelerator] = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert found["csx"].keys() == found["cpu"].keys()
    for tag, scalars in found["cpu"].items():
        assert [step for step, _ in found["csx"][tag]] == [step for step, _ in scalars]
        assert [v for _, v in found["csx"][tag]] == pytest.approx([v for _, v in scalars], rel=1e-5)


def test_the_device_stats_monitor_logs_programs(tmp_path):
    logger = CSVLogger(tmp_path)
    run = trainer("csx", tmp_path, callbacks=[DeviceStatsMonitor()], logger=logger, log_every_n_steps=1)
    run.fit(Linear())
    assert any("programs" in key and value >= 1 for row in rows_of(logger) for key, value in row.items())


@pytest.mark.parametrize("profiler", [SimpleProfiler, AdvancedProfiler, PyTorchProfiler])
def test_profilers_show_what_csx_does(tmp_path, profiler):
    actions = {f"[CSX].{action}" for action in ("trace", "compile", "execute")}
    named = {"record_functions": actions, "row_limit": 1000} if profiler is PyTorchProfiler else {}
    made = profiler(dirpath=tmp_path, filename="report", **named)
    trainer("csx", tmp_path, profiler=made).fit(Linear())
    report = "".join(path.read_text() for path in tmp_path.glob("fit-report*.txt"))
    if profiler is not PyTorchProfiler:  # its schedule leaves the first steps out
        assert all(action in report for action in actions)
    assert "[CSX].execute" in report
    if profiler is SimpleProfiler:
        assert len(made.recorded_durations["[CSX].execute"]) == 4
        assert len(made.recorded_durations["[CSX].trace"]) == 1


class Several(Module):
    """Two dataloaders in each evaluation, and outputs that a callback collects."""

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        loss, _ = self.loss(batch)
        self.log("val", loss)
        self.log(f"alone_{dataloader_idx}", loss * (dataloader_idx + 1), add_dataloader_idx=False)
        return {"loss": loss}

    test_step = validation_step

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self.net(batch[0]) + dataloader_idx


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_several_dataloaders_equal_the_cpu(tmp_path, stage):
    found = {}
    for accelerator in ("cpu", "csx"):
        L.seed_everything(1, verbose=False)
        run = trainer(accelerator, tmp_path, **{f"limit_{stage.replace('idate', '')}_batches": 2})
        arguments = {} if stage == "predict" else {"verbose": False}
        found[accelerator] = getattr(run, stage)(Several(), [loader("mlp"), loader("mlp", 3)], **arguments)
    torch.testing.assert_close(found["csx"], found["cpu"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("interval", ["batch", "epoch"])
def test_prediction_writers_get_values(tmp_path, interval):
    written = {"cpu": [], "csx": []}
    for accelerator, found in written.items():

        class Writer(BasePredictionWriter):
            def write_on_batch_end(self, trainer, module, prediction, indices, batch, index, dataloader, found=found):
                found.append((prediction, indices))

            def write_on_epoch_end(self, trainer, module, predictions, indices, found=found):
                found.append((predictions, indices))

        L.seed_everything(1, verbose=False)
        run = trainer(accelerator, tmp_path, callbacks=[Writer(interval)])
        run.predict(Module(), loader("mlp", 2), return_predictions=False)
    torch.testing.assert_close(written["csx"], written["cpu"], rtol=1e-5, atol=1e-6)
    assert written["csx"]


@pytest.mark.parametrize(
    "options",
    [
        {"overfit_batches": 2},
        {"fast_dev_run": True},
        {"limit_val_batches": 0},
        {"limit_train_batches": 0.5},
        {"val_check_interval": 0.5},
        {"val_check_interval": 4, "check_val_every_n_epoch": None},
        {"max_time": {"hours": 1}},
        {"reload_dataloaders_every_n_epochs": 1},
        {"num_sanity_val_steps": -1},
        {"inference_mode": False},
        {"barebones": False, "deterministic": True},
    ],
    ids=str,
)
def test_more_trainer_arguments_equal_the_cpu(tmp_path, options):
    try:
        assert_equal_fits(*both(tmp_path, **options))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("path", ["last", "best"])
def test_checkpoints_by_name(tmp_path, path):
    found = {}
    for accelerator in ("cpu", "csx"):
        L.seed_everything(1, verbose=False)
        keeper = ModelCheckpoint(monitor="val_loss", save_last=True, every_n_epochs=1)
        module = Module()
        run = trainer(accelerator, tmp_path, callbacks=[keeper], max_epochs=2, plugins=[AsyncCheckpointIO()])
        run.fit(module, loader("mlp"), loader("mlp", 2))
        torch.nn.init.zeros_(next(module.parameters()))
        found[accelerator] = run.test(module, loader("mlp", 2), ckpt_path=path, verbose=False)
    assert found["csx"] == [pytest.approx(found["cpu"][0], rel=1e-5)]


def test_load_from_checkpoint(tmp_path):
    run = trainer("csx", tmp_path)
    module = Module()
    run.fit(module, loader("mlp"))
    loaded = Module.load_from_checkpoint(run.checkpoint_callback.best_model_path)
    for name, value in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


@pytest.mark.skipif(
    L.__version__.startswith("2.4"), reason="Lightning 2.4 trains the last batch again, on every accelerator"
)
def test_an_exception_checkpoint_resumes(tmp_path):
    class Stops(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if batch_idx == 2:
                raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        trainer("csx", tmp_path, callbacks=[OnExceptionCheckpoint(tmp_path), Stops()]).fit(Linear())
    resumed = trainer("csx", tmp_path)
    resumed.fit(Linear(), ckpt_path=tmp_path / "on_exception.ckpt")
    assert resumed.global_step == 4


def test_an_optimizer_that_calls_the_closure_itself_equals_the_cpu(tmp_path):
    class Calls(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure):
            closure()
            return super().step()

    class Own(Linear):
        def configure_optimizers(self):
            return Calls(self.parameters(), lr=0.1, momentum=0.9)

    weights = []
    for accelerator in ("cpu", "csx"):
        L.seed_everything(1, verbose=False)
        module = Own()
        trainer(accelerator, tmp_path).fit(module)
        weights.append(module.layer.weight.detach())
    torch.testing.assert_close(*weights)


def test_a_closure_that_was_not_executed_is_named(tmp_path):
    class Forgets(Linear):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            pass

    class Ignores(torch.optim.SGD):
        def step(self, closure=None):
            return super().step()

    class Broken(Linear):
        def configure_optimizers(self):
            return Ignores(self.parameters(), lr=0.1)

    for module in (Forgets, Broken):
        for accelerator in ("cpu", "csx"):
            with pytest.raises(MisconfigurationException, match="The closure hasn't been executed"):
                trainer(accelerator, tmp_path).fit(module())


def test_the_closure_is_an_instance_of_lightning_s(tmp_path):
    from lightning.pytorch.loops.optimization.closure import AbstractClosure

    class Looks(Linear):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            assert isinstance(optimizer_closure, AbstractClosure)
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    trainer("csx", tmp_path).fit(Looks())


@pytest.mark.filterwarnings("ignore:Error detected in")
@pytest.mark.parametrize("manual", [False, True])
def test_anomaly_detection_raises_at_the_batch_of_the_cpu(tmp_path, manual):
    class Nan(Linear):
        automatic_optimization = not manual

        def training_step(self, batch, batch_idx):
            loss = (self.layer(batch) * (torch.sqrt(0.5 - batch[:, :2]) - 1)).mean()  # nan from the third batch on
            if manual:
                self.manual_backward(loss)
            return loss

    said = {}
    for accelerator in ("cpu", "csx"):
        run = trainer(accelerator, tmp_path, detect_anomaly=True)
        with pytest.raises(RuntimeError, match="Function 'MulBackward0' returned nan values in its 0th output"):
            run.fit(Nan())
        said[accelerator] = run.fit_loop.epoch_loop.batch_idx
    assert said["csx"] == said["cpu"] == 2
