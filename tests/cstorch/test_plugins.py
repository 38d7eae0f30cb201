"""The plugin host: what plugins bring is reached by name, and a broken one is named and breaks nothing else."""

import subprocess
import sys
import warnings
from dataclasses import dataclass

import cstorch
import pytest
import torch
from cstorch import plugins
from cstorch.appliance import Appliance, PortableProgram
from cstorch.backends.base import Backend, BackendType
from cstorch.errors import BackendError, PluginError
from cstorch.plugins import hookimpl
from cstorch.utils.profiler import Activity
from test_plugin_programs import Counting, Doubler

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def no_plugins_stay(monkeypatch):
    monkeypatch.delenv("CSTORCH_DISABLE_PLUGINS", raising=False)
    plugins.reset()
    yield
    plugins.reset()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a distribution with one plugin, without pip: `install(name, code, requires=...)`."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def make(name, code, entry=None, requires=(), version="1.0"):
        module = name.replace("-", "_") + "_module"
        (site / f"{module}.py").write_text(code)
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text(
            "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines])
        )
        (info / "entry_points.txt").write_text(f"[cstorch]\n{entry or name} = {module}\n")
        monkeypatch.delitem(sys.modules, module, raising=False)
        plugins.reset()

    return make


HEAD = "from cstorch.plugins import hookimpl\n"
GOOD = (
    HEAD
    + """
from cstorch.backends.cpu_backend import CpuBackend
from cstorch.utils.profiler import Activity
from test_plugin_programs import Counting, Doubler

class Steps(Activity):
    def __init__(self): self.count = 0
    @classmethod
    def name(cls): return "steps"
    def update(self, batch_size): self.count += 1
    def compute(self): return self.count

@hookimpl
def cstorch_register_backends(registry):
    registry.register("Good", CpuBackend)

@hookimpl
def cstorch_register_profiler_activities(registry):
    registry.register(Steps)
"""
)


@dataclass
class Broken:
    """A plugin that is broken in one way, and what is said of it."""

    code: str
    said: str
    requires: tuple = ()
    entry: str | None = None


BACKEND = "\n@hookimpl\ndef cstorch_register_backends(registry):\n    "
BROKEN = {
    "does-not-parse": Broken("def f(:", "it cannot be imported .SyntaxError"),
    "misses-a-module": Broken("import no_such_module", "it cannot be imported .ModuleNotFoundError: .*no_such_module"),
    "ends-the-process": Broken("import sys; sys.exit(3)", "it cannot be imported .SystemExit: 3"),
    "takes-an-unknown-argument": Broken(
        HEAD + "@hookimpl\ndef cstorch_transform_graph(graph, extra): pass", r"cannot be registered .*extra"
    ),
    "misspells-a-hook": Broken(
        HEAD + "@hookimpl\ndef cstorch_register_backend(registry): pass",
        "'cstorch_register_backend', which is no hook; the hooks are cstorch_register_backends",
    ),
    "forgets-the-decorator": Broken("def cstorch_register_backends(registry): pass", "implements no hook; decorate"),
    "wraps-a-hook": Broken(
        HEAD + "@hookimpl(wrapper=True)\ndef cstorch_register_backends(registry):\n    return (yield)",
        "is a hook wrapper",
    ),
    "raises-in-a-hook": Broken(HEAD + BACKEND + "raise KeyError('gone')", "cannot be registered .KeyError: 'gone'"),
    "takes-a-name-of-ours": Broken(HEAD + BACKEND + "registry.register('csx', dict)", "'csx', which is built in"),
    "takes-a-name-of-another": Broken(
        HEAD + BACKEND + "registry.register('GOOD', dict)", "backend 'GOOD', which the plugin 'a-good' has registered"
    ),
    "registers-no-activity": Broken(
        HEAD + "@hookimpl\ndef cstorch_register_profiler_activities(registry):\n    registry.register(int)",
        "expected a subclass of cstorch.utils.profiler.Activity",
    ),
    "is-for-another-version": Broken(GOOD, r"requires lightning-cerebras>=99, and 0\.", ("lightning-cerebras>=99",)),
    "has-a-name-twice": Broken(GOOD, "the plugin 'a-good' of a-good 1.0 has the same name", entry="a-good"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_named_in_one_warning_and_breaks_nothing(install, kind):
    install("a-good", GOOD)
    broken = BROKEN[kind]
    install(kind, broken.code, broken.entry, broken.requires)
    with pytest.warns(UserWarning, match=broken.said) as seen:
        backend = cstorch.backend("good")
    assert len(seen) == 1
    message = str(seen[0].message)
    assert f"of {kind} 1.0 was left out" in message
    assert f"CSTORCH_DISABLE_PLUGINS={kind}" in message
    assert backend.name == "GOOD"
    backend.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cstorch.backend("GOOD").close()
    states = {plugin.distribution: plugin.problem for plugin in plugins.list()}
    assert states["a-good 1.0"] is None
    assert states[f"{kind} 1.0"] is not None


@pytest.mark.parametrize("kind", sorted(set(BROKEN) - {"has-a-name-twice"}))
def test_asking_for_a_broken_plugin_by_name_says_why_in_the_error(install, kind):
    install(kind, BROKEN[kind].code.replace("GOOD", "GPU"), requires=BROKEN[kind].requires)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=f"expected one of CSX, CPU, GPU.*of {kind} 1.0 was left out") as raised:
            cstorch.backend(kind)
    assert "uninstall" in str(raised.value)


def test_a_disabled_plugin_is_not_even_imported(install, monkeypatch):
    install("a-good", GOOD)
    install("ends-the-process", BROKEN["ends-the-process"].code)
    for value in ("ends_the_process", "x,ends-the-process"):
        monkeypatch.setenv("CSTORCH_DISABLE_PLUGINS", value)
        plugins.reset()
        assert [plugin.name for plugin in plugins.list()] == ["a-good"]
    for value in ("1", "all"):
        monkeypatch.setenv("CSTORCH_DISABLE_PLUGINS", value)
        plugins.reset()
        assert plugins.list() == []
        with pytest.raises(ValueError, match="expected one of CSX, CPU, GPU"):
            cstorch.backend("good")
        assert plugins.register(Doubler()) == "Doubler"


def test_importing_cstorch_loads_no_plugin_and_not_even_pluggy():
    code = "import cstorch, sys; print(*({'pluggy', 'cstorch.plugins', 'packaging.version'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == ""


# -- backends and activities -----------------------------------------------------------------------------------


def test_a_plugin_backend_is_one_backend_of_the_process(install):
    install("a-good", GOOD)
    with cstorch.backend("good") as backend:
        assert cstorch.backend("GOOD") is not backend  # as for CPU: made anew
        with pytest.raises(BackendError, match="A backend with type GOOD has already"):
            cstorch.backend("CPU")
        assert repr(backend) == "<GOOD backend on cpu>"
    with pytest.raises(PluginError, match=r"'a-good' of a-good 1.0 could not make .* 'good' \(TypeError.*wrong"):
        cstorch.backend("good", wrong=1)


class Odd:
    @hookimpl
    def cstorch_register_backends(self, registry):
        registry.register("odd", lambda: "a string")


def test_what_is_no_backend_is_refused():
    plugins.register(Odd())
    with pytest.raises(PluginError, match=r"'Odd' made a str for 'odd', expected a cstorch.Backend"):
        cstorch.backend("odd")


def test_an_activity_is_reached_by_name(install):
    install("a-good", GOOD)
    with cstorch.backend("CPU"):
        loader = cstorch.utils.data.DataLoader(lambda: [torch.ones(4, 1)] * 3)
        executor = cstorch.utils.data.DataExecutor(loader, profiler_activities=["steps"])
        for _ in executor:
            pass
        assert executor.profiler.steps == 3
        with pytest.raises(ValueError, match="no profiler activity 'stops'; registered are: steps"):
            cstorch.utils.data.DataExecutor(loader, profiler_activities=["stops"])


class Failing(Activity):
    """Raises in the method that it is told."""

    where = ""

    @classmethod
    def name(cls):
        return "failing"

    def update(self, batch_size):
        if self.where == "update":
            raise OSError("no such counter")

    def compute(self):
        if self.where == "compute":
            raise OSError("no such counter")
        return {1, 2}  # has no form in JSON


class RegistersFailing:
    @hookimpl
    def cstorch_register_profiler_activities(self, registry):
        registry.register(Failing)


@pytest.mark.parametrize("where", ["update", "compute", ""])
def test_an_activity_of_a_plugin_that_raises_does_not_end_the_run(where, monkeypatch):
    plugins.register(RegistersFailing(), "bad")
    monkeypatch.setattr(Failing, "where", where)
    with cstorch.backend("CPU"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader = cstorch.utils.data.DataLoader(lambda: [torch.ones(4, 1)] * 3)
        executor = cstorch.utils.data.DataExecutor(loader, profiler_activities=["failing"])
        assert len(list(executor)) == 3
    assert executor.profiler.rate_tracker.total_samples == 12
    assert (executor.artifact_dir / "performance.json").exists()
    if not where:
        assert said == []
        return
    (message,) = [str(one.message) for one in said]
    assert message.startswith(
        "the activity 'failing' of the plugin 'bad' raised OSError: no such counter. The run goes"
    )
    with pytest.raises(AttributeError, match="there is no value: the activity 'failing' of the plugin 'bad' raised"):
        _ = executor.profiler.failing


def test_an_activity_of_the_program_that_raises_is_the_programs_error(monkeypatch):
    monkeypatch.setattr(Failing, "where", "update")
    with cstorch.backend("CPU"), pytest.raises(OSError, match="no such counter"):
        loader = cstorch.utils.data.DataLoader(lambda: [torch.ones(4, 1)] * 3)
        list(cstorch.utils.data.DataExecutor(loader, profiler_activities=[Failing]))


# -- plugins of the program ------------------------------------------------------------------------------------


def test_programs_register_and_unregister():
    class Both:
        @hookimpl
        def cstorch_register_backends(self, registry):
            registry.register("mine", cstorch.backends.cpu_backend.CpuBackend)

    both = Both()
    assert plugins.register(both, "both") == "both"
    assert [(p.name, p.hooks, p.problem) for p in plugins.list()] == [("both", ("cstorch_register_backends",), None)]
    cstorch.backend("mine").close()
    with pytest.raises(PluginError, match="'both' is not registered: the plugin 'both' has the same name"):
        plugins.register(Both(), "both")
    with pytest.raises(PluginError, match="'again' is not registered: it cannot be registered"):
        plugins.register(both, "again")
    with pytest.raises(PluginError, match="'other' is not registered: it registers the backend 'MINE', which"):
        plugins.register(Both(), "other")
    cstorch.backend("mine").close()
    plugins.unregister("both")
    with pytest.raises(ValueError, match="expected one of"):
        cstorch.backend("mine")
    with pytest.raises(PluginError, match="no plugin 'both' to unregister; there are none"):
        plugins.unregister("both")


def test_every_hook_is_documented():
    from cstorch import hookspecs

    hooks = [f for name, f in vars(hookspecs).items() if name.startswith("cstorch_")]
    assert len(hooks) == 4
    for hook in hooks:
        assert "Called" in hook.__doc__
        assert "Args:" in hook.__doc__
        assert "@hookimpl" in hook.__doc__
        for argument in hook.__code__.co_varnames[: hook.__code__.co_argcount]:
            assert f"{argument}: " in hook.__doc__


# -- the contracts that authors build on -----------------------------------------------------------------------


def test_the_public_contracts_are_what_they_were():
    """A failure is a change that other people's plugins will notice: add to these, take nothing away."""
    import inspect

    from cstorch.tracing.program import Executable, Program

    assert [*inspect.signature(Backend.load).parameters] == ["self", "program", "example"]
    assert [*inspect.signature(Backend.__init__).parameters][:4] == [
        "self",
        "torch_device",
        "artifact_dir",
        "compile_dir",
    ]
    assert {kind.name for kind in BackendType} >= {"CSX", "CPU", "GPU"}
    for name in ("name", "backend_type", "torch_device", "artifact_dir", "compile_dir", "is_csx", "to_cpu", "close"):
        assert hasattr(cstorch.backends.cpu_backend.CpuBackend(), name)
    assert [*inspect.signature(Appliance.load).parameters] == ["self", "program", "example", "compile_dir"]
    assert Appliance.__abstractmethods__ == {"load"}
    assert Appliance.close(Counting()) is None
    assert [*inspect.signature(Executable.__call__).parameters] == ["self", "inputs"]
    assert {"graph", "state", "leaves", "name", "passes"} <= set(Program.__dataclass_fields__)
    assert {"name", "update", "compute"} <= set(vars(Activity))
    assert {"graph", "name", "layouts", "state", "draws"} <= set(PortableProgram.__dataclass_fields__)
    assert [*inspect.signature(PortableProgram.of).parameters] == ["program", "example"]
    assert [*inspect.signature(PortableProgram.load).parameters] == ["self", "compile_dir"]
    from cstorch.compiler.plugin_passes import GraphContext

    assert {"name", "backend", "example", "state"} <= set(GraphContext.__dataclass_fields__)
