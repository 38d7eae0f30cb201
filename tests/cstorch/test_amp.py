"""`cstorch.amp`: half dtypes, and loss scales against those of torch.amp."""

import cerebras.pytorch as cstorch
import pytest
import torch
from torch import nn

amp = cstorch.amp
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
}
OVERFLOWS = {2, 3, 8}


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    amp.set_half_dtype("float16")
    amp.enable_mixed_precision(False)


def batches(steps):
    torch.manual_seed(4)
    return [torch.randn(6, 5) * (1e38 if n in OVERFLOWS else 1) for n in range(steps)]


def start(optimizer):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.0), nn.Linear(8, 3))
    made = OPTIMIZERS[optimizer](model.parameters())
    return model, made, torch.optim.lr_scheduler.ExponentialLR(made, 0.8)


def truth(optimizer, steps, clip):
    """Eager PyTorch with its own scaler."""
    model, made, schedule = start(optimizer)
    scaler, scales = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3), []
    for x in batches(steps):
        made.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.unscale_(made)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(made)
        scaler.update()
        schedule.step()
        scales.append(scaler.get_scale())
    return model, scales


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["CSX", "CPU"])
def test_a_dynamic_scale_is_that_of_torch(kind, optimizer, clip, tmp_path):
    expected, scales = truth(optimizer, 10, clip)
    backend = cstorch.backend(kind, artifact_dir=str(tmp_path))
    model, made, schedule = start(optimizer)
    compiled = cstorch.compile(model, backend)
    scaler, seen = amp.GradScaler("dynamic", init_scale=2.0**10, steps_per_increase=3), []

    @cstorch.trace
    def step(x):
        amp.optimizer_step(compiled(x).square().mean(), made, scaler, max_gradient_norm=clip)
        cstorch.step_closure(lambda scale: seen.append(float(scale)))(scaler.get_scale())

    for x in batches(10):
        step(x.to(backend.torch_device))
        schedule.step()
    backend.close()
    assert seen == scales
    assert set(scales) == {256, 512, 1024}
    for (name, p), truth_p in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), truth_p.detach(), msg=lambda text, name=name: f"{name}: {text}")


def scales_of(overflows, **kwargs):
    """The scale after each step, of which `overflows` says whether its gradients overflow."""
    parameter = nn.Parameter(torch.ones(2).to("csx"))
    optimizer, scaler, seen = torch.optim.SGD([parameter], lr=0.1), amp.GradScaler("dynamic", **kwargs), []

    @cstorch.trace
    def step(x):
        amp.optimizer_step((parameter * x).sum(), optimizer, scaler)
        cstorch.step_closure(lambda scale: seen.append(float(scale)))(scaler.get_scale())

    for overflow in overflows:
        step(torch.tensor([1.0, float("inf") if overflow else 2.0]).to("csx"))
    return seen, parameter


def test_the_scale_keeps_its_bounds(csx):
    seen, _ = scales_of(
        [1, 1, 1, 0, 0, 0, 0, 0], init_scale=8, steps_per_increase=1, min_loss_scale=4, max_loss_scale=16
    )
    assert seen == [4, 4, 4, 8, 16, 16, 16, 16]


def test_some_overflows_are_tolerated(csx):
    seen, parameter = scales_of([0, 0, 1, 1, 1, 0], init_scale=8, overflow_tolerance=0.5)
    assert seen == [8, 8, 8, 8, 4, 4]  # 1 of 3, 2 of 4, 3 of 5
    torch.testing.assert_close(parameter.detach().cpu(), 1 - 0.1 * 3 * torch.tensor([1.0, 2.0]))


def test_a_fixed_scale_stays(csx):
    parameter = nn.Parameter(torch.ones(2).to("csx"))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = amp.GradScaler(64, max_gradient_norm=1.0)

    @cstorch.trace
    def step(x):
        amp.optimizer_step((parameter * x).sum(), optimizer, scaler)

    for _ in range(3):
        step(torch.tensor([3.0, 4.0]).to("csx"))
    assert float(scaler.get_scale()) == 64
    torch.testing.assert_close(parameter.detach().cpu(), 1 - 0.3 * torch.tensor([0.6, 0.8]))


def test_a_scaler_goes_on_from_its_state(csx):
    first = amp.GradScaler("dynamic", init_scale=32)
    second = amp.GradScaler("dynamic")
    second.load_state_dict(first.state_dict())
    assert float(second.get_scale()) == 32
    assert second.state_dict() == first.state_dict()


def test_half_dtypes():
    assert (amp.get_half_dtype(), amp.get_half_dtype_str()) == (torch.float16, "float16")
    assert (
        amp.set_half_dtype("bfloat16") == amp.set_half_dtype(torch.bfloat16) == amp.get_half_dtype() == torch.bfloat16
    )
    assert (amp.get_floating_point_dtype(), amp.get_floating_point_dtype_str()) == (torch.float32, "float32")
    amp.enable_mixed_precision()
    assert amp.mixed_precision()
    assert (amp.get_floating_point_dtype(), amp.get_floating_point_dtype_str()) == (torch.bfloat16, "bfloat16")
    with pytest.warns(UserWarning, match="there is no cbfloat16 here"):
        assert amp.set_half_dtype("cbfloat16") == torch.float16
    assert amp.is_cbfloat16_tensor(torch.ones(2).half())
    with pytest.raises(ValueError, match=r"the half dtype is 'int8'. Expected one of 'float16'"):
        amp.set_half_dtype("int8")


def test_autocast_computes_in_the_half_dtype(csx):
    amp.set_half_dtype("bfloat16")
    seen = []

    @cstorch.trace
    def step(x):
        with amp.autocast():
            cstorch.step_closure(seen.append)(x @ x)

    for n in range(2):
        step(torch.full((2, 2), n + 1.0).to("csx"))
    assert [value.dtype for value in seen] == [torch.bfloat16] * 2
    assert [float(value[0, 0]) for value in seen] == [2, 8]


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"loss_scale is 'static'. Expected None, \"dynamic\" or a number"):
        amp.GradScaler("static")
    with pytest.raises(ValueError, match=r"overflow_tolerance is 2. Expected a part from 0 to 1"):
        amp.GradScaler("dynamic", overflow_tolerance=2)
    with pytest.raises(ValueError, match=r"max_gradient_norm is 1 and max_gradient_value is 2. Give one"):
        amp.optimizer_step(None, None, None, max_gradient_norm=1, max_gradient_val=2)
