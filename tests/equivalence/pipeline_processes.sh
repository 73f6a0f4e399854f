#!/bin/sh
# One process and a pipeline of two write the same losses and gradient norms, to the last bit.
# usage: pipeline_processes.sh TRAINER MPIRUN
. "$(dirname "$0")/../support/tiny_run.sh"
make_data
make_config 8
"$trainer" train config.json --set run.directory="$work/one" > one.log 2>&1 || { cat one.log; fail "one process"; }
"$mpirun" --oversubscribe -n 2 "$trainer" train config.json --set run.directory="$work/two" \
  --set parallel.pipeline_parallel_size=2 > two.log 2>&1 || { cat two.log; fail "two processes"; }
curve one > one.curve
curve two > two.curve
[ "$(wc -l < one.curve)" -eq 8 ] || { cat one/metrics.jsonl; fail "8 steps are expected in metrics.jsonl"; }
[ "$(cut -d ' ' -f 2- one.curve | sort -u | wc -l)" -eq 8 ] || fail "the losses do not change"
diff one.curve two.curve || fail "the curves differ"
cmp -s one/plan.json two/plan.json && fail "both ran the same plan"
grep -q '"pipeline_parallel_size": 2' two/plan.json || fail "the pipeline had no two stages"
echo "8 steps with equal bits"
