"""Each lowering gives what PyTorch gives; what has none runs in PyTorch."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from cstorch_jax.executable import XlaExecutable
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten
inf, nan = float("inf"), float("nan")


def compiled(function, *inputs):
    graph = make_fx(lambda *given: tuple(function(*given)))(*inputs)
    return XlaExecutable(SimpleNamespace(graph=graph, state=[], name="test"), list(inputs))


def compare(function, *inputs, on_host=()):
    """One program of all that `function` returns: as in PyTorch, and lowered but for the operators named."""
    run = compiled(function, *inputs)
    torch.manual_seed(0)
    expected = function(*[t.clone() for t in inputs])
    torch.manual_seed(0)
    given = [t.clone() for t in inputs]
    found = run(given)
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)
    assert run.on_host == sorted(on_host)
    return given


X = torch.tensor([[-2.5, -1.0, -0.5, 0.0], [0.3, 0.5, 1.5, 2.5], [7.0, inf, -inf, nan]])
Y = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.3, 2.0, -1.5, 2.5], [1.0, 2.0, 3.0, 4.0]])
I = torch.tensor([[3, -7, 0, 5], [2, 2, 9, -1], [1, 4, 4, 8]])  # noqa: E741


def test_elementwise():
    names = (
        "abs acos acosh asin asinh atan atanh ceil cos cosh exp exp2 expm1 floor isinf isnan log log10 log1p log2 "
        "logical_not reciprocal sign signbit sin sinh sqrt square tan tanh trunc neg rsqrt sigmoid relu erf erfc round"
    )
    compare(lambda x: [getattr(torch, name)(x) for name in names.split()], X)
    compare(lambda x: [F.gelu(x, approximate="tanh"), F.silu(x), F.elu(x), F.softplus(x), F.leaky_relu(x)], X)
    compare(lambda x: [F.gelu(x)], X.clamp(-9, 9))  # of inf, PyTorch's is nan on some processors
    binary = (
        "add sub mul div pow remainder atan2 hypot maximum minimum fmin fmax eq ne lt le gt ge logical_and logical_or"
    )
    compare(lambda x, y: [getattr(torch, name)(x, y) for name in binary.split()], X, Y)
    compare(lambda x, y: [x.add(y, alpha=3), x.sub(y, alpha=2), torch.rsub(x, y), torch.where(x > y, x, y)], X, Y)
    compare(lambda x: [x.clamp(-1, 1), x.clamp_min(0), x.clamp_max(0), x.clamp(max=1), x.masked_fill(x > 0, 3.0)], X)
    compare(lambda x, y: [torch.div(x, y, rounding_mode=mode) for mode in ("floor", "trunc")], X, Y)


def test_integers_and_types():
    compare(lambda i: [i + 1, i * 2.5, i / 2, i > 3, i & 6, i | 1, i ^ 5, ~i, i.float().sqrt(), -i, i.abs()], I)
    compare(lambda i, x: [i + x, i * x, x.double() + i, x.to(torch.bfloat16) * i, x.bool(), i.to(torch.uint8)], I, X)
    step = torch.tensor(0.1, dtype=torch.float64)
    compare(lambda x, s: [x * s, x + s, s * 2, x.add(s), (x * s).dtype.itemsize * x], X, step)


def test_reductions():
    compare(
        lambda y, i: [y.sum(), y.sum(1), y.sum((0, 1), keepdim=True), y.mean(0), y.prod(1), y.amax(1), y.amin((0, 1)),
                      y.var(1), y.var(0, correction=0, keepdim=True), y.std(), y.argmax(), y.argmin(1, keepdim=True),
                      y.cumsum(1), y.cumprod(0), y.norm(), torch.linalg.vector_norm(y, 1, 1), i.sum(1), i.cumsum(0),
                      torch.linalg.vector_norm(y, inf), (y > 1).any(1), (y > 1).all(), y.softmax(1),
                      y.log_softmax(0), y.logsumexp(1), y.to(torch.bfloat16).sum(1)],
        Y, I,
    )  # fmt: skip


def test_order():
    ties = torch.tensor([[3.0, 1.0, 3.0, nan, 1.0], [2.0, 2.0, nan, -inf, 0.0]])
    compare(lambda x: [*x.sort(stable=True), *x.sort(descending=True, stable=True), *x.sort(dim=0, stable=True)], ties)
    compare(lambda x: [*x.topk(2), *x.topk(2, 0, largest=False), x.argsort(dim=1, descending=True, stable=True)], Y)


def test_shapes():
    compare(
        lambda y: [y.view(2, 6), y.t(), y.permute(1, 0), y.transpose(0, 1), y[1], y[:, 1:3], y[::2], y[-1:, :-1],
                   y.unsqueeze(1), y.unsqueeze(0).squeeze(0), y.expand(2, 3, 4), y.flip(0), y.repeat(2, 1),
                   *y.split(3, 1), *y.split([1, 2], 0), *y.chunk(2), torch.cat([y, y], 1), torch.stack([y, y], 1),
                   F.pad(y, (1, 2, 0, 1), value=7.0), F.pad(y, (-1, 1)), y.roll(1, 0), y.tril(), y.diagonal(),
                   torch.ones(3) + y.new_zeros(3), torch.full((2,), 3), torch.arange(1, 7, 2), y.reshape(-1).clone()],
        Y, on_host=[],
    )  # fmt: skip


def test_indices():
    rows = torch.tensor([2, 0, 2])
    places = torch.tensor([[0, 3], [1, 1], [2, 0]])

    def all_of_them(y, rows, places):
        return [
            y.gather(1, places), y.gather(0, places[:1] % 3), y[rows, rows], y[:, rows], y[rows[:, None], places],
            y.index_select(1, rows), F.embedding(rows, y), y.scatter(1, places, 9.0), y.scatter(1, places[:, :1], y),
            y.scatter_add(1, places, y), y.index_put((rows,), y[:1]), y.index_put((rows,), y, accumulate=True),
            y.index_add(0, rows, y), y.index_fill(0, rows[:1], 0.0), y.take_along_dim(places, 1),
        ]  # fmt: skip

    compare(all_of_them, Y, rows, places)


def with_gradients(function):
    """The result of `function` and the gradients of a weighted sum of it."""

    def run(*inputs):
        inputs = [t.detach().requires_grad_() for t in inputs]
        result = function(*inputs)
        weights = torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape)
        return [result, *torch.autograd.grad((result * weights).sum(), inputs)]

    return run


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=(1, 0), groups=2), [(2, 4, 7, 6), (6, 2, 3, 2), (6,)]),
        (lambda x, w: F.conv2d(x, w, dilation=2), [(2, 3, 8, 8), (4, 3, 3, 3)]),
        (lambda x, w: F.conv1d(x, w, padding=1), [(2, 3, 8), (4, 3, 3)]),
        (
            lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1, groups=2, dilation=2),
            [(2, 4, 4, 5), (4, 3, 3, 3), (6,)],
        ),
        (lambda x: F.max_pool2d(x, 3, stride=2, padding=1), [(2, 3, 7, 8)]),
        (lambda x: F.max_pool2d(x, 2, ceil_mode=True), [(2, 3, 5, 5)]),
        (lambda x: F.max_pool2d(x, 2, stride=1, dilation=2), [(3, 6, 6)]),
        (lambda x: F.max_pool3d(x, 2), [(1, 2, 4, 4, 4)]),
        (lambda x, w, b: F.layer_norm(x, (4,), w, b), [(3, 2, 4), (4,), (4,)]),
        (lambda x: F.layer_norm(x, (2, 4)), [(3, 2, 4)]),
        (lambda x, w, b: F.group_norm(x, 2, w, b), [(3, 4, 5), (4,), (4,)]),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [(2, 2, 5, 4)] * 3),
        (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
            [(2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4)],
        ),
        (lambda a, b, c: torch.baddbmm(c, a, b, beta=2, alpha=3), [(2, 3, 4), (2, 4, 5), (2, 3, 5)]),
    ],
)
def test_networks(function, shapes):
    torch.manual_seed(0)
    compare(with_gradients(function), *[torch.randn(shape) for shape in shapes])


def test_batch_norm_changes_its_statistics():
    torch.manual_seed(0)

    def train(x, mean, var):
        weights = torch.ones(3)
        found = F.batch_norm(x, mean, var, weights, weights, training=True, momentum=0.2)
        return [found, F.batch_norm(x, mean, var, weights, weights), F.instance_norm(x)]

    given = [torch.randn(4, 3, 5), torch.zeros(3), torch.ones(3)]
    left = compare(train, *given)
    F.batch_norm(given[0], given[1], given[2], training=True, momentum=0.2)
    torch.testing.assert_close(left, given)


def test_changes_in_place_and_through_views():
    def change(x):
        x[0].mul_(2)
        x.t()[1] += 1
        x.clamp_(max=3)
        return [x.sum()]

    (left,) = compare(change, Y)
    expected = Y.clone()
    change(expected)
    torch.testing.assert_close(left, expected)


def test_operators_without_a_lowering_run_in_pytorch():
    compare(lambda y: [torch.linalg.matrix_exp(y @ y.t()) * 2], Y * 0.1, on_host=["aten.linalg_matrix_exp.default"])
    compare(lambda i: [i // 2, i % 3, i // -3, i.fmod(-3), torch.div(i, -4, rounding_mode="trunc")], I)
    compare(lambda i: [i // i.abs().clamp(min=1)], I, on_host=["aten.div.Tensor_mode"])


def test_what_pytorch_raises_is_raised():
    run = compiled(lambda i, j: [torch.div(i, j, rounding_mode="floor")], I, torch.ones_like(I))
    with pytest.raises(Exception, match="ZeroDivisionError"):
        run([I, torch.zeros_like(I)])


def test_random_numbers_are_those_of_pytorch_in_order():
    def draw(x):
        return [F.dropout(x, 0.4), torch.rand_like(x), torch.randn(3), torch.bernoulli(x), torch.randint(9, (4,)),
                F.dropout(x.to(torch.bfloat16), 0.5), torch.empty(5).uniform_(2, 3), torch.randperm(6)]  # fmt: skip

    compare(draw, torch.full((4, 5), 0.5))
    run = compiled(draw, torch.full((4, 5), 0.5))
    torch.manual_seed(0)
    first, second = (run([torch.full((4, 5), 0.5)]) for _ in range(2))
    assert not torch.equal(first[1], second[1])
