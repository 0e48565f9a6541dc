#!/bin/sh
# How much of frontend/ the tests and the mutation driver reach.
#   tests/unit/frontend/coverage.sh [BUILD_FOLDER] [MUTATIONS]
# Builds without MLIR, with clang's source-based coverage, and prints lines by file.
set -eu
source=$(cd "$(dirname "$0")/../../.." && pwd)
build=${1:-$source/build/coverage}
count=${2:-20000}
tool() { # the newest of the tool's names that is there
  for name in "$1-22" "/usr/lib/llvm-22/bin/$1" "$1"; do
    if command -v "$name" >/dev/null 2>&1; then
      echo "$name"
      return
    fi
  done
  echo "$1 is not installed" >&2
  exit 1
}
profdata=$(tool llvm-profdata)
cov=$(tool llvm-cov)
flags="-fprofile-instr-generate -fcoverage-mapping"
cmake -S "$source" -B "$build" -G Ninja -DCLEAVE_MLIR=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_C_COMPILER="$(tool clang)" -DCMAKE_CXX_COMPILER="$(tool clang++)" \
  -DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld-22 -DCMAKE_CXX_FLAGS="$flags" >/dev/null
ninja -C "$build" -j2 cleave_frontend_tests mutate-frontend >/dev/null
rm -f "$build"/frontend-*.profraw
LLVM_PROFILE_FILE="$build/frontend-tests.profraw" "$build/bin/cleave_frontend_tests" --gtest_brief=1
LLVM_PROFILE_FILE="$build/frontend-mutations.profraw" "$build/bin/mutate-frontend" --count "$count" \
  "$source"/models/bert.cleave "$source"/models/gpt2.cleave "$source"/models/llama.cleave \
  "$source"/models/mlp.cleave "$source"/models/pythia.cleave \
  "$source"/tests/unit/frontend/everything.cleave
"$profdata" merge -o "$build/frontend.profdata" "$build"/frontend-*.profraw
"$cov" report "$build/bin/cleave_frontend_tests" -object "$build/bin/mutate-frontend" \
  -instr-profile="$build/frontend.profdata" --show-region-summary=false --show-branch-summary=false \
  "$source/frontend"
