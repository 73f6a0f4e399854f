#!/bin/sh
# Mechanisms over MPI: two replicas of two stages write the same losses and gradient norms, to the last bit, with
# every pass and without any, whatever is kept and however state is sharded.
# usage: mechanism_processes.sh TRAINER MPIRUN
. "$(dirname "$0")/../support/tiny_run.sh"
make_data
make_config 4

run() { # NAME, then settings
  name=$1
  shift
  settings=
  for setting in "$@"; do settings="$settings --set $setting"; done
  # shellcheck disable=SC2086
  "$mpirun" --oversubscribe -n 4 "$trainer" train config.json --set run.directory="$work/$name" \
    --set parallel.pipeline_parallel_size=2 $settings > "$name.log" 2>&1 || { cat "$name.log"; fail "$name"; }
  curve "$name" > "$name.curve"
}

run baseline schedule.passes=[]
[ "$(wc -l < baseline.curve)" -eq 4 ] || fail "4 steps are expected in metrics.jsonl"
[ "$(cut -d ' ' -f 2- baseline.curve | sort -u | wc -l)" -eq 4 ] || fail "the losses do not change"
run all schedule.activation=checkpoint schedule.last_stage_keeps=false parallel.zero_stage=1
run gathered schedule.activation=checkpoint parallel.zero_stage=3
run batch schedule.activation=selective parallel.zero_stage=2 schedule.passes=[]
run ring parallel.grad_sync=ring 'schedule.passes=["layer_state_pipeline"]'
for name in all gathered batch ring; do
  diff baseline.curve $name.curve || fail "the curve of '$name' differs"
  cmp -s baseline/plan.json $name/plan.json && fail "'$name' ran the baseline's plan"
done
echo "4 other plans with equal bits"
