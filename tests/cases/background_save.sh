#!/bin/sh
# Saving in the background takes a copy of the state where the memory budget has room for it, and only there; what is
# saved is the same.
# usage: background_save.sh TRAINER
. "$(dirname "$0")/../support/tiny_run.sh"

make_data
make_config 2
train() { # DIRECTORY OPTIONS...
  directory=$1
  shift
  "$trainer" train config.json --set checkpoint.save_interval=1 --set run.directory="$directory" "$@" > "$directory.log" 2>&1 ||
    { cat "$directory.log"; fail "training"; }
}

train copied
grep -q "copy of the state for checkpoints" copied.log || { cat copied.log; fail "no copy in the plan"; }
arenas=$(sed -n 's/.*"\(long\|medium\|short\)": \([0-9]*\).*/\2/p' copied/plan.json | awk '{ sum += $1 } END { print sum }')
train waited --set device.memory_budget="$arenas"
grep -q "training waits while checkpoints are written" waited.log || { cat waited.log; fail "the budget is not kept"; }
grep -q "copy of the state for checkpoints" waited.log && fail "a copy beyond the budget"
compared=0
for part in copied/checkpoints/step_*/*.safetensors; do
  cmp "$part" "waited/${part#copied/}" || fail "the two ways of saving differ"
  compared=$((compared + 1))
done
[ $compared -eq 2 ] || fail "$compared checkpoints instead of 2"
echo "both ways save the same"
