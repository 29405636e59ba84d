#!/usr/bin/env bash
# The C++ tests and duckd's own under the address and undefined-behaviour sanitizers, then the fuzz targets for a
# bounded time.
#   FUZZ_SECONDS=10   how long each fuzz target runs (0: not at all)
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
jobs=$(nproc)

cmake -S . -B build/sanitized -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DDUCKFLEET_PYTHON=OFF -DDUCKFLEET_NATIVE_TESTS=ON \
  -DDUCKFLEET_SANITIZE=address,undefined >build/sanitized.log
cmake --build build/sanitized -j "$jobs" >>build/sanitized.log || { tail -n 40 build/sanitized.log >&2; exit 1; }
ctest --test-dir build/sanitized --output-on-failure
# The daemon itself under the sanitizers, through the tests of its ports; without those that wait for time-outs.
DUCKFLEET_DUCKD="$PWD/build/sanitized/runtime/duckd/duckd" python -m pytest -q -p no:cacheprovider tests/runtime/duckd \
  -k "not silent_connection and not unproved_host and not soak"

seconds=${FUZZ_SECONDS:-10}
[ "$seconds" -gt 0 ] || exit 0
command -v clang++ >/dev/null || { echo "clang++ is missing: the fuzz targets are skipped (install clang and libclang-rt-14-dev)"; exit 0; }
cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DDUCKFLEET_PYTHON=OFF \
  -DDUCKFLEET_FUZZ=ON -DDUCKFLEET_SANITIZE=address,undefined >build/fuzz.log
cmake --build build/fuzz -j "$jobs" >>build/fuzz.log || { tail -n 40 build/fuzz.log >&2; exit 1; }
found=0
for target in $(find build/fuzz -type f -name 'fuzz_*' -perm -u+x | sort); do
  found=1
  name=$(basename "$target")
  mkdir -p "build/corpus/$name"
  echo "fuzzing $name for $seconds s"
  "$target" -max_total_time="$seconds" -print_final_stats=1 -max_len=4096 -verbosity=0 \
    -artifact_prefix="build/corpus/$name-crash-" "build/corpus/$name" >"build/$name.log" 2>&1 || {
    tail -n 40 "build/$name.log" >&2
    echo "the fuzz target $name failed; its input is build/corpus/$name-crash-*" >&2
    exit 1
  }
  grep stat::number_of_executed_units "build/$name.log"
done
[ "$found" = 1 ] || { echo "no fuzz target was built" >&2; exit 1; }
