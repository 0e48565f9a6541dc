#!/usr/bin/env bash
# From a fresh clone to the main job: installs, builds, then trains a small GPT-2
# on Shakespeare on one rank and, split over two, under the plan "megatron", and
# compares the two.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CCACHE_SLOPPINESS=pch_defines,time_macros # the precompiled header stays cacheable
[[ ${1:-} != -h && ${1:-} != --help ]] || {
  sed -n '2,4s/^# //p' "$0"
  echo "Options are handed on to 'cleave compare': --steps N, --mesh tp=3, --seed N, ..."
  exit 0
}

title() { printf '\n== %s (%d min %02d s)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }

title "1 of 3: install what is missing"
bash tools/install.sh

title "2 of 3: build"
log=build/logs/configure.log
cmake --preset default >"$log" 2>&1 || {
  cat "$log" >&2
  exit 2
}
NINJA_STATUS='[%f of %t, %e s] ' cmake --build --preset default --parallel "$(nproc)" --target cleave cleave-opt

set -- build/bin/cleave compare models/gpt2.cleave --plans none,megatron --mesh tp=2 \
  --data build/data/shakespeare.txt --steps 100 --batch 8 --seq 128 "$@"
title "3 of 3: train under two plans"
printf '%s\n' "$*"
exec "$@"
