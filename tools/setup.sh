#!/usr/bin/env bash
# Installs what is missing on a Debian machine (12 or later), and nothing else; run again, it finds all there in a moment.
#
#   tools/setup.sh            to build: compiler, CMake, libraries, libtorch
#   tools/setup.sh test       and to test: GoogleTest, transformers
#   tools/setup.sh bench      and to compare: Google Benchmark, accelerate
#   tools/setup.sh lint       clang-format and clang-tidy alone
#
# Debian packages come through apt-get, as root or with a sudo that asks no password; otherwise the command to run is
# printed. Python packages go below .deps/python and touch nothing outside the project.
#
#   TETRA_TORCH=DIR      use this libtorch (2.11 or newer) instead of the wheel; CMAKE_PREFIX_PATH works too
#   TETRA_SKIP_APT=1     never call apt-get
#   TETRA_PYTHON=python3 the interpreter to install for
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=$root/.deps
site=$deps/python
python=${TETRA_PYTHON:-python3}
what=${1:-build}

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# ------------------------------------------------------------------------------------------------------ Debian packages
needed=()  # packages without which nothing works
useful=()  # packages that make it faster

need_tool() { have "$1" || needed+=("$2"); }
want_tool() { have "$1" || useful+=("$2"); }

# need_headers HEADER PACKAGE...: asks the compiler itself, so a header anywhere in its path counts.
need_headers() {
  have g++ || { while (($#)); do needed+=("$2"); shift 2; done; return 0; }
  local code=""
  while (($#)); do
    code+="#if !__has_include(<$1>)"$'\n'"MISSING $2"$'\n'"#endif"$'\n'
    shift 2
  done
  local package
  while read -r _ package; do
    needed+=("$package")
  done < <(g++ -E -x c++ - <<<"$code" 2>/dev/null | grep '^MISSING' || true)
}

want_library() {
  have g++ || { useful+=("$2"); return 0; }
  [[ $(g++ -print-file-name="$1") == /* ]] || useful+=("$2")
}

check_build() {
  need_tool g++ g++
  need_tool cmake cmake
  need_tool ninja ninja-build
  need_tool mpicxx libopenmpi-dev
  need_tool mpirun openmpi-bin
  need_headers yaml-cpp/yaml.h libyaml-cpp-dev CLI/CLI.hpp libcli11-dev nlohmann/json.hpp nlohmann-json3-dev
  need_headers xxhash.h libxxhash-dev
  want_tool ccache ccache
  want_tool mold mold
  want_library libtcmalloc_minimal.so libgoogle-perftools-dev
}

check_python() {
  need_tool "$python" python3
  "$python" -c 'import pip' 2>/dev/null || needed+=(python3-pip)
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  else
    sudo -n "$@"
  fi
}

install_debian_packages() {
  ((${#needed[@]} + ${#useful[@]})) || return 0
  local packages=("${needed[@]}" "${useful[@]}")
  local command="apt-get install ${packages[*]}"
  local reason=""
  if [[ -n ${TETRA_SKIP_APT:-} && ${TETRA_SKIP_APT} != 0 ]]; then
    reason="TETRA_SKIP_APT is set"
  elif ! have apt-get; then
    reason="this machine has no apt-get"
  elif [[ $(id -u) != 0 ]] && ! { have sudo && sudo -n true 2>/dev/null; }; then
    reason="only root may install"
  fi
  if [[ -n $reason ]]; then
    ((${#needed[@]} == 0)) || die "these are missing, and $reason; please run: $command"
    say "would be faster with ${useful[*]} ($reason)"
    return 0
  fi
  say "installing Debian packages: ${packages[*]}"
  mkdir -p "$deps"
  local log=$deps/apt.log
  as_root apt-get update >"$log" 2>&1 || say "apt-get update failed (see $log); trying with the lists that are there"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    "${packages[@]}" >>"$log" 2>&1 && return 0
  tail -n 15 "$log" >&2
  ((${#needed[@]} == 0)) || die "apt-get could not install them; the whole log is $log"
  say "going on without ${useful[*]}"
}

# ------------------------------------------------------------------------------------------------------ Python packages
# installed NAME VERSION: pip's own record, which is moved in last and so tells that the package is whole.
installed() { [[ -d $site/${1//-/_}-$2.dist-info || -d $site/$1-$2.dist-info ]]; }

# pip_install REQUIREMENT...: exact versions, without dependencies, into .deps/python. pip's --target does not merge packages
# that share a folder (nvidia/), so it fills a fresh folder that is then moved in, records last.
pip_install() {
  local missing=() item
  for item in "$@"; do
    installed "${item%%==*}" "${item##*==}" || missing+=("$item")
  done
  ((${#missing[@]})) || return 0
  say "installing into .deps/python: ${missing[*]}"
  local stage=$deps/stage log=$deps/pip.log
  rm -rf "$stage"
  mkdir -p "$stage"
  PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 \
    "$python" -m pip install --no-deps --only-binary :all: --target "$stage" "${missing[@]}" >"$log" 2>&1 ||
    { tail -n 15 "$log" >&2; die "pip could not install them for $("$python" --version 2>&1); the whole log is $log"; }
  mkdir -p "$site"
  for item in "${missing[@]}"; do  # an older version's record, and its files, must not stay
    remove_package "${item%%==*}"
  done
  mkdir -p "$stage.records"
  mv "$stage"/*.dist-info "$stage.records"
  cp -alTf "$stage" "$site"
  cp -alf "$stage.records"/. "$site"
  rm -rf "$stage" "$stage.records"
}

remove_package() {
  local record
  for record in "$site/${1//-/_}"-[0-9]*.dist-info "$site/$1"-[0-9]*.dist-info; do
    [[ -f $record/RECORD ]] || continue
    (cd "$site" && cut -d, -f1 "$record/RECORD" | tr -d '"' | grep -v '^\.\.\|^/' | xargs -r -d '\n' rm -f --)
    rm -rf "$record"
  done
}

pip_install_file() {
  local lines
  mapfile -t lines < <(grep -v '^#' "$root/tools/$1")
  pip_install "${lines[@]}"
}

# ------------------------------------------------------------------------------------------------------------- libtorch
is_libtorch() { [[ -f $1/include/ATen/core/Tensor.h && -f $1/lib/libtorch_cpu.so ]]; }

# The libtorch that the user gave, if any.
given_torch() {
  if [[ -n ${TETRA_TORCH:-} ]]; then
    is_libtorch "$TETRA_TORCH" || die "TETRA_TORCH=$TETRA_TORCH holds no include/ATen/core/Tensor.h and lib/libtorch_cpu.so"
    echo "$TETRA_TORCH"
    return 0
  fi
  local prefix
  while IFS= read -r -d ':' prefix; do
    if [[ -n $prefix ]] && is_libtorch "$prefix"; then
      echo "$prefix"
      return 0
    fi
  done <<<"${CMAKE_PREFIX_PATH:-}:"
}

toolkit_folders() {
  local cuda
  for cuda in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    [[ -n $cuda ]] && printf '%s\n' "$cuda/lib64" "$cuda/extras/CUPTI/lib64"
  done
}

# provide SONAME: succeeds when the loader will find the library; one that only the toolkit's folder has is linked into the
# folder where torch's libraries look beside themselves.
provide() {
  local place
  for place in "$site"/nvidia/*/lib/"$1"; do
    [[ -e $place ]] && return 0
  done
  while read -r place; do
    [[ -e $place ]] && return 0
  done < <({ ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | awk -v name="$1" '$1 == name {print $NF}')
  while read -r place; do
    if [[ -e $place/$1 ]]; then
      mkdir -p "$site/nvidia/cu13/lib"
      ln -sf "$place/$1" "$site/nvidia/cu13/lib/$1"
      return 0
    fi
  done < <(toolkit_folders)
  return 1
}

# install_torch_libraries SET: core (libtorch_cpu) or python (import torch).
install_torch_libraries() {
  local group soname package missing=()
  while read -r group soname package; do
    [[ $group == "$1" ]] || continue
    provide "$soname" || [[ " ${missing[*]} " == *" $package "* ]] || missing+=("$package")
  done <"$root/tools/torch-libraries.txt"
  ((${#missing[@]} == 0)) || pip_install "${missing[@]}"
}

install_torch() {
  local given
  given=$(given_torch)
  if [[ -n $given ]]; then
    say "using the libtorch in $given"
  else
    [[ $(uname -m) == x86_64 || $(uname -m) == aarch64 ]] || die "no torch wheel for $(uname -m); give a libtorch by TETRA_TORCH=DIR"
    installed torch 2.11.0 || say "libtorch is a download of about 0.5 GB, once"
    pip_install_file requirements-torch.txt
    install_torch_libraries core
  fi
}

# What `import torch, transformers` needs; a libtorch that was given may be a Python package too.
install_test_packages() {
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "the tests need Python 3.11 or newer, this is $("$python" --version 2>&1); set TETRA_PYTHON"
  local given
  given=$(given_torch)
  if [[ -z $given || ! -f $given/__init__.py ]]; then
    pip_install_file requirements-torch.txt
    install_torch_libraries core
    install_torch_libraries python
  fi
  pip_install_file requirements-test.txt
}

# ------------------------------------------------------------------------------------------------------------------ main
case $what in
  build | test | bench) check_build; check_python ;;
  lint) need_tool clang-format clang-format; need_tool clang-tidy clang-tidy ;;
  *) die "unknown set '$what'; use build, test, bench or lint" ;;
esac
case $what in
  test) need_headers gtest/gtest.h libgtest-dev ;;
  bench) need_headers gtest/gtest.h libgtest-dev benchmark/benchmark.h libbenchmark-dev ;;
esac

mkdir -p "$deps"
exec 9>"$deps/lock"
flock 9  # two at once would fill the same folder

install_debian_packages
case $what in
  build) install_torch ;;
  test) install_torch; install_test_packages ;;
  bench) install_torch; install_test_packages; pip_install_file requirements-bench.txt ;;
esac
