#!/usr/bin/env python3
"""Loads a folder that Tetra wrote with transformers, and compares the logits that Tetra computed.

  check_export.py FOLDER LOGITS.json [FOLDER LOGITS.json ...] [--tolerance X]
  check_export.py --all PARENT [PARENT ...]             every folder in PARENT with the logits.json in it

LOGITS.json: {"dtype": "float64" or "float32", "tokens": [B][S], "logits": [B][s][V]}, where s positions from the end of
the sequence are given (s = S: all). transformers computes in that dtype. The error is the largest difference divided by
the largest logit; default tolerance 1e-10 for float64, 2e-5 for float32. Also fails where a tensor is missing,
unexpected or of another shape, and where a tokenizer.json is there that AutoTokenizer does not take or that does not
give back the text.
"""
import argparse
import json
import os
import sys

from hf import Failure, folders_in, logits_of, torch, transformers

TOLERANCES = {"float64": 1e-10, "float32": 2e-5}
TEXT = "Tokens, \tbytes\nand \u00e9\u4e2d\U0001f600 back."


def check_tokenizer(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT)["input_ids"]
    back = tokenizer.decode(ids)
    if back != TEXT:
        raise Failure(f"the tokenizer gives back {back!r} for {TEXT!r}")
    if tokenizer.vocab_size == 256 and ids != list(TEXT.encode()):
        raise Failure(f"the byte tokenizer's ids are not the bytes: {ids}")


def check(folder, logits, tolerance):
    """The largest error and its tolerance. Raises Failure."""
    with open(logits) as file:
        given = json.load(file)
    dtype = given.get("dtype", "float64")
    tolerance = tolerance or TOLERANCES[dtype]
    ours = torch.tensor(given["logits"], dtype=torch.float64)
    theirs = logits_of(folder, given["tokens"], getattr(torch, dtype))[:, -ours.shape[1]:]
    if ours.shape != theirs.shape:
        raise Failure(f"logits {list(ours.shape)} against {list(theirs.shape)} from transformers")
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    if not error <= tolerance:  # also for NaN
        raise Failure(f"logits differ by {error:.3g} of the largest, more than {tolerance:.3g}")
    if os.path.exists(os.path.join(folder, "tokenizer.json")):
        check_tokenizer(folder)
    return error, tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", metavar="FOLDER LOGITS")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--tolerance", type=float)
    options = parser.parse_args()
    pairs = list(zip(options.pairs[::2], options.pairs[1::2]))
    failed = 0
    if options.all:
        folders = [folder for parent in options.pairs for folder in folders_in(parent)]
        pairs = [(folder, os.path.join(folder, "logits.json")) for folder in folders]
    elif len(options.pairs) % 2:
        print("each folder needs a file of logits")
        failed = 1
    for folder, logits in pairs:
        try:
            error, tolerance = check(folder, logits, options.tolerance)
            print(f"OK {folder}: largest error {error:.3g} (tolerance {tolerance:.3g})", flush=True)
        except Failure as failure:
            print(f"FAILED {folder}: {failure}", flush=True)
            failed += 1
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
