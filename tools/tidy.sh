#!/usr/bin/env bash
# clang-tidy over Tetra's own sources with the flags of a configured build folder: tools/tidy.sh [FILE.cpp ...]
# Exit code 1 where it finds something.
#
#   TETRA_BUILD=build      the build folder, for its compile_commands.json
#   TETRA_TIDY_SECONDS=N   start no file after N seconds (CI's budget); what was left out is named, and is no failure
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jobs=${JOBS:-$(nproc)}
limit=${TETRA_TIDY_SECONDS:-0}
build=${TETRA_BUILD:-build}
database=$(mktemp -d)
trap 'rm -rf "$database"' EXIT

# The CUDA files' and third-party flags are not clang's: only the rooms' .cpp files, each once.
mapfile -t files < <(python3 - "$build" "$database" "$@" <<'PYTHON'
import json, os, subprocess, sys
build, out, wanted = sys.argv[1], sys.argv[2], {os.path.realpath(f) for f in sys.argv[3:]}
rooms = tuple(os.path.join(os.getcwd(), room) + "/" for room in ("kernels", "mesh", "parallel", "models", "train", "launch"))
entries = {}
for entry in json.load(open(os.path.join(build, "compile_commands.json"))):
    name = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
    if name.endswith(".cpp") and (name in wanted if wanted else name.startswith(rooms)):
        entries.setdefault(name, dict(entry, file=name))
json.dump(list(entries.values()), open(os.path.join(out, "compile_commands.json"), "w"))
# Sources that changed last come first, so that a budget is spent where the news is: uncommitted ones, then by commit.
def names(*command):
    return subprocess.run(["git", *command], capture_output=True, text=True).stdout.splitlines()
recent = names("diff", "--name-only", "HEAD") + names("log", "-n", "200", "--name-only", "--format=")
place = {os.path.realpath(name): i for i, name in reversed(list(enumerate(recent)))}
print("\n".join(sorted(entries, key=lambda name: place.get(name, len(recent)))))
PYTHON
)
[[ ${#files[@]} -gt 0 && -n ${files[0]} ]] || { echo "tidy: no such file in $build/compile_commands.json: $*" >&2; exit 1; }

check_one() {
  if ((limit > 0 && $(date +%s) >= begin + limit)); then
    echo "$1" >>"$database/skipped"
    return 0
  fi
  local log
  log=$(mktemp -p "$database")
  clang-tidy --quiet -p "$database" "$1" >"$log" 2>/dev/null || { cat "$log"; return 1; }
}
export -f check_one
export database limit
begin=$(date +%s)
export begin

status=0
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$jobs" bash -c 'check_one "$1"' _ || status=1
skipped=0
[[ ! -f $database/skipped ]] || { skipped=$(wc -l <"$database/skipped"); echo "tidy: no time for:"; cat "$database/skipped"; }
echo "tidy: $((${#files[@]} - skipped)) of ${#files[@]} files in $(($(date +%s) - begin)) s, $( ((status)) && echo 'with findings' || echo 'clean')"
exit $status
