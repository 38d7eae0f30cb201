"""The compile cache: one process compiles while others wait, nothing untrusted is loaded, and it does not grow."""

import os
import time
import warnings
from types import SimpleNamespace

import pytest
from cstorch.compiler import cache
from cstorch.compiler import compile as compiling
from cstorch.compiler.lock import forget, locked
from cstorch.trust import is_private
from torch import fx

PROGRAM = SimpleNamespace(name="training_step", graph=SimpleNamespace(graph=fx.Graph()))


class Loaded:
    """Stands for a library that was loaded: it can be, when its file is whole."""

    def __init__(self, path, made):
        if path.read_text() != "library":
            raise RuntimeError("file too short")
        self.path, self.made = path, made


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """The log of what was compiled; compiling takes a while and needs no compiler."""
    log = tmp_path / "log"
    log.write_text("")

    def compile_native(program, example, path):
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.2)
        path.write_text("library")

    monkeypatch.setattr(compiling, "compile_native", compile_native)
    monkeypatch.setattr(compiling, "CachedExecutable", Loaded)
    return lambda: log.read_text().split()


@pytest.fixture
def path(tmp_path):
    folder = cache.cache_folder(tmp_path / "cache")
    return cache.library_path(folder, "a" * 32)


def test_processes_that_need_one_program_at_once_compile_it_once(compiled, path):
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            made = compiling.build(PROGRAM, [], path).made.how
            os._exit({"compiled": 1, "loaded from the cache": 2}[made])
        children.append(child)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(ended) == [1, 2, 2]
    assert len(compiled()) == 1
    (entry,) = cache.entries(path.parent.parent)
    assert entry.step == "training_step"


def test_the_lock_of_a_process_that_was_killed_is_free(compiled, path):
    ready, holds = os.pipe()
    child = os.fork()
    if child == 0:
        with locked(path.parent):
            os.write(holds, b"x")
            time.sleep(60)
    os.read(ready, 1)
    with locked(path.parent, wait=False) as free:
        assert not free
    os.kill(child, 9)
    os.waitpid(child, 0)
    (path.parent / ".compiling-left").mkdir(parents=True)
    assert compiling.build(PROGRAM, [], path).made.how == "compiled"
    assert not (path.parent / ".compiling-left").exists()


def test_a_lock_that_was_removed_with_its_entry_is_no_lock(path):
    with locked(path.parent):
        forget(path.parent)
        with locked(path.parent, wait=False) as free:  # another one, of the same name
            assert free


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_folder_that_others_can_write_is_refused(compiled, path, mode):
    folder = path.parent.parent
    compiling.build(PROGRAM, [], path)
    folder.chmod(mode)
    with pytest.warns(UserWarning, match=rf"(?s)cache {folder} belongs to another user or can be written.*chmod go-w"):
        private = cache.trusted_folder(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.trusted_folder(folder) == private  # said once
    assert private != folder
    assert private.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    assert cache.trusted_folder(folder) == folder


def test_what_is_made_under_a_loose_umask_is_trusted(compiled, tmp_path):
    before = os.umask(0o002)
    try:
        folder = cache.cache_folder(tmp_path / "deep" / "cache")
        path = cache.library_path(folder, "b" * 32)
        compiling.build(PROGRAM, [], path)
    finally:
        os.umask(before)
    assert is_private(folder)
    assert compiling.build(PROGRAM, [], path).made.how == "loaded from the cache"


def test_a_library_that_is_damaged_is_compiled_afresh(compiled, path):
    compiling.build(PROGRAM, [], path)
    path.write_text("lib")
    with pytest.warns(UserWarning, match=r"cannot be loaded \(RuntimeError: file too short\), so it is comp"):
        assert compiling.build(PROGRAM, [], path).made.how == "compiled"


def test_what_was_not_used_for_longest_makes_room(compiled, path):
    folder, now = path.parent.parent, time.time()
    for age, digit in ((30, "1"), (20, "2"), (10, "3"), (5, "4")):
        library = cache.library_path(folder, digit * 32)
        library.parent.mkdir()
        library.write_text("library")
        os.utime(library, (now - age, now - age))
    cache.note_use(cache.library_path(folder, "1" * 32))
    assert [entry.key[0] for entry in cache.entries(folder)] == ["2", "3", "4", "1"]
    assert cache.entries(folder)[3].time == pytest.approx(now - 30, abs=1)
    keep = cache.library_path(folder, "3" * 32)
    with locked(folder / ("2" * 32)):  # it is being compiled
        cache.make_room(folder, keep, limit=21)
    assert [entry.key[0] for entry in cache.entries(folder)] == ["2", "3", "1"]
    cache.make_room(folder, keep, limit=0)
    assert [entry.key[0] for entry in cache.entries(folder)] == ["3"]


def test_a_compile_makes_room(compiled, path, monkeypatch):
    from cstorch.backends import csx

    other = cache.library_path(path.parent.parent, "c" * 32)
    compiling.build(PROGRAM, [], other)
    monkeypatch.setitem(csx.cache.__dict__, "limit_gi", 1e-9)
    compiling.build(PROGRAM, [], path)
    assert path.exists()
    assert not other.parent.exists()


def test_what_options_tell_the_key_is_the_same_in_every_process():
    from cstorch.compiler.native import options_now

    plain = (bool, int, str, type(None))
    assert all(isinstance(value, plain) for value in options_now().values())  # an object's text has its address
