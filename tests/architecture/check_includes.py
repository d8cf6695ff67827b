#!/usr/bin/env python3
"""Checks what the tree promises: includes go one way, public headers stay short, no file names a machine's own path.

  check_includes.py [ROOT]    exit code 1 with the offenders' names; --self-test shows that each rule can fail
"""
import os
import re
import subprocess
import sys
import tempfile

# Each room and those it may include; launch -> train -> models -> parallel -> mesh, kernels.
MAY_INCLUDE = {
    "kernels": {"kernels"},
    "mesh": {"mesh", "kernels"},
    "parallel": {"parallel", "mesh", "kernels"},
    "models": {"models", "parallel", "mesh", "kernels"},
    "train": {"train", "models", "parallel", "mesh", "kernels"},
    "launch": {"launch", "train", "models", "parallel", "mesh", "kernels"},
}
# mesh knows of no mathematics: of kernels it takes the errors alone.
MESH_MAY_TAKE = {"kernels/error.h"}
SOURCES = (".h", ".cpp", ".cu", ".cuh")
# Public headers say what a thing is for; those in these folders hold a room's inner loops and transports.
MAX_HEADER_LINES, MAX_INNER_LINES = 150, 400
INNER = re.compile(r"/(cpu|cuda|backend)/")
# Text files of these names may not be read as text, or are made by others.
TEXT = SOURCES + (".py", ".sh", ".txt", ".cmake", ".md", ".yaml", ".json", ".in")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.M)
# Where a home, a work tree or a build of one machine would show. Paths of every Debian machine (/usr, /etc, /proc) are fine.
MACHINE_PATH = re.compile(r"(?<![\w.~$)}/-])/(?:home|root|work|tmp/w|Users|mnt|media|scratch)/[\w.-]+")


def list_files(root):
    """Tracked and new files that git does not ignore; without git, all files."""
    try:
        out = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                             check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        names = [n for n in out.decode().split("\0") if n and os.path.isfile(os.path.join(root, n))]
        if names:
            return sorted(set(names))
    except (OSError, subprocess.CalledProcessError):
        pass
    return sorted(os.path.relpath(os.path.join(folder, n), root)
                  for folder, folders, names in os.walk(root) for n in names
                  if not os.path.relpath(folder, root).startswith((".", "build", "out"))
                  or os.path.relpath(folder, root) == ".")


def check(root):
    problems = []
    for name in list_files(root):
        if not (name.endswith(TEXT) or os.path.basename(name) == "Makefile"):
            continue
        with open(os.path.join(root, name), encoding="utf-8", errors="replace") as f:
            text = f.read()
        room = name.split("/")[0]
        if name.endswith(SOURCES) and room in MAY_INCLUDE:
            problems += check_room_includes(name, room, text)
        lines = text.count("\n")
        most = MAX_INNER_LINES if INNER.search(name) else MAX_HEADER_LINES
        if name.endswith(".h") and room in MAY_INCLUDE and lines > most:
            problems.append("%s has %d lines; such a header has at most %d" % (name, lines, most))
        if name != "tests/architecture/check_includes.py":
            for match in MACHINE_PATH.finditer(text):
                problems.append("%s:%d names a path of one machine: %s" % (
                    name, text.count("\n", 0, match.start()) + 1, match.group()))
    return problems


def check_room_includes(name, room, text):
    problems = []
    for match in INCLUDE.finditer(text):
        target = match.group(1)
        line = text.count("\n", 0, match.start()) + 1
        other = target.split("/")[0]
        if "../" in target:
            problems.append("%s:%d includes %s; write the path from the project's root" % (name, line, target))
        elif other in MAY_INCLUDE and other not in MAY_INCLUDE[room]:
            problems.append("%s:%d includes %s; %s may include %s" % (
                name, line, target, room, ", ".join(sorted(MAY_INCLUDE[room]))))
        elif room == "mesh" and other == "kernels" and target not in MESH_MAY_TAKE:
            problems.append("%s:%d includes %s; of kernels, mesh may include %s" % (
                name, line, target, ", ".join(sorted(MESH_MAY_TAKE))))
        elif other in ("tests", "bench", "examples") and room in MAY_INCLUDE:
            problems.append("%s:%d includes %s; a room includes nothing of %s" % (name, line, target, other))
    return problems


def self_test():
    """Every rule must find its own fault, and nothing in a clean tree."""
    clean = {"kernels/a.h": "#pragma once\n", "kernels/cpu/loops.h": "\n" * MAX_INNER_LINES, "mesh/b.cpp": '#include "kernels/error.h"\n',
             "train/c.cpp": '#include "mesh/b.h"\n#include <ATen/core/Tensor.h>\n', "docs/d.md": "see /usr/include\n"}
    faults = {
        "kernels knows mesh": ("kernels/x.cpp", '#include "mesh/group.h"\n', "kernels/x.cpp:1"),
        "mesh knows parallel": ("mesh/x.h", '\n#include "parallel/y.h"\n', "mesh/x.h:2"),
        "models know train": ("models/x.cpp", '#  include <train/loop.h>\n', "models/x.cpp:1"),
        "mesh takes mathematics": ("mesh/x.cpp", '#include "kernels/norm.h"\n', "mesh/x.cpp:1"),
        "upward path": ("train/x.cpp", '#include "../launch/y.h"\n', "train/x.cpp:1"),
        "test code": ("train/x.cpp", '#include "tests/y.h"\n', "train/x.cpp:1"),
        "long header": ("mesh/x.h", "\n" * (MAX_HEADER_LINES + 1), "mesh/x.h has"),
        "long inner header": ("kernels/cpu/x.h", "\n" * (MAX_INNER_LINES + 1), "kernels/cpu/x.h has"),
        "machine's path": ("docs/x.md", "run it in /ho" + "me/someone/tetra\n", "docs/x.md:1"),
    }
    for what, extra in [("clean tree", None)] + list(faults.items()):
        with tempfile.TemporaryDirectory() as root:
            files = dict(clean)
            if extra:
                files[extra[0]] = extra[1]
            for name, text in files.items():
                os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
                with open(os.path.join(root, name), "w") as f:
                    f.write(text)
            problems = check(root)
            good = (len(problems) == 1 and problems[0].startswith(extra[2])) if extra else not problems
            if not good:
                sys.exit("self-test '%s': found %s" % (what, problems))


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    problems = check(root)
    print("\n".join(problems) if problems else "includes, header lengths and paths are as promised")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
