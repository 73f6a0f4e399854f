#!/bin/sh
# A rank that is killed ends the job within a minute with a status other than zero; a job that is asked to stop saves
# and ends well. Either way the run goes on from its last checkpoint with the bits of an undisturbed one.
# usage: killed_job.sh TRAINER MPIRUN RANKS
. "$(dirname "$0")/../support/tiny_run.sh"
ranks=$3
pipeline=2
make_data
steps=120 # takes far longer than it takes to see the first checkpoint
make_config $steps
common="--set parallel.pipeline_parallel_size=$pipeline --set checkpoint.save_interval=5"

launch() { # NAME ARGUMENTS...
  name=$1
  shift
  exec "$mpirun" --oversubscribe -n "$ranks" "$trainer" train config.json --set run.directory="$work/$name" $common "$@"
}

workers() { # NAME: processes of the program, launcher left out
  for p in /proc/[0-9]*; do
    [ "$(readlink "$p/exe" 2> /dev/null)" = "$(readlink -f "$trainer")" ] || continue
    tr '\0' '\n' < "$p/cmdline" 2> /dev/null | grep -qx "run.directory=$work/$1" && basename "$p"
  done
}

wait_for_checkpoint() { # NAME
  i=0
  until ls "$work/$1/checkpoints/" 2> /dev/null | grep -q '^step_[0-9]*$'; do
    i=$((i + 1))
    [ $i -lt 1200 ] || { cat "$1.log"; fail "no checkpoint after two minutes"; }
    sleep 0.1
  done
}

finish() { # LAUNCHER NAME: waits for its end, not longer than a minute
  begin=$(date +%s)
  wait "$1"
  status=$?
  [ $(($(date +%s) - begin)) -le 60 ] || fail "$2: the job took more than a minute to end"
  i=0
  while [ -n "$(workers "$2")" ]; do
    i=$((i + 1))
    [ $i -lt 100 ] || fail "$2: processes are left"
    sleep 0.1
  done
}

launch whole > whole.log 2>&1 &
wait $!
status=$?
[ $status -eq 0 ] || { cat whole.log; fail "undisturbed run"; }
curve whole > whole.curve
[ "$(wc -l < whole.curve)" -eq $steps ] || fail "the undisturbed run has other than $steps steps"

for signal in KILL TERM; do
  launch $signal > $signal.log 2>&1 &
  launcher=$!
  wait_for_checkpoint $signal
  victim=$(workers $signal | tail -n 1)
  [ -n "$victim" ] || fail "$signal: no process to send it to"
  kill -$signal "$victim"
  finish $launcher $signal
  if [ $signal = KILL ]; then
    [ $status -ne 0 ] || { cat $signal.log; fail "a killed rank went unnoticed"; }
  else
    [ $status -eq 0 ] || { cat $signal.log; fail "a stop that was asked for ended with $status"; }
  fi
  [ "$(curve $signal | wc -l)" -lt $steps ] || fail "$signal: the job was over before"
  (launch $signal --resume) > $signal.resumed.log 2>&1 ||
    { cat $signal.log $signal.resumed.log; fail "$signal: could not go on"; }
  grep -q "resuming after step" $signal.resumed.log || { cat $signal.resumed.log; fail "$signal: began anew"; }
  curve $signal > resumed.curve
  cmp resumed.curve whole.curve || { diff resumed.curve whole.curve | head; fail "$signal: the losses differ"; }
done
echo "stopped at once, resumed exactly"
