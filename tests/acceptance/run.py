"""Lightning's own test suite on csx, measured against the same items on the cpu.

    python tests/acceptance/run.py <checkout or git directory of Lightning-AI/pytorch-lightning>

Runs the chosen test files unmodified, twice with the same selection: as they are, and with
PL_TRAINER_ACCELERATOR=csx. Each file has a process of its own and each item a time limit. Prints, for each folder,
how many items pass on the cpu, how many of those pass on csx, and how many of the others are on the allow-list
(`allowed.py`). Exits with 1 where an item fails that is not on the list.

A git directory is unpacked at `--tag` into `--out` first. Programs are interpreted unless CSTORCH_INTERPRET is set
to 0. Not under nohup: one file looks at the handler of SIGHUP. Beside this package the suite wants
jsonargparse[signatures], omegaconf, cloudpickle and psutil installed. The cpu's results are kept in `--out` and used
again; `--fresh` runs them again.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import os
import subprocess
import sys
import tarfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from allowed import ALLOWED
from suite import run_file

FILES = (
    "callbacks/**/test_*.py",
    "checkpointing/test_*.py",
    "core/test_*.py",
    "loggers/test_all.py",
    "loggers/test_csv.py",
    "loggers/test_logger.py",
    "loggers/test_tensorboard.py",
    "loops/**/test_*.py",
    "models/test_cpu.py",
    "models/test_hooks.py",
    "models/test_hparams.py",
    "models/test_restore.py",
    "plugins/test_checkpoint_io_plugin.py",
    "profilers/test_profiler.py",
    "test_cli.py",
    "trainer/**/test_*.py",
    "tuner/test_*.py",
    "utilities/test_compile.py",
    "utilities/test_model_summary.py",
)
"""Patterns below tests/tests_pytorch: what a Trainer does on one device."""

LEFT_OUT = (
    "callbacks/test_spike.py",  # needs two processes
    "checkpointing/test_legacy_checkpoints.py",  # downloads
    "trainer/connectors/test_accelerator_connector.py",  # choosing cpu, cuda, tpu and their strategies
    "trainer/flags/test_env_vars.py",  # the mechanism that selects csx here
)


def unpacked(source: Path, tag: str, out: Path) -> Path:
    """The folder tests_pytorch of a checkout, unpacking a git directory where one is given."""
    if not (source / "tests" / "tests_pytorch").is_dir():
        checkout = out / f"lightning-{tag}"
        if not checkout.exists():
            names = ["tests/tests_pytorch", "pyproject.toml"]
            archive = out / "suite.tar"
            subprocess.run(["git", f"--git-dir={source}", "archive", "-o", str(archive), tag, *names], check=True)
            with tarfile.open(archive) as tar:
                tar.extractall(checkout, filter="data")
            archive.unlink()
        source = checkout
    return (source / "tests" / "tests_pytorch").resolve()


def run(file: str, root: Path, accelerator: str, out: Path, args: Any) -> dict[str, Any]:
    """Every item of a file on one accelerator; the cpu's as they are kept, where they are."""
    logs = out / accelerator
    logs.mkdir(parents=True, exist_ok=True)
    kept = logs / f"{file.replace('/', '.')}.json"
    if accelerator == "cpu" and kept.exists() and not args.fresh:
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    found = run_file(file, root, None if accelerator == "cpu" else accelerator, logs, args.limit, args.k)
    if args.k is None:
        kept.write_text(json.dumps(found, indent=1))
    passed = sum(result["outcome"] == "passed" for result in found.values())
    print(f"{accelerator} {file}: {passed} of {len(found)} passed", flush=True)
    return found


def reason(item: str) -> str | None:
    """Why an item may fail on csx, or None."""
    for why, patterns in ALLOWED.items():
        if any(item == p or item.startswith(p + "[") or fnmatch.fnmatchcase(item, p) for p in patterns):
            return why
    return None


def report(cpu: dict[str, Any], csx: dict[str, Any]) -> bool:
    """Print the table and the lists; whether every failure is on the allow-list."""
    count: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    allowed: dict[str, list[str]] = defaultdict(list)
    failures, stale = [], []
    for item, result in sorted(cpu.items()):
        if result["outcome"] != "passed":
            continue
        found, why = csx.get(item, {"outcome": "missing", "why": "not run"}), reason(item)
        column = 1 if found["outcome"] == "passed" else 2 if why is not None else 3
        for row in (item.split("/")[0].split("::")[0], "all"):
            count[row][0] += 1
            count[row][column] += 1
        if column == 3:
            failures.append((item, found["outcome"], found["why"]))
        elif column == 2:
            allowed[str(why)].append(item)
        elif why is not None:
            stale.append(item)
    print(f"\n{'':<16}{'cpu':>8}{'csx':>8}{'allowed':>9}{'not allowed':>13}")
    for row in sorted(count, key=lambda row: (row == "all", row)):
        print(f"{row:<16}{count[row][0]:>8}{count[row][1]:>8}{count[row][2]:>9}{count[row][3]:>13}")
    if count["all"][0]:
        print(f"{count['all'][1] / count['all'][0]:.1%} of the items that pass on the cpu pass on csx")
    for why, items in allowed.items():
        print(f"\nallowed, {len(items)}: {why}")
        print("\n".join(f"  {item}" for item in items))
    if stale:
        print("\non the allow-list, but passing:\n" + "\n".join(f"  {item}" for item in stale))
    if failures:
        print("\nnot allowed:")
        for item, outcome, why in failures:
            print(f"  {item}: {outcome}\n      {why}")
    return not failures


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a checkout, or a git directory, of Lightning-AI/pytorch-lightning")
    parser.add_argument("files", nargs="*", help="run only files whose path has one of these in it")
    parser.add_argument("--tag", default="2.6.5", help="what to unpack of a git directory (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("acceptance"), help="folder for results (./acceptance)")
    parser.add_argument("--limit", type=int, default=120, help="seconds that an item may take (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="files at the same time (default: %(default)s)")
    parser.add_argument("-k", help="run only items that match this pytest expression; results are not kept")
    parser.add_argument("--fresh", action="store_true", help="run the items on the cpu again")
    args = parser.parse_intermixed_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    root = unpacked(args.source.resolve(), args.tag, out)
    files = sorted({str(p.relative_to(root)) for pattern in FILES for p in root.glob(pattern)} - set(LEFT_OUT))
    files = [f for f in files if not args.files or any(part in f for part in args.files)]
    os.environ.setdefault("CSTORCH_INTERPRET", "1")
    sys.path.insert(0, str(root.parent))
    for module in ("torch", "lightning.pytorch"):  # once; the processes of the files are forks of this one
        importlib.import_module(module)
    cpu: dict[str, Any] = {}
    csx: dict[str, Any] = {}

    def both(file: str) -> None:
        cpu.update(run(file, root, "cpu", out, args))
        csx.update(run(file, root, "csx", out, args))

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(both, files))
    if args.k is not None:
        cpu = {item: result for item, result in cpu.items() if item in csx}
    return 0 if report(cpu, csx) else 1


if __name__ == "__main__":
    sys.exit(main())
