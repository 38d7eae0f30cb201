"""Runs PyTorch's own databases of operators, modules and optimizers against cstorch and prints a table.

    python tests/conformance [operators modules optimizers] [--native] [--sample N] [--only PATTERN] [--workers N]

All items run through the graph interpreter; with --native through compiled libraries. The exit status is 1 when an
item neither passes nor is listed in expected.py with its outcome. CONFORMANCE_SAMPLES=4 limits the samples of an
operator or a module; CONFORMANCE_SABOTAGE=stale or disturbed shows that the comparison notices.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import os
import random
import sys
import tempfile
import time

from expected import EXPECTED
from harness import OUTCOMES, Item, Result, expectation, run_all, surprises

DATABASES = ("operators", "modules", "optimizers")


def load(database: str) -> list[Item]:
    """All items of one database, their names led by its own."""
    module = __import__(f"{database.removesuffix('s')}_items")
    return [(f"{database}/{name}", run) for name, run in module.items()]


def choose(items: list[Item], pattern: str | None, sample: int | None, seed: int) -> list[Item]:
    """The items that match a pattern, or so many of them, the same for a seed."""
    chosen = [item for item in items if pattern is None or fnmatch.fnmatchcase(item[0], pattern)]
    return chosen if sample is None or sample >= len(chosen) else random.Random(seed).sample(chosen, sample)


def table(results: list[Result]) -> str:
    """Counts by database and outcome."""
    lines = [f"{'':12}{'tried':>8}" + "".join(f"{name:>9}" for name in OUTCOMES) + f"{'passing':>10}"]
    for database in DATABASES:
        counts = collections.Counter(r.outcome for r in results if r.name.startswith(database + "/"))
        tried = sum(counts.values()) - counts["skipped"]
        if tried:
            row = "".join(f"{counts[name]:9}" for name in OUTCOMES)
            lines.append(f"{database:12}{tried:8}{row}{100 * counts['pass'] / tried:9.1f}%")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("databases", nargs="*", default=list(DATABASES), help=", ".join(DATABASES))
    parser.add_argument("--native", action="store_true", help="compile every program")
    parser.add_argument("--only", help="items whose name matches this pattern, for example 'operators/add*'")
    parser.add_argument("--sample", type=int, help="so many items of each database, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of that choice")
    parser.add_argument("--workers", type=int, help="processes; one for each processor by default")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one item")
    parser.add_argument("--log", help="a file that gets a line for each item as soon as it is done")
    chosen = parser.parse_args()
    if chosen.native:
        os.environ.pop("CSTORCH_INTERPRET", None)
    else:
        os.environ["CSTORCH_INTERPRET"] = "1"
    items = [i for d in chosen.databases for i in choose(load(d), chosen.only, chosen.sample, chosen.seed)]
    results: list[Result] = []
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        for result in run_all(items, folder, chosen.limit, chosen.workers):
            results.append(result)
            reason = " ".join(result.reason.split())[:300]
            if chosen.log:
                with open(chosen.log, "a") as log:
                    print(f"{result.outcome}\t{result.seconds:.1f}\t{result.name}\t{reason}", file=log)
            known = expectation(result.name, EXPECTED)
            if result.outcome == "pass" and known is not None:
                print(f"passes, expected {known[0]}: {result.name}", flush=True)
            if result.outcome not in ("pass", "skipped"):
                prefix = "" if known is None else "expected, "
                print(f"{prefix}{result.outcome}: {result.name}: {reason}", flush=True)
    print(table(results))
    print(f"{len(results)} items in {time.perf_counter() - start:.0f} s")
    return 1 if surprises(results, EXPECTED) else 0


if __name__ == "__main__":
    sys.exit(main())
