#!/bin/sh
# Help and errors of the trainer program come at once, say what is wrong, and overwrite nothing.
# usage: command_line.sh TRAINER
. "$(dirname "$0")/../support/tiny_run.sh"
limit=2000 # milliseconds; far less on a machine that is not busy

expect() { # EXIT-CODE TEXT COMMAND...
  code=$1 text=$2
  shift 2
  begin=$(date +%s%N)
  "$@" > out.log 2>&1
  got=$?
  spent=$((($(date +%s%N) - begin) / 1000000))
  [ $got -eq "$code" ] || { cat out.log; fail "exit code $got instead of $code: $*"; }
  grep -q -e "$text" out.log || { cat out.log; fail "'$text' is not said: $*"; }
  [ $spent -lt $limit ] || fail "took $spent ms: $*"
}

expect 0 train "$trainer" --help
expect 0 usage "$trainer" train --help
expect 2 . "$trainer" no-such-command
TRAINER_MAX_ISA=plain expect 0 "host (plain)" "$trainer" version
TRAINER_MAX_ISA=mmx expect 2 "TRAINER_MAX_ISA.*'mmx'.*plain, avx2" "$trainer" version
make_data
make_config 2
expect 2 "no-such.json" "$trainer" train no-such.json
expect 2 "num_layers" "$trainer" train config.json --set model.num_layer=3
expect 2 "missing-data" "$trainer" train config.json --set data.data_path="$work/missing-data"
echo "{ \"model\": " > broken.json
expect 2 "broken.json" "$trainer" train broken.json
# Also where there is such a device: it is hidden.
CUDA_VISIBLE_DEVICES= expect 2 "device.kind.*host" "$trainer" train config.json --set device.kind=cuda
[ ! -e run ] || fail "a failed start made the run directory"

"$trainer" train config.json > train.log 2>&1 || { cat train.log; fail "training"; }
grep -q "info ready after [0-9.]* s: program and MPI [0-9.]*, config and data [0-9.]*, rate of matrix products [0-9.]*, plan [0-9.]*, memory [0-9.]*, weights [0-9.]*$" train.log ||
  { cat train.log; fail "it is not said what the start took"; }
grep -q '"ready_seconds"' run/summary.json || { cat run/summary.json; fail "no ready_seconds"; }
cksum run/metrics.jsonl run/plan.json > before.sum
expect 2 "exists already" "$trainer" train config.json
cksum -- run/metrics.jsonl run/plan.json | cmp -s - before.sum || fail "the refused run changed files"
expect 2 "holds no run" "$trainer" train config.json --resume --set run.directory="$work/other"
expect 2 "hidden_size" "$trainer" train config.json --resume --set model.hidden_size=64
echo "all refused in time"
