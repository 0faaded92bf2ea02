#!/bin/sh
# Runs the tests of the native code under the address and undefined-behaviour sanitizers:
#
#     [WORKERS=2] tools/sanitize.sh [--quick] [python]
#
# A selection of formats, one of each kind; with --quick fewer, and undefined behaviour is looked for in portable
# code alone (csrc/CMakeLists.txt). Python itself is not built with the sanitizers, so their runtime has to be
# loaded before it; and pytest must not keep what it says when it stops.
set -eu
mode=ON
chosen="not (e3m3 or e5m2 or mxfp6_e2m3 or bnb_fp4 or kbit4_block128 or every_magnitude or -mse)"
if [ "${1:-}" = --quick ]; then
  mode=QUICK
  chosen="outside or anywhere or strides or slices or experts or replay"
  chosen="$chosen or (every_number_of_rows and (nvfp4 or kbit3)) or (definition and nvfp4 and not mse)"
  chosen="not avx2 and ($chosen)"
  shift
fi
python=${1:-python3}
build=build/sanitize-$mode
PATH="$(dirname "$python"):$PATH" # of the virtual environment, cmake

cmake -S csrc -B "$build" -DBLOCKSCALE_SANITIZE=$mode -DBLOCKSCALE_BUILT="$PWD/build/native" \
  -DPython3_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')"
cmake --build "$build" --parallel

library() { "${CXX:-c++}" -print-file-name="$1"; }
LD_PRELOAD="$(library libasan.so) $(library libstdc++.so.6)" # the second for torch's exceptions
ASAN_OPTIONS=detect_leaks=0 # Python's and torch's are not ours
UBSAN_OPTIONS=print_stacktrace=1
BLOCKSCALE_NATIVE=$(realpath "$build")/libblockscale_cpu.so
BLOCKSCALE_REPLAY=$(realpath "$build")/_replay.abi3.so
PYTHONPATH=tools
export PYTHONPATH LD_PRELOAD ASAN_OPTIONS UBSAN_OPTIONS BLOCKSCALE_NATIVE BLOCKSCALE_REPLAY
exec "$python" -m pytest -q -n "${WORKERS:-auto}" --dist worksteal --capture=no -p no:cacheprovider -p malloc_memory \
  tests/kernels/test_cpu_matmul.py tests/kernels/test_int8_activations.py \
  tests/kernels/test_cpu_quantize.py tests/layouts/test_cpu_tiles.py tests/kernels/test_replay*.py \
  -k "$chosen"
