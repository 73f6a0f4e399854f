#!/usr/bin/env bash
# Installs what the distribution (Debian or Ubuntu) has of what libtrainer needs, and only what is missing.
#
#   tools/install_packages.sh              to build and test
#   tools/install_packages.sh quickstart   and what tools/quickstart.sh uses: a text and compressors to compare with
#
# Exit code 2: packages are missing and this user may not install them; the command to run is printed.
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config                             # build
  libopenmpi-dev openmpi-bin                                          # ranks as processes
  libdnnl-dev                                                         # oneDNN: benchmarks only
  nlohmann-json3-dev libspdlog-dev libfmt-dev                         # JSON, logging, text
  libsentencepiece-dev libpcre2-dev libutf8proc-dev                   # tokenizers
  coinor-libcbc-dev                                                   # mixed-integer programs: the planner
  libgtest-dev libgmock-dev                                           # tests
  iproute2                                                            # tools/slow_link.sh
)
case "${1:-}" in
  "") ;;
  quickstart) packages+=(bible-kjv gzip jq xz-utils) ;;
  *)
    echo "usage: $0 [quickstart]" >&2
    exit 2
    ;;
esac

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "This script knows Debian and Ubuntu only. Install the equivalents of: ${packages[*]}" >&2
  exit 2
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  echo "All ${#packages[@]} packages are installed."
  exit 0
fi

if ((EUID != 0)); then
  echo "These packages are missing: ${missing[*]}" >&2
  echo "Run this, then try again:" >&2
  echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
  exit 2
fi

echo "Installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install -y -qq --no-install-recommends "${missing[@]}")
# A fresh machine knows no packages yet, and an old one wrong versions: then ask for the lists and try once more.
if ! "${install[@]}" >/dev/null 2>&1; then
  apt-get update -qq
  "${install[@]}" >/dev/null
fi
