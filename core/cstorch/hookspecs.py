"""The hooks that a plugin may implement: what each is given, what it returns, when it is called, with an example.

A plugin is a module, class instance or object with functions of these names, decorated with
`cstorch.plugins.hookimpl`. A function takes those of a hook's arguments that it needs, by name. An installed
distribution names its plugin in the entry-point group "cstorch":

    [project.entry-points.cstorch]
    my_plugin = "my_package.plugin"

A program can also call `cstorch.plugins.register(plugin)`. `examples/plugin_template` is a whole plugin to copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from torch import fx

    from cstorch.appliance import Appliance
    from cstorch.compiler.plugin_passes import GraphContext
    from cstorch.distributed import ClusterConfig
    from cstorch.plugins import ActivityRegistry, BackendRegistry

hookspec = pluggy.HookspecMarker("cstorch")


@hookspec
def cstorch_register_backends(registry: BackendRegistry) -> None:
    """Give backends a name, by which `cstorch.backend(name, ...)` makes them.

    Called once, when plugins are loaded: at the first use of a name that is not CSX, CPU or GPU, or at the first
    compile. Import what the backend needs in the factory, not here.

        @hookimpl
        def cstorch_register_backends(registry):
            registry.register("jax", lambda **options: JaxBackend(**options))

    Args:
        registry: `register(name, factory)`; the factory gets the arguments of `cstorch.backend` and returns a
            `cstorch.Backend`. Names hold in any case; a name that is taken raises a PluginError.
    """


@hookspec
def cstorch_register_profiler_activities(registry: ActivityRegistry) -> None:
    """Give profiler activities a name, for `DataExecutor(profiler_activities=[name])`.

    Called once, when plugins are loaded.

        @hookimpl
        def cstorch_register_profiler_activities(registry):
            registry.register(PeakMemory)

    Args:
        registry: `register(activity)`, a subclass of `cstorch.utils.profiler.Activity`, known by its `name()`; a name
            that is taken raises a PluginError.
    """


@hookspec
def cstorch_transform_graph(graph_module: fx.GraphModule, context: GraphContext) -> fx.GraphModule | None:
    """Rewrite the graph of a traced step before it is compiled or interpreted.

    Called once for each program, on every backend that runs programs, before the passes of cstorch. A pass must keep
    the placeholders and the number, shapes and dtypes of the outputs. Its result is part of what the compile cache
    knows a library by, and so are the plugin's version and source file. A pass that raises or breaks the graph is
    left out with one warning.

        @hookimpl
        def cstorch_transform_graph(graph_module, context):
            for node in graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.gelu.default):
                node.kwargs = {"approximate": "tanh"}

    Args:
        graph_module: A copy of the graph, of the operators `torch.ops.aten`; it may be changed in place.
        context: The step's name, the backend, example inputs and which placeholders are state.

    Returns:
        Another graph module, or None for the one that was given.
    """


@hookspec(firstresult=True)
def cstorch_connect_appliance(mgmt_address: str, cluster_config: ClusterConfig) -> Appliance | None:
    """Connect to the systems that `cstorch.backend("CSX", cluster_config=...)` is to run on.

    Called when a CSX backend is made whose ClusterConfig has a `mgmt_address`; the first plugin that returns an
    appliance has it. Without a `mgmt_address` the embedded appliance runs programs in this process.

        @hookimpl
        def cstorch_connect_appliance(mgmt_address, cluster_config):
            if mgmt_address.startswith("ray://"):
                return RayAppliance(mgmt_address, cluster_config.num_csx)

    Args:
        mgmt_address: `cluster_config.mgmt_address`.
        cluster_config: The ClusterConfig of the backend.

    Returns:
        An Appliance, or None for an address that is not this plugin's. An address that is its own and cannot be
        reached: raise, saying why.
    """
