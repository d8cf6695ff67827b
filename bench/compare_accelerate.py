#!/usr/bin/env python3
"""Trains the same Llama with Tetra and with accelerate + transformers, in turn, and prints the ratios.

  make bench                                   installs what is needed, builds, runs this
  tools/python.sh bench/compare_accelerate.py  [--rounds 5] [--steps 20] [--only accelerate|tetra] [--json FILE]

Each measurement is a fresh process with two threads in all; a round runs every case once, one after another, so that
both sides meet the same state of the machine, and medians over the rounds are compared. Both sides use the same
allocator (tcmalloc: Tetra links it, Python gets it by LD_PRELOAD). bench/README.md says how to read the figures.
The driver needs the standard library alone; the accelerate half needs tools/requirements-{test,bench}.txt.
"""
import argparse
import array
import ctypes.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
THREADS = 2
WARM_UP = 5  # steps that are left out at the start of each run

MODEL = dict(model_type="llama", vocab_size=8192, hidden_size=512, intermediate_size=1408, num_hidden_layers=4,
             num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=256, rms_norm_eps=1e-5,
             tie_word_embeddings=False)
SEQ, MICRO = 256, 4
OPTIMIZER = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)  # torch's defaults
CLIP = 1.0

# name, side, precision, ranks, settings. dp 2 shares out 8 sequences a step and is compared with one rank that takes the
# same 8 in two micro-batches; tp 2 is compared with one rank at 4.
CASES = [
    ("accelerate fp32", "accelerate", "fp32", 1, {}),
    ("tetra fp32", "tetra", "fp32", 1, {}),
    ("accelerate bf16", "accelerate", "bf16", 1, {}),
    ("tetra bf16", "tetra", "bf16", 1, {}),
    ("tetra fp32 tp 2", "tetra", "fp32", 2, {"parallelism.tp_size": 2}),
    ("tetra bf16 tp 2", "tetra", "bf16", 2, {"parallelism.tp_size": 2}),
    ("tetra fp32 batch 8", "tetra", "fp32", 1, {"train.global_batch_size": 8}),
    ("tetra fp32 dp 2", "tetra", "fp32", 2, {"train.global_batch_size": 8, "parallelism.dp_replicate_size": 2}),
    ("tetra bf16 batch 8", "tetra", "bf16", 1, {"train.global_batch_size": 8}),
    ("tetra bf16 dp 2", "tetra", "bf16", 2, {"train.global_batch_size": 8, "parallelism.dp_replicate_size": 2}),
]

# What is compared: label, figure, case, reference case, target (at least; "at most" where the figure is memory).
RATIOS = [
    ("tokens/s fp32, tetra / accelerate", "tokens_per_second", "tetra fp32", "accelerate fp32", 1.2),
    ("tokens/s bf16, tetra / accelerate", "tokens_per_second", "tetra bf16", "accelerate bf16", 2.0),
    ("tokens/s fp32, tp 2 / one rank", "tokens_per_second", "tetra fp32 tp 2", "tetra fp32", 0.9),
    ("tokens/s bf16, tp 2 / one rank", "tokens_per_second", "tetra bf16 tp 2", "tetra bf16", 0.9),
    ("tokens/s fp32, dp 2 / one rank", "tokens_per_second", "tetra fp32 dp 2", "tetra fp32 batch 8", 0.9),
    ("tokens/s bf16, dp 2 / one rank", "tokens_per_second", "tetra bf16 dp 2", "tetra bf16 batch 8", 0.9),
    ("peak memory fp32, tetra / accelerate", "peak_mb", "tetra fp32", "accelerate fp32", 0.5),
    ("peak memory bf16, tetra / accelerate", "peak_mb", "tetra bf16", "accelerate bf16", 0.5),
]


def flops_per_token():
    """Forward and backward: 6 per weight of the matrix products, and 12*L*H*S for attention (causal counted in full)."""
    h, f, v, layers = (MODEL[k] for k in ("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers"))
    kv = h * MODEL["num_key_value_heads"] // MODEL["num_attention_heads"]
    weights = layers * (2 * h * h + 2 * h * kv + 3 * h * f) + h * v
    return 6 * weights + 12 * layers * h * SEQ


def write_tokens(path, sequences):
    """int32, (sequences, SEQ): skewed towards small ids, so that the loss falls from ln(vocab) at once."""
    draw = random.Random(7)
    tokens = array.array("i", (int(MODEL["vocab_size"] * draw.random() ** 3) for _ in range(sequences * SEQ)))
    with open(path, "wb") as f:
        tokens.tofile(f)


# ---------------------------------------------------------------------------------------- the accelerate side (a child)
def accelerate_worker(tokens_path, precision, steps, metrics_path):
    """A plain accelerate training loop; writes the same JSON lines as Tetra."""
    import numpy
    import torch
    from accelerate import Accelerator
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    accelerator = Accelerator(mixed_precision="bf16" if precision == "bf16" else "no", cpu=True)
    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in MODEL.items() if k != "model_type"}, use_cache=False))
    tokens = torch.from_numpy(numpy.fromfile(tokens_path, dtype=numpy.int32).reshape(-1, SEQ).astype(numpy.int64))
    loader = torch.utils.data.DataLoader(tokens, batch_size=MICRO)
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    with open(metrics_path, "w") as out:
        begin = time.perf_counter()
        for step, batch in zip(range(1, steps + 1), loader):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            now = time.perf_counter()
            print(json.dumps(dict(step=step, loss=loss.item(), grad_norm=float(norm), tokens=batch.numel(),
                                  tokens_per_second=batch.numel() / (now - begin))), file=out, flush=True)
            begin = time.perf_counter()


def gemm_worker(metrics_path):
    """GFLOP/s of a 2048^3 matrix product, the best of several: what the machine can give."""
    import torch

    n, result = 2048, {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        a, b, c = (torch.randn(n, n).to(dtype) for _ in range(3))
        for threads in (1, THREADS):
            torch.set_num_threads(threads)
            times = []
            for _ in range(12):
                begin = time.perf_counter()
                torch.mm(a, b, out=c)
                times.append(time.perf_counter() - begin)
            result["%s, threads %d" % (name, threads)] = 2 * n**3 / min(times) / 1e9
    with open(metrics_path, "w") as out:
        json.dump(result, out)


# ------------------------------------------------------------------------------------------------------- the Tetra side
def write_config(path, tokens_path, precision, steps):
    quoted = json.dumps  # JSON is YAML
    optimizer = dict(type="adamw", **dict(OPTIMIZER, betas=list(OPTIMIZER["betas"])))
    lines = ["seed: 1", "model: {config: %s}" % quoted(MODEL),
             "data: {tokens: %s, seq_len: %d}" % (quoted(tokens_path), SEQ), "train:", "  steps: %d" % steps,
             "  global_batch_size: %d" % MICRO, "  micro_batch_size: %d" % MICRO, "  precision: %s" % precision,
             "  optimizer: %s" % quoted(optimizer), "  scheduler: {type: constant}", "  clip_grad_norm: %g" % CLIP]
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")


def find_allocator():
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib", "/usr/local/lib"):
        path = os.path.join(folder, "libtcmalloc_minimal.so.4")
        if os.path.exists(path):
            return path
    return ctypes.util.find_library("tcmalloc_minimal")


# ------------------------------------------------------------------------------------------------------------ the driver
def spawn(command, env, log_path, first_line_of=None):
    """Runs a child; returns (exit code, peak RSS in MB, seconds to end, seconds until `first_line_of` has a line)."""
    with open(log_path, "w") as log:
        begin = time.perf_counter()
        child = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        first = None
        while first_line_of and first is None:
            if os.path.exists(first_line_of) and os.path.getsize(first_line_of) > 0:
                first = time.perf_counter() - begin
            elif os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            time.sleep(0.002)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        return child.returncode, usage.ru_maxrss / 1024, time.perf_counter() - begin, first


def run_case(case, options, folder, steps, first=False):
    _, side, precision, ranks, settings = case
    metrics, log = os.path.join(folder, "metrics.jsonl"), os.path.join(folder, "log.txt")
    if os.path.exists(metrics):
        os.remove(metrics)
    env = dict(os.environ, OMP_NUM_THREADS=str(THREADS), MKL_NUM_THREADS=str(THREADS), TOKENIZERS_PARALLELISM="false")
    tokens = os.path.join(folder, "tokens.bin")
    if side == "accelerate":
        command = [sys.executable, os.path.abspath(__file__), "--worker", precision, tokens, str(steps), metrics]
        if options.allocator:
            env["LD_PRELOAD"] = options.allocator
    else:
        config = os.path.join(folder, "config.yaml")
        write_config(config, tokens, precision, steps)
        command = [options.tetra, "train", "-n", str(ranks), config, "--set", "log.metrics=" + metrics]
        for key, value in settings.items():
            command += ["--set", "%s=%s" % (key, value)]
    code, peak, seconds, first_line = spawn(command, env, log, metrics if first else None)
    if code != 0:
        with open(log) as f:
            sys.exit("%s failed with exit code %d:\n%s" % (" ".join(command), code, "".join(f.readlines()[-30:])))
    with open(metrics) as f:
        lines = [json.loads(line) for line in f]
    if len(lines) != steps:
        sys.exit("%s wrote %d of %d steps" % (" ".join(command), len(lines), steps))
    return dict(tokens_per_second=statistics.median(line["tokens_per_second"] for line in lines[min(WARM_UP, steps - 1):]),
                peak_mb=peak, seconds=seconds, first_step=first_line, tokens=lines[0]["tokens"],
                losses=[line["loss"] for line in lines], mfu=lines[-1].get("mfu"))


def median_of(runs):
    result = {key: statistics.median(run[key] for run in runs) for key in ("tokens_per_second", "peak_mb", "tokens")}
    result["all_tokens_per_second"] = [run["tokens_per_second"] for run in runs]
    result["step_seconds"] = result["tokens"] / result["tokens_per_second"]
    result["losses"], result["mfu"] = runs[0]["losses"], runs[-1]["mfu"]
    return result


def report(results, peaks):
    """Prints the table and the ratios; returns the number of targets that were missed."""
    print("\n%-20s %12s %10s %9s %8s %7s   %s" % ("case", "tokens/s", "spread", "ms/step", "peak MB", "of peak", "loss"))
    for name, r in results.items():
        rates = r["all_tokens_per_second"]
        peak = peaks.get("%s, threads %d" % ("bf16" if "bf16" in name else "fp32", THREADS))
        share = "%6.1f%%" % (100 * flops_per_token() * r["tokens_per_second"] / (peak * 1e9)) if peak else "      -"
        print("%-20s %12.0f %9.1f%% %9.1f %8.0f %s   %.3f -> %.3f" % (
            name, r["tokens_per_second"], 100 * (max(rates) - min(rates)) / r["tokens_per_second"],
            1e3 * r["step_seconds"], r["peak_mb"], share, r["losses"][0], r["losses"][-1]))
    missed = 0
    print()
    for label, figure, case, reference, target in RATIOS:
        if case in results and reference in results:
            ratio = results[case][figure] / results[reference][figure]
            at_most = figure == "peak_mb"
            good = ratio <= target if at_most else ratio >= target
            missed += not good
            print("%-38s %6.2f   (%s %.1f) %s" % (label, ratio, "at most" if at_most else "at least", target,
                                                 "ok" if good else "MISSED"))
    return missed


def compare_losses(results):
    """Initial weights differ, so this only tells that both sides train the same thing."""
    for precision in ("fp32", "bf16"):
        ours, theirs = results.get("tetra " + precision), results.get("accelerate " + precision)
        if ours and theirs:
            worst = max(abs(a - b) / b for a, b in zip(ours["losses"], theirs["losses"]))
            print("losses %s, largest relative difference over %d steps: %.1f %% %s" % (
                precision, len(ours["losses"]), 100 * worst, "ok" if worst < 0.05 else "TOO FAR APART"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps a run, of which %d are warm-up" % WARM_UP)
    parser.add_argument("--only", choices=["accelerate", "tetra"], help="run one side alone")
    parser.add_argument("--cases", help="run only cases whose name contains this text")
    parser.add_argument("--tetra", default=os.path.join(ROOT, "build", "tetra"))
    parser.add_argument("--allocator", default=find_allocator(), help="preloaded for Python; '' for glibc's malloc")
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a target is missed")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        if options.worker[0] == "gemm":
            return gemm_worker(options.worker[1])
        precision, tokens, steps, metrics = options.worker
        return accelerate_worker(tokens, precision, int(steps), metrics)
    if options.steps <= WARM_UP:
        parser.error("--steps must be above %d, the warm-up" % WARM_UP)
    cases = [c for c in CASES if (not options.only or c[1] == options.only) and (not options.cases or options.cases in c[0])]
    if any(c[1] == "tetra" for c in cases) and not os.access(options.tetra, os.X_OK):
        parser.error("%s is not there; run `make build`, or give --tetra, or --only accelerate" % options.tetra)
    if not options.allocator:
        print("note: Python runs on glibc's malloc (no libtcmalloc_minimal)")

    with tempfile.TemporaryDirectory(prefix="tetra_bench_") as folder:
        write_tokens(os.path.join(folder, "tokens.bin"), options.steps * 8)
        gemm, peaks = os.path.join(folder, "gemm.json"), {}
        code = spawn([sys.executable, os.path.abspath(__file__), "--worker", "gemm", gemm],
                     dict(os.environ, OMP_NUM_THREADS=str(THREADS)), os.path.join(folder, "log.txt"))[0]
        if code == 0:
            with open(gemm) as f:
                peaks = json.load(f)
        print("GEMM 2048^3, GFLOP/s: " + "; ".join("%s: %.0f" % item for item in peaks.items()))
        runs, starts = {c[0]: [] for c in cases}, {}
        for number in range(options.rounds):
            for case in cases:
                run = run_case(case, options, folder, options.steps)
                runs[case[0]].append(run)
                print("round %d  %-20s %8.0f tokens/s  %6.0f MB  %5.1f s" % (
                    number + 1, case[0], run["tokens_per_second"], run["peak_mb"], run["seconds"]), flush=True)
            for case in cases:
                if case[0] in ("tetra fp32", "tetra bf16", "accelerate bf16"):
                    starts.setdefault(case[0], []).append(run_case(case, options, folder, 1, first=True)["first_step"])
        results = {name: median_of(r) for name, r in runs.items()}
        missed = report(results, peaks)
        for name, seconds in starts.items():
            late = name.startswith("tetra") and statistics.median(seconds) >= 1.0
            missed += late
            print("process start to the end of the first step, %s: %.2f s %s" % (
                name, statistics.median(seconds), "MISSED (below 1 s)" if late else ""))
        compare_losses(results)
        if options.json:
            with open(options.json, "w") as f:
                json.dump(dict(gemm_gflops=peaks, results=results, first_step_seconds=starts,
                               flops_per_token=flops_per_token()), f, indent=1)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
