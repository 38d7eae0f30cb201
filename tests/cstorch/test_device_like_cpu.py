"""The csx device outside traced steps gives what the cpu gives: views, in-place changes, layouts, dtypes, factories."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils import _pytree as pytree


def counted(device, dtype=torch.float32):
    return torch.arange(24).reshape(4, 6).to(dtype).to(device)


def assert_same(on_csx, on_cpu):
    """Shape, layout, bits and values of every tensor, and every other result."""
    found, expected = pytree.tree_leaves(on_csx), pytree.tree_leaves(on_cpu)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert a.device.type == "csx"
        assert (a.shape, a.stride(), a.storage_offset(), a.dtype) == (b.shape, b.stride(), b.storage_offset(), b.dtype)
        assert (a.is_conj(), a.is_neg(), a.requires_grad) == (b.is_conj(), b.is_neg(), b.requires_grad)
        host = a.detach().cpu()
        assert host.shape == b.shape
        torch.testing.assert_close(host.resolve_conj(), b.detach().resolve_conj(), rtol=1e-5, atol=1e-6, equal_nan=True)


def views_in_place(d):
    w = counted(d)
    w[:, 1].zero_()
    w[0] = 5
    w.view(-1)[3:5].add_(1)
    w.t()[2].mul_(2)
    w[w > 20] = -1
    w.as_strided((3,), (2,), 1).fill_(7)
    p = nn.Parameter(counted(d))
    p.data[0] = 1
    p.data.mul_(2)
    return w, p


def shapes_in_place(d):
    w = counted(d)
    w.t_()
    w[0].zero_()
    total = w.sum(0)
    v = counted(d)
    v.unsqueeze_(0)
    v.transpose_(1, 2)
    kept = v.clone()
    v.squeeze_(0)
    v.swapaxes_(0, 1)
    s = counted(d)
    s.as_strided_((3, 4), (1, 6), 1)
    s.add_(1)
    return w, total, v, kept, s


def out_arguments(d):
    a, grown, whole = counted(d), torch.empty(0, device=d), torch.empty(4, 6, device=d)
    torch.add(a, a, out=grown)
    torch.mul(a, 2, out=whole)
    values, places = torch.empty(0, device=d), torch.empty(0, dtype=torch.int64, device=d)
    torch.max(a, 1, out=(values, places))
    joined = torch.empty(0, device=d)
    torch.cat([a, a], out=joined)
    return grown, whole, values, places, joined, grown.sum(0), joined.view(-1)[:3]


def resized(d):
    w = counted(d)
    w.resize_(2, 3)
    b = w.clone()
    w.resize_(24)
    w.resize_(30)[24:].zero_()
    same = counted(d).resize_as_(b)
    return w, b, w + 1, same


def set_to_another(d):
    w, v = counted(d), torch.empty(0, device=d)
    v.set_(w)
    v.add_(1)
    return w, v


def layouts(d):
    x = torch.randn(2, 3, 5, 5, device=d).to(memory_format=torch.channels_last)
    conv = nn.Conv2d(3, 4, 3, bias=False).to(d)
    y = conv(x)
    weight = conv.weight
    conv.to(memory_format=torch.channels_last)
    assert conv.weight is weight
    p = torch.randn(4, 5, 6, device=d).permute(2, 0, 1)
    made = x, y, x.contiguous(), torch.empty_like(x).zero_(), x.clone(), x * 2, weight, conv(x)
    return made, p, p.sum(0), p @ p.transpose(1, 2), p.reshape(-1), p.flip(0), p.expand(2, 6, 4, 5)


def complex_numbers(d):
    x = torch.randn(3, 4, dtype=torch.complex64, device=d)
    y = x.conj()
    z = y * 2
    parts = torch.view_as_real(x)
    parts[..., 0].zero_()
    made = x, y, z, y.imag, x.real, y.resolve_conj(), torch.view_as_complex(parts), (x @ y.t()).abs(), x.mH
    n = x.conj().imag
    y.add_(1)
    return made, n, n + 1, n.clone(), x, y[0], y.t(), copy.copy(y), torch.cat([x, y])


def transforms(d):
    x = torch.randn(8, device=d)
    f = torch.fft.rfft(x)
    return f, torch.fft.irfft(f), torch.fft.fft(x), torch.fft.ifft(torch.fft.fft(x).conj()), f.imag.clone()


def other_dtypes(d):
    b, i, h = counted(d) > 5, counted(d, torch.int32), counted(d, torch.bfloat16)
    u = counted(d, torch.uint8)
    numbers = i // 3, i % 5, i ^ 3, i.bool(), i.to(torch.float16), i.type_as(h), u << 1
    return b, ~b, b.sum(), b.any(1), b & b, numbers, h * h, h @ h.t(), h.float(), h.double().half()


def indexing(d):
    w = counted(d)
    i = torch.tensor([2, 0], device=d)
    w[i] = w[i] + 1
    w[i, 1] = 0
    m = w > 3
    w[m] = 2
    w[1:3, ::2] = 9
    w[..., None].add_(1)
    w[0, 0] = torch.tensor(3.0)
    w[3] = torch.ones(6)
    w[torch.tensor([1])] = 4.0
    some = w[i], w[m], w[:, [0, 2]], w[1, 2], w[-1], w.index_select(0, i), w.gather(1, i[:, None]), w[torch.tensor(1)]
    return (
        w,
        some,
        w.masked_fill(m, 0),
        w.nonzero(),
        w.unique(),
        w.split(2),
        w.unbind(0),
        w.diagonal(),
        w.unfold(1, 2, 2),
    )


def decompositions(d):
    a = torch.randn(4, 4, device=d)
    s = a @ a.t() + 4 * torch.eye(4, device=d)
    return (
        torch.linalg.inv(s),
        torch.linalg.cholesky(s),
        torch.linalg.qr(a),
        torch.linalg.solve(s, a),
        torch.linalg.det(s),
    )


def layers(d):
    x = torch.randn(2, 3, 8, 8, device=d)
    resized = F.interpolate(x, scale_factor=2), F.interpolate(x, size=(5, 5), mode="bilinear"), F.pad(x, (1, 1))
    pooled = F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 2), F.unfold(x, 3)
    normed = F.layer_norm(x, (8,)), F.group_norm(x, 3), F.batch_norm(x, None, None, training=True)
    looked_up = F.one_hot(torch.arange(3, device=d)), F.embedding(torch.arange(3, device=d), x[0, 0])
    loss = F.cross_entropy(x[0, 0], torch.arange(8, device=d))
    return (
        resized,
        pooled,
        normed,
        looked_up,
        loss,
        F.gelu(x),
        F.dropout(x, 0.5),
        F.scaled_dot_product_attention(x, x, x),
    )


def recurrent(d):
    lstm, gru = nn.LSTM(3, 4, 2).to(d), nn.GRU(3, 4, bidirectional=True).to(d)
    cell, rnn = nn.LSTMCell(3, 4, bias=False).to(d), nn.RNN(3, 4).to(d)
    x = torch.randn(5, 2, 3, device=d)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]))
    padded = nn.utils.rnn.pad_packed_sequence(gru(packed)[0])[0]
    made = lstm(x), gru(x), cell(x[0]), rnn(x), padded
    sum(t.sum() for t in (lstm(x)[0], padded, cell(x[0])[1])).backward()
    return made, [p.grad for m in (lstm, gru, cell) for p in m.parameters()]


def functional_transforms(d):
    m = nn.Linear(3, 2).to(d)
    x, v = torch.randn(4, 3, device=d), torch.randn(3, device=d)
    ps = dict(m.named_parameters())
    y = torch.func.functional_call(m, {k: w * 2 for k, w in ps.items()}, (x,))
    g = torch.func.grad(lambda p: torch.func.functional_call(m, p, (x,)).sum())(ps)
    per_row = torch.vmap(torch.func.grad(lambda a: (a**2).sum()))(x)
    return y, g, per_row, torch.func.jacrev(lambda a: a**2)(v), torch.func.jvp(lambda a: a**2, (v,), (v,))


def autograd(d):
    x = torch.randn(3, device=d, requires_grad=True)
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    a = counted(d).requires_grad_()
    a.register_hook(lambda grad: grad * 2)
    (a * 3).sum().backward()
    m = nn.Linear(6, 6).to(d)
    c = counted(d).requires_grad_()
    torch.utils.checkpoint.checkpoint(lambda t: F.dropout(m(t), 0.5), c, use_reentrant=False).sum().backward()
    return g, h, a.grad, c.grad


def optimizers(d):
    made = []
    for kind in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop):
        m = nn.Linear(3, 2).to(d)
        optimizer = kind(m.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            m(torch.ones(4, 3, device=d)).sum().backward()
            torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1)
            optimizer.step()
        made += list(m.parameters())
    average = torch.optim.swa_utils.AveragedModel(m)
    average.update_parameters(m)
    m.weight.data.add_(1)
    average.update_parameters(m)
    return made, [p.detach() for p in average.parameters()]


def copies(d):
    a = counted(d)
    row = a[1]
    twin, twin_row = copy.deepcopy((a, row))
    twin_row.zero_()
    m = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to(d)
    m[1].weight = m[0].weight
    n = copy.deepcopy(m)
    assert n[0].weight is n[1].weight
    n[0].weight.data.zero_()
    with pytest.raises(RuntimeError, match="created"):
        copy.deepcopy(counted(d).requires_grad_() * 2)
    return a, row, twin, twin_row, list(m.parameters()), list(n.parameters())


def conversions(d):
    m = nn.Linear(2, 2).to(d)
    w = m.weight
    m(torch.ones(1, 2, device=d)).sum().backward()
    m.double()
    wide = m.weight.detach().clone(), m.weight.grad.clone()
    m.to(torch.bfloat16)
    m.half().float()
    assert m.weight is w
    x = counted(d)
    same = x.to(d) is x, x.float() is x, x.contiguous() is x
    mixed = counted(d, torch.int64)
    mixed.copy_(torch.full((4, 6), 2.7))
    return (
        list(m.parameters()),
        wide,
        same,
        x.to(d, torch.float64),
        x.to(x),
        x.to(d, copy=True),
        mixed,
        x.view(torch.int32),
    )


def exchanged(d):
    p = nn.Parameter(counted(d))
    p.data = torch.ones(2, 2, device=d)
    q = counted(d)
    q.data = q.data.t()
    r = nn.Parameter(counted(d))
    r.grad = torch.ones_like(r)
    r.grad.add_(1)
    torch.optim.SGD([r], lr=1.0).step()
    return p, q, r


def reads(d):
    a = counted(d)
    return (
        [a[0, 1].item(), bool(a[0, 1]), int(a[0, 3]), float(a[1, 1]), f"{a[0, 1]:.2f}", len(a), a.tolist(), 2 in a],
        [a.element_size(), a.nelement(), a.is_contiguous(), complex(a[0, 1]), range(10)[a[0, 2].int()], a.is_pinned()],
        next(iter(a[0])),
    )


def reparametrised(d):
    import torch.nn.utils.prune

    x = torch.ones(1, 4, device=d)
    made = [wrap(nn.Linear(4, 4)).to(d)(x) for wrap in (parametrizations.weight_norm, parametrizations.spectral_norm)]
    m = nn.Linear(4, 4).to(d)
    torch.nn.utils.prune.l1_unstructured(m, "weight", 0.5)
    return made, m(x), m.weight_mask


def errors_of_autograd(d):
    x = counted(d).requires_grad_()
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)


PROGRAMS = [
    views_in_place, shapes_in_place, out_arguments, resized, set_to_another, layouts, complex_numbers, transforms,
    other_dtypes, indexing, decompositions, layers, recurrent, functional_transforms, autograd, optimizers, copies,
    conversions, exchanged, reads, reparametrised, errors_of_autograd,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_gives_what_the_cpu_gives(program):
    torch.manual_seed(0)
    expected = program("cpu")
    torch.manual_seed(0)
    assert_same(program("csx"), expected)


FACTORIES = """
torch.arange(5, device=d) | torch.arange(1, 9, 2, device=d, dtype=torch.float64) | torch.range(0, 3, device=d)
torch.randn(3, device=d) | torch.rand(2, 2, device=d) | torch.randperm(7, device=d)
torch.randint(2, 5, (3,), device=d)
torch.randn(3, generator=torch.Generator().manual_seed(1), device=d) | torch.normal(0.0, 1.0, (3,), device=d)
torch.normal(x, 1.0) | torch.bernoulli(torch.full((4,), 0.5, device=d)) | torch.poisson(x)
torch.multinomial(torch.ones(5, device=d), 3) | torch.empty(2, 3, device=d).exponential_()
torch.empty(5, device=d).geometric_(0.3) | torch.empty(5, device=d).cauchy_() | torch.empty(9, device=d).random_(10)
torch.empty(5, device=d).log_normal_() | torch.rand_like(x) | torch.randn_like(x) | torch.randint_like(x, 5)
torch.eye(3, device=d) | torch.eye(2, 3, device=d) | torch.linspace(0, 1, 5, device=d)
torch.logspace(0, 1, 5, device=d)
torch.zeros(2, device=d) | torch.ones(2, dtype=torch.bool, device=d) | torch.full((2,), True, device=d)
torch.full((2,), 3, device=d) | torch.empty(2, device=d).fill_(1) | torch.empty_like(x).zero_()
torch.scalar_tensor(3.0, device=d)
torch.empty_strided((2, 3), (1, 2), device=d).zero_() | torch.empty_permuted((2, 3), (1, 0), device=d).zero_()
torch.zeros_like(x) | torch.full_like(x, 2) | torch.ones_like(x, dtype=torch.int32) | torch.zeros_like(x.t())
x.new_zeros(2) | x.new_ones(2) | x.new_full((2,), 3) | x.new_tensor([1, 2]) | x.new_empty(2).fill_(1)
x.new_empty_strided((2, 2), (1, 2)).zero_() | torch.tensor([1, 2], device=d) | torch.tensor(3.0, device=d)
torch.as_tensor([1.0, 2], device=d) | torch.asarray([1, 2], device=d) | torch.tril_indices(3, 3, device=d)
torch.triu_indices(3, 3, device=d) | torch.hann_window(5, device=d) | torch.hamming_window(5, device=d)
torch.kaiser_window(5, device=d) | torch.kaiser_window(5, False, 3.0, device=d) | torch.blackman_window(5, device=d)
torch.bartlett_window(5, device=d) | torch.complex(x, x) | torch.polar(x, x) | torch.vander(torch.arange(3, device=d))
torch.signal.windows.cosine(5, device=d) | torch.fft.fftfreq(5, device=d)
torch.combinations(torch.arange(4, device=d))
torch.block_diag(x, x) | torch.meshgrid(x[0], x[1], indexing="ij") | torch.distributions.Gamma(x + 1, x + 1).sample()
"""


@pytest.mark.parametrize("factory", [f.strip() for line in FACTORIES.split("\n") for f in line.split("|") if f.strip()])
@pytest.mark.parametrize("lazily", [False, True])
def test_factories(csx, factory, lazily):
    def make(device):
        x = torch.arange(24, device=device).reshape(4, 6).float()
        torch.manual_seed(0)
        return eval(factory, {"torch": torch, "x": x, "d": device})

    expected = make("cpu")
    if lazily:
        with csx.device:
            assert_same(make("csx"), expected)
    else:
        assert_same(make("csx"), expected)
    after = torch.rand(1)
    make("cpu")
    assert torch.equal(torch.rand(1), after)
