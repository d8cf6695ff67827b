#!/usr/bin/env python3
"""Thread ranks and processes give the reference trajectory, and the same as each other to the last bit.

  processes.py TETRA 'LAUNCHER {n}' CASE 'LAYOUT'       as tests/reference/check.py has them

Compares losses, gradient norms and the exported folder.
"""
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "reference"))
from check import Case, Failure, check, train  # noqa: E402

SAME = ("step", "loss", "grad_norm", "lr", "tokens")


def compare_metrics(threads, processes):
    for one, other in zip(threads, processes, strict=True):
        for key in SAME:
            if one[key] != other[key]:
                raise Failure(f"step {one['step']}: {key} {one[key]!r} with threads, {other[key]!r} with processes")


def compare_folders(threads, processes):
    names = sorted(path.name for path in threads.iterdir())
    if names != sorted(path.name for path in processes.iterdir()):
        raise Failure(f"{threads} and {processes} hold different files")
    for name in names:
        if (threads / name).read_bytes() != (processes / name).read_bytes():
            raise Failure(f"{name} is not the same after training with threads and with processes")


def main():
    tetra, launcher, name, layout = sys.argv[1:]
    case = Case(name)
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for start in ("", launcher):
            out = Path(folder) / ("processes" if start else "threads")
            out.mkdir()
            runs.append((out / "hf", train(tetra, case, out, layout, start)))
            print(f"{case.name} [{layout}] {out.name}: {check(case, runs[-1][1], runs[-1][0])}", flush=True)
        (threads, thread_metrics), (processes, process_metrics) = runs
        compare_metrics(thread_metrics, process_metrics)
        compare_folders(threads, processes)
    print("threads and processes agree to the last bit")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"FAILED {failure}")
