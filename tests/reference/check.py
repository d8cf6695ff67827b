#!/usr/bin/env python3
"""Trains reference cases with the command, on any layout and launcher, and compares with what one PyTorch process gave.

  check.py [--tetra build/tetra] [--with 'mpirun --oversubscribe -n {n}'] [--layout 'tp_size=2 sequence_parallel=true']...
           CASE...

CASE is a folder beside this file or a path to one. A layout is a list of key=value: keys of `parallelism`, or dotted keys
(train.micro_batch_size=1). Without --with the ranks are threads. Prints a line a run with the largest relative error of
losses, gradient norms and final weights (sum and norm of each tensor, by its norm); exit code 1 where one is over its
tolerance. Standard library only; the functions serve other tests.
"""
import argparse
import array
import json
import math
import os
import shlex
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ELEMENTS = {"F64": "d", "F32": "f"}
TOLERANCES = {"float64": (1e-10, 1e-10), "float32": (2e-5, 1e-4)}  # of losses and norms, of weights


class Failure(Exception):
    """A run that did not end well, or numbers that do not agree."""


class Case:
    """A reference folder."""

    def __init__(self, folder):
        self.folder = Path(folder) if Path(folder).is_dir() else HERE / folder
        self.expected = json.loads((self.folder / "trajectory.json").read_text())
        self.name = self.folder.name

    def config(self, out):
        """The run as nested dicts; writes metrics.jsonl and hf/ below `out`."""
        e = self.expected
        data = {"tokens": str(self.folder / "tokens.bin"), "seq_len": e["seq_len"]}
        if (self.folder / "labels.bin").exists():
            data["labels"] = str(self.folder / "labels.bin")
        optimizer = {"type": "adamw", **{key: e[key] for key in ("lr", "betas", "eps", "weight_decay")}}
        train = {"steps": e["steps"], "global_batch_size": e["global_batch"], "micro_batch_size": e["global_batch"],
                 "precision": "fp64" if e["dtype"] == "float64" else "fp32", "optimizer": optimizer,
                 "scheduler": {"type": "constant"}, "clip_grad_norm": e["clip_grad_norm"]}
        return {"model": {"from": str(self.folder)}, "data": data, "train": train,
                "log": {"metrics": str(Path(out) / "metrics.jsonl")}, "export": str(Path(out) / "hf")}


def layout_keys(layout):
    """'tp_size=2' -> {'parallelism.tp_size': '2'}."""
    pairs = (item.split("=", 1) for item in layout.split())
    return {key if "." in key else f"parallelism.{key}": value for key, value in pairs}


def ranks_of(layout):
    """The product of the degrees; ep lies inside others."""
    return math.prod(int(value) for key, value in layout_keys(layout).items()
                     if key.endswith("_size") and key.startswith("parallelism.") and key != "parallelism.ep_size")


def command(tetra, config, out, layout="", launcher=""):
    """What to start for `config` (nested dicts), which is written to out/config.yaml: JSON is YAML."""
    path = Path(out) / "config.yaml"
    path.write_text(json.dumps(config, indent=1) + "\n")
    ranks = ranks_of(layout)
    start = shlex.split(launcher.format(n=ranks)) + [str(tetra), "train"] + ([] if launcher else ["-n", str(ranks)])
    sets = [word for item in layout_keys(layout).items() for word in ("--set", "=".join(item))]
    return start + [str(path)] + sets


def run(words, timeout):
    """(exit code, standard output and error together)."""
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout,
                              check=False)
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout or b""
        raise Failure(f"no end within {timeout} s: {shlex.join(words)}\n{output.decode(errors='replace')}") from None
    return done.returncode, done.stdout


def train(tetra, case, out, layout="", launcher="", timeout=120):
    """Trains `case`; what is in metrics.jsonl, a dict a step. Throws Failure."""
    words = command(tetra, case.config(out), out, layout, launcher)
    code, output = run(words, timeout)
    if code != 0:
        raise Failure(f"exit code {code}: {shlex.join(words)}\n{output}")
    with open(Path(out) / "metrics.jsonl") as file:
        return [json.loads(line) for line in file]


def weights(folder):
    """name -> (sum, norm) of each tensor in a folder's model.safetensors."""
    found = {}
    with open(Path(folder) / "model.safetensors", "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            file.seek(8 + length + begin)
            values = array.array(ELEMENTS[entry["dtype"]], file.read(end - begin))
            found[name] = math.fsum(values), math.sqrt(math.fsum(x * x for x in values))
    return found


def relative(got, wanted, scale=None):
    error = abs(got - wanted) / max(abs(wanted if scale is None else scale), 1e-300)
    return error if math.isfinite(error) else math.inf


def errors(case, metrics, folder):
    """The largest relative errors of losses, norms and weights. Throws Failure where something is missing."""
    wanted = case.expected["steps_log"]
    if [m["tokens"] for m in metrics] != [w["tokens"] for w in wanted]:
        raise Failure(f"tokens of each step: {[m['tokens'] for m in metrics]}, not {[w['tokens'] for w in wanted]}")
    loss, norm = (max(relative(m[key], w[key]) for m, w in zip(metrics, wanted)) for key in ("loss", "grad_norm"))
    got = weights(folder)
    final = case.expected["final"]
    tied = {"lm_head.weight"} - got.keys()
    if got.keys() | tied != final.keys() | tied:
        raise Failure(f"tensors that are not in both: {sorted((got.keys() ^ final.keys()) - tied)}")
    weight = max(relative(value, final[name][i], final[name][1]) for name in got for i, value in enumerate(got[name]))
    return loss, norm, weight


def check(case, metrics, folder):
    """A line about how well the run agrees. Throws Failure where it does not."""
    loss, norm, weight = errors(case, metrics, folder)
    text = f"loss {loss:.1e} norm {norm:.1e} weights {weight:.1e}"
    tolerance, weight_tolerance = TOLERANCES[case.expected["dtype"]]
    if not (loss <= tolerance and norm <= tolerance and weight <= weight_tolerance):
        raise Failure(f"{text}, tolerance {tolerance:g}, of weights {weight_tolerance:g}")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tetra", default=os.path.join("build", "tetra"))
    parser.add_argument("--layout", action="append", metavar="KEY=VALUE...")
    parser.add_argument("--with", dest="launcher", default="", metavar="LAUNCHER")
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("cases", nargs="+", metavar="CASE")
    options = parser.parse_args()
    failed = 0
    for case in map(Case, options.cases):
        for layout in options.layout or [""]:
            with tempfile.TemporaryDirectory() as out:
                try:
                    metrics = train(options.tetra, case, out, layout, options.launcher, options.timeout)
                    text = "OK     " + check(case, metrics, Path(out) / "hf")
                except Failure as failure:
                    text = f"FAILED {failure}"
                    failed += 1
            print(f"{case.name} [{layout}]: {text}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
