# The ways in. CMake and Ninja do the building; this file only saves typing. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

JOBS ?= $(shell nproc)
TORCH = $(if $(TETRA_TORCH),$(TETRA_TORCH),.deps/python/torch)
# A libtorch that is given anew takes the place of the one that an earlier configure found.
CMAKE_FLAGS = $(if $(TETRA_TORCH),-U TETRA_TORCH_INCLUDE -DTETRA_TORCH='$(TETRA_TORCH)') $(CMAKE_ARGS)
CONFIGURE = cmake $(CMAKE_FLAGS) --log-level=WARNING --preset
OURS = git ls-files -z --cached --others --exclude-standard '*.cpp' '*.h' '*.cu' '*.cuh'
# The demo reads libtorch's headers; examples/demo.yaml names those of .deps, a libtorch that is given has its own.
GIVEN_TEXT = --set 'data.text=["$(TORCH)/include/c10/*/*.h", "$(TORCH)/include/ATen/*/*.h", "$(TORCH)/include/torch/csrc/*/*/*.h"]'
DEMO_TEXT = $(if $(TETRA_TORCH),$(GIVEN_TEXT))
# Programs that build and run fast enough under a sanitizer; races are between ranks, which are mesh's.
SANITIZED_asan = mesh kernels
SANITIZED_tsan = mesh

## deps: install what building needs (Debian packages, libtorch), where it is missing
.PHONY: deps
deps:
	@tools/setup.sh build

## build: build the command, build/tetra
.PHONY: build
build: deps
	@$(CONFIGURE) release -DTETRA_TESTS=OFF -DTETRA_BENCH=OFF
	@cmake --build build -j $(JOBS) --target tetra_command

## demo: train a small Llama with tp 2 x dp 2 on real text, and let it write (about 3 minutes)
.PHONY: demo
demo: build
	@rm -rf out/demo
	build/tetra train -n 4 examples/demo.yaml $(DEMO_TEXT)
	@echo
	build/tetra generate out/demo --prompt '#include <ATen/'

## test: install what the tests need, build everything, run all tests
.PHONY: test
test: test-build
	@ctest --test-dir build --output-on-failure -j $(JOBS)

.PHONY: test-build
test-build:
	@tools/setup.sh test
	@$(CONFIGURE) release -DTETRA_TESTS=ON -DTETRA_BENCH=OFF
	@cmake --build build -j $(JOBS)

## bench: build the benchmarks and compare with accelerate (about 15 minutes)
.PHONY: bench
bench:
	@tools/setup.sh bench
	@$(CONFIGURE) release -DTETRA_BENCH=ON
	@cmake --build build -j $(JOBS)
	tools/python.sh bench/compare_accelerate.py

## asan: the fast test programs under the address and undefined-behaviour sanitizers
.PHONY: asan
asan:
	$(call sanitize,asan)

## tsan: the same under the thread sanitizer
.PHONY: tsan
tsan:
	$(call sanitize,tsan)

# Leaks and races inside libtorch, which is not instrumented, are not ours to report: tools/sanitizers/*.txt.
define sanitize
@tools/setup.sh test
@$(CONFIGURE) $(1)
@cmake --build build-$(1) -j $(JOBS) --target $(SANITIZED_$(1):%=%_test)
@ASAN_OPTIONS=detect_leaks=1:detect_odr_violation=0 LSAN_OPTIONS=suppressions=$(CURDIR)/tools/sanitizers/leak.txt:print_suppressions=0 \
UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=suppressions=$(CURDIR)/tools/sanitizers/thread.txt:ignore_noninstrumented_modules=1 OMP_NUM_THREADS=1 \
ctest --test-dir build-$(1) --output-on-failure -j $(JOBS) -R '^($(subst $() $(),|,$(SANITIZED_$(1))))[.]'
endef

## format: let clang-format write all sources
.PHONY: format
format:
	@tools/setup.sh lint
	@$(OURS) | xargs -0 -r clang-format -i

## format-check: fail where clang-format would change something
.PHONY: format-check
format-check:
	@tools/setup.sh lint
	@$(OURS) | xargs -0 -r clang-format --dry-run -Werror

## tidy: clang-tidy over the rooms' own sources; FILES='a.cpp b.cpp' for some alone
.PHONY: tidy
tidy:
	@tools/setup.sh lint
	@[[ -f build/compile_commands.json ]] || $(MAKE) test-build
	@tools/tidy.sh $(FILES)

## clean: remove build folders and output, not .deps
.PHONY: clean
clean:
	@rm -rf build build-debug build-asan build-tsan out

## help: this list
.PHONY: help
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST) | awk -F ': ' '{printf "  make %-14s %s\n", $$1, $$2}'
