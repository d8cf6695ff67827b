#!/usr/bin/env python3
"""Trains the Llama of compare_accelerate.py sharded over thread ranks and on one rank, in turn, and prints the ratios; and
what saving in the background costs.

  python3 bench/sharding.py         [--rounds 5] [--steps 20] [--cases TEXT] [--tetra build/tetra] [--json FILE] [--check]
  python3 bench/sharding.py --hold  [--rounds 5] [--steps 40] [--every 5] ...

Two threads in all, whatever the ranks. All cases take the same 8 sequences a step: one rank in two micro-batches of 4, two
ranks in one of 4, four in one of 2. A round runs every case once, one after another, each beside the one rank of its
precision and round; the ratio of tokens a second is the median over the rounds, and its spread is printed beside it.

--hold runs cases with and without saving every few steps, in turn. "held" is how much longer the steps after a save take
than as many that come just before the next one, when the disk is quiet: of the same run, for whole runs differ by more
than a save costs. The same sum for the run that does not save, beside it, says what is noise. "disk" is the time that a
plain file of the checkpoint's size takes to be written and flushed, in the same round.

Standard library only.
"""
import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from compare_accelerate import ROOT, WARM_UP, run_case, write_tokens  # noqa: E402

BATCH = 8
STAGES, RANKS, PRECISIONS = (1, 2, 3), (2, 4), ("fp32", "bf16")
TARGETS = {1: 0.9, 2: 0.9, 3: 0.85}  # of one rank's tokens a second
QUIET = 2  # steps before a save, when the one before is on the disk
HOLD_TARGET = 0.05


def sharded(precision, stage, ranks):
    """A case as run_case takes it."""
    settings = {"train.global_batch_size": BATCH, "train.micro_batch_size": min(4, BATCH // ranks),
                "parallelism.dp_shard_size": ranks, "parallelism.zero_stage": stage}
    return "%s stage %d, %d ranks" % (precision, stage, ranks), "tetra", precision, ranks, settings


def one_rank(precision, settings=None):
    return "%s one rank" % precision, "tetra", precision, 1, dict({"train.global_batch_size": BATCH}, **(settings or {}))


def measure(case, options, folder):
    run = run_case(case, options, folder, options.steps)
    print("  %-26s %8.0f tokens/s  %6.0f MB  %5.1f s" % (case[0], run["tokens_per_second"], run["peak_mb"], run["seconds"]),
          flush=True)
    return run


def spread(values):
    return 100 * (max(values) - min(values)) / statistics.median(values)


# --------------------------------------------------------------------------------------------------------------- sharding
def compare_shards(options, folder):
    """{case: [(tokens a second, ratio to one rank of the round, peak MB)]}"""
    cases = [(precision, stage, sharded(precision, stage, ranks)) for precision in PRECISIONS for ranks in RANKS
             for stage in STAGES]
    cases = [case for case in cases if options.cases in case[2][0]]
    results = {}
    for number in range(options.rounds):
        print("round %d" % (number + 1), flush=True)
        for precision in PRECISIONS:
            mine = [case for case in cases if case[0] == precision]
            if not mine:
                continue
            base = measure(one_rank(precision), options, folder)
            results.setdefault(one_rank(precision)[0], []).append((base["tokens_per_second"], 1.0, base["peak_mb"]))
            for _, _, case in mine:
                run = measure(case, options, folder)
                results.setdefault(case[0], []).append(
                    (run["tokens_per_second"], run["tokens_per_second"] / base["tokens_per_second"], run["peak_mb"]))
    return results


def report_shards(results):
    """Prints the table; returns how many targets were missed."""
    targets = {sharded(p, s, n)[0]: TARGETS[s] for p in PRECISIONS for s in STAGES for n in RANKS}
    print("\n%-26s %10s %8s %8s %8s   %s" % ("case", "tokens/s", "peak MB", "ratio", "spread", "at least"))
    missed = 0
    for name, rows in results.items():
        rates, ratios, peaks = zip(*rows)
        ratio, target = statistics.median(ratios), targets.get(name)
        verdict = "" if target is None else "%.2f %s" % (target, "ok" if ratio >= target else "MISSED")
        missed += "MISSED" in verdict
        print("%-26s %10.0f %8.0f %8.2f %7.1f%%   %s" % (name, statistics.median(rates), statistics.median(peaks), ratio,
                                                         spread(ratios), verdict))
    return missed


# ----------------------------------------------------------------------------------------------------------------- saving
def size_of(folder):
    return sum(os.path.getsize(os.path.join(where, name)) for where, _, names in os.walk(folder) for name in names)


def disk_seconds(path, size):
    """To write and flush a plain file of that size."""
    block = os.urandom(1 << 20) * 8
    begin = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for at in range(0, size, len(block)):
            file.write(block[:size - at])
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
    os.remove(path)
    return seconds


class StepTimes(threading.Thread):
    """Looks at metrics.jsonl while a run writes it. Its own figures leave out what saving does between steps."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.stamps, self.over = path, [], threading.Event()

    def run(self):
        size = 0
        while not self.over.wait(0.002):
            try:
                found = os.stat(self.path)
            except OSError:
                continue
            if found.st_size > size:
                size = found.st_size
                self.stamps.append(found.st_mtime_ns / 1e9)

    def seconds(self, steps):
        """From each step's end to the next one's."""
        self.over.set()
        self.join()
        if len(self.stamps) != steps:
            sys.exit("%s: saw %d of %d steps end; they are too short to be told apart" % (self.path, len(self.stamps), steps))
        return [after - before for before, after in zip(self.stamps, self.stamps[1:])]


def held_up(seconds, every):
    """Of each save but the first and the last: how much longer the steps after it take than as many quiet ones, which are
    the last two before the next save."""
    found = []
    for begin in range(2 * every - 1, len(seconds) - every + 1, every):  # seconds[k - 1] follows step k and its save
        steps = seconds[begin:begin + every]
        found.append(sum(steps[:-QUIET]) - (every - QUIET) * statistics.mean(steps[-QUIET:]))
    return found


def timed(case, options, folder):
    times = StepTimes(os.path.join(folder, "metrics.jsonl"))
    if os.path.exists(times.path):
        os.remove(times.path)
    times.start()
    measure(case, options, folder)
    return held_up(times.seconds(options.steps), options.every)


def hold_round(case, options, folder):
    """One pair of runs and the disk."""
    name, side, precision, ranks, settings = case
    saved = os.path.join(folder, "saved")
    saving = {"checkpoint.dir": saved, "checkpoint.every": options.every, "checkpoint.keep": 1}
    control = timed(case, options, folder)
    held = timed((name + ", saving", side, precision, ranks, dict(settings, **saving)), options, folder)
    size = size_of(saved)
    shutil.rmtree(saved)
    disk = disk_seconds(os.path.join(folder, "plain"), size)
    return dict(mb=size / 1e6, disk=disk, held=held, control=control)


def compare_saving(options, folder):
    cases = [case for precision in PRECISIONS for case in (one_rank(precision), sharded(precision, 3, 2))]
    results = {case[0]: [] for case in cases if options.cases in case[0]}
    for number in range(options.rounds):
        print("round %d" % (number + 1), flush=True)
        for case in cases:
            if case[0] in results:
                results[case[0]].append(hold_round(case, options, folder))
    return results


def report_saving(results):
    """Prints the table; returns how many targets were missed, or drowned in noise."""
    print("\n%-26s %8s %10s %10s %9s %14s" % ("case", "MB", "disk, ms", "held, ms", "of disk", "without saving"))
    missed = 0
    for name, rounds in results.items():
        disk = statistics.median(r["disk"] for r in rounds)
        held, control = (statistics.median(x for r in rounds for x in r[key]) for key in ("held", "control"))
        verdict = "MISSED" if held > HOLD_TARGET * disk else "ok"
        if abs(control) > HOLD_TARGET * disk:
            verdict = "too noisy to tell"
        missed += verdict != "ok"
        print("%-26s %8.0f %10.0f %10.1f %8.1f%% %11.1f ms   (at most %.0f%%) %s" % (
            name, rounds[0]["mb"], 1e3 * disk, 1e3 * held, 100 * held / disk, 1e3 * control, 100 * HOLD_TARGET, verdict))
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="a run; default 20, of which %d are warm-up; with --hold 40" % WARM_UP)
    parser.add_argument("--cases", default="", help="run only cases whose name contains this text")
    parser.add_argument("--hold", action="store_true", help="what saving in the background costs")
    parser.add_argument("--every", type=int, default=5, help="with --hold: steps between saves")
    parser.add_argument("--tetra", default=os.path.join(ROOT, "build", "tetra"))
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a target is missed")
    options = parser.parse_args()
    options.steps = options.steps or (40 if options.hold else 20)
    if options.hold and not QUIET < options.every <= options.steps // 3:
        parser.error("--every must be above %d and at most a third of --steps" % QUIET)
    if not os.access(options.tetra, os.X_OK):
        parser.error("%s is not there; run `make build`, or give --tetra" % options.tetra)
    with tempfile.TemporaryDirectory(prefix="tetra_bench_") as folder:
        write_tokens(os.path.join(folder, "tokens.bin"), options.steps * BATCH)
        compare, report = (compare_saving, report_saving) if options.hold else (compare_shards, report_shards)
        results = compare(options, folder)
    if not results:
        parser.error("no case's name contains '%s'" % options.cases)
    missed = report(results)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
