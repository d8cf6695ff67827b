#!/usr/bin/env python3
"""Compares the weights of two folders, bit for bit: names, types, shapes, bytes.

  compare_tensors.py FOLDER_A FOLDER_B [FOLDER_A FOLDER_B ...]
  compare_tensors.py --all PARENT_A PARENT_B                    the folders of the same name in each

FOLDER_B may hold float32 where FOLDER_A holds float16, of the same values: Tetra does not compute in float16. Also checks
what transformers asks of each file: metadata {"format": "pt"}.
"""
import os
import sys

from hf import Failure, folders_in, safe_open, tensors_of, torch, weight_files


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def widened(a, b):
    return a.to(torch.float32) if a.dtype == torch.float16 and b.dtype == torch.float32 else a


def differences(a, b):
    a = {name: widened(tensor, b.get(name, tensor)) for name, tensor in a.items()}
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b:
            yield f"{name} is only in the {'second' if name not in a else 'first'}"
        elif a[name].dtype != b[name].dtype or a[name].shape != b[name].shape:
            yield f"{name}: {a[name].dtype} {list(a[name].shape)} against {b[name].dtype} {list(b[name].shape)}"
        elif not torch.equal(bits(a[name]), bits(b[name])):
            yield f"{name}: values differ"


def compare(first, second):
    """The number of tensors. Raises Failure."""
    for folder in (first, second):
        for path in weight_files(folder):
            with safe_open(path, framework="pt") as file:
                if (file.metadata() or {}).get("format") != "pt":
                    raise Failure(f"{path}: metadata {file.metadata()}, not format pt")
    a, b = tensors_of(first), tensors_of(second)
    found = list(differences(a, b))
    if found:
        raise Failure("\n  ".join(found))
    return len(a)


def main():
    folders = sys.argv[1:]
    if folders[:1] == ["--all"] and len(folders) == 3:
        first, second = sys.argv[2:]
        folders = [path for a in folders_in(first) for path in (a, os.path.join(second, os.path.basename(a)))]
    if not folders or len(folders) % 2:
        sys.exit(__doc__)
    failed = 0
    for first, second in zip(folders[::2], folders[1::2]):
        try:
            print(f"OK {compare(first, second)} tensors of {first} and {second} are equal bit for bit")
        except Failure as failure:
            print(f"FAILED {first} and {second}:\n  {failure}")
            failed += 1
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
