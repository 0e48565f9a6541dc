#!/usr/bin/env bash
# Installs, builds and runs all tests: the whole of Cleave, then what links no
# LLVM once more under AddressSanitizer and UndefinedBehaviorSanitizer, and of that
# what has threads under ThreadSanitizer. Totals at the end; logs in build/logs.
#   tools/test.sh            everything
#   tools/test.sh default    one or more of: default asan tsan
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

suites=("$@")
((${#suites[@]})) || suites=(default asan tsan)
for suite in "${suites[@]}"; do
  [[ $suite =~ ^(default|asan|tsan)$ ]] || {
    echo "tools/test.sh: there is no suite '$suite': default, asan, tsan" >&2
    exit 1
  }
done

export CCACHE_SLOPPINESS=pch_defines,time_macros # the precompiled header stays cacheable
export NINJA_STATUS='[%f of %t, %e s] '
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-second_deadlock_stack=1}
jobs=$(nproc)
logs=build/logs
mkdir -p "$logs"

title() { printf '\n== %s (%d min %02d s)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }

title "install"
bash tools/install.sh

# Sets aside what a run left: results that are counted must be of this run.
results=build/test-results
rm -rf "$results"
mkdir -p "$results"
broken=()

run_suite() {
  local suite=$1 folder=build options=() select=()
  if [[ $suite != default ]]; then
    folder=build/$suite
    options+=(-DCLEAVE_LOADER=OFF) # it links LLVM
  fi
  case $suite in
  asan) select=(--exclude-regex '^oracles\.') ;;           # Python
  tsan) select=(--exclude-regex '^(oracles|frontend|search)\.') ;; # and what has one thread
  esac
  title "$suite: build"
  if ! cmake --preset "$suite" "${options[@]}" >"$logs/$suite-configure.log" 2>&1; then
    cat "$logs/$suite-configure.log"
    return 1
  fi
  cmake --build --preset "$suite" --parallel "$jobs" 2>&1 | tee "$logs/$suite-build.log" || return 1
  title "$suite: tests"
  # A test that fails is in the results; anything else that goes wrong leaves none.
  ctest --test-dir "$folder" --parallel "$jobs" --output-on-failure --no-tests=error "${select[@]}" \
    --test-output-size-passed 50000000 --test-output-size-failed 50000000 \
    --output-junit "$PWD/$results/$suite.xml" 2>&1 | tee "$logs/$suite-ctest.log" || true
  [[ -s $results/$suite.xml ]]
}

for suite in "${suites[@]}"; do
  run_suite "$suite" || broken+=("$suite")
done

title "totals"
/usr/bin/python3 - "$results" "${broken[@]}" <<'PYTHON'
# Counts cases: those that a GoogleTest program or lit reports, else ctest's own.
import pathlib
import re
import sys
import xml.etree.ElementTree as tree

folder, broken = pathlib.Path(sys.argv[1]), sys.argv[2:]
number = lambda pattern, text: sum(int(n) for n in re.findall(pattern, text, re.M))
total = [0, 0, 0]
for file in sorted(folder.glob("*.xml")):
    counts, bad = [0, 0, 0], []
    for case in tree.parse(file).getroot().iter("testcase"):
        text = case.findtext("system-out") or ""
        passed = number(r"^\[  PASSED  \] (\d+) test", text)
        failed = number(r"^\[  FAILED  \] (\d+) tests?, listed below", text)
        skipped = number(r"^\[  SKIPPED \] (\d+) test", text)
        if re.search(r"^Testing Time:", text, re.M):  # lit
            passed += number(r"^ *(?:Passed|Expectedly Failed) *: *(\d+)", text)
            failed += number(r"^ *(?:Failed|Timed Out|Unresolved|Unexpectedly Passed) *: *(\d+)", text)
            skipped += number(r"^ *(?:Unsupported|Skipped|Excluded) *: *(\d+)", text)
        if case.find("failure") is not None or case.get("status") == "fail":
            bad.append(case.get("name"))
            failed = max(failed, 1)
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            skipped = max(skipped, 1)
        elif passed + failed + skipped == 0:
            passed = 1
        counts = [a + b for a, b in zip(counts, (passed, failed, skipped))]
    print(f"{file.stem}: {counts[0]} passed, {counts[1]} failed, {counts[2]} skipped")
    for name in bad:
        print(f"  failed: {name}")
    total = [a + b for a, b in zip(total, counts)]
for name in broken:
    print(f"{name}: did not get as far as its tests; see above and build/logs/{name}-*.log")
total[1] += len(broken)
print(f"\n{total[0]} passed, {total[1]} failed, {total[2]} skipped")
sys.exit(0 if total[1] == 0 and total[0] > 0 else 1)
PYTHON
