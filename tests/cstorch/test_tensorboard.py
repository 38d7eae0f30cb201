"""SummaryWriter and SummaryReader, against TensorBoard's own reader and a TensorBoard server."""

import json
import re
import subprocess
import sys
import time
import urllib.request
import warnings
from pathlib import Path
from urllib.parse import quote

import cstorch
import numpy as np
import pytest
import torch
from cstorch.errors import ValueReadError
from cstorch.utils.tensorboard import SummaryReader, SummaryWriter, TensorDescriptor
from cstorch.utils.tensorboard.crc32c import crc32c
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c as known_crc32c


def accumulated(folder):
    theirs = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    theirs.Reload()
    return theirs


def written(folder, **scalars):
    with SummaryWriter(folder) as writer:
        for step in range(3):
            for name, value in scalars.items():
                writer.add_scalar(name, value + step, step)


def event_file(folder):
    (file,) = Path(folder).glob("*tfevents*")
    return file


@pytest.mark.parametrize("width", [0, 1, 3, 8, 40, 255, 256, 257, 511, 512, 600, 1024, 1300])
def test_checksums(width):
    rows = np.random.default_rng(0).integers(0, 256, (5, width), np.uint8)
    assert crc32c(rows).tolist() == [known_crc32c(row.tobytes()) for row in rows]


def test_the_checksum_of_a_long_message_and_the_known_value():
    assert crc32c(np.frombuffer(b"123456789", np.uint8)[None]).tolist() == [0xE3069283]
    long = np.random.default_rng(0).integers(0, 256, (1, 300_001), np.uint8)
    assert crc32c(long).tolist() == [known_crc32c(long.tobytes())]


def test_scalars_are_those_that_tensorboard_reads(tmp_path):
    tags = ["a", "b", "loss/train", "x" * 105, "y" * 113, "z" * 114, "w" * 300, "größe/µ"]
    steps = [0, 1, 127, 128, 16383, 16384, 2**31, 2**35, 2**40, -1, 5, 5]
    values = [0.0, -0.0, 0.1, float("inf"), float("nan"), 1e-40, 3]
    with SummaryWriter(tmp_path) as writer:
        for i, step in enumerate(steps * 3):
            for j, tag in enumerate(tags):
                writer.add_scalar(tag, values[(i + j) % len(values)], step, walltime=1e9 + i / 7)
        writer.add_scalar("new", 0.1, 3, new_style=True, double_precision=True)
        writer.add_histogram("h", torch.arange(9.0), 1)
        writer.add_image("i", torch.rand(3, 64, 64), 1)
        writer.add_text("t", "hello", 4)
    ours, theirs = SummaryReader(tmp_path), accumulated(tmp_path)
    assert ours.scalar_names() == {*tags, "new"}
    for tag in tags:
        assert repr(ours.read_scalar(tag)) == repr(theirs.Scalars(tag))
    assert repr(ours.Scalars("a")) == repr(ours.read_scalar("a"))
    assert ours.read_scalar("new", 3).value == 0.1
    tags = theirs.Tags()
    for kind in ("histograms", "images", "audio"):
        assert ours.Tags()[kind] == sorted(tags[kind])
    assert ours.text_summary_names() == {"t/text_summary"}
    assert ours.read_text_summary("t") == theirs.Tensors("t/text_summary")
    assert ours.read_text_summary("t/text_summary", 4)[0].tensor_proto.string_val == [b"hello"]
    assert ours.read_text_summary("t", 5) == []


@pytest.mark.parametrize("piece", [1, 64, 1000])
def test_files_are_read_in_pieces(tmp_path, monkeypatch, piece):
    written(tmp_path, a=1, b=2)
    with SummaryWriter(tmp_path, filename_suffix=".later") as writer:
        writer.add_text("t", "x" * 5000, 0)
        writer.add_scalar("a", 9, 9)
    monkeypatch.setattr("cstorch.utils.tensorboard.event_file._PIECE", piece)
    reader, theirs = SummaryReader(tmp_path), accumulated(tmp_path)
    assert reader.read_scalar("a") == theirs.Scalars("a")
    assert reader.read_scalar("b") == theirs.Scalars("b")
    assert reader.read_text_summary("t") == theirs.Tensors("t/text_summary")


def test_one_step(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        for value, step in ((1.0, 0), (2.0, 1), (3.0, 1)):
            writer.add_scalar("loss", value, step)
    reader = SummaryReader(str(tmp_path))
    assert reader.read_scalar("loss", 0).value == 1.0
    assert reader.read_scalar("loss", step=1).value == 3.0
    assert reader.read_scalar("loss", 7) is None
    with pytest.raises(KeyError, match="no scalars of the name 'lost'; there are loss"):
        reader.read_scalar("lost")
    with pytest.raises(KeyError, match="no texts of the name 'loss'; there are none"):
        reader.read_text_summary("loss")


def test_runs_below_several_folders_and_the_filter(tmp_path):
    written(tmp_path / "a", **{"train/loss": 1, "train/x/loss": 2, "trained/loss": 3, "loss": 4})
    written(tmp_path / "a" / "sub" / "deep", **{"train/loss": 10, "eval/loss": 5})
    written(tmp_path / "b", **{"train/loss": 20})
    reader = SummaryReader([tmp_path / "a", tmp_path / "b"])
    assert [event.value for event in reader.read_scalar("train/loss")] == [1, 2, 3, 10, 11, 12, 20, 21, 22]
    assert reader.scalar_groups() == {"train", "trained", "loss", "eval"}
    train = SummaryReader(tmp_path / "a", filter="train")
    assert train.scalar_names() == {"train/loss", "train/x/loss", "trained/loss"}
    assert SummaryReader(tmp_path / "a", filter="train/x").scalar_names() == {"train/x/loss"}
    with pytest.raises(KeyError):
        train.read_scalar("loss")
    assert train.Tags()["scalars"] == ["train/loss", "train/x/loss", "trained/loss"]


def test_a_file_that_is_being_written(tmp_path):
    reader = SummaryReader(tmp_path)
    assert reader.scalar_names() == set()
    writer = SummaryWriter(tmp_path / "run")
    for step in range(4):
        writer.add_scalar("loss", step, step)
        writer.flush()
        reader.reload()
        assert [event.step for event in reader.read_scalar("loss")] == list(range(step + 1))
    writer.close()


def test_a_file_that_is_cut_anywhere(tmp_path):
    (tmp_path / "whole").mkdir()
    written(tmp_path / "whole", a=1, bb=2)
    data = event_file(tmp_path / "whole").read_bytes()
    everything = SummaryReader(tmp_path / "whole").read_scalar("a")
    (tmp_path / "cut").mkdir()
    file = tmp_path / "cut" / "events.out.tfevents.1"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for cut in range(0, len(data), 3):
            file.write_bytes(data[:cut])
            reader = SummaryReader(tmp_path / "cut")
            if "a" in reader.scalar_names():
                events = reader.read_scalar("a")
                assert events == everything[: len(events)]
            with open(file, "ab") as stream:
                stream.write(data[cut:])
            reader.reload()
            assert reader.read_scalar("a") == everything


def test_a_file_that_was_written_anew(tmp_path):
    written(tmp_path / "run", a=1, b=1)
    written(tmp_path / "other", a=5)
    reader = SummaryReader(tmp_path / "run")
    event_file(tmp_path / "run").write_bytes(event_file(tmp_path / "other").read_bytes())
    reader.reload()
    assert [event.value for event in reader.read_scalar("a")] == [5, 6, 7]
    assert reader.scalar_names() == {"a"}
    written(tmp_path / "third", **dict.fromkeys("bcdef", 1))  # longer than the one it replaces
    event_file(tmp_path / "third").rename(event_file(tmp_path / "run"))
    reader.reload()
    assert reader.scalar_names() == set("bcdef")


def damaged(folder, at):
    file = event_file(folder)
    data = bytearray(file.read_bytes())
    data[at(data)] ^= 0x10
    file.write_bytes(data)


def test_a_damaged_record_is_left_out_and_named(tmp_path):
    written(tmp_path, first=1, second=2)
    damaged(tmp_path, lambda data: data.index(b"second") - 1)
    with pytest.warns(UserWarning, match=r"tfevents.* is damaged at byte \d+: the record does not agree"):
        reader = SummaryReader(tmp_path)
    assert len(reader.read_scalar("first")) == 3
    assert [event.step for event in reader.read_scalar("second")] == [1, 2]


def test_a_damaged_length_ends_the_file(tmp_path):
    written(tmp_path, first=1, second=2)
    whole = event_file(tmp_path).read_bytes()
    record = whole.rindex(b"first")
    for bit in (0, 7):  # the length becomes another one; the length becomes huge
        start = whole.rindex(b"\x09", 0, record - 8) - 12
        data = bytearray(whole)
        data[start + bit] ^= 0x04
        event_file(tmp_path).write_bytes(data)
        with pytest.warns(UserWarning, match=f"damaged at byte {start}: the length"):
            reader = SummaryReader(tmp_path)
        assert [event.step for event in reader.read_scalar("first")] == [0, 1]


def test_a_run_that_went_on_from_an_earlier_step(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        for step in range(10):
            writer.add_scalar("loss", step, step)
            writer.add_text("t", str(step), step)
    with SummaryWriter(tmp_path, purge_step=5, filename_suffix=".later") as writer:
        for step in range(5, 8):
            writer.add_scalar("loss", 100 + step, step)
    reader, theirs = SummaryReader(tmp_path), accumulated(tmp_path)
    assert reader.read_scalar("loss") == theirs.Scalars("loss")
    assert [event.value for event in reader.read_scalar("loss")] == [0, 1, 2, 3, 4, 105, 106, 107]
    assert len(reader.read_text_summary("t")) == 5
    assert len(SummaryReader(tmp_path, purge_orphaned_data=False).read_scalar("loss")) == 13


def test_options_of_the_multiplexer(tmp_path):
    written(tmp_path / "somewhere", a=1)
    reader = SummaryReader([], run_path_map={"mine": str(tmp_path / "somewhere")}, size_guidance={"scalars": 1})
    assert len(reader.read_scalar("a")) == 3
    with pytest.raises(TypeError, match="SummaryReader got sise_guidance, expected options of"):
        SummaryReader(tmp_path, sise_guidance={})
    with pytest.warns(UserWarning, match="there is no folder .*nowhere"):
        assert SummaryReader(tmp_path / "nowhere").Tags() == {"scalars": [], "tensors": []}


def test_a_table_for_pandas(tmp_path):
    pd = pytest.importorskip("pandas")
    written(tmp_path, a=1)
    written(tmp_path / "sub", a=10, b=20)
    reader = SummaryReader(tmp_path)
    table = reader.to_pandas()
    assert list(table.columns) == ["run", "name", "step", "wall_time", "value"]
    assert table["run"].tolist() == ["."] * 3 + ["sub"] * 6
    assert table["value"].tolist() == [1, 2, 3, 10, 11, 12, 20, 21, 22]
    assert abs(table["wall_time"].iloc[0] - pd.Timestamp.now("UTC")) < pd.Timedelta("1h")
    assert reader.to_pandas("b")["step"].tolist() == [0, 1, 2]
    assert reader.to_pandas([]).empty
    with pytest.raises(KeyError, match="no scalars of the name 'c'"):
        reader.to_pandas(["a", "c"])


def test_without_pandas(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        SummaryReader(tmp_path).to_pandas()


# -- tensors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4).bfloat16(),
        torch.tensor(float("nan")),
        torch.randn(5, dtype=torch.float16),
        torch.tensor([True, False]),
        torch.arange(6).view(2, 3).T,
        torch.empty(0, 3),
        torch.randn(4, requires_grad=True),
        torch.randn(3, dtype=torch.complex64),
    ],
    ids=lambda t: f"{t.dtype}".removeprefix("torch."),
)
def test_tensors_come_back_bit_for_bit(tmp_path, tensor):
    with SummaryWriter(tmp_path) as writer:
        file = writer.add_tensor("x", tensor, 3)
    found = SummaryReader(tmp_path).read_tensor("x", 3)
    assert isinstance(found, TensorDescriptor)
    assert found.tensor.dtype == tensor.dtype
    assert torch.equal(found.tensor.nan_to_num(7), tensor.detach().nan_to_num(7))
    assert not found.tensor.requires_grad
    plain = torch.load(file, weights_only=True)
    assert plain["step"] == 3
    assert plain["tensor"].dtype == tensor.dtype


def test_several_tensors_of_a_name(tmp_path):
    with SummaryWriter(tmp_path, base_step=4) as writer:
        for value, step in ((1, 2), (2, 10), (3, 2), (4, 9)):
            writer.add_tensor("deep/x", torch.tensor(value), step)
        writer.add_tensor("default", torch.tensor(0))
    reader = SummaryReader(tmp_path)
    assert reader.tensor_names() == {"deep/x", "default"}
    assert reader.read_tensor("default").step == 4
    assert reader.read_tensor("deep/x").tensor == 2
    assert reader.read_tensor("deep/x", 2).tensor == 3
    assert [t.tensor.item() for t in reader.read_tensor("deep/x", 2, latest_only=False)] == [1, 3]
    by_step = reader.read_tensor("deep/x", latest_only=False)
    assert {step: [t.tensor.item() for t in several] for step, several in by_step.items()} == {
        2: [1, 3],
        10: [2],
        9: [4],
    }
    for nothing in (("deep/y",), ("deep/x", 3), ("deep/y", None, False), ("deep/x", 3, False)):
        assert reader.read_tensor(*nothing) is None
    one = reader.read_tensor("deep/x")
    again = TensorDescriptor.from_dict(one.to_dict())
    assert (again.step, again.ns_since_epoch, again.tensor) == (one.step, one.ns_since_epoch, one.tensor)
    assert abs(one.utctime.timestamp() - one.ns_since_epoch / 1e9) < 1e-5
    assert SummaryReader(tmp_path, filter="deep").tensor_names() == {"deep/x"}
    assert SummaryReader(tmp_path, filter="deep").read_tensor("default") is None


def test_names_that_would_be_paths(tmp_path):
    names = ["../up", "/abs", "a//b", ".", "..", "a\\b:c*?", "µ", "%2E", "%", "a%b", "x y"]
    with SummaryWriter(tmp_path / "run") as writer:
        for step, name in enumerate(names):
            writer.add_tensor(name, torch.tensor(step), step)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    reader = SummaryReader(tmp_path)
    assert reader.tensor_names() == set(names)
    assert [reader.read_tensor(name).step for name in names] == list(range(len(names)))


def test_what_is_no_tensor(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        with pytest.raises(TypeError, match=r"add_tensor\('x', ...\) got a float, expected a tensor"):
            writer.add_tensor("x", 1.0, 0)
        with pytest.raises(TypeError, match="got the step 'a', expected an int"):
            writer.add_tensor("x", torch.ones(1), "a")
        assert writer.cs_events_dir == str(tmp_path)


# -- in traced steps ---------------------------------------------------------------------------------------


def run_steps(kind, folder, steps=5, activation_steps=None, base_step=0, writer=True):
    """Train with a schedule; returns what eager PyTorch says the summaries are."""
    torch.manual_seed(0)
    with cstorch.backend(kind) as backend:
        model = torch.nn.Linear(4, 3)
        twin = torch.nn.Linear(4, 3)
        twin.load_state_dict(model.state_dict())
        compiled = cstorch.compile(model, backend)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in (model, twin)]
        schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in optimizers]
        batches = [torch.randn(2, 4) for _ in range(steps)]

        @cstorch.trace
        def step(batch):
            out = compiled(batch)
            loss = out.square().mean()
            cstorch.summarize_scalar("loss/train", loss.bfloat16().float())
            cstorch.summarize_tensor("act/out", out.bfloat16())
            optimizers[0].zero_grad()
            loss.backward()
            optimizers[0].step()
            cstorch.summarize_scalar("weight", model.weight.sum())
            return loss

        events = SummaryWriter(folder, base_step=base_step) if writer else None
        executor = cstorch.utils.data.DataExecutor(
            cstorch.utils.data.DataLoader(lambda: batches),
            num_steps=steps,
            activation_steps=activation_steps,
            writer=events,
        )
        for batch in executor:
            step(batch)
            cstorch.summarize_scalar("lr", optimizers[0].param_groups[0]["lr"])
            schedules[0].step()
        if events:
            events.close()
    expected = {"loss/train": [], "weight": [], "lr": [], "act/out": []}
    for batch in batches:
        out = twin(batch)
        loss = out.square().mean()
        expected["loss/train"].append(loss.bfloat16().item())
        expected["act/out"].append(out.bfloat16())
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        expected["weight"].append(twin.weight.sum().item())
        expected["lr"].append(optimizers[1].param_groups[0]["lr"])
        schedules[1].step()
    return expected


@pytest.mark.parametrize("kind", ["CSX", "CPU"])
def test_summaries_of_traced_steps(tmp_path, kind):
    expected = run_steps(kind, tmp_path, base_step=7)
    reader = SummaryReader(tmp_path)
    for name in ("loss/train", "weight", "lr"):
        events = reader.read_scalar(name)
        assert [event.step for event in events] == [7, 8, 9, 10, 11]
        assert [event.value for event in events] == pytest.approx(expected[name], rel=1e-5)
    for step, out in enumerate(expected["act/out"]):
        found = reader.read_tensor("act/out", 7 + step).tensor
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, out.detach())


def test_summaries_come_with_the_activations(tmp_path):
    expected = run_steps("CSX", tmp_path, steps=5, activation_steps=2)
    events = SummaryReader(tmp_path).read_scalar("loss/train")
    assert [event.step for event in events] == [1, 3, 4]
    assert [event.value for event in events] == pytest.approx([expected["loss/train"][i] for i in (1, 3, 4)], rel=1e-5)


def test_without_a_writer_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_steps("CSX", tmp_path / "events", writer=False)
    assert not (tmp_path / "events").exists()
    cstorch.summarize_scalar("alone", 1.0)


def test_what_cannot_be_summarized(tmp_path):
    with pytest.raises(ValueError, match=r"tensor of shape \(2, 2\) at .*test_tensorboard.py.*summarize_tensor"):
        cstorch.summarize_scalar("x", torch.ones(2, 2))
    with pytest.raises(TypeError, match=r"got a float at .*test_tensorboard.py.*summarize_scalar"):
        cstorch.summarize_tensor("x", 1.0)
    with cstorch.backend("CSX"), SummaryWriter(tmp_path) as writer:

        @cstorch.trace
        def step(x):
            writer.add_tensor("x", x * 2, 0)
            return x

        with pytest.raises(ValueReadError):
            step(torch.ones(2))
    assert cstorch.utils.tensorboard.summarize_scalar is cstorch.summarize_scalar


# -- a TensorBoard server ----------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    expected = run_steps("CSX", tmp_path / "events" / "run1")
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path / "events"), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--load_fast", "false"], stderr=subprocess.PIPE, text=True
    )
    try:
        address = None
        for line in process.stderr:
            if found := re.search(r"at (http://127\.0\.0\.1:\d+)", line):
                address = found[1]
                break
        assert address, "TensorBoard did not start"
        yield address, expected
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def ask(address, path):
    with urllib.request.urlopen(f"{address}/data/plugin/{path}", timeout=30) as answer:
        return json.loads(answer.read())


def test_a_tensorboard_server_shows_the_summaries(server):
    address, expected = server
    deadline = time.monotonic() + 60
    while not (tags := ask(address, "scalars/tags")) and time.monotonic() < deadline:
        time.sleep(0.1)  # it loads the files in the background
    assert set(tags["run1"]) == {"loss/train", "weight", "lr"}
    for name in tags["run1"]:
        rows = ask(address, f"scalars/scalars?run=run1&tag={quote(name, safe='')}")
        assert [step for _, step, _ in rows] == [0, 1, 2, 3, 4]
        assert [value for _, _, value in rows] == pytest.approx(expected[name], rel=1e-5)
