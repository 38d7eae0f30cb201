"""Runs that stop and go on; as a program, the second half of those whose checkpoints lie in a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cstorch
import input_functions as fn
from cstorch.utils.data import DataExecutor, DataLoader
from cstorch.utils.data.generators import generator_states, seed_generators, set_generator_states

KINDS = ("restartable", "sampled", "sampled_noisy", "shuffled", "stateful", "drawn_when_called", "drawn_in_a_list")
WORKERS = (1, 2, 4)


def stream(kind, steps, checkpoint_steps=None, state=None, *args):
    """What each step of a run gets, and the states at its checkpoints.

    The generators belong to the program, which saves and puts them back itself, as with a torch DataLoader.
    """
    seed_generators(7)
    loader = DataLoader(getattr(fn, kind), *args)
    if state is not None:
        loader.load_state_dict(state["loader"])
        set_generator_states(state["generators"])
    seen, states = [], []

    @cstorch.checkpoint_closure
    def keep():
        states.append({"loader": loader.state_dict(), "generators": generator_states()})

    for batch in DataExecutor(loader, num_steps=steps, checkpoint_steps=checkpoint_steps):
        seen.append(batch.flatten().tolist())
        keep()
    return seen, states


def with_workers(count):
    return cstorch.backend("CSX", cluster_config=cstorch.distributed.ClusterConfig(num_workers_per_csx=count))


def main(folder):
    found = {}
    for count in WORKERS:
        with with_workers(count):
            for kind in KINDS:
                state = cstorch.load(Path(folder) / f"{kind}-{count}.mdl")
                found[f"{kind}-{count}"] = stream(kind, 23, state=state)[0]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
