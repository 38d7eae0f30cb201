"""`csx.performance.micro_batch_size`: a step in micro-batches is the step of the whole batch, and takes less memory."""

import json
import logging

import cstorch
import pytest
import torch
import torch.nn.functional as F
from cstorch.compiler.loops import loops_of
from cstorch.errors import MemoryLimitError, MicroBatchError
from torch import nn

from tests.programs import TinyGpt, batches, cnn, decay, line_of, mlp, same_as_eager

performance, debug = cstorch.backends.csx.performance, cstorch.backends.csx.debug
BATCH = 8


@pytest.fixture(autouse=True)
def flags():
    """Flags are set by tests and must not stay."""
    yield
    del performance.micro_batch_size
    del debug.act_memory_gi


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3),
        nn.AdaptiveAvgPool2d(2), nn.Dropout(0.2), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip


class Words(nn.Module):
    """Embeddings, and what `layers` makes of them; the last time step or the mean of all."""

    def __init__(self, layers=None, steps_first=False):
        super().__init__()
        self.words, self.layers, self.out = nn.Embedding(31, 8, padding_idx=0), layers, nn.Linear(8, 4)
        self.steps_first = steps_first

    def forward(self, x):
        h = self.words(x)
        if self.layers is None:
            return self.out(h.mean(1))
        h = self.layers(h.transpose(0, 1) if self.steps_first else h)
        h = h[0] if isinstance(h, tuple) else h
        return self.out(h[-1] if self.steps_first else h[:, -1])


def encoder():
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, bias=False)  # the bias of keys has no gradient but noise


def images(generator):
    return torch.randn(BATCH, 3, 8, 8, generator=generator)


def words(generator):
    return torch.randint(31, (BATCH, 6), generator=generator)


def rows(generator):
    return torch.randn(BATCH, 8, generator=generator)


MODELS = {
    "mlp with dropout": (lambda: mlp(0.3), rows),
    "convolutions": (convolutions, images),
    "embeddings": (Words, words),
    "lstm": (lambda: Words(nn.LSTM(8, 4, 2, bidirectional=True, batch_first=True)), words),
    "gru, steps first": (lambda: Words(nn.GRU(8, 8), steps_first=True), words),
    "transformer, steps first": (lambda: Words(encoder(), steps_first=True), words),
}


def train_classes(run, make, inputs, size, loss_of=F.cross_entropy, targets=None, steps=4):
    """Four steps of AdamW with clipping and a decaying learning rate; the model and its optimizer."""
    performance.micro_batch_size = size if run.device == "csx" else None
    net = make().to(run.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)
    generator = torch.Generator().manual_seed(1)

    @run.trace
    def step(x, y):
        optimizer.zero_grad()
        out = net(x)
        loss = loss_of(out, y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        run.see(loss, out, norm, (out.argmax(-1) == 1).sum())

    torch.manual_seed(5)
    for i in range(steps):
        x = inputs(generator)
        y = torch.randint(4, (BATCH,), generator=generator) if targets is None else targets(generator)
        if targets is None and i == 1:
            y[: BATCH // 2] = -100
        step(x, y)
        schedule.step()
    return net, optimizer


def loops(run):
    """The loops of the programs as they run."""
    entries = cstorch.backend().report.entries
    return [entry.report.micro_batch_size for entry in entries]


@pytest.mark.parametrize("size", [4, 1])
@pytest.mark.parametrize("name", MODELS)
def test_micro_batches_train_as_the_whole_batch(csx, name, size):
    made = same_as_eager(lambda run: train_classes(run, *MODELS[name], size), rtol=1e-4, atol=2e-6)
    assert loops(made) == [size] * made.count


def test_a_gpt_trains_in_micro_batches(csx):
    def train(run):
        return train_classes(run, TinyGpt, lambda g: torch.randint(31, (BATCH, 8), generator=g), 2, targets=tokens)

    def tokens(generator):
        return torch.randint(31, (BATCH * 8,), generator=generator)

    assert set(loops(same_as_eager(train, rtol=1e-4, atol=5e-6))) == {2}


LOSSES = {
    "weighted": lambda out, y: F.cross_entropy(out, y, weight=torch.linspace(0.5, 2, 4).to(out.device)),
    "smoothed": lambda out, y: F.cross_entropy(out, y.clamp(min=0), label_smoothing=0.1),
    "sum": lambda out, y: 0.1 * F.cross_entropy(out, y, reduction="sum"),
    "of each": lambda out, y: F.cross_entropy(out, y, reduction="none").mul(torch.arange(8.0, device=out.device)).sum(),
    "squares": lambda out, y: F.mse_loss(out, F.one_hot(y.clamp(min=0), 4).float()),
    "huber": lambda out, y: F.huber_loss(out, F.one_hot(y.clamp(min=0), 4).float()),
    "binary": lambda out, y: F.binary_cross_entropy(out.sigmoid(), F.one_hot(y.clamp(min=0), 4).float()),
    "logits": lambda out, y: F.binary_cross_entropy_with_logits(out, F.one_hot(y.clamp(min=0), 4).float()),
    "masked": lambda out, y: (out.square().mean(1) * (y >= 0)).sum() / (y >= 0).sum(),
    "noise": lambda out, y: (out + 0.1 * torch.randn_like(out)).square().mean(),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_micro_batches_are_those_of_the_batch(csx, name):
    same_as_eager(lambda run: train_classes(run, mlp, rows, 2, LOSSES[name], steps=3), rtol=1e-4, atol=2e-6)


def test_gradients_add_up_over_steps_too(csx):
    """Accumulation by a branch of Python: two programs, each in micro-batches."""

    def train(run):
        performance.micro_batch_size = 2 if run.device == "csx" else None
        net = mlp().to(run.device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        @run.trace
        def step(x, i):
            (net(x).square().mean() / 2).backward()
            if i % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()

        for i, x in enumerate(batches(6, BATCH, 8)):
            step(x, i)
        return net, optimizer

    same_as_eager(train)
    assert {entry.report.micro_batch_size for entry in csx.report.entries} == {2}


def test_values_made_in_place_are_followed(csx):
    def train(run):
        performance.micro_batch_size = 2 if run.device == "csx" else None
        net = nn.Linear(8, 8).to(run.device)

        @run.trace
        def step(x):
            h = torch.zeros(BATCH, 2, 8, device=run.device)
            h[:, 0] = net(x)
            h[:, 1] += 2 * h[:, 0]
            h.mul_(0.5).relu_()
            h.sum(1).square().mean().backward()
            run.see(h)

        for x in batches(3, BATCH, 8):
            step(x)
        return net

    same_as_eager(train)


def test_a_batch_that_is_stored_is_gathered(csx):
    """The state after a step has the rows of all samples, and evaluation returns them in order."""

    def train(run):
        performance.micro_batch_size = 2 if run.device == "csx" else None
        net = nn.Linear(8, 4).to(run.device)
        net.register_buffer("seen", torch.zeros(BATCH, 4, device=run.device))

        @run.trace
        def step(x):
            out = net(x)
            with torch.no_grad():
                net.seen.copy_(out)
            out.mean().backward()
            run.see(out.t(), out.std())

        for x in batches(2, BATCH, 8):
            step(x)
        return net

    same_as_eager(train)


def test_evaluation_runs_in_micro_batches(csx):
    def train(run):
        performance.micro_batch_size = 2 if run.device == "csx" else None
        net = cnn().to(run.device).eval()  # batch norm with fixed statistics keeps samples apart
        generator = torch.Generator().manual_seed(1)

        @run.trace
        def step(x):
            with torch.no_grad():
                run.see(net(x))

        for _ in range(2):
            step(images(generator))

    same_as_eager(train)
    assert csx.report.entries[0].report.micro_batch_size == 2


# -- what is refused -----------------------------------------------------------------------------------------


def batch_norm(x):
    return F.batch_norm(x, None, None, training=True).square().mean()


def contrast(x):
    logits = x @ x.t()
    return F.cross_entropy(logits, torch.arange(BATCH, device=x.device))


def spread(x):
    return x.std()


def square(x):
    return x.square().mean()


def root(x):
    return x.square().mean().sqrt()


REFUSED = {
    batch_norm: ("native_batch_norm", "takes the samples of the whole batch together", "F.batch_norm"),
    contrast: ("mm", "takes the samples of the whole batch together", "x @"),
    spread: ("std", "takes the samples of the whole batch together", "x.std"),
    root: ("div|mul|expand", "needs a result over the whole batch", "sqrt"),
}


def traced(loss_of):
    net = nn.Linear(8, 8).to("csx")

    @cstorch.trace
    def step(x):
        loss_of(net(x)).backward()

    return step


@pytest.mark.parametrize("loss_of", REFUSED, ids=lambda f: f.__name__)
def test_what_mixes_samples_is_refused_by_name(csx, loss_of):
    operator, why, text = REFUSED[loss_of]
    performance.micro_batch_size = 2
    with pytest.raises(MicroBatchError, match=why) as caught:
        traced(loss_of)(torch.randn(BATCH, 8))
    assert any(f": {name} of (" in str(caught.value) for name in operator.split("|"))
    if loss_of is not root:
        assert line_of(loss_of, text) in str(caught.value)
    assert "micro_batch_size" in str(caught.value)


def test_a_batch_that_cannot_be_divided_is_refused(csx):
    performance.micro_batch_size = 3
    with pytest.raises(MicroBatchError, match=r"8 samples.*micro_batch_size = 3.*such as 4, 2, 1"):
        traced(square)(torch.randn(BATCH, 8))


def test_smaller_batches_run_whole(csx):
    performance.micro_batch_size = 16
    traced(square)(torch.randn(BATCH, 8))
    assert csx.report.entries[0].report.micro_batch_size is None


# -- the size ------------------------------------------------------------------------------------------------


def wide():
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(4)))


def activation_bytes(size):
    performance.micro_batch_size = size
    net = wide().to("csx")
    step = cstorch.trace(lambda x: net(x).square().mean().backward())
    step(torch.randn(4096, 64))
    return cstorch.backend().report.entries[-1].report


def test_activations_take_less_memory_in_micro_batches(csx):
    whole, tiled = activation_bytes(None), activation_bytes(512)
    assert tiled.activation_bytes < whole.activation_bytes / 6
    assert tiled.flops == whole.flops


def test_auto_leaves_programs_as_they_are_within_the_limits(csx):
    assert activation_bytes("auto").micro_batch_size is None


def test_auto_takes_the_largest_micro_batches_within_the_limits(csx, caplog):
    caplog.set_level(logging.INFO, "cstorch.compile")
    debug.act_memory_gi = activation_bytes(1024).activation_bytes / 2**30
    assert activation_bytes("auto").micro_batch_size == 1024
    assert "micro-batches of 1024 of 4096 samples" in caplog.text


@pytest.mark.parametrize("mode", ["auto", None])
def test_limits_that_cannot_be_kept_stay_errors(csx, mode):
    debug.act_memory_gi = 1e-6
    performance.micro_batch_size = mode
    with pytest.raises(MemoryLimitError, match="act_memory_gi"):
        traced(batch_norm)(torch.randn(BATCH, 8))


@pytest.mark.parametrize("bounds", [None, {"min": 2, "max": 4}, {"max": None}])
def test_explore_measures_sizes_and_reports_the_best(csx, caplog, bounds):
    caplog.set_level(logging.INFO, "cstorch.compile")
    tried = [4, 2] if bounds and bounds["max"] else [8, 4, 2, 1]

    def train(run):
        return train_classes(run, lambda: mlp(0.3), rows, "explore" if bounds is None else {"explore": bounds})

    same_as_eager(train)
    told = json.loads((csx.report.folder / "report.json").read_text())["programs"][0]
    assert list(told["explored"]) == [str(size) for size in tried]
    best = min(told["explored"], key=told["explored"].get)
    assert told["micro_batch_size"] == (None if best == "8" else int(best))
    assert "micro-batch sizes of 'step' were explored" in caplog.text
    assert f"the best is {best}" in caplog.text
    assert "explored    micro-batches of" in (csx.report.folder / "report.txt").read_text()


@pytest.mark.parametrize("mode", ["auto", "explore"])
def test_programs_that_cannot_be_divided_run_whole(csx, mode, caplog):
    caplog.set_level(logging.INFO, "cstorch.compile")

    def train(run):
        return train_classes(run, cnn, images, mode)

    same_as_eager(train)
    assert {entry.report.micro_batch_size for entry in csx.report.entries} == {None}
    assert ("native_batch_norm" in caplog.text) is (mode == "explore")


def test_validation_shows_the_micro_batch_size(compile_cache, tmp_path, capfd):
    performance.micro_batch_size = 2
    with cstorch.backend("CSX", compile_dir=compile_cache, artifact_dir=tmp_path, validate_only=True) as backend:
        traced(square)(torch.randn(BATCH, 8))
        graph = (backend.report.folder / backend.report.entries[0].graph_file).read_text()
    assert "micro-batch 2 samples at a time" in capfd.readouterr().err
    assert "4 times, carrying" in graph


def test_another_size_is_another_program(csx):
    net = nn.Linear(8, 8).to("csx")
    step = cstorch.trace(lambda x: net(x).mean())
    for size in (None, 2, {"explore": {"max": 2}}, None):
        performance.micro_batch_size = size
        step(torch.randn(BATCH, 8))
    assert len(step.programs) == 3
    assert not any(loops_of(program.graph) for program in step.programs), "a Program is what was traced"


@pytest.mark.native
@pytest.mark.parametrize("name", ["mlp with dropout", "lstm"])
def test_compiled_micro_batches_train_as_the_compiled_batch(csx, name):
    """Random numbers of compiled programs are their own, so both are compiled."""
    left = []
    for size in (None, 2):
        torch.manual_seed(4)
        net, _ = train_classes(Compiled(), *MODELS[name], size, steps=3)
        left.append(net.state_dict())
    for key, whole in left[0].items():
        torch.testing.assert_close(left[1][key].cpu(), whole.cpu(), rtol=1e-4, atol=2e-6)
    assert all(entry.made.how != "interpreted" for entry in csx.report.entries)


class Compiled:
    """A run on csx whose values nobody looks at."""

    device = "csx"

    def trace(self, step):
        return cstorch.trace(step)

    def see(self, *values):
        return None
