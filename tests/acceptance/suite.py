"""Runs files of Lightning's test suite, each in a process of its own, and says what became of every item."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

FILTER = "not (ddp or spawn or fork or gpu or fsdp or deepspeed)"


class Record:
    """A pytest plugin: one line for the start and one for the end of each item, and a time limit on each.

    Args:
        path: The file that the lines are appended to.
        limit: Seconds that an item may take.
        done: Items that are not to be run again.
    """

    def __init__(self, path: Path, limit: int, done: set[str]) -> None:
        self.file = path.open("a", buffering=1)
        self.limit, self.done = limit, done
        self.reports: list[Any] = []

    def pytest_configure(self, config: Any) -> None:
        config.addinivalue_line("markers", "flaky: an item that the suite's own runs try again")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if _short(item.nodeid) not in self.done]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._write(_short(report.nodeid), "failed", 0.0, str(report.longrepr))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        def late(*_: Any) -> None:
            raise TimeoutError(f"the item ran longer than {self.limit} s")

        self.reports = []
        name = _short(item.nodeid)
        self.file.write(json.dumps({"item": name}) + "\n")
        signal.signal(signal.SIGALRM, late)
        signal.alarm(self.limit)
        is_reported = False
        try:
            returned = yield
            is_reported = True
            return returned
        finally:
            signal.alarm(0)
            bad = [r for r in self.reports if r.failed]
            skipped = any(r.skipped for r in self.reports)
            outcome = "failed" if bad else "skipped" if skipped else "passed" if is_reported else "crashed"
            text = bad[0].longreprtext if bad else ""
            self._write(name, outcome, sum(r.duration for r in self.reports), text)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.reports.append(report)

    def _write(self, item: str, outcome: str, seconds: float, text: str) -> None:
        errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
        why = (" ".join(errors) or text.strip()[-300:])[:600]
        self.file.write(json.dumps({"item": item, "outcome": outcome, "seconds": round(seconds, 2), "why": why}) + "\n")


def _short(item: str) -> str:
    return item.split("tests_pytorch/", 1)[-1]


def _child(file: str, root: Path, accelerator: str | None, log: Path, record: Record, only: str | None) -> None:
    """The forked process: pytest on one file. Does not return."""
    os.setsid()
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.pop("PL_TRAINER_ACCELERATOR", None)
    if accelerator is not None:
        os.environ["PL_TRAINER_ACCELERATOR"] = accelerator
    os.chdir(root)
    chosen = f"({FILTER}) and ({only})" if only else FILTER
    try:
        code = pytest.main(["-q", file, "-k", chosen, "-p", "no:cacheprovider"], plugins=[record])
    except BaseException as error:  # the process must end here, whatever happens
        print(f"pytest ended with {error!r}")
        code = 3
    sys.stdout.flush()
    os._exit(int(code))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_file(
    file: str, root: Path, accelerator: str | None, out: Path, limit: int, only: str | None = None
) -> dict[str, dict[str, Any]]:
    """Run one file of the suite; an item that neither ends nor obeys its time limit is killed, and the rest goes on.

    Args:
        file: Path below `root`.
        root: The folder tests_pytorch of a checkout.
        accelerator: What PL_TRAINER_ACCELERATOR is set to; None leaves it unset.
        out: Folder for logs.
        limit: Seconds that an item may take.
        only: A further `-k` expression.

    Returns:
        For each item its outcome (passed, failed, skipped, hung, crashed), seconds, and the error.
    """
    stem = file.replace("/", ".")
    record_path, log = out / f"{stem}.jsonl", out / f"{stem}.log"
    for path in (record_path, log):
        path.unlink(missing_ok=True)
    results: dict[str, dict[str, Any]] = {}
    while True:
        pid = os.fork()
        if pid == 0:
            _child(file, root, accelerator, log, Record(record_path, limit, set(results)), only)
        grown, size, killed = time.monotonic(), -1, False
        before, status = len(results), 0
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                break
            time.sleep(0.1)
            now = record_path.stat().st_size if record_path.exists() else 0
            if now != size:
                grown, size = time.monotonic(), now
            if time.monotonic() - grown > limit + 60:
                os.killpg(pid, signal.SIGKILL)
                killed = True
                os.waitpid(pid, 0)
                break
        started = None
        for line in _lines(record_path):
            if "outcome" in line:
                results[line["item"]] = {key: line[key] for key in ("outcome", "seconds", "why")}
                started = None
            else:
                started = line["item"]
        if started is None or started in results:
            if os.waitstatus_to_exitcode(status) == pytest.ExitCode.INTERNAL_ERROR and len(results) > before:
                continue  # of pytest, while it reported an item: the rest has not been run
            return results
        how = "hung" if killed else "crashed"
        results[started] = {"outcome": how, "seconds": limit, "why": f"the process {how}; see {log.name}"}
