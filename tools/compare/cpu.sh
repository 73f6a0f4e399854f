#!/usr/bin/env bash
# Compares training steps of this program with PyTorch's on this machine's cores: the same shapes, batch, precision,
# threads, optimizer and clipping, in turn within one run (docs/benchmarks.md). Prints a table; options: --help.
#
#   tools/compare/cpu.sh --json rows.json --markdown table.md --svg picture.svg
#
# PYTHON: an interpreter with PyTorch (default: .venv/bin/python, else python3).
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="${PYTHON:-$here/../../.venv/bin/python}"
if [[ -z "${PYTHON:-}" && ! -x "$python" ]]; then python=python3; fi
if ! "$python" -c "import torch" 2>/dev/null; then
  echo "$python has no PyTorch. To install it: python3 -m venv .venv && .venv/bin/pip install -r requirements-dev.txt" >&2
  exit 2
fi
exec "$python" "$here/cpu.py" "$@"
