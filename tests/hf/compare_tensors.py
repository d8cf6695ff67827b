#!/usr/bin/env python3
"""Compares the weights of two folders, bit for bit: names, types, shapes, bytes.

  compare_tensors.py FOLDER_A FOLDER_B

Also checks what transformers asks of each file: metadata {"format": "pt"}.
"""
import sys

from hf import safe_open, tensors_of, torch, weight_files


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def differences(a, b):
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b:
            yield f"{name} is only in the {'second' if name not in a else 'first'}"
        elif a[name].dtype != b[name].dtype or a[name].shape != b[name].shape:
            yield f"{name}: {a[name].dtype} {list(a[name].shape)} against {b[name].dtype} {list(b[name].shape)}"
        elif not torch.equal(bits(a[name]), bits(b[name])):
            yield f"{name}: values differ"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    for folder in sys.argv[1:]:
        for path in weight_files(folder):
            with safe_open(path, framework="pt") as file:
                if (file.metadata() or {}).get("format") != "pt":
                    sys.exit(f"{path}: metadata {file.metadata()}, not format pt")
    a, b = tensors_of(sys.argv[1]), tensors_of(sys.argv[2])
    found = list(differences(a, b))
    if found:
        sys.exit(f"{sys.argv[1]} and {sys.argv[2]}:\n" + "\n".join(found))
    print(f"OK {len(a)} tensors are equal bit for bit")


if __name__ == "__main__":
    main()
