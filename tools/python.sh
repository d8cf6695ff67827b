#!/usr/bin/env bash
# Python with the packages of .deps/python (and those of a libtorch given by TETRA_TORCH): tools/python.sh FILE.py ARGS...
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
path=$root/.deps/python
if [[ -n ${TETRA_TORCH:-} && -f $TETRA_TORCH/__init__.py ]]; then
  path=$(dirname "$TETRA_TORCH"):$path
fi
PYTHONPATH=$path${PYTHONPATH:+:$PYTHONPATH} exec "${TETRA_PYTHON:-python3}" "$@"
