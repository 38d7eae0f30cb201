"""Runs a functional graph in JAX: each operator by its lowering, or in PyTorch on the host where there is none."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from cstorch.errors import BackendError
from jax.experimental import io_callback
from torch import fx
from torch.utils import _pytree as pytree

from cstorch_jax import networks, operators
from cstorch_jax.arrays import dtype_of, to_numpy, to_torch
from cstorch_jax.functional import is_random

LOWERINGS = {**operators.LOWERINGS, **networks.LOWERINGS}
"""Operator name -> what computes it from JAX arrays."""


def lowering_of(target: Any) -> Any:
    """The lowering of an operator; None where there is none. That of a view is that of its copying form."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or is_random(target):
        return None
    name = target._schema.name.removeprefix("aten::")
    return LOWERINGS.get(name) or LOWERINGS.get(name.removesuffix("_copy"))


class JaxInterpreter(fx.Interpreter):
    """Computes a functional graph with JAX arrays. Every result gets the shape and dtype that PyTorch found.

    Args:
        graph: A functional graph with a fake tensor in each node's `meta["val"]`.

    Attributes:
        on_host: Names of the operators that run in PyTorch, without those that draw random numbers.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.on_host: set[str] = set()

    def run_node(self, n: fx.Node) -> Any:
        """The value of one node."""
        if n.op == "get_attr":
            return jnp.asarray(to_numpy(getattr(self.module, str(n.target))))
        if n.op != "call_function" or n.target is operator.getitem:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        expected = n.meta["val"]
        lowering = lowering_of(n.target)
        if lowering is not None:
            try:
                found = lowering(*_rounded(args, expected), **_rounded(kwargs, expected))
                return pytree.tree_map(lambda value, like: _as_in(value, like, n), found, _structure(expected))
            except NotImplementedError:  # a form of the operator that the lowering leaves out
                pass
        if not is_random(n.target):
            self.on_host.add(str(n.target))
        return _on_host(n.target, args, kwargs, _structure(expected))


def _structure(expected: Any) -> Any:
    return tuple(expected) if isinstance(expected, (list, tuple)) else expected


def _rounded(values: Any, expected: Any) -> Any:
    """0-d arrays among the operands in the precision of the result, as PyTorch takes them beside larger ones."""
    if not isinstance(expected, torch.Tensor) or not expected.is_floating_point() or expected.dim() == 0:
        return values
    dtype = dtype_of(expected.dtype)

    def rounded(value: Any) -> Any:
        if isinstance(value, jax.Array) and value.ndim == 0 and jnp.issubdtype(value.dtype, jnp.floating):
            return value.astype(dtype)
        return value

    return pytree.tree_map(rounded, values)


def _as_in(value: Any, like: Any, node: fx.Node) -> Any:
    if not isinstance(like, torch.Tensor):
        return value
    value = jnp.asarray(value)
    if value.shape != tuple(like.shape):
        raise BackendError(
            f"the lowering of {node.target} in cstorch-jax gave a result of shape {value.shape}, and PyTorch one of "
            f"{tuple(like.shape)}. This is a mistake in cstorch-jax: please report it with the step that shows it."
        )
    return value.astype(dtype_of(like.dtype))


def _on_host(target: Any, args: Any, kwargs: Any, expected: Any) -> Any:
    """Call an operator in PyTorch when the executable runs; random ones in their order, from PyTorch's generator."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    results, form = pytree.tree_flatten(expected)
    there = [place for place, like in enumerate(results) if isinstance(like, torch.Tensor)]

    def call(*arrays: Any) -> Any:
        given = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            given[place] = to_torch(array)
        host_args, host_kwargs = pytree.tree_unflatten(given, spec)
        with torch.no_grad():
            found = pytree.tree_leaves(target(*host_args, **host_kwargs))
        return tuple(np.ascontiguousarray(to_numpy(found[place])).reshape(found[place].shape) for place in there)

    shapes = tuple(jax.ShapeDtypeStruct(tuple(results[p].shape), dtype_of(results[p].dtype)) for p in there)
    arrays = [leaves[place] for place in places]
    if is_random(target):
        computed = io_callback(call, shapes, *arrays, ordered=True)
    else:
        computed = jax.pure_callback(call, shapes, *arrays)
    for place, value in zip(there, computed, strict=True):
        results[place] = value
    return pytree.tree_unflatten(results, form)
