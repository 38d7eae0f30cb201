"""What plugins do with programs: graph passes that change them, and appliances that run them."""

import contextlib
import pickle
import sys
import warnings

import cstorch
import pytest
import torch
from cstorch import plugins
from cstorch.appliance import Appliance, PortableProgram
from cstorch.appliance.local import LocalAppliance
from cstorch.compiler import cache
from cstorch.distributed import ClusterConfig
from cstorch.errors import BackendError, PluginError
from cstorch.plugins import hookimpl
from programs import trains_as_eager

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def no_plugins_stay():
    plugins.reset()
    yield
    plugins.reset()


# -- graph passes ----------------------------------------------------------------------------------------------


class Doubler:
    """Makes every multiplication by 3 one by 6."""

    factor = 6.0

    @hookimpl
    def cstorch_transform_graph(self, graph_module, context):
        self.context = context
        for node in graph_module.graph.find_nodes(op="call_function", target=aten.mul.Tensor):
            node.args = (node.args[0], self.factor)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def result(x):
    seen = []
    step = cstorch.trace(lambda x: cstorch.step_closure(seen.append)((x * 3).sum()))
    step(x)
    step(x + 1)
    return [value.item() for value in seen]


def test_a_graph_pass_reaches_the_interpreter(csx):
    assert result(torch.ones(2)) == [6, 12]
    plugin = Doubler()
    with pytest.warns(UserWarning, match="1 programs are compiled already"):
        plugins.register(plugin)
    assert result(torch.ones(2)) == [12, 24]
    assert (plugin.context.name, plugin.context.backend, plugin.context.state) == ("<lambda>", csx, 0)
    assert plugin.context.example[0].shape == (2,)


@pytest.mark.native
def test_a_changed_graph_pass_never_replays_an_older_library(csx):
    assert result(torch.ones(2)) == [6, 12]
    plugin = Doubler()
    with pytest.warns(UserWarning, match="compiled already"):
        plugins.register(plugin)
    assert result(torch.ones(2)) == [12, 24]
    plugin.factor = 9.0
    assert result(torch.ones(2)) == [18, 36]


def test_the_cache_knows_a_library_by_the_pass_and_its_source(csx, tmp_path, monkeypatch):
    keys = []
    monkeypatch.setattr(
        "cstorch.appliance.local.compile_program",
        lambda program, example, folder: keys.append(cache.program_key(program, example)),
    )
    source = (
        "from cstorch.plugins import hookimpl\n@hookimpl\ndef cstorch_transform_graph(graph_module, context): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def key():
        step = cstorch.trace(lambda x: x + 1)
        step(torch.ones(2))
        return keys[-1]

    def registered(text):
        sys.modules.pop("a_pass", None)
        (tmp_path / "a_pass.py").write_text(text)
        import a_pass

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plugins.register(a_pass)
            found = key()
            plugins.unregister("a_pass")
        return found

    plain = key()
    assert plain == key()
    first = registered(source)
    assert first == registered(source) != plain
    assert registered(source + "# another version\n") not in (plain, first)


class Breaks:
    """A pass that breaks a graph, in the way that it is told."""

    def __init__(self, way):
        self.way = way

    @hookimpl
    def cstorch_transform_graph(self, graph_module, context):
        return self.way(graph_module)


def drops_an_output(module):
    module.graph.output_node().args = ((),)


def adds_an_input(module):
    first = next(iter(module.graph.nodes))
    with module.graph.inserting_before(first):
        module.graph.placeholder("more")


def changes_a_dtype(module):
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        output.args = ((module.graph.call_function(aten.to.dtype, (output.args[0][0], torch.float64)),),)


def leaves_nonsense(module):
    for node in module.graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        node.args = (node.args[0], torch.float32)


def raises(module):
    raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (drops_an_output, r"the outputs were .* and are \[\]"),
        (adds_an_input, "changed the placeholders"),
        (changes_a_dtype, "keep their number, shapes and dtypes"),
        (leaves_nonsense, "graph pass failed"),
        (raises, "RuntimeError: not today"),
        (lambda module: "a string", "returned a str, expected a torch.fx.GraphModule or None"),
    ],
)
def test_a_pass_that_breaks_the_graph_is_left_out(csx, way, said):
    plugins.register(Breaks(way), "breaks")
    plugins.register(Doubler())
    with pytest.warns(UserWarning, match=said) as seen:
        assert result(torch.ones(2)) == [12, 24]
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result(torch.ones(2)) == [12, 24]
    assert next(p for p in plugins.list() if p.name == "breaks").problem is not None


def train_once(side, model, optimizer, x, i):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    side.see(loss)


def test_a_pass_over_a_training_step_keeps_its_state(csx):
    class Nothing:
        @hookimpl
        def cstorch_transform_graph(self, graph_module):
            return torch.fx.GraphModule(graph_module, graph_module.graph)

    plugins.register(Nothing())
    trains_as_eager(train_once)
    assert [p.problem for p in plugins.list()] == [None]


# -- appliances ------------------------------------------------------------------------------------------------


class Counting(Appliance):
    """The embedded appliance, counting."""

    def __init__(self):
        self.calls = []

    def load(self, program, example, compile_dir):
        run = LocalAppliance().load(program, example, compile_dir)
        self.calls.append(("load", program.name))

        def counted(inputs):
            self.calls.append(("run", len(inputs)))
            return run(inputs)

        return counted

    def close(self):
        self.calls.append(("close",))


class Connects:
    def __init__(self, made, scheme="count://"):
        self.made, self.scheme = made, scheme

    @hookimpl
    def cstorch_connect_appliance(self, mgmt_address, cluster_config):
        assert cluster_config.mgmt_address == mgmt_address
        return self.made() if mgmt_address.startswith(self.scheme) else None


def fails():
    raise OSError("no route")


def test_an_appliance_of_a_plugin_runs_the_programs(compile_cache):
    appliance = Counting()
    plugins.register(Connects(lambda: appliance), "counting")
    plugins.register(Connects(fails, "other://"), "other")
    config = ClusterConfig(mgmt_address="count://here")
    with cstorch.backend("CSX", compile_dir=compile_cache, cluster_config=config):
        assert result(torch.ones(2)) == [6, 12]
    assert appliance.calls == [("load", "<lambda>"), ("run", 1), ("run", 1), ("close",)]
    with cstorch.backend("CSX", cluster_config=ClusterConfig(num_csx=1)) as backend:
        assert isinstance(backend.appliance, LocalAppliance)


def test_a_plugin_with_several_systems_gets_programs_for_the_whole_batch():
    plugins.register(Connects(Counting), "counting")
    config = ClusterConfig(mgmt_address="count://here", num_csx=2)
    seen = []
    with cstorch.backend("CSX", cluster_config=config):
        step = cstorch.trace(lambda x: x.sum(1) * torch.arange(4.0, device=x.device))
        loader = cstorch.utils.data.DataLoader(lambda: [torch.ones(4, 3)] * 2)
        for batch in cstorch.utils.data.DataExecutor(loader, num_steps=2):
            cstorch.step_closure(lambda y: seen.append(y.tolist()))(step(batch))
    assert seen == [[0.0, 3.0, 6.0, 9.0]] * 2


def test_addresses_that_cannot_be_connected_to():
    with pytest.raises(BackendError, match=r"'count://here', and no plugin connects.*pip install.*Plugins here: none"):
        cstorch.backend("CSX", cluster_config=ClusterConfig(mgmt_address="count://here"))
    plugins.register(Connects(fails), "failing")
    with pytest.raises(PluginError, match="'failing' could not connect to 'count://here': OSError: no route"):
        cstorch.backend("CSX", cluster_config=ClusterConfig(mgmt_address="count://here"))
    plugins.register(Connects(lambda: 3, "three://"), "three")
    with pytest.raises(PluginError, match=r"'three' could not connect to .* it returned a int"):
        cstorch.backend("CSX", cluster_config=ClusterConfig(mgmt_address="three://"))
    plugins.register(Connects(Counting), "working")
    plugins.register(Connects(fails, ""), "greedy")  # asked first, and fails for every address
    with (
        pytest.warns(UserWarning, match="'failing' was left out|'greedy' was left out"),
        cstorch.backend("CSX", cluster_config=ClusterConfig(mgmt_address="count://here")) as backend,
    ):
        assert isinstance(backend.appliance, Counting)


class Travelling(Appliance):
    """Sends programs through pickle, as to another process."""

    def load(self, program, example, compile_dir):
        sent = pickle.loads(pickle.dumps(PortableProgram.of(program, example)))
        assert sent.state == len(program.state)
        return sent.load(compile_dir)


def dropped_out(side, model, optimizer, x, i):
    train_once(side, lambda x: torch.nn.functional.dropout(model(x), 0.5), optimizer, x, i)


@pytest.mark.parametrize("step", [train_once, dropped_out])
def test_a_program_that_travelled_trains_as_eager(csx, step, monkeypatch):
    monkeypatch.setattr(csx, "appliance", Travelling())
    with deterministic():
        trains_as_eager(step)


@pytest.mark.native
def test_a_program_that_travelled_compiles(csx, monkeypatch):
    monkeypatch.setattr(csx, "appliance", Travelling())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # that it could not be compiled
        assert result(torch.ones(2)) == [6, 12]
