#!/bin/sh
# Two processes that share every layer learn what one does; one process goes on from their checkpoint.
# usage: tensor_processes.sh TRAINER MPIRUN
. "$(dirname "$0")/../support/tiny_run.sh"

# Losses of two runs agree to a part in 10,000; prints how many.
close() { # CURVE CURVE
  paste -d ' ' "$1" "$2" | tr -d ':"a-z_' | awk '
    { a = $2; b = $5; d = a > b ? a - b : b - a; if (d > 1e-4 * a) { print "step " $1 ": " a " and " b; bad = 1 } }
    END { print NR " losses" > "/dev/stderr"; exit bad || NR == 0 }'
}

make_data
make_config 6
"$trainer" train config.json --set run.directory="$work/one" > one.log 2>&1 || { cat one.log; fail "one process"; }
curve one > one.curve
for sequence in true false; do
  "$mpirun" --oversubscribe -n 2 "$trainer" train config.json --set run.directory="$work/two_$sequence" \
    --set parallel.tensor_parallel_size=2 --set parallel.sequence_parallel=$sequence > two.log 2>&1 ||
    { cat two.log; fail "two processes"; }
  curve two_$sequence > two.curve
  [ "$(wc -l < two.curve)" -eq 6 ] || fail "6 steps are expected in metrics.jsonl"
  close one.curve two.curve || fail "the losses differ"
done
grep -q '"tensor_parallel_size": 2' two_true/plan.json || fail "the plan does not name two tensor-parallel ranks"

longer="--set training.steps=8 --set optimizer.lr_decay_steps=8"
"$trainer" train config.json --set run.directory="$work/two_true" $longer --resume > resumed.log 2>&1 ||
  { cat resumed.log; fail "one process after two"; }
"$trainer" train config.json --set run.directory="$work/one" $longer --resume > on.log 2>&1 ||
  { cat on.log; fail "one process after one"; }
curve one > one.curve
curve two_true > two.curve
[ "$(wc -l < two.curve)" -eq 8 ] || fail "8 steps are expected after resuming"
close one.curve two.curve || fail "the losses differ after resuming"

# Their checkpoint holds whole tensors for whoever reads it.
"$trainer" convert --from two_false --to exported > convert.log 2>&1 || { cat convert.log; fail "convert"; }
for model in two_false exported; do
  "$trainer" eval --model $model --data data --tokenizer byte --sequence-length 32 --json > $model.eval 2> eval.log ||
    { cat eval.log; fail "eval of $model"; }
done
diff two_false.eval exported.eval || fail "the exported model is another"

"$trainer" train config.json --set run.directory="$work/three" --set parallel.tensor_parallel_size=3 > three.log 2>&1
[ $? -eq 2 ] || { cat three.log; fail "one rank of three should be refused"; }
"$mpirun" --oversubscribe -n 4 "$trainer" train config.json --set run.directory="$work/four" \
  --set parallel.tensor_parallel_size=4 > four.log 2>&1 && fail "2 key/value heads were cut over 4 ranks"
grep -q "model.num_query_groups" four.log || { cat four.log; fail "the message does not name the key"; }
echo "tensor-parallel processes agree with one"
