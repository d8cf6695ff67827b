#!/usr/bin/env python3
"""Loads a folder that Tetra wrote with transformers, and compares the logits that Tetra computed.

  check_export.py FOLDER LOGITS.json [--tolerance X]

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

from hf import logits_of, torch, transformers

TOLERANCES = {"float64": 1e-10, "float32": 2e-5}
TEXT = "Tokens, \tbytes\nand \u00e9\u4e2d\U0001f600 back."


def check_tokenizer(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT)["input_ids"]
    back = tokenizer.decode(ids)
    if back != TEXT:
        sys.exit(f"{folder}: the tokenizer gives back {back!r} for {TEXT!r}")
    if tokenizer.vocab_size == 256 and ids != list(TEXT.encode()):
        sys.exit(f"{folder}: the byte tokenizer's ids are not the bytes: {ids}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("logits")
    parser.add_argument("--tolerance", type=float)
    options = parser.parse_args()
    with open(options.logits) as file:
        given = json.load(file)
    dtype = given.get("dtype", "float64")
    tolerance = options.tolerance or TOLERANCES[dtype]
    ours = torch.tensor(given["logits"], dtype=torch.float64)
    theirs = logits_of(options.folder, given["tokens"], getattr(torch, dtype))[:, -ours.shape[1]:]
    if ours.shape != theirs.shape:
        sys.exit(f"{options.folder}: logits {list(ours.shape)} against {list(theirs.shape)} from transformers")
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    if not error <= tolerance:  # also for NaN
        sys.exit(f"{options.folder}: logits differ by {error:.3g} of the largest, more than {tolerance:.3g}")
    if os.path.exists(os.path.join(options.folder, "tokenizer.json")):
        check_tokenizer(options.folder)
    print(f"OK {options.folder}: largest error {error:.3g} (tolerance {tolerance:.3g})")


if __name__ == "__main__":
    main()
