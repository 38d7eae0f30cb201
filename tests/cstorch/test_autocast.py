"""`torch.autocast` on csx makes the casts that it makes on the cpu: operator by operator and in training."""

import contextlib
import threading

import cstorch
import pytest
import torch
import torch.nn.functional as F
from cstorch._torch_private.autocast import cpu_operators
from cstorch.device import CsxTensor
from cstorch.device import autocast as csx_autocast
from programs import TinyGpt, mlp, same_as_eager, trains_as_eager
from torch import nn
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("csx")


def _listed():
    """The cases of PyTorch's own test of autocast on the cpu: name, function, arguments."""
    torch.manual_seed(1)
    lists = AutocastCPUTestLists("cpu")
    for part, modules in (("torch", [torch]), ("nn", [torch._C._nn, F]), ("methods", [torch.Tensor])):
        for kind in ("16", "fp32", "expect_builtin_promote", "need_autocast_promote"):
            for name, args, *rest in getattr(lists, f"{part}_{kind}", []):
                kwargs = next((extra for extra in rest if isinstance(extra, dict)), {})
                function = next((getattr(m, name) for m in modules if hasattr(m, name)), None)
                if function is not None:
                    yield f"{part}.{name}", function, args, kwargs


def _chosen():
    """More cases, beyond these lists."""
    torch.manual_seed(2)
    a, b, c = torch.randn(3, 4, 4)
    half, image, volume = a.bfloat16(), torch.randn(2, 3, 8, 8), torch.randn(2, 3, 4, 4, 4)
    q = torch.randn(2, 2, 4, 4)
    classes = torch.tensor([0, 1, 2, 3])
    yield "softmax", torch.softmax, (half, -1), {}
    yield "layer_norm", F.layer_norm, (half, (4,)), {}
    yield "group_norm", F.group_norm, (image.bfloat16(), 3), {}
    yield "exp", torch.exp, (half,), {}
    yield "pow", torch.pow, (half, 2), {}
    yield "sum", torch.sum, (half,), {}
    yield "prod", torch.prod, (half,), {}
    yield "cumsum", torch.cumsum, (half, 0), {}
    yield "norm", torch.norm, (half,), {}
    yield "cross_entropy", F.cross_entropy, (half, classes), {}
    yield "kl_div", F.kl_div, (half, half.abs()), {}
    yield "attention", F.scaled_dot_product_attention, (q, q, q), {}
    yield "masked attention", F.scaled_dot_product_attention, (q, q.double().float(), q, torch.randn(4, 4)), {}
    yield "mask of bools", F.scaled_dot_product_attention, (q, q, q, torch.ones(4, 4).tril().bool()), {}
    yield "linear with a bias", F.linear, (a, b, c[0]), {}
    yield "conv2d with padding", F.conv2d, (image, torch.randn(4, 3, 3, 3)), {"padding": "same"}
    yield "einsum", torch.einsum, ("ij,jk->ik", a, b), {}
    yield "chain", torch.linalg.multi_dot, ([a, b, c],), {}
    yield "outer", torch.outer, (a[0], b[0]), {}
    yield "dot", torch.dot, (a[0], b[0]), {}
    yield "mv", torch.mv, (a, b[0]), {}
    yield "baddbmm", torch.baddbmm, (q[0], q[0], q[1]), {}
    yield "vecdot", torch.linalg.vecdot, (a, b), {}
    yield "bilinear", F.bilinear, (a, b, torch.randn(2, 4, 4)), {}
    yield "double", torch.mm, (a.double(), b.double()), {}
    yield "double loss", F.mse_loss, (a.double(), b.double()), {}
    yield "complex", torch.mm, (torch.complex(a, b), torch.complex(b, a)), {}
    yield "int", torch.mm, (torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2, dtype=torch.int64)), {}
    yield "index_copy", torch.index_copy, (half, 0, classes[:2], a[:2].bfloat16()), {}
    yield "cat of three", torch.cat, ([half, a, half],), {}
    yield "hstack", torch.hstack, ([half, a],), {}
    yield "cdist", torch.cdist, (half, half), {}
    yield "quantile", torch.quantile, (half.float(), 0.5), {}
    yield "grid_sample", F.grid_sample, (image.bfloat16(), torch.rand(2, 4, 4, 2).bfloat16()), {"align_corners": False}
    yield "max_pool3d", F.max_pool3d, (volume.bfloat16(), 2), {}
    yield "interpolate", F.interpolate, (image.bfloat16(),), {"scale_factor": 2.0, "mode": "bilinear"}
    yield "batch_norm", F.batch_norm, (image.bfloat16(), torch.zeros(3), torch.ones(3)), {}
    yield "inverse", torch.inverse, (half + 4 * torch.eye(4).bfloat16(),), {}
    yield "fft", torch.fft.rfft, (half,), {}
    yield "pad", F.pad, (image.bfloat16(), (1, 1, 1, 1)), {"mode": "reflect"}
    yield "cosine", F.cosine_similarity, (half, a), {}
    yield "gelu", F.gelu, (half,), {}
    yield "embedding", F.embedding, (classes, a), {}
    yield "mixed", torch.mm, (half, a), {}
    yield "where", torch.where, (half > 0, half, a), {}


CASES = {name: (function, args, kwargs) for name, function, args, kwargs in (*_listed(), *_chosen())}


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("name", CASES)
def test_an_operator_gives_what_it_gives_on_the_cpu(csx, name, traced):
    function, args, kwargs = CASES[name]
    with torch.autocast("cpu", torch.bfloat16):
        truth = function(*args, **kwargs)
    seen = []

    def run(values):
        with torch.autocast("csx", torch.bfloat16):
            out = function(*values, **kwargs)
        keep(out) if traced else keep(pytree.tree_map_only(CsxTensor, torch.Tensor.cpu, out))

    keep = cstorch.step_closure(seen.append) if traced else seen.append
    cstorch.trace(run)(args) if traced else run(pytree.tree_map_only(torch.Tensor, lambda t: t.to("csx"), args))
    pairs = list(zip(pytree.tree_leaves(seen[0]), pytree.tree_leaves(truth), strict=True))
    assert [found.dtype for found, _ in pairs] == [expected.dtype for _, expected in pairs]
    if name == "bilinear":  # the cpu multiplies in bfloat16 within an operator that gives float32
        return
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=2e-2 if expected.dtype == torch.bfloat16 else 1e-5, atol=1e-5)


def test_the_operators_with_another_cast_than_float32_are_those_of_the_cpu():
    assert set(cpu_operators()) >= csx_autocast._LOWER | csx_autocast._WIDEST
    assert len(cpu_operators()) > 100


@contextlib.contextmanager
def around(run, kind):
    """Autocast as the program is written: for the cpu, or for the device it runs on."""
    with torch.autocast(run.device if kind == "device" else "cpu", dtype=torch.bfloat16):
        yield


BF16 = {"rtol": 2e-2, "atol": 5e-3}
"""A last bit of a float32 weight decides now and then how its bfloat16 is rounded, so a few steps differ this much."""


def trains(body, model=mlp):
    """With SGD, since AdamW makes steps of full size of gradients that are rounding errors."""
    return trains_as_eager(body, model, lambda p: torch.optim.SGD(p, lr=0.02), **BF16)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(4, 4)

    def forward(self, x):
        q = self.project(x.view(4, 2, 4)).view(4, 2, 2, 2).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q)


MODULES = {
    "linear": lambda: nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)),
    "mlp": mlp,
    "conv": lambda: nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 6, 3), nn.BatchNorm1d(6), nn.ReLU()),
    "attention": Attention,
}


@pytest.mark.parametrize("name", MODULES)
def test_the_gradients_of_a_module_are_equal_bit_by_bit(name):
    def train(run):
        model = MODULES[name]().to(run.device)

        @run.trace
        def step(x, weights):
            with torch.autocast(run.device, torch.bfloat16):
                y = model(x)
            (y.float().flatten() * weights).sum().backward()
            run.see(y, *(p.grad for p in model.parameters()))

        x = torch.randn(4, 8)
        step(x, torch.randn(model(x.to(run.device)).numel()))

    same_as_eager(train, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["device", "cpu"])
@pytest.mark.parametrize("place", ["inside", "outside", "all"])
def test_training_with_dropout(kind, place):
    def train(run):
        model = mlp(dropout=0.4).to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i))

        @run.trace
        def step(x, y):
            optimizer.zero_grad()
            with around(run, kind) if place == "inside" else contextlib.nullcontext():
                out = model(x)
                loss = F.cross_entropy(out, y)
            if place != "all":
                with torch.autocast("cpu", enabled=False), torch.autocast(run.device, enabled=False):
                    loss.backward()
            else:
                loss.backward()
            optimizer.step()
            run.see(out, loss)

        generator = torch.Generator().manual_seed(3)
        for _ in range(5):
            x, y = torch.randn(6, 8, generator=generator), torch.randint(4, (6,), generator=generator)
            with around(run, kind) if place != "inside" else contextlib.nullcontext():
                step(x, y)
            schedule.step()
        return model, optimizer

    run = same_as_eager(train, **BF16)
    assert run.seen[0][0].dtype == torch.bfloat16


def test_training_a_transformer_whose_weight_is_used_twice():
    def train(run):
        model = TinyGpt().to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        @run.trace
        def step(x, y):
            optimizer.zero_grad()
            with around(run, "cpu"):
                out = model(x)
                loss = F.cross_entropy(out, y)
            loss.backward()
            optimizer.step()
            run.see(out, loss)

        generator = torch.Generator().manual_seed(3)
        for _ in range(3):
            tokens = torch.randint(31, (2, 4, 8), generator=generator)
            step(tokens[0], tokens[1].flatten())
        return model

    same_as_eager(train, rtol=1e-2, atol=2e-3)


def twice(run, net, optimizer, x, *, cache):
    optimizer.zero_grad()
    with torch.autocast(run.device, torch.bfloat16, cache_enabled=cache):
        out = net[0](x) + net[0](2 * x)
    out.mean().backward()
    run.see(net[0].weight.grad.clone())
    optimizer.step()


@pytest.mark.parametrize("cache", [True, False])
def test_the_cache_of_casts_decides_where_gradients_are_added(cache):
    kept = trains(lambda run, net, opt, x, i: twice(run, net, opt, x, cache=cache))
    other = trains(lambda run, net, opt, x, i: twice(run, net, opt, x, cache=not cache))
    assert not torch.equal(kept.seen[0][0], other.seen[0][0])
    assert not csx_autocast._casts


def test_nested_regions():
    def body(run, net, optimizer, x, i):
        optimizer.zero_grad()
        with around(run, "cpu"):
            low = net(x)
            with torch.autocast(x.device.type, enabled=False):
                high = net(x)
            with torch.autocast("cpu", enabled=False):
                also = net(x)
            again = net(x)
        run.see(low, high, also, again)
        (low + high + also + again).mean().backward()
        optimizer.step()

    run = trains(body)
    assert [t.dtype for t in run.seen[0]] == [torch.bfloat16, torch.float32, torch.float32, torch.bfloat16]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("kind", ["device", "cpu"])
def test_checkpoint(kind, reentrant):
    def body(run, net, optimizer, x, i):
        optimizer.zero_grad()
        with around(run, kind):
            hidden = checkpoint(net[:4], x.requires_grad_(), use_reentrant=reentrant)
            out = net[4](hidden)
            loss = out.square().mean()
        loss.backward()
        optimizer.step()
        run.see(hidden, out, loss)

    trains(body, lambda: mlp(dropout=0.3))


@pytest.mark.parametrize("kind", ["device", "cpu"])
@pytest.mark.parametrize("cast", [torch.float32, None])
def test_custom_functions(kind, cast):
    def body(run, net, optimizer, x, i):
        device = run.device if kind == "device" else "cpu"

        class Product(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type=device, cast_inputs=cast)
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                run.see(a.clone())
                return a @ b.t()

            @staticmethod
            @torch.amp.custom_bwd(device_type=device)
            def backward(ctx, grad):
                a, b = ctx.saved_tensors
                made = grad @ b, grad.t() @ a
                run.see(*(g.clone() for g in made))
                return made

        optimizer.zero_grad()
        with around(run, kind):
            out = Product.apply(net[0](x), net[0].weight.t())
        out.mean().backward()
        optimizer.step()

    trains(body)


def test_autocast_is_part_of_what_a_program_is_known_by(csx):
    seen = []
    keep = cstorch.step_closure(lambda y: seen.append(y.dtype))
    model = nn.Linear(2, 2)
    cstorch.compile(model)
    step = cstorch.trace(lambda x: keep(model(x)))
    states = [
        contextlib.nullcontext,
        lambda: torch.autocast("csx", torch.bfloat16),
        lambda: torch.autocast("csx", torch.float16),
        lambda: torch.autocast("cpu", torch.bfloat16),
    ]

    def run():
        for state in 2 * states:
            with state():
                step(torch.ones(1, 2))

    with pytest.warns(UserWarning, match=r"the state of torch\.autocast"):
        run()
    assert seen == 2 * [torch.float32, torch.bfloat16, torch.float16, torch.bfloat16]
    assert len(step.programs) == 4


def test_a_program_runs_with_its_own_casts_only(csx):
    seen = []
    keep = cstorch.step_closure(lambda y: seen.append(y))
    a = torch.randn(4, 4)

    @cstorch.trace
    def step(x):
        with torch.autocast("csx", enabled=False):
            keep(x @ x)

    with torch.autocast("cpu"):
        for _ in range(2):
            step(a)
    assert all(torch.equal(y, a @ a) for y in seen)


def test_contents_that_were_waiting_are_made_without_casts(csx):
    with csx.device:
        waiting = torch.ones(3, 3).normal_()
        product = waiting @ waiting
    with torch.autocast("cpu"):
        assert product.cpu().dtype == torch.float32


def test_the_state_as_pytorch_tells_it():
    assert torch.amp.is_autocast_available("csx")
    assert (torch.is_autocast_enabled("csx"), torch.get_autocast_dtype("csx")) == (False, torch.bfloat16)
    with torch.autocast("csx", torch.float16):
        assert (torch.is_autocast_enabled("csx"), torch.get_autocast_dtype("csx")) == (True, torch.float16)
        assert not torch.is_autocast_enabled("cpu")
        with torch.autocast("cpu", enabled=False):
            assert torch.is_autocast_enabled("csx")
        assert torch.get_autocast_dtype("csx") == torch.float16
    assert (torch.is_autocast_enabled("csx"), torch.get_autocast_dtype("csx")) == (False, torch.bfloat16)
    torch.set_autocast_enabled("cpu", True)
    try:
        assert torch.is_autocast_enabled("csx")
    finally:
        torch.set_autocast_enabled("cpu", False)
    assert not torch.is_autocast_enabled("csx")


def test_the_dtype_is_bfloat16_in_every_thread():
    seen = []

    def work():
        with torch.autocast("csx"):
            seen.append((torch.ones(2, 2, device="csx") @ torch.ones(2, 2, device="csx")).dtype)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [torch.bfloat16]


def test_the_cpu_keeps_its_precision_in_autocast_of_csx():
    with torch.autocast("csx"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_float16():
    def body(run, net, optimizer, x, i):
        optimizer.zero_grad()
        with torch.autocast(run.device, torch.float16):
            out = net(x)
        out.float().square().mean().backward()
        optimizer.step()
        run.see(out)

    run = trains(body)
    assert run.seen[0][0].dtype == torch.float16


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks(cell):
    def body(run, net, optimizer, x, i):
        optimizer.zero_grad()
        with torch.autocast(run.device, torch.bfloat16):
            out, hidden = net(x.unsqueeze(1))
        out.float().square().mean().backward()
        optimizer.step()
        run.see(out, hidden)

    with torch.backends.mkldnn.flags(enabled=False):  # its LSTM in bfloat16 is not for every cpu
        sgd = lambda p: torch.optim.SGD(p, lr=0.02)  # noqa: E731
        trains_as_eager(body, lambda: cell(8, 5), sgd, rtol=2e-2, atol=2e-2)  # csx adds the gates in float32
