"""Every name that cstorch takes from PyTorch's private surface, one module per surface.

`device`   a device backend written in Python, and wrapper tensors on it
`generator` the layout of a cpu generator's state
`tracing`  fake tensors, dispatch and function modes
`inductor` AOTInductor: a graph becomes a shared library, and the runner that calls it
`collectives`, `host_group.cpp` process groups that compiled programs find by name, one of ours among them

The names are those of torch 2.13. `tests/test_torch_private.py` asserts each of them and what is relied on,
so that a new release of torch says there what it moved.
"""
