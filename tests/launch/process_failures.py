#!/usr/bin/env python3
"""What goes wrong when the ranks are processes: the run ends within seconds, with its message, an exit code that is not 0,
and nothing half written.

  process_failures.py TETRA 'LAUNCHER {n}'
"""
import array
import json
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "reference"))
from check import Case, Failure, command, run  # noqa: E402

SECONDS = 20  # on a machine that is busy with other tests; a hang lasts ten minutes
USAGE, FAILED = 2, 1


def expect(condition, text, output):
    if not condition:
        raise Failure(f"{text}; the output is:\n{output}")


class Attempt:
    """One run that shall fail."""

    def __init__(self, tetra, launcher, out):
        self.tetra, self.launcher, self.out = tetra, launcher, Path(out)
        self.case = Case("llama_f64")
        self.config = self.case.config(out)

    def fails(self, layout, code, words, once=True, steps=0):
        """`words` are in the message; `once`: nothing else is said. `steps` were done before."""
        start = time.monotonic()
        got, output = run(command(self.tetra, self.config, self.out, layout, self.launcher), SECONDS)
        lines = [line for line in output.splitlines() if line.startswith("tetra: error: ")]
        expect(got == code, f"exit code {got}, not {code}", output)
        expect(len(lines) == 1 or (lines and not once), f"{len(lines)} messages", output)
        for word in words:
            expect(any(word in line for line in lines), f"no message with '{word}'", output)
        expect(not re.search(r"rank \d+: rank \d+: ", output), "a rank is named twice", output)
        self.nothing_half_written(steps, output)
        print(f"  {time.monotonic() - start:.1f} s: {lines[0]}", flush=True)

    def nothing_half_written(self, steps, output):
        expect(not (self.out / "hf").exists(), "an export was begun", output)
        metrics = self.out / "metrics.jsonl"
        done = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
        expect(len(done) == steps and all(line.endswith("}\n") and json.loads(line) for line in done),
               f"metrics.jsonl has {len(done)} lines, not {steps} whole ones", output)


def misspelt_key(attempt):
    attempt.config["train"]["stepz"] = 3
    attempt.fails("tp_size=2", USAGE, ["config.yaml", "stepz", "steps"])


def degrees_that_do_not_fit(attempt):
    attempt.fails("tp_size=3", USAGE, ["tp_size 3", "num_attention_heads 8"])


def truncated_weights(attempt):
    folder = attempt.out / "model"
    shutil.copytree(attempt.case.folder, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    attempt.config["model"]["from"] = str(folder)
    attempt.fails("tp_size=2 dp_replicate_size=2", FAILED, ["model.safetensors"])


def damaged_row(attempt):
    """In step 2, in a sequence that the last of two data ranks reads alone."""
    expected = attempt.case.expected
    tokens = array.array("i", (attempt.case.folder / "tokens.bin").read_bytes())
    rows, length = expected["global_batch"], expected["seq_len"]
    tokens[(rows + rows - 1) * length + 5] = 1 << 20
    path = attempt.out / "damaged.bin"
    path.write_bytes(tokens.tobytes())
    attempt.config["data"]["tokens"] = str(path)
    attempt.fails("tp_size=2 dp_replicate_size=2", FAILED,
                  ["damaged.bin", "token id 1048576", "step 2", f"sequence {rows - 1}", "position 5"], once=False, steps=1)


def main():
    tetra, launcher = sys.argv[1:]
    failed = 0
    for test in (misspelt_key, degrees_that_do_not_fit, truncated_weights, damaged_row):
        print(test.__name__, flush=True)
        with tempfile.TemporaryDirectory() as out:
            try:
                test(Attempt(tetra, launcher, out))
            except Failure as failure:
                print(f"  FAILED {failure}", flush=True)
                failed += 1
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
