"""Convolutions run channels last within a library: numbers, and the strides of what is returned, stay eager's."""

import cstorch
import pytest
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    """Convolutions of many kinds; strides of its activations are returned, and one is flattened."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, groups=8, padding=1)
        self.up, self.mix = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(4, 8, 1)
        self.head = nn.Linear(512, 3)

    def forward(self, x):
        small = self.depthwise(F.relu(self.norm(self.first(x))))
        large = F.dropout(self.mix(self.up(small)), 0.0)
        return self.head(F.max_pool2d(large, 2).flatten(1)), small, large.transpose(1, 3)


def train(device):
    torch.manual_seed(0)
    net = Net()
    model = cstorch.compile(net, cstorch.backend("CSX")) if device == "csx" else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i))
    seen = []

    def step(x):
        optimizer.zero_grad()
        out, small, large = model(x)
        loss = out.square().mean() + small.mean() + large.sin().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss, small, large

    images = torch.randn(5, 4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    keep = cstorch.step_closure(lambda *values: seen.append([v.detach().clone() for v in values]))
    if device == "csx":
        traced = cstorch.trace(step)
        loader = cstorch.utils.data.DataLoader(lambda: iter(images))
        for x in cstorch.utils.data.DataExecutor(loader, num_steps=len(images)):
            keep(*traced(x))
    else:
        seen = [[v.detach() for v in step(x)] for x in images]
    return seen, [t.detach().cpu() for t in net.state_dict().values()]


@pytest.mark.native
def test_trains_as_eager(csx):
    seen, state = train("csx")
    expected, of_eager = train("cpu")
    for now, then in zip(seen, expected, strict=True):
        torch.testing.assert_close(now, then, rtol=1e-4, atol=1e-5, check_stride=True)
    torch.testing.assert_close(state, of_eager, rtol=1e-4, atol=1e-5, check_stride=True)
