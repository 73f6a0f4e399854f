#!/usr/bin/env bash
# Checks that the architecture is what it says it is:
#   - a file includes only its own floor and floors below it, which are the DEPENDS of src/CMakeLists.txt;
#   - MPI and CUDA headers appear in their own folders only; public headers include nothing internal;
#   - no source file is longer than 600 lines;
#   - no two headers define types of one name: a program that has both may run the wrong one's code.
#
#   check_floors.sh ROOT          prints what is wrong, one line each; exit code 1 if anything is
#   check_floors.sh --self-test   breaks each rule in a scratch tree and expects to hear of it
set -euo pipefail

longest=600

source_files() {
  local folders=()
  for folder in src kernels include tools bench tests; do
    [[ -d $folder ]] && folders+=("$folder")
  done
  find "${folders[@]}" -type f \( -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.py' -o -name '*.sh' \) | sort
}

# "floor: floors it may include", from the calls of trainer_floor.
floors() {
  tr '\n' ' ' <src/CMakeLists.txt | grep -o 'trainer_floor([^)]*)' | awk '
    {
      gsub(/trainer_floor\(|\)/, "")
      in_depends = 0
      order[++count] = $1
      below[$1] = " " $1 " "
      for (i = 2; i <= NF; ++i) {
        if ($i == "DEPENDS") in_depends = 1
        else if ($i == "PRIVATE" || $i == "SOURCES") in_depends = 0
        else if (in_depends && $i ~ /^trainer_/) {
          name = substr($i, 9)
          below[$1] = below[$1] below[name]
        }
      }
    }
    END { for (i = 1; i <= count; ++i) print order[i] ":" below[order[i]] }'
}

check_includes() {
  local table
  table=$(floors)
  source_files | xargs grep -nE '^[[:space:]]*#[[:space:]]*include' /dev/null | awk -v table="$table" '
    BEGIN {
      lines = split(table, line, "\n")
      for (i = 1; i <= lines; ++i) {
        split(line[i], part, ":")
        allowed[part[1]] = part[2]
      }
    }
    {
      file = $0; sub(/:.*/, "", file)
      number = $0; sub(/^[^:]*:/, "", number); sub(/:.*/, "", number)
      header = $0; sub(/^[^"<]*["<]/, "", header); sub(/[">].*/, "", header)
      internal = $0 ~ /include[[:space:]]*"/
      split(file, path, "/")
      where = file ":" number ": "

      if (header ~ /^mpi(_|-|\.h$)|^mpi\// && file !~ /^src\/comm\/mpi\//) print where "MPI belongs into src/comm/mpi: " header
      own = internal && header ~ /^cuda\//
      if (header ~ /^(cuda|cublas|cudnn|curand|nccl|nvToolsExt|nvtx3)/ && !own && file !~ /^(src\/device\/cuda|src\/comm\/nccl|kernels\/cuda)\//)
        print where "CUDA belongs into src/device/cuda, src/comm/nccl or kernels/cuda: " header
      if (path[1] == "include" && internal && header !~ /^trainer\//) print where "a public header includes the internal " header

      floor = path[1] == "src" ? path[2] : path[1] != "kernels" ? "" : path[2] == "dsp" ? "dsp" : "ops"
      if (floor == "" || !internal) next
      if (!(floor in allowed)) { print where "floor " floor " is not in src/CMakeLists.txt"; next }
      split(header, inner, "/")
      target = inner[1] ~ /^(cpu|cuda|simt)$/ ? "kernels" : inner[1]
      if (target == "trainer") {
        if (floor != "app") print where "only src/app implements the public headers: " header
      } else if (target == "kernels") {
        if (floor != "ops") print where "kernels are reached through src/ops only: " header
      } else if (!(target in allowed)) {
        print where "not a floor: " header
      } else if (index(allowed[floor], " " target " ") == 0) {
        print where "floor " floor " may not use floor " target ": " header
      }
    }'
}

check_lengths() {
  source_files | while read -r file; do
    lines=$(wc -l <"$file")
    if ((lines > longest)); then echo "$file: $lines lines; the limit is $longest"; fi
  done
}

check() {
  cd "$1"
  local found
  found=$(check_includes && check_lengths && check_types)
  [[ -z $found ]] && return 0
  echo "$found"
  return 1
}

check_types() {
  source_files | grep '\.h$' | xargs awk '
    FNR == 1 { space = "" }
    /^namespace [a-z:_]+ \{/ { space = $2 }
    /^(class|struct) [A-Z][A-Za-z0-9]*/ && !/^(class|struct) [A-Za-z0-9]+;$/ {
      name = space "::" $2
      if (name in first && first[name] != FILENAME)
        print FILENAME ":" FNR ": type " name " is defined in " first[name] " too; give one of them another name"
      else first[name] = FILENAME
    }'
}

# A tree of three floors in which everything is right.
scratch_tree() {
  mkdir -p "$1"/src/{base,ops,app,comm/mpi} "$1"/kernels/{cpu,dsp} "$1/include/trainer"
  cat >"$1/src/CMakeLists.txt" <<'TREE'
trainer_floor(base SOURCES ${a} DEPENDS fmt::fmt)
trainer_floor(ops SOURCES ${b}
  DEPENDS trainer_base PRIVATE OpenMP::OpenMP_CXX)
trainer_floor(dsp SOURCES ${e} DEPENDS trainer_base)
trainer_floor(comm SOURCES ${c} DEPENDS trainer_base PRIVATE MPI::MPI_CXX)
trainer_floor(app SOURCES ${d} DEPENDS trainer_ops trainer_comm)
TREE
  echo '#include "base/error.h"' >"$1/src/ops/tensor.h"
  echo '#include "ops/tensor.h"' >"$1/kernels/cpu/norm.cc"
  printf '#include "base/error.h"\n#include "dsp/memory.h"\n' >"$1/kernels/dsp/memory.cc"
  printf '#include <mpi.h>\n#include "base/error.h"\n' >"$1/src/comm/mpi/mpi.cc"
  printf '#include "trainer/session.h"\n#include "base/error.h"\n#include "comm/x.h"\n' >"$1/src/app/session.cc"
  echo '#include <string>' >"$1/include/trainer/session.h"
  printf 'struct Shape {\n};\n' >"$1/src/base/shape.h"
}

self_test() {
  local message
  scratch=$(mktemp -d)  # not local: the trap outlives this function
  trap 'rm -rf "$scratch"' EXIT
  scratch_tree "$scratch/right"
  if ! message=$("$0" "$scratch/right"); then
    echo "a right tree was refused: $message"
    return 1
  fi
  local number=0
  # file | line put into it | what must be said
  while IFS='|' read -r file line expected; do
    number=$((number + 1))
    scratch_tree "$scratch/$number"
    mkdir -p "$(dirname "$scratch/$number/$file")"
    echo "$line" >>"$scratch/$number/$file"
    if message=$("$0" "$scratch/$number"); then
      echo "not caught: $file: $line"
      return 1
    fi
    if [[ $message != *"$file"*"$expected"* ]]; then
      echo "caught, but said: $message"
      return 1
    fi
  done <<'WRONG'
src/base/error.h|#include "ops/tensor.h"|floor base may not use floor ops
src/ops/tensor.h|  #  include "comm/communicator.h"|floor ops may not use floor comm
src/ops/tensor.h|#include "somewhere/else.h"|not a floor
src/comm/group.cc|#include <mpi.h>|MPI belongs
src/app/session.cc|#include <cuda_runtime.h>|CUDA belongs
src/app/session.cc|#include "cpu/norm.h"|kernels are reached through
kernels/cpu/norm.cc|#include "app/session.h"|floor ops may not use floor app
kernels/dsp/memory.cc|#include "ops/tensor.h"|floor dsp may not use floor ops
src/app/session.cc|#include "dsp/memory.h"|floor app may not use floor dsp
src/ops/tensor.h|#include "trainer/session.h"|only src/app
include/trainer/session.h|#include "base/error.h"|public header
src/extra/new.cc|#include "base/error.h"|floor extra is not in
src/ops/tensor.h|struct Shape { int rank; };|type ::Shape is defined in src/base/shape.h too
WRONG
  scratch_tree "$scratch/long"
  for ((i = 0; i <= longest; ++i)); do echo; done >"$scratch/long/src/base/long.cc"
  if message=$("$0" "$scratch/long"); then
    echo "a file that is too long was not caught"
    return 1
  fi
  echo "all $number wrong lines and a long file were caught"
}

case "${1:-}" in
  --self-test) self_test ;;
  "") echo "usage: $0 ROOT | --self-test" >&2; exit 2 ;;
  *) check "$1" ;;
esac
