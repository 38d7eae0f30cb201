"""The appliance that is a GPU: its replica of the state follows the host, here on the cpu; on a GPU where one is."""

import cstorch
import pytest
import torch
from cstorch.appliance import cuda
from cstorch.compiler.passes import copy_graph
from cstorch.distributed import ClusterConfig
from cstorch.errors import BackendError
from torch import nn
from torch.nn import functional as F


def train(address, dropout):
    """What is seen of a run with a schedule, accumulation, evaluation and a host that writes to weights."""
    torch.manual_seed(0)
    seen = []
    with cstorch.backend("CSX", cluster_config=ClusterConfig(mgmt_address=address)) as backend:
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(dropout), nn.Linear(8, 4))
        compiled = cstorch.compile(model, backend)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        @cstorch.trace
        def accumulate(x, y):
            loss = F.cross_entropy(compiled(x) + torch.ones(4, device=x.device), y) / 2
            loss.backward()
            return loss

        @cstorch.trace
        def step(x, y):
            loss = F.cross_entropy(compiled(x), y) / 2
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        @cstorch.trace
        def evaluate(x):
            return compiled(x)

        @cstorch.step_closure
        def keep(*values):
            seen.append([v.clone() for v in values])

        source = torch.Generator().manual_seed(1)
        for i in range(6):
            x, y = torch.randn(5, 6, generator=source), torch.randint(4, (5,), generator=source)
            model.train()
            keep(accumulate(x, y), step(x, y))
            schedule.step()
            model.eval()
            keep(evaluate(x))
            if i == 2:  # a part of it, as a view
                with torch.no_grad():
                    model[4].weight[1:].mul_(0.5)
        return seen, {name: value.cpu().clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_replica_follows_the_host_and_the_host_the_replica(monkeypatch, dropout):
    monkeypatch.setattr(cuda, "device_at", lambda address: torch.device("cpu"))
    torch.testing.assert_close(train("cuda://0", dropout), train(None, dropout), rtol=0, atol=0)


def test_a_graph_goes_to_another_device(csx):
    model = nn.Linear(3, 3)
    compiled = cstorch.compile(model, csx)
    graphs = []
    before = csx.appliance.load

    def load(program, example, folder):
        graphs.append(program.graph)
        return before(program, example, folder)

    csx.appliance.load = load

    @cstorch.trace
    def step(x):
        return compiled(x) * torch.arange(3, device=x.device) + torch.zeros(3, device=x.device)

    step(torch.ones(2, 3))
    moved = cuda.on_device(copy_graph(graphs[0]), torch.device("meta"))
    inputs = [node.meta["val"] for node in graphs[0].graph.find_nodes(op="placeholder")]
    (out,) = moved(*(torch.empty(v.shape, device="meta") for v in inputs))
    assert (out.device.type, out.shape) == ("meta", (2, 3))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ClusterConfig(mgmt_address="cuda://first"), r"'cuda://first', expected the number of a GPU"),
        (ClusterConfig(mgmt_address="cuda://0", num_csx=2), r"is one GPU, and num_csx is 2.*enable_distributed"),
        pytest.param(
            ClusterConfig(mgmt_address="cuda://0"),
            r'PyTorch.*backend\("CPU"\)',
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU"),
        ),
    ],
)
def test_addresses_without_a_gpu_are_refused(config, message):
    with pytest.raises(BackendError, match=message):
        cstorch.backend("CSX", cluster_config=config)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("interpret", ["1", "0"])
def test_on_a_gpu_it_gives_the_results_of_the_cpu(monkeypatch, interpret):
    monkeypatch.setenv("CSTORCH_INTERPRET", interpret)
    torch.testing.assert_close(train("cuda://0", 0.0), train(None, 0.0), rtol=1e-3, atol=1e-4)
