"""What an optimizer may be and do in a traced step."""

import copy
import inspect
import math

import cstorch
import pytest
import torch
from cstorch.errors import ClosureNotCalledError, OptimizerError, StateError, TraceError
from programs import batches, line_of, linear, mlp, same_as_eager
from torch import nn


def test_lbfgs_is_refused_by_name(csx):
    model, compiled = linear()
    optimizer = torch.optim.LBFGS(model.parameters())

    @cstorch.trace
    def step(x):
        optimizer.step(lambda: compiled(x).sum())

    with pytest.raises(OptimizerError, match="LBFGS cannot be part of a traced step"):
        step(torch.ones(1, 8))


def test_optimizer_state_of_a_cpu_run_continues(csx):
    def run(device, optimizer_state=None, weights=None, steps=3):
        torch.manual_seed(4)
        model = nn.Linear(8, 4)
        if weights:
            model.load_state_dict(weights)
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        if optimizer_state:
            optimizer.load_state_dict(optimizer_state)

        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        step = cstorch.trace(step) if device == "csx" else step
        for _ in range(steps):
            step(torch.ones(2, 8))
        return {k: v.cpu() for k, v in model.state_dict().items()}, optimizer.state_dict()

    weights, state = run("cpu")
    there, _ = run("csx", state, weights)
    straight, _ = run("cpu", steps=6)
    for name, expected in straight.items():
        torch.testing.assert_close(there[name], expected, rtol=1e-5, atol=1e-6)


def trained(optimizer_class, steps=8, vary=None, expect_programs=1, model=mlp, **kwargs):
    """Train with an optimizer, its lr changing at every step, on the cpu and on csx; the run on csx."""

    def train(run):
        network = model().to(run.device)
        optimizer = optimizer_class(network.parameters(), **kwargs)

        @run.trace
        def step(x):
            optimizer.zero_grad()
            loss = (network(x) - 1).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        for i, x in enumerate(batches(steps, 3, 8)):
            for group in optimizer.param_groups:
                group["lr"] = 0.02 / (1 + i)
            if vary:
                vary(optimizer, i)
            run.see(step(x))
        return network, optimizer

    run = same_as_eager(train)
    assert run.count == expect_programs
    return run


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_momentum_starts_as_eager_starts_it(csx, dampening):
    trained(torch.optim.SGD, momentum=0.9, dampening=dampening, expect_programs=1 + (dampening > 0), lr=0.02)


class CountingAdam(torch.optim.Optimizer):
    """Adam as it is written in many repositories: an int counter, `math.sqrt`, in-place arithmetic."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": list(betas), "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p.data)
                state["step"] += 1
                beta1, beta2 = group["betas"]
                state["exp_avg"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                denom = state["exp_avg_sq"].sqrt().add_(group["eps"])
                bias1 = 1 - beta1 ** state["step"]
                bias2 = 1 - beta2 ** state["step"]
                p.data.add_(p.data, alpha=-group["lr"] * group["weight_decay"])
                p.data.addcdiv_(state["exp_avg"], denom, value=-group["lr"] * math.sqrt(bias2) / bias1)


class Lookahead(CountingAdam):
    """Branches on its counter, keeps a copy of the weights, and counts in its param_group and an attribute."""

    def __init__(self, params, lr=1e-3, every=3):
        super().__init__(params, lr)
        self.total = 0
        for group in self.param_groups:
            group.update(every=every, rounds=0)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if "slow" not in self.state[p]:
                    self.state[p].update(slow=p.detach().clone(), **self._adam_state(p))
        super().step()
        self.total += 1
        for group in self.param_groups:
            group["rounds"] += 0.5
            for p in group["params"]:
                state = self.state[p]
                if state["step"] % group["every"] == 0:
                    state["slow"].lerp_(p, 0.5 + 0.01 * self.total / (1 + group["rounds"]))
                    p.copy_(state["slow"])

    def _adam_state(self, p):
        return {"step": 0, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}


class GradientDifference(torch.optim.Optimizer):
    """Starts its state from the first gradient, counts from one, and multiplies tensors through foreach."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            for p in parameters:
                state = self.state[p]
                if not state:
                    state["step"], state["previous"] = 1, p.grad.clone()
                else:
                    state["step"] += 1
            steps = [torch.stack([p.grad, self.state[p]["previous"]]).sum(0) for p in parameters]
            torch._foreach_mul_(steps, [1 / (1 + self.state[p]["step"]) for p in parameters])
            torch._foreach_add_(parameters, steps, alpha=-group["lr"])
            for p in parameters:
                self.state[p]["previous"] = p.grad.clone()


class Normalized(torch.optim.Optimizer):
    """Reads norms with `.item()` and compares them with max(); its counter is a tensor that it replaces."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = torch.tensor(0.0)
                state["step"] = state["step"] + 1
                norm = max(p.grad.norm().item(), p.norm().item(), 1e-3)
                p.add_(p.grad, alpha=-min(group["lr"], 1 / state["step"].item()) / norm)


@pytest.mark.parametrize(
    ("optimizer", "programs"),
    [(CountingAdam, 1), (Lookahead, 2), (GradientDifference, 2), (Normalized, 1)],
)
def test_an_optimizer_of_ones_own_trains_as_in_eager(csx, optimizer, programs):
    run = trained(optimizer, expect_programs=programs)
    assert len(run.seen) == 8


def test_an_optimizer_that_decides_on_values_is_refused_by_name(csx):
    class Clipping(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                if p.grad.norm().item() > 1:  # here
                    p.grad.div_(2)
            super().step()

    model, compiled = linear()
    optimizer = Clipping(model.parameters(), lr=0.1)

    @cstorch.trace
    def step(x):
        compiled(x).sum().backward()
        optimizer.step()

    with pytest.raises(OptimizerError, match=r"Clipping\.step\(\) needs the value of a tensor") as caught:
        step(torch.ones(1, 8))
    assert line_of(inspect.unwrap(Clipping.step), "# here") in str(caught.value)
    assert optimizer.state == {}


def test_every_flag_and_number_of_adam_may_change(csx):
    def vary(optimizer, i):
        group = optimizer.param_groups[0]
        group.update(weight_decay=0.1 * (i > 2), betas=(0.9 - 0.05 * i, 0.99), eps=1e-3 * i, maximize=i > 5)

    trained(torch.optim.AdamW, vary=vary, expect_programs=3, lr=1)


def test_parameters_with_gradients_later_get_their_state_then(csx):
    def vary(optimizer, i):
        optimizer.param_groups[0]["params"][0].requires_grad_(i > 3)

    trained(torch.optim.SGD, vary=vary, expect_programs=4, momentum=0.9, dampening=0.3, lr=1)


ALL = [
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.ASGD,
    torch.optim.Adafactor,
    torch.optim.RAdam,
    torch.optim.NAdam,
    torch.optim.Adagrad,
    torch.optim.Rprop,
    CountingAdam,
]


@pytest.mark.parametrize("optimizer_class", ALL)
def test_a_checkpoint_moves_between_cpu_and_csx(csx, optimizer_class):
    """Two steps here, two there, two here again: as six on the cpu."""
    arguments = {"momentum": 0.9, "dampening": 0.1} if optimizer_class is torch.optim.SGD else {}

    def train(devices):
        weights = state = None
        data = iter(batches(6, 3, 8))
        for device in devices:
            torch.manual_seed(2)
            model = nn.Linear(8, 4)
            if weights is not None:
                model.load_state_dict(weights)
            model.to(device)
            optimizer = optimizer_class(model.parameters(), lr=0.01, **arguments)
            if state is not None:
                optimizer.load_state_dict(state)

            def step(x, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

            step = cstorch.trace(step) if device == "csx" else step
            step(next(data))
            step(next(data))
            weights = {name: t.cpu() for name, t in model.state_dict().items()}
            state = optimizer.state_dict()
        return weights, state

    def layout(state):
        return {
            index: {k: (v.device, v.dtype, v.shape) if isinstance(v, torch.Tensor) else type(v) for k, v in s.items()}
            for index, s in state["state"].items()
        }

    straight, plain = train(["cpu"] * 3)
    moved, there = train(["cpu", "csx", "cpu"])
    torch.testing.assert_close(moved, straight)
    assert layout(there) == layout(plain)
    moved, _ = train(["csx", "cpu", "csx"])
    torch.testing.assert_close(moved, straight)


def test_a_state_dict_loaded_between_steps_is_taken_over(csx):
    def train(run):
        model = mlp().to(run.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        @run.trace
        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        for i, x in enumerate(batches(8, 3, 8)):
            if i == 3:
                kept = copy.deepcopy(optimizer.state_dict())
                kept["param_groups"][0]["lr"] = 0.05
            if i == 5:
                optimizer.load_state_dict(kept)
            step(x)
        return model, optimizer

    assert same_as_eager(train).count == 1


def test_state_that_is_reset_starts_afresh(csx):
    def reset(optimizer, i):
        if i == 4:
            optimizer.state.clear()

    trained(torch.optim.Adam, vary=reset, expect_programs=2)


def test_a_param_group_added_later_is_trained(csx):
    def train(run):
        model = mlp().to(run.device)
        first, *rest = model.parameters()
        optimizer = torch.optim.Adam([first], lr=0.01)

        @run.trace
        def step(x):
            model.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        for i, x in enumerate(batches(6, 3, 8)):
            if i == 3:
                optimizer.add_param_group({"params": rest, "lr": 0.02})
            step(x)
        return model, optimizer

    assert same_as_eager(train).count == 2


def test_a_learning_rate_that_starts_as_an_int_may_become_a_fraction(csx):
    def train(run):
        model = nn.Linear(8, 4).to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1)

        @run.trace
        def step(x):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()

        for i, x in enumerate(batches(4, 3, 8)):
            optimizer.param_groups[0]["lr"] = 1 if i == 0 else 0.5 / i
            step(x)
        return model

    assert same_as_eager(train).count == 1


def test_a_tensor_learning_rate_changed_in_the_step_is_refused(csx):
    model, compiled = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))

    @cstorch.trace
    def step(x):
        compiled(x).sum().backward()
        optimizer.param_groups[0]["lr"].mul_(0.5)
        optimizer.step()

    with pytest.raises(StateError, match=r"changes the tensor param_groups\[0\]\['lr'\] in place"):
        step(torch.ones(1, 8))


def test_sparse_gradients_are_refused(csx):
    model = nn.Embedding(5, 3, sparse=True).to("csx")
    optimizer = torch.optim.SparseAdam(model.parameters())

    @cstorch.trace
    def step(x):
        model(x).sum().backward()
        optimizer.step()

    with pytest.raises(TraceError, match=r"makes a sparse tensor.*Adam instead of SparseAdam"):
        step(torch.arange(3))


def items_of_every_optimizer():
    """Of torch's database the first configuration of each optimizer; all of them run as conformance tests."""
    from conformance.optimizer_items import items

    return {name.partition("[")[0]: run for name, run in reversed(items())}


@pytest.mark.parametrize("name", items_of_every_optimizer())
def test_the_first_configuration_of_the_database_agrees(csx, name):
    run = items_of_every_optimizer()[name]
    if name in ("LBFGS", "SparseAdam"):
        with pytest.raises(TraceError):
            run()
    else:
        run()


def test_an_optimizer_that_ignores_its_closure_is_refused(csx):
    class Ignores(torch.optim.SGD):
        def step(self, closure=None):
            return super().step()

    model = nn.Linear(3, 2)
    compiled, optimizer = cstorch.compile(model, csx), Ignores(model.parameters(), lr=0.1)

    @cstorch.trace
    def step(x):
        def closure():
            loss = compiled(x).mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    with pytest.raises(ClosureNotCalledError, match=r"Ignores\.step\(\) was given a closure at .*did not call it"):
        step(torch.ones(2, 3))
