"""Installs, uses, tests and uninstalls each plugin in a virtual environment of its own, beside the wheel of cstorch.

    python plugins/check.py [name ...]

The same program, `example.py` of the plugin, runs before the plugin is installed, with it, with it disabled and after
it is gone: it works when the plugin is there, and says what is missing when not. In between the plugin's tests run.
The README of `examples/plugin_template` is followed command by command.

An environment sees the packages of the Python that runs this (torch and whatever else cstorch needs), all but cstorch
itself, which comes from its wheel; what the plugin needs beyond them is installed into it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "examples" / "plugin_template"
MISSING = {
    "cstorch-jax": "ValueError: backend_type is 'jax', expected one of CSX, CPU, GPU.",
    "cstorch-psutil": "ValueError: there is no profiler activity 'process_memory'",
    "cstorch-ray": "BackendError: cluster_config.mgmt_address is 'ray://local', and no plugin connects to such",
    "my-cstorch-plugin": "ValueError: there is no profiler activity 'step_times'",
}
"""What `example.py` ends with where the plugin is not there."""


class Environment:
    """A fresh virtual environment.

    Args:
        folder: Where it is made.
        with_pip: Whether it has a command `pip`; `python -m pip` is there in any case, from the packages around it.
    """

    def __init__(self, folder: Path, with_pip: bool) -> None:
        venv.create(folder, with_pip=with_pip, symlinks=True)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "packages_around.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        self.variables = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(folder),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_QUIET": "1",
            "OMP_NUM_THREADS": "1",
            "CSTORCH_SOURCES": str(ROOT),  # tests that run examples of cstorch find them here
        }

    def run(self, command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a line of bash in the environment."""
        return subprocess.run(
            ["bash", "-euc", command],
            cwd=cwd,
            env={**self.variables, **variables},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=600,
        )

    def must(self, command: str, cwd: Path) -> str:
        """Run a line of bash and stop where it fails; what it printed."""
        done = self.run(command, cwd)
        if done.returncode != 0:
            sys.exit(f"{command}\n{done.stdout}\nfailed in {cwd} with exit status {done.returncode}")
        return done.stdout

    def must_miss(self, name: str, when: str, cwd: Path, **variables: str) -> None:
        """Stop unless `example.py` fails for want of the plugin, saying so."""
        done = self.run("python example.py", cwd, **variables)
        if done.returncode == 0 or MISSING[name] not in done.stdout:
            sys.exit(
                f"example.py {when} ended with status {done.returncode}, not with {MISSING[name]!r}:\n{done.stdout}"
            )


def check(name: str, source: Path, wheels: Path, scratch: Path) -> None:
    """Do all of it with one plugin."""
    start = time.monotonic()
    environment = Environment(scratch / "environment", with_pip=source == TEMPLATE)
    work = scratch / "work"
    shutil.copytree(source, work, ignore=shutil.ignore_patterns("src", ".*", "__pycache__"))
    (cstorch,) = wheels.glob("lightning_cerebras-*.whl")
    (plugin,) = wheels.glob(f"{name.replace('-', '_')}-*.whl")
    environment.must(f"python -m pip install --no-deps {cstorch}", work)
    environment.must_miss(name, "without the plugin", work)
    environment.must(f"python -m pip install {plugin}", work)
    print(f"{name}: installed after {time.monotonic() - start:.0f} s", flush=True)
    print(environment.must("python example.py", work), end="")
    environment.must_miss(name, "with the plugin disabled", work, CSTORCH_DISABLE_PLUGINS=name)
    print(environment.must("python -m pytest -p no:cacheprovider", work), end="")
    environment.must(f"python -m pip uninstall --yes {name}", work)
    environment.must_miss(name, "after the plugin was uninstalled", work)
    if source == TEMPLATE:
        follow(environment, scratch)
    print(f"{name}: installed, used, tested and uninstalled in {time.monotonic() - start:.0f} s", flush=True)


def follow(environment: Environment, scratch: Path) -> None:
    """Run the commands of the template's README, in a copy of what they need of the sources."""
    shutil.copytree(TEMPLATE, scratch / "examples" / "plugin_template")
    blocks = re.findall(r"```bash\n(.*?)```", (TEMPLATE / "README.md").read_text(), re.DOTALL)
    printed = environment.must("\n".join(blocks), scratch)
    built = [path.name for path in scratch.glob("my-cstorch-plugin/dist/*.whl")]
    if not built or printed.count(" passed") != 2:
        sys.exit(f"the commands of the template's README made {built} and printed:\n{printed}")


def main(names: list[str]) -> None:
    """Check the plugins of these names, or all."""
    sources = {path.name: path for path in sorted((ROOT / "plugins").iterdir()) if (path / "pyproject.toml").exists()}
    sources["my-cstorch-plugin"] = TEMPLATE
    unknown = [name for name in names if name not in sources]
    if unknown:
        sys.exit(f"there is no plugin {unknown[0]!r}; there are {', '.join(sources)}")
    chosen = {name: source for name, source in sources.items() if not names or name in names}
    with tempfile.TemporaryDirectory(prefix="cstorch-plugins-") as folder:
        wheels = Path(folder) / "wheels"
        built = [str(path) for path in (ROOT, *chosen.values())]
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), *built],
            check=True,
        )
        with ThreadPoolExecutor(2) as pool:
            running = [
                pool.submit(check, name, source, wheels, Path(folder) / f"for-{name}")
                for name, source in chosen.items()
            ]
            for one in running:
                one.result()


if __name__ == "__main__":
    main(sys.argv[1:])
