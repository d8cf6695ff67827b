#!/usr/bin/env python3
"""Ranks are killed (kill -9) at random moments, and the run is started again: it goes on, and ends as if nothing had been.

  kill_resume.py TETRA 'LAUNCHER {n}' [--kills 25] [--seed N] [--only threads|processes]

`--kills 100` is the full measure, some three minutes on two cores. Seven kills of ten take thread ranks (dp_shard 2 x tp 2,
all in one process), the others one rank of two processes (dp_shard 2, bf16) that the launcher then ends.

A life is a run in an empty folder, killed and started again until it ends. A kill comes at a random time, or as soon as a
checkpoint is being written, or as soon as the export begins. After each: the run ended by that kill, or had ended well
before it; what it resumed is the newest checkpoint in the folder, and none was found broken. At the end of a life losses,
gradient norms and the exported weights equal an undisturbed run's to the last bit.
"""
import argparse
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "reference"))
from check import Failure  # noqa: E402

SECONDS = 60  # one start; a hang lasts longer
STEPS, KEEP = 16, 2
SAME = ("step", "loss", "grad_norm", "lr", "tokens")
LLAMA = dict(model_type="llama", hidden_size=128, intermediate_size=352, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=1021, max_position_embeddings=64, tie_word_embeddings=True)
GPT2 = dict(model_type="gpt2", n_embd=128, n_layer=3, n_head=4, vocab_size=1021, n_positions=64, embd_pdrop=0,
            resid_pdrop=0, attn_pdrop=0)


class Kind:
    """A layout: how its ranks start, and what an undisturbed run gives."""

    def __init__(self, name, start, model, precision, layout):
        self.name, self.start, self.model, self.precision, self.layout = name, start, model, precision, layout
        self.metrics, self.weights, self.seconds = None, None, None

    def write_config(self, out, every, background):
        """out/config.yaml and what it reads; JSON is YAML."""
        (out / "text.txt").write_text("".join(random.Random(1).choices("the quick brown fox ", k=12000)))
        config = {"seed": 5, "model": {"config": self.model},
                  "data": {"text": [str(out / "text.txt")], "seq_len": 32},
                  "train": {"steps": STEPS, "global_batch_size": 8, "micro_batch_size": 2, "precision": self.precision},
                  "parallelism": self.layout,
                  "checkpoint": {"dir": str(out / "saved"), "every": every, "keep": KEEP, "background": background},
                  "log": {"metrics": str(out / "metrics.jsonl")}, "export": str(out / "hf")}
        (out / "config.yaml").write_text(json.dumps(config))


def stat_of(pid):
    """(name, state, parent), or None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, rest = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 1:].split()
    return name, rest[0], int(rest[1])


def children(parent, name):
    stats = {int(entry): stat_of(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    return sorted(pid for pid, stat in stats.items() if stat and stat[2] == parent and stat[0] == name)


def gone(pid):
    stat = stat_of(pid)
    return stat is None or stat[1] == "Z"


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Run:
    """One start of the command."""

    def __init__(self, kind, out):
        self.kind, self.log = kind, out / "log.txt"
        self.ranks_seen = set()
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(kind.start + [str(out / "config.yaml")], stdout=log, stderr=subprocess.STDOUT,
                                            env=environment)
        self.end = time.monotonic() + SECONDS

    def ended(self):
        return self.process.poll() is not None

    def ranks(self):
        """Processes that are ranks: one for all threads."""
        if self.kind.name == "threads":
            return [self.process.pid]
        ranks = children(self.process.pid, "tetra")
        self.ranks_seen.update(ranks)
        return ranks

    def wait_for(self, condition, pause=0.0005):
        """Until it holds, or the run has ended."""
        while not self.ended() and not condition():
            if time.monotonic() > self.end:
                for pid in self.ranks() + [self.process.pid]:
                    kill(pid)
                self.process.wait()
                raise Failure(f"{self.kind.name}: no end within {SECONDS} s:\n{self.output()}")
            time.sleep(pause)

    def wait(self):
        """Exit code, when the last of its processes is gone."""
        self.wait_for(lambda: False, pause=0.002)
        while not all(gone(pid) for pid in self.ranks_seen):
            if time.monotonic() > self.end:
                raise Failure(f"{self.kind.name}: ranks outlive their launcher:\n{self.output()}")
            time.sleep(0.002)
        return self.process.returncode

    def output(self):
        return self.log.read_text(errors="replace")


def temporary(out):
    """Folders of saves under way, or broken off."""
    saved = out / "saved"
    names = os.listdir(saved) if saved.is_dir() else []
    return {name for name in names if re.fullmatch(r"\.step-\d+\.[0-9a-f]+\.tmp", name)}


def newest(out):
    """Step of the newest whole checkpoint, or None."""
    steps = [int(path.parent.name[5:]) for path in (out / "saved").glob("step-*/plan.json")]
    return max(steps, default=None)


class Moment:
    """When a run is killed; drawn beforehand."""

    def __init__(self, draw, kind):
        self.aim = draw.choices(["any time", "save", "export"], [45, 47, 8])[0]
        self.seconds = draw.uniform(0, 1.1 * kind.seconds)
        self.save = draw.randint(1, 4)  # which one
        self.late = draw.choice([0, draw.uniform(0, 0.01)])

    def wait(self, run, out):
        if self.aim == "any time":
            start = time.monotonic()
            run.wait_for(lambda: time.monotonic() - start > self.seconds)
            return
        seen = temporary(out)
        known = len(seen)
        def save_begins():
            seen.update(temporary(out))
            return len(seen) - known >= self.save
        run.wait_for(save_begins if self.aim == "save" else (out / "hf").exists)
        time.sleep(self.late)


def check_output(run, code, before, killed):
    """`before`: the newest checkpoint at the start."""
    output = run.output()
    if "passed over" in output:
        raise Failure(f"a checkpoint was found broken:\n{output}")
    by_kill = killed and code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    if code != 0 and not by_kill:
        raise Failure(f"{run.kind.name}: exit code {code}{' after a kill' if killed else ''}:\n{output}")
    found = re.search(r"resumed .* at step (\d+)", output)
    resumed = int(found[1]) if found else None
    if resumed != before and not (by_kill and found is None):
        raise Failure(f"{run.kind.name}: resumed at {resumed}; the newest checkpoint is {before}:\n{output}")


def read_metrics(path):
    return [{key: line[key] for key in SAME} for line in map(json.loads, path.read_text().splitlines())]


def check_end(kind, out):
    """A life's end, against the undisturbed run."""
    got = read_metrics(out / "metrics.jsonl")
    if [line["step"] for line in got] != list(range(1, STEPS + 1)):
        raise Failure(f"{kind.name}: metrics.jsonl has the steps {[line['step'] for line in got]}")
    for line, wanted in zip(got, kind.metrics):
        if line != wanted:
            raise Failure(f"{kind.name}: {line}, undisturbed {wanted}")
    if (out / "hf" / "model.safetensors").read_bytes() != kind.weights:
        raise Failure(f"{kind.name}: model.safetensors differs from the undisturbed run's")
    left = sorted(os.listdir(out / "saved"))
    if left[-1] != f"step-{STEPS:08}" or left[0].startswith(".") or len(left) > KEEP:
        raise Failure(f"{kind.name}: {out / 'saved'} holds {left}")


def undisturbed(kind, out):
    kind.write_config(out, 0, True)
    start = time.monotonic()
    run = Run(kind, out)
    check_output(run, run.wait(), None, killed=False)
    kind.seconds = time.monotonic() - start
    kind.metrics, kind.weights = read_metrics(out / "metrics.jsonl"), (out / "hf" / "model.safetensors").read_bytes()


def where(out, before, leftovers):
    """What a kill hit."""
    if temporary(out) - leftovers:
        return "during a save"
    if newest(out) is None:
        return "before the first checkpoint"
    return "after the last step" if newest(out) == STEPS else "between saves"


def life(kind, out, draw, kills, counts):
    """Kills at most `kills` times; how many it were."""
    every, background = draw.randint(1, 3), draw.random() < 0.8
    kind.write_config(out, every, background)
    done = 0
    while True:
        before, leftovers = newest(out), temporary(out)
        run = Run(kind, out)
        killed = done < kills
        if killed:
            run.wait_for(run.ranks, pause=0.005)
            Moment(draw, kind).wait(run, out)
            kill(draw.choice(run.ranks() or [run.process.pid]))
        code = run.wait()
        check_output(run, code, before, killed)
        if code == 0:
            check_end(kind, out)
            return done
        done += 1
        counts[where(out, before, leftovers)] += 1


def kill_and_resume(kind, kills, seed):
    """What was hit how often."""
    with tempfile.TemporaryDirectory() as folder:
        undisturbed(kind, Path(folder))
    counts, lives, start = Counter(), 0, time.monotonic()
    while counts.total() < kills:
        lives += 1
        with tempfile.TemporaryDirectory() as folder:
            life(kind, Path(folder), random.Random(f"{seed} {kind.name} {lives}"), kills - counts.total(), counts)
    print(f"{kind.name}: {kills} kills in {lives} runs, {time.monotonic() - start:.0f} s: "
          + ", ".join(f"{count} {name}" for name, count in counts.most_common()), flush=True)
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tetra")
    parser.add_argument("launcher")
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", choices=["threads", "processes"])
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    hits, threads = Counter(), [options.tetra, "train"]
    processes = shlex.split(options.launcher.format(n=2)) + threads
    for kind, share in ((Kind("threads", threads, LLAMA, "fp32", {"dp_shard_size": 2, "tp_size": 2}), 0.7),
                        (Kind("processes", processes, GPT2, "bf16", {"dp_shard_size": 2}), 0.3)):
        if options.only in (None, kind.name):
            kills = options.kills if options.only else round(share * options.kills)
            hits += kill_and_resume(kind, kills, options.seed)
    amid = hits["during a save"]
    print(f"{amid} of {hits.total()} kills hit a save", flush=True)
    if 5 * amid < hits.total():
        raise Failure("that is less than a fifth: saves are too short, or kills come late")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"FAILED {failure}")
