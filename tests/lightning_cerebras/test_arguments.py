"""Trainer arguments that the other tests leave out: each does on csx what it does on the cpu, or says why not."""

import datetime
import inspect
import time
import warnings

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.profilers import SimpleProfiler
from modules import Linear, Module, assert_equal_fits, fit, loader
from torch import nn
from torch.utils.data import DataLoader

from lightning_cerebras import CSXCheckpointIO

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
IS_2_6 = "weights_only" in inspect.signature(L.Trainer.fit).parameters


def trainer(accelerator, tmp_path, **options):
    return L.Trainer(
        accelerator=accelerator, devices=1, default_root_dir=tmp_path, **{**QUIET, "max_epochs": 1, **options}
    )


def both(tmp_path, module, **options):
    """A fit of `module()` on the cpu and one on csx; the modules."""
    made = []
    for accelerator in ("cpu", "csx"):
        L.seed_everything(1, verbose=False)
        made.append(module())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer(accelerator, tmp_path / accelerator, **options).fit(made[-1])
    return made


def assert_equal_weights(cpu, csx):
    for name, value in cpu.state_dict().items():
        torch.testing.assert_close(csx.state_dict()[name].cpu(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"benchmark": True, "use_distributed_sampler": False},
        {"min_epochs": 2, "max_epochs": 4},
        {"min_steps": 5, "max_steps": 8, "max_epochs": -1},
        {"max_epochs": 0},
        {"sync_batchnorm": True},
        {"limit_train_batches": 0.5, "limit_val_batches": 1, "check_val_every_n_epoch": 2, "max_epochs": 4},
        {"overfit_batches": 0.5, "accumulate_grad_batches": 2},
        {"profiler": "advanced"},
        pytest.param(
            {"val_check_interval": datetime.timedelta(0), "check_val_every_n_epoch": None},
            marks=pytest.mark.skipif(not IS_2_6, reason="since Lightning 2.6"),
        ),
    ],
    ids=str,
)
def test_arguments_equal_the_cpu(tmp_path, options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_equal_fits(*(fit(a, tmp_path / a, **options) for a in ("cpu", "csx")))


def test_barebones_equals_the_cpu(tmp_path):
    weights = []
    for accelerator in ("cpu", "csx"):
        L.seed_everything(1, verbose=False)
        module = Module()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            L.Trainer(accelerator=accelerator, devices=1, barebones=True, max_epochs=1).fit(module, loader("mlp"))
        weights.append(module)
    assert_equal_weights(*weights)


def test_max_time_ends_the_run(tmp_path):
    class Slow(Linear):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            time.sleep(0.05)

    run = trainer("csx", tmp_path, max_epochs=-1, max_time=datetime.timedelta(seconds=0.5))
    run.fit(Slow())
    assert 0 < run.global_step < 40


class Drops(Linear):
    def training_step(self, batch, batch_idx):
        return nn.functional.dropout(self.layer(batch), 0.5).square().mean()


def test_deterministic_draws_the_dropout_of_the_cpu(tmp_path):
    try:
        assert_equal_weights(*both(tmp_path, Drops, deterministic=True, max_epochs=3))
    finally:
        torch.use_deterministic_algorithms(False)


class XLAProfiler(SimpleProfiler):
    """Stands for Lightning's own, which needs torch_xla."""


def test_the_profiler_of_another_device_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"profiler='xla' with accelerator='csx'.*'pytorch'"):
        trainer("csx", tmp_path, profiler=XLAProfiler()).fit(Linear())


@pytest.mark.parametrize("wanted", [True, False])
def test_hyperparameters_are_logged_as_on_the_cpu(tmp_path, wanted):
    class Named(Linear):
        def __init__(self, width=3, name="x"):
            super().__init__()
            self.save_hyperparameters()

    written = []
    for accelerator in ("cpu", "csx"):
        logger = CSVLogger(tmp_path / accelerator)
        options = {} if wanted else {"enable_autolog_hparams": False}
        if "enable_autolog_hparams" not in inspect.signature(L.Trainer).parameters:
            pytest.skip("since Lightning 2.6")
        trainer(accelerator, tmp_path, logger=logger, **options).fit(Named())
        file = tmp_path / accelerator / "lightning_logs" / "version_0" / "hparams.yaml"
        written.append(file.read_text() if file.exists() else None)
    assert written[0] == written[1]
    assert ("width: 3" in (written[0] or "")) == wanted


def test_the_model_summary_is_that_of_the_cpu(tmp_path, capsys):
    shown = []
    for accelerator in ("cpu", "csx"):
        trainer(accelerator, tmp_path, enable_model_summary=True).fit(Module("cnn"), loader("cnn", 2))
        shown.append(str(L.pytorch.utilities.model_summary.ModelSummary(Module("cnn"), max_depth=-1)))
    assert shown[0] == shown[1]


class Data(L.LightningDataModule):
    """Notes its hooks; changes the batches on their way."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def prepare_data(self):
        self.calls.append("prepare_data")

    def setup(self, stage):
        self.calls.append(f"setup {stage}")

    def teardown(self, stage):
        self.calls.append(f"teardown {stage}")

    def state_dict(self):
        return {"calls": len(self.calls)}

    def load_state_dict(self, state):
        self.calls.append(f"loaded {state['calls']}")

    def on_before_batch_transfer(self, batch, dataloader_idx):
        self.calls.append("before")
        return batch * 2

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        self.calls.append("transfer")
        return super().transfer_batch_to_device(batch + 1, device, dataloader_idx)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.calls.append("after")
        return batch / (1 + len([c for c in self.calls if c == "after"]))

    def loader(self):
        self.calls.append("loader")
        return DataLoader(torch.arange(32.0).reshape(8, 4) / 32, batch_size=2)

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = loader


class Stages(Linear):
    def validation_step(self, batch, batch_idx):
        self.log("loss", self.layer(batch).square().mean())

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self.layer(batch)


def test_a_datamodule_and_its_transfer_hooks_equal_the_cpu(tmp_path):
    found = {}
    for accelerator in ("cpu", "csx"):
        L.seed_everything(1, verbose=False)
        module, data = Stages(), Data()
        run = trainer(accelerator, tmp_path / accelerator, enable_checkpointing=True, max_epochs=2)
        run.fit(module, datamodule=data)
        path = run.checkpoint_callback.best_model_path
        results = [run.validate(module, datamodule=data, verbose=False), run.test(datamodule=data, verbose=False)]
        results.append(run.predict(datamodule=data, ckpt_path="best"))
        run.predict(module, datamodule=data, return_predictions=False)
        resumed = trainer(accelerator, tmp_path / accelerator, max_epochs=3)
        resumed.fit(module, datamodule=data, ckpt_path=path)
        found[accelerator] = data.calls, results, module.state_dict()
    assert found["csx"][0] == found["cpu"][0]
    torch.testing.assert_close(found["csx"][1:], found["cpu"][1:], rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not IS_2_6, reason="since Lightning 2.6")
@pytest.mark.parametrize("weights_only", [True, False])
def test_weights_only_of_every_stage(tmp_path, weights_only):
    module = Stages()
    run = trainer("csx", tmp_path, enable_checkpointing=True)
    run.fit(module, datamodule=Data())
    path = run.checkpoint_callback.best_model_path
    for stage, options in (("validate", {"verbose": False}), ("test", {"verbose": False}), ("predict", {})):
        again = getattr(trainer("csx", tmp_path), stage)
        again(Stages(), datamodule=Data(), ckpt_path=path, weights_only=weights_only, **options)
    resumed = trainer("csx", tmp_path, max_epochs=2)
    resumed.fit(Stages(), datamodule=Data(), ckpt_path=path, weights_only=weights_only)
    assert resumed.global_step == 8


class Counting(CSXCheckpointIO):
    saved = 0

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        super().save_checkpoint(checkpoint, path, storage_options)
        Counting.saved += 1


@pytest.mark.parametrize("make", [Counting, TorchCheckpointIO])
def test_a_checkpoint_io_of_one_s_own(tmp_path, make):
    module = Linear()
    run = trainer("csx", tmp_path, enable_checkpointing=True, plugins=[make()])
    run.fit(module)
    run.save_checkpoint(tmp_path / "x.ckpt")
    loaded = torch.load(tmp_path / "x.ckpt", weights_only=True)
    assert torch.equal(loaded["state_dict"]["layer.weight"], module.layer.weight.detach().cpu())
    assert loaded["state_dict"]["layer.weight"].device.type == "cpu"
    trainer("csx", tmp_path, max_epochs=2, plugins=[make()]).fit(Linear(), ckpt_path=tmp_path / "x.ckpt")
    assert make is TorchCheckpointIO or Counting.saved == 2
