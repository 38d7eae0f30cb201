"""Random small training steps: whatever the layers, losses, optimizers and habits, csx trains as the cpu does.

CSTORCH_HYPOTHESIS_EXAMPLES says how many programs are tried, CSTORCH_HYPOTHESIS_SEED from which seed; by default few
and always the same ones.
"""

import os
import warnings
from typing import Any

import cstorch
import pytest
import torch
import torch.nn.functional as F
from cstorch.tracing.context import context
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from programs import Side, same_as_eager
from torch import nn
from torch.optim import lr_scheduler as lrs

WIDTH = 6
EXAMPLES = int(os.environ.get("CSTORCH_HYPOTHESIS_EXAMPLES", "10"))
SEED = os.environ.get("CSTORCH_HYPOTHESIS_SEED")


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.inner = kind(WIDTH, WIDTH, batch_first=True, **options)
        self.last = nn.Linear(WIDTH * (1 + self.inner.bidirectional), WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x.unsqueeze(1).expand(-1, 3, -1))[0].mean(1))


class Convolved(nn.Module):
    def __init__(self, norm: bool, groups: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(2, 4, 3, padding=1, groups=groups, bias=not norm)
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.adaptive_avg_pool1d(self.norm(self.convolution(x.unflatten(1, (2, -1)))).flatten(1), WIDTH)


class Embedded(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(5, WIDTH, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table((x.detach().abs() * 3).long().clamp(max=4)).mean(1)


class Attending(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=dropout, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.unsqueeze(1) * torch.linspace(0.5, 1.5, 3, device=x.device).view(-1, 1)
        return x + self.attention(rows, rows, rows, need_weights=False)[0].sum(1)


class Tied(nn.Module):
    """One weight, used twice, the second time transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.softplus(self.first(x))) @ self.first.weight


class Frozen(nn.Module):
    """A part without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layer.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            gate = self.gate(x).sigmoid()
        return self.layer(x) * gate


class Counted(nn.Module):
    """Buffers that the forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


LAYERS = [
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH)),
    lambda: nn.BatchNorm1d(WIDTH, affine=False, momentum=0.3),
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.GroupNorm(2, WIDTH),
    lambda: nn.RMSNorm(WIDTH),
    lambda: nn.Dropout(0.3),
    lambda: nn.AlphaDropout(0.2),
    lambda: nn.PReLU(WIDTH),
    lambda: Recurrent(nn.GRU),
    lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.2),
    lambda: Recurrent(nn.RNN, bidirectional=True),
    lambda: Convolved(True, 1),
    lambda: Convolved(False, 2),
    lambda: Embedded(),
    lambda: Embedded(padding_idx=0),
    lambda: Embedded(max_norm=1.0),
    lambda: Attending(0.0),
    lambda: Attending(0.2),
    Tied,
    Frozen,
    Counted,
    lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
]
_PLAIN = {0, 1, 7, 10, 11, 20, 21}
_ATTENDING = 18
ACTIVATIONS = [nn.Identity, nn.GELU, nn.SiLU, nn.Tanh, nn.Softplus, nn.ELU, nn.Sigmoid, lambda: nn.Softmax(-1)]
LOSSES = [
    lambda y, t: F.mse_loss(y, t),
    lambda y, t: F.smooth_l1_loss(y, t, beta=0.5),
    lambda y, t: F.huber_loss(y, t),
    lambda y, t: F.cross_entropy(y, t.argmax(-1), label_smoothing=0.1),
    lambda y, t: F.binary_cross_entropy_with_logits(y, t.sigmoid()),
    lambda y, t: F.kl_div(y.log_softmax(-1), t.softmax(-1), reduction="batchmean"),
    lambda y, t: 1 - F.cosine_similarity(y, t, eps=1e-3).mean(),
    lambda y, t: (y - t).square().sum(-1).logsumexp(0),
]
BOOL = st.booleans()


def _optimizer(kind: Any, **options: Any) -> st.SearchStrategy[Any]:
    return st.tuples(st.just(kind), st.fixed_dictionaries(options))


decay = st.sampled_from([0.0, 0.05])
OPTIMIZERS = st.one_of(
    _optimizer(torch.optim.SGD, lr=st.just(0.05), weight_decay=decay, maximize=BOOL),
    _optimizer(torch.optim.SGD, lr=st.just(0.05), momentum=st.just(0.9), nesterov=BOOL, weight_decay=decay),
    _optimizer(torch.optim.SGD, lr=st.just(0.05), momentum=st.just(0.9), dampening=st.just(0.2), foreach=BOOL),
    _optimizer(torch.optim.Adam, lr=st.just(0.01), weight_decay=decay, amsgrad=BOOL, foreach=BOOL, maximize=BOOL),
    _optimizer(torch.optim.AdamW, lr=st.just(0.01), weight_decay=decay, amsgrad=BOOL, fused=BOOL),
    _optimizer(torch.optim.NAdam, lr=st.just(0.01), weight_decay=decay, decoupled_weight_decay=BOOL),
    _optimizer(torch.optim.RAdam, lr=st.just(0.01), weight_decay=decay, decoupled_weight_decay=BOOL),
    _optimizer(torch.optim.Adamax, lr=st.just(0.01), weight_decay=decay),
    _optimizer(torch.optim.Adagrad, lr=st.just(0.05), lr_decay=decay, initial_accumulator_value=decay),
    _optimizer(torch.optim.Adadelta, lr=st.just(0.5), weight_decay=decay),
    _optimizer(torch.optim.Adafactor, lr=st.just(0.02), weight_decay=decay),
    _optimizer(torch.optim.ASGD, lr=st.just(0.05), t0=st.sampled_from([1.0, 1e6])),
    _optimizer(torch.optim.RMSprop, lr=st.just(0.005), momentum=st.sampled_from([0, 0.5]), centered=BOOL),
    _optimizer(torch.optim.Rprop, lr=st.just(0.01)),
)
SCHEDULERS = [
    lambda o: lrs.StepLR(o, 2, 0.5),
    lambda o: lrs.ExponentialLR(o, 0.8),
    lambda o: lrs.LambdaLR(o, lambda epoch: 1 / (1 + 0.3 * epoch)),
    lambda o: lrs.CosineAnnealingLR(o, 4),
    lambda o: lrs.LinearLR(o, 0.2, 1.0, 3),
    lambda o: lrs.CosineAnnealingWarmRestarts(o, 2),
    lambda o: lrs.SequentialLR(o, [lrs.ConstantLR(o, 0.3, 2), lrs.ExponentialLR(o, 0.7)], [2]),
    lambda o: lrs.OneCycleLR(o, 0.02, total_steps=40, cycle_momentum=False),
]


def _is_smooth(program: dict[str, Any]) -> bool:
    """Whether rounding stays rounding, and eager PyTorch has the derivatives."""
    attends = {_ATTENDING, _ATTENDING + 1} & set(program["layers"])
    if program["penalty"] == "input gradient" and attends:
        return False  # eager has no second derivative
    # These move weights by the sign of a gradient, however small: of a bias before a normalisation it is noise.
    by_sign = program["optimizer"][0] in (torch.optim.Rprop, torch.optim.Adafactor)
    return not by_sign or _PLAIN.issuperset(program["layers"])


PROGRAMS = st.fixed_dictionaries(
    {
        "layers": st.lists(st.integers(0, len(LAYERS) - 1), min_size=1, max_size=3),
        "activation": st.integers(0, len(ACTIVATIONS) - 1),
        "loss": st.integers(0, len(LOSSES) - 1),
        "optimizer": OPTIMIZERS,
        "tensor_lr": BOOL,
        "groups": BOOL,
        "scheduler": st.integers(0, len(SCHEDULERS) - 1),
        "schedule": st.sampled_from(["around", "inside", "before", "none"]),
        "accumulate": st.integers(1, 3),
        "zero": st.sampled_from(["before", "after", "first", "model", "to zero", "loop"]),
        "clip": st.sampled_from([None, "norm", "norm inf", "value", "foreach"]),
        "modes": st.sampled_from(["train", "eval", "switch", "inside"]),
        "penalty": st.sampled_from([None, "weights", "input gradient"]),
        "scaled": BOOL,
        "average": BOOL,
        "freeze": st.sampled_from([None, "at first", "midway"]),
    }
).filter(lambda program: _is_smooth(program))


def train(side: Side, p: dict[str, Any]) -> Any:
    """The training program that `p` describes."""
    model = nn.Sequential(
        *(LAYERS[i]() for i in p["layers"]), ACTIVATIONS[p["activation"]](), nn.Linear(WIDTH, WIDTH)
    ).to(side.device)
    parameters = [q for q in model.parameters() if q.requires_grad]
    kind, options = p["optimizer"]
    options = dict(options)
    if p["tensor_lr"] and not options.get("foreach") and kind not in (torch.optim.Adafactor, torch.optim.Rprop):
        options["lr"] = torch.tensor(options["lr"], dtype=torch.float32)
    half = len(parameters) // 2
    groups: Any = parameters
    if p["groups"] and half:
        groups = [{"params": parameters[:half]}, {"params": parameters[half:], "lr": 0.5 * options["lr"]}]
    optimizer = kind(groups, **options)
    schedule = SCHEDULERS[p["scheduler"]](optimizer) if p["schedule"] != "none" else None
    average = [q.detach().clone() for q in parameters] if p["average"] else []
    every = p["accumulate"]

    @side.trace
    def step(x: torch.Tensor, t: torch.Tensor, index: int) -> Any:
        if p["schedule"] == "before" and schedule is not None and index > 0:
            schedule.step()
        if p["modes"] == "inside":
            model.eval()
            with torch.no_grad():
                side.see(model(x))
            model.train()
        if p["zero"] in ("before", "to zero") and index % every == 0:
            optimizer.zero_grad(set_to_none=p["zero"] == "before")
        if p["zero"] == "model" and index % every == 0:
            model.zero_grad()
        if p["penalty"] == "input gradient":
            x = x.clone().requires_grad_()
        y = model(x)
        loss = LOSSES[p["loss"]](y, t) / every
        if p["penalty"] == "input gradient":
            (gradient,) = torch.autograd.grad(y.square().mean(), x, create_graph=True)
            loss = loss + 0.1 * gradient.square().sum()
        if p["penalty"] == "weights":
            loss = loss + 1e-3 * sum(q.square().sum() for q in model.parameters())
        if p["scaled"]:
            loss = loss * min(1.0, 0.5 + index / 4)
        loss.backward()
        if (index + 1) % every == 0:
            if p["clip"] == "norm":
                side.see(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            elif p["clip"] == "norm inf":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=float("inf"))
            elif p["clip"] == "foreach":
                nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=True)
            elif p["clip"] == "value":
                nn.utils.clip_grad_value_(model.parameters(), 0.05)
            optimizer.step()
            if p["schedule"] == "inside" and schedule is not None:
                schedule.step()
            if p["zero"] in ("after", "first"):
                optimizer.zero_grad()
            with torch.no_grad():
                for kept, now in zip(average, parameters):
                    kept.lerp_(now, 0.1)
        side.see(loss, optimizer.param_groups[0]["lr"] * torch.ones((), device=x.device))
        return loss

    generator = torch.Generator().manual_seed(2)
    for index in range(5):
        x, t = (torch.randn(4, WIDTH, generator=generator) for _ in range(2))
        if p["modes"] == "switch":
            model.train(index % 2 == 0)
        elif p["modes"] == "eval":
            model.eval()
        if p["freeze"] is not None and index == (0 if p["freeze"] == "at first" else 3):
            parameters[0].requires_grad_(False)
        if p["freeze"] == "at first" and index == 2:
            parameters[0].requires_grad_(True)
        if p["zero"] == "loop" and index % every == 0:
            optimizer.zero_grad()
        step(x, t, index)
        if p["schedule"] == "around" and schedule is not None:
            schedule.step()
    return model, optimizer, average


@pytest.fixture(autouse=True)
def no_backend():
    yield
    context.reset()


@settings(
    max_examples=EXAMPLES,
    derandomize=SEED is None,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink] if SEED else [Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
@given(PROGRAMS)
def test_a_random_program_trains_as_eager(compile_cache, program):
    torch.set_default_dtype(torch.float64)  # so that the noise of a vanishing gradient stays below Adam's epsilon
    try:
        with cstorch.backend("CSX", compile_dir=compile_cache), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same_as_eager(lambda side: train(side, program), rtol=1e-5, atol=1e-7)
    finally:
        torch.set_default_dtype(torch.float32)
        context.reset()


if SEED is not None:
    test_a_random_program_trains_as_eager = seed(int(SEED))(test_a_random_program_trains_as_eager)
