"""The public program gigaGPT, unmodified, on this implementation.

    python tests/acceptance/gigagpt.py <checkout or git directory of Cerebras/gigaGPT>

Makes a tokens file of real text (the reference of the Python language) and a small configuration (width 128, depth 4,
sequence 128, vocabulary 50257), and runs `train.py --backend CSX` with checkpoints, goes on from one, runs `eval.py`
and `sample.py`, and compares the losses step by step with `--backend CPU`, where `max_gradient_norm` is too large to
act: the program clips with a generator that its first Python step uses up. Exits with 1 where something is not as it
should be.

The program wants transformers and tqdm, beside this package, in the environment; its tokenizer, which would be
downloaded, is replaced by the words of the text. Programs are interpreted unless CSTORCH_INTERPRET is set to 0.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np

VOCABULARY = 50257
CONFIG = """\
out_dir: {out}
dataset: {data}
width: 128
depth: 4
heads: 4
max_position_embeddings: 128
vocab_size: 50257
sequence_length: 128
batch_size: 4
num_steps: {steps}
checkpoint_steps: {every}
learning_rate: 3.0e-3
warmup_steps: 4
num_csx: 1
"""

TOKENIZER = '''\
"""The words of the text that the model was trained on, in place of a tokenizer that is downloaded."""

import json
import re
from pathlib import Path

WORDS = json.loads((Path(__file__).parent / "words.json").read_text())


class Encoding:
    eot_token = 50256

    def encode(self, text):
        return [WORDS.index(word) for word in re.findall(r"\\\\w+|\\\\s+|[^\\\\w\\\\s]", text) if word in WORDS]

    def decode(self, tokens):
        return "".join(WORDS[token] for token in tokens if token < len(WORDS))


def get_encoding(name):
    return Encoding()
'''.replace("\\\\", "\\")


def make_data(folder: Path) -> None:
    """The text as tokens, train.bin and val.bin, and the stand-in for the tokenizer."""
    from pydoc_data.topics import topics

    words = re.findall(r"\w+|\s+|[^\w\s]", "\n".join(topics.values()))
    known = [word for word, _ in collections.Counter(words).most_common(VOCABULARY - 1)]
    number = {word: index for index, word in enumerate(known)}
    tokens = np.array([number[word] for word in words], dtype=np.uint16)
    folder.mkdir(parents=True, exist_ok=True)
    tokens[:-4000].tofile(folder / "train.bin")
    tokens[-4000:].tofile(folder / "val.bin")
    (folder / "words.json").write_text(json.dumps(known))
    (folder / "tiktoken.py").write_text(TOKENIZER)


def checkout(source: Path, out: Path) -> Path:
    """The program's folder; of a git directory its HEAD is unpacked."""
    if (source / "train.py").exists():
        return source
    folder, archive = out / "gigaGPT", out / "gigagpt.tar"
    subprocess.run(["git", f"--git-dir={source}", "archive", "-o", str(archive), "HEAD"], check=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()
    return folder


class Program:
    """Runs the program's scripts.

    Args:
        root: Its folder.
        out: Where its configuration, data and output are.
    """

    def __init__(self, root: Path, out: Path) -> None:
        self.root, self.out = root, out
        self.environment = {**os.environ, "PYTHONPATH": f"{out / 'data'}:{os.environ.get('PYTHONPATH', '')}"}
        self.environment.setdefault("CSTORCH_INTERPRET", "1")

    def run(self, script: str, *arguments: object, words: str | None = None) -> str:
        """What a script says; it must end well."""
        command = [sys.executable, str(self.root / script), *map(str, arguments)]
        print("$", script, *arguments, flush=True)
        done = subprocess.run(
            command, cwd=self.out, env=self.environment, input=words, capture_output=True, text=True, timeout=1200
        )
        (self.out / f"{script}.log").write_text(done.stdout + done.stderr)
        if done.returncode:
            sys.exit(f"{script} ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
        return done.stdout + done.stderr

    def losses(self, name: str, steps: int, every: int, *arguments: object) -> dict[int, float]:
        """The losses of a training run, by step."""
        config = self.out / f"{name}.yaml"
        config.write_text(CONFIG.format(out=self.out / name, data=self.out / "data", steps=steps, every=every))
        said = self.run("train.py", config, *arguments)
        return {int(step): float(loss) for step, loss in re.findall(r"Step=(\d+), Loss=([\d.naif]+)", said)}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a checkout, or a git directory, of Cerebras/gigaGPT")
    parser.add_argument("--out", type=Path, default=Path("gigagpt_acceptance"), help="folder for everything it makes")
    parser.add_argument("--steps", type=int, default=40, help="steps of the whole run (default: %(default)s)")
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    make_data(out / "data")
    program = Program(checkout(args.source.resolve(), out), out)
    half, failed = args.steps // 2, []

    def check(what: str, holds: bool) -> None:
        print(f"{'ok  ' if holds else 'FAIL'} {what}", flush=True)
        if not holds:
            failed.append(what)

    whole = program.losses("whole", args.steps, half, "--backend", "CSX")
    first, last = np.mean([*whole.values()][:4]), np.mean([*whole.values()][-4:])
    check(f"the loss falls: {first:.3f} to {last:.3f} in {len(whole)} steps", last < first - 1)
    check("checkpoints are there", all((out / "whole" / f"checkpoint_{n}.mdl").exists() for n in (half, args.steps)))
    middle = out / "whole" / f"checkpoint_{half}.mdl"
    rest = program.losses("resumed", args.steps, half, "--backend", "CSX", "--checkpoint_path", middle)
    check(f"a resumed run begins at step {min(rest, default=0)}", [*rest] == [*range(half + 1, args.steps + 1)])
    check("its loss goes on from there", abs(np.mean([*rest.values()][-4:]) - last) < 1)

    same = "--max_gradient_norm", 1e9, "--checkpoint_path", middle  # the program draws its weights without a seed
    csx = program.losses("csx", half + 10, 10, "--backend", "CSX", *same)
    cpu = program.losses("cpu", half + 10, 10, "--backend", "CPU", *same)
    apart = max(abs(csx.get(step, np.inf) - cpu[step]) for step in cpu)
    check(f"CSX and CPU agree in {len(cpu)} steps: at most {apart:.5f} apart", len(cpu) == 10 and apart < 1e-3)

    end = "--checkpoint_path", out / "whole" / f"checkpoint_{args.steps}.mdl"
    said = program.run("eval.py", out / "whole.yaml", "--backend", "CSX", *end)
    evaluated = float(re.search(r"Average eval loss: ([\d.]+)", said)[1])  # type: ignore[index]
    check(f"eval.py: loss {evaluated:.3f}", abs(evaluated - last) < 2)
    said = program.run("sample.py", *end, "--max_length", 40, words="The following\n\n")
    check("sample.py: " + said.split("Response: ")[-1][:60].replace("\n", " "), "Response: The following" in said)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
