#!/bin/sh
# Builds the CUDA plug-in and checks it on this machine's GPU: the RMSNorm kernel against double arithmetic on the CPU,
# and a group of one rank over NCCL. Needs cmake, a C++20 compiler, nvcc 13 and the full torch wheel (or any libtorch
# with CUDA: TETRA_TORCH=FOLDER). Takes about a minute.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=${BUILD:-$root/build/gpu_check}
if [ -z "${TETRA_TORCH:-}" ]; then
  TETRA_TORCH=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null || true)
fi
cmake -S "$root/tests/cuda" -B "$build" ${TETRA_TORCH:+-DTETRA_TORCH="$TETRA_TORCH"}
cmake --build "$build" --parallel
code=0
"$build/gpu_check" || code=$?
if [ $code -eq 77 ]; then
  echo "check_gpu: built, but there is no usable GPU here"
fi
exit $code
