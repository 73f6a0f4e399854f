#!/bin/sh
# Two processes measure all variants of a tiny config: names and fields that scripts rely on, equal losses, and
# what does not fit the budget or cannot be is said.
# usage: ablate_processes.sh TRAINER MPIRUN
. "$(dirname "$0")/../support/tiny_run.sh"
cat > config.json << END
{
  "model": {"architecture": "llama", "num_layers": 4, "hidden_size": 32, "ffn_hidden_size": 64,
            "num_attention_heads": 4, "num_query_groups": 2, "vocabulary_size": 64},
  "data": {"data_path": "synthetic", "sequence_length": 32},
  "training": {"steps": 4, "micro_batch_size": 1, "global_batch_size": 4, "seed": 3},
  "parallel": {"pipeline_parallel_size": 2, "zero_stage": 2},
  "schedule": {"activation": "checkpoint", "recovery_buffers": 1},
  "precision": {"compute": "fp32"},
  "optimizer": {"lr": 1e-2, "lr_decay_style": "constant"},
  "device": {"threads": 1},
  "run": {"directory": "unused"}
}
END
ablate() { # NAME ARGUMENT...
  name=$1
  shift
  "$mpirun" --oversubscribe -n 2 "$trainer" ablate config.json --json "$name.json" --markdown "$name.md" \
    --steps 2 --warm-up 1 "$@" > "$name.log" 2>&1
}
values() { # FILE KEY
  sed -n "s/^    \"$2\": *\(.*[^,]\),*\$/\1/p" "$1"
}
count() { # FILE KEY VALUE
  values "$1" "$2" | grep -cx "$3"
}
names="full no_layer_state_pipeline no_update_prefetch no_forward_side_recovery baseline_1f1b backward_checkpoint
full_save tp_heavy zero3_heavy"

for sizes in "2 1" "1 2"; do
  set -- $sizes
  run=stages$1
  ablate "$run" --rounds 2 --set "parallel.pipeline_parallel_size=$1" --set "parallel.data_parallel_size=$2" ||
    { cat "$run.log"; fail "$1 stages, $2 replicas"; }
  [ "$(values "$run.json" name | tr -d '"' | xargs)" = "$(echo $names)" ] || { cat "$run.json"; fail "$run: names"; }
  for key in step_seconds tail_seconds peak_memory_bytes predicted_memory_bytes; do
    [ "$(values "$run.json" $key | grep -c '^[0-9.e-]*$')" -eq 9 ] || { cat "$run.json"; fail "$run: $key"; }
  done
  for key in comm update prefetch recover; do
    [ "$(grep -c "^      \"$key\": [0-9.e-]*,*\$" "$run.json")" -ge 9 ] || { cat "$run.json"; fail "$run: $key"; }
  done
  [ "$(count "$run.json" losses_hold true)" -eq 9 ] || { cat "$run.log"; fail "$run: losses"; }
  [ "$(count "$run.json" bits_equal_to_full true)" -ge 8 ] || { cat "$run.log"; fail "$run: bits"; }
  [ "$(count "$run.json" repeats true)" -eq 9 ] || { cat "$run.log"; fail "$run: rounds"; }
  [ "$(values "$run.json" peak_memory_bytes)" = "$(values "$run.json" predicted_memory_bytes)" ] ||
    { cat "$run.log"; fail "$run: memory"; }
  grep -q "($run.svg)" "$run.md" && grep -q '</svg>' "$run.svg" || fail "$run: document"
done
# Four steps' losses, all different.
[ "$(grep -A 4 -m 1 '"losses"' stages2.json | sed 1d | sort -u | wc -l)" -eq 4 ] || fail "the losses do not change"

memory_of() { # FILE NAME
  sed -n "/\"name\": \"$2\"/,/\"losses\"/s/.*\"predicted_memory_bytes\": \([0-9]*\).*/\1/p" "$1"
}
need=$(memory_of stages2.json full_save)
[ "$(memory_of stages2.json full)" -lt "$need" ] || fail "recovery needs no less memory than keeping"
ablate tight --rounds 1 --variants full_save --set "device.memory_budget=$((need - 1))" ||
  { cat tight.log; fail "a budget between the two"; }
[ "$(values tight.json name | xargs)" = "full full_save" ] || { cat tight.json; fail "--variants"; }
[ "$(values tight.json out_of_memory | xargs)" = "false true" ] || { cat tight.json; fail "what does not fit"; }
grep -q '^| full_save *| out of memory' tight.md || { cat tight.md; fail "the table"; }
ablate over --rounds 1 --variants full_save --over-budget --set "device.memory_budget=$((need - 1))" ||
  { cat over.log; fail "--over-budget"; }
[ "$(values over.json step_seconds | grep -c '^[0-9]')" -eq 2 ] || { cat over.json; fail "--over-budget"; }
ablate none --set device.memory_budget=1000
[ $? -eq 2 ] && grep -q "memory_budget" none.log || { cat none.log; fail "a plan above its budget"; }
echo "18 variants with the same losses"
