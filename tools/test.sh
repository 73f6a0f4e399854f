#!/usr/bin/env bash
# Builds libtrainer and runs its tests, doing its own set-up.
#
#   tools/test.sh           everything: sanitizers (one of them as without CUDA), then the whole suite
#   tools/test.sh --quick   the default build and the whole suite only
#
# Stops at the first failure. The last lines are ctest's summary of the whole suite.
set -euo pipefail
cd "$(dirname "$0")/.."

quick=false
case "${1:-}" in
  "") ;;
  --quick) quick=true ;;
  *)
    echo "usage: $0 [--quick]" >&2
    exit 2
    ;;
esac

# Open MPI refuses to start as root, as in a container, unless told.
if ((EUID == 0)); then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

section() { echo "== $1 (at $((SECONDS / 60)) min $((SECONDS % 60)) s)"; }

build() {
  section "build: $1"
  cmake --preset "$1" >/dev/null
  cmake --build --preset "$1"
}

check() {
  section "tests: $1"
  ctest --preset "$1"
}

section "packages"
tools/install_packages.sh
build default
if ! $quick; then
  build asan
  check asan
  build tsan
  check tsan
fi
check default
