#!/usr/bin/env bash
# From a clean clone to a trained model: installs what is missing, builds, makes a vocabulary and a dataset from a text
# that comes as a distribution package, trains a small model as a two-stage pipeline, and shows what it learned.
#
#   tools/quickstart.sh            about eight minutes on two cores, half of them training
#   STEPS=50 tools/quickstart.sh   fewer training steps
set -euo pipefail
cd "$(dirname "$0")/.."

if ((EUID == 0)); then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
say() { printf '\n== %s (at %d min %02d s)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }

say "packages"
tools/install_packages.sh quickstart

say "build"
cmake --preset default >/dev/null
cmake --build --preset default --target trainer
trainer=build/trainer

say "text, vocabulary, dataset"
data=data/quickstart
if [[ ! -f $data/heldout.idx ]]; then
  rm -rf "$data"
  mkdir -p "$data/parts"
  # One verse a line, without its reference.
  PATH=$PATH:/usr/games bible -f 'gen1:1-rev22:21' | sed -E 's/^[0-9]?[A-Za-z]+[0-9]+:[0-9]+ //' >"$data/all.txt"
  # The last 5 % are never trained on.
  lines=$(head -c $(($(wc -c <"$data/all.txt") * 95 / 100)) "$data/all.txt" | wc -l)
  head -n "$lines" "$data/all.txt" >"$data/train.txt"
  tail -n +$((lines + 1)) "$data/all.txt" >"$data/heldout.txt"
  # A hundred documents, of which the last few serve to watch the validation loss.
  split -n l/100 -d -a 3 "$data/train.txt" "$data/parts/"
  "$trainer" tokenize --input "$data"/parts/* --train-tokenizer sentencepiece --vocabulary-size 4096 \
    --tokenizer-output "$data/tokenizer" --output "$data/train" --append-eod
  "$trainer" tokenize --input "$data/heldout.txt" --tokenizer "$data/tokenizer" --output "$data/heldout" --append-eod
fi

number=1
while [[ -e $(printf 'runs/quickstart-%03d' "$number") ]]; do number=$((number + 1)); done
run=$(printf 'runs/quickstart-%03d' "$number")
mkdir -p runs
say "training: two ranks, two pipeline stages, in $run"
# The last stage also has the vocabulary's matrix, so it gets fewer of the six layers.
mpirun -n 2 --oversubscribe --bind-to none "$trainer" train configs/quickstart.json --set "run.directory=$run" \
  --set "parallel.stage_layers=[4,2]" ${STEPS:+--set "training.steps=$STEPS"}
ln -sfn "$(basename "$run")" runs/quickstart

say "evaluation on the held-out 5 % of the text"
evaluation=$("$trainer" eval --model "$run" --data "$data/heldout" --sequence-length 256 --json)
bits() { awk -v bytes="$1" -v of="$(wc -c <"$data/heldout.txt")" 'BEGIN { printf "%.4f", bytes * 8 / of }'; }
gzip_bits=$(bits "$(gzip -9 -c "$data/heldout.txt" | wc -c)")
xz_bits=$(bits "$(xz -9e -c "$data/heldout.txt" | wc -c)")
# The original bytes count, whatever the tokens stand for; the first token, which nothing predicts, costs log2(4096).
model_bits=$(jq -r --argjson bytes "$(wc -c <"$data/heldout.txt")" \
  '(.loss * .tokens / (2 | log) + 12) / $bytes' <<<"$evaluation")
printf 'bits per byte: model %.4f, gzip -9 %s, xz -9 %s\n' "$model_bits" "$gzip_bits" "$xz_bits"

summary=$(jq --argjson model "$model_bits" --argjson gzip "$gzip_bits" --argjson xz "$xz_bits" --argjson total "$SECONDS" \
  '. + {bits_per_byte: $model, gzip_bits_per_byte: $gzip, xz_bits_per_byte: $xz, total_seconds: $total}' \
  "$run/summary.json")
printf '%s\n' "$summary" >"$run/summary.json"
"$trainer" report "$run" >/dev/null

say "a sample that the model writes"
"$trainer" generate --model "$run" --prompt "And it came to pass" --max-new-tokens 80 --temperature 0.8 --top-k 50 --seed 1

say "done"
cat <<TEXT
Run directory: runs/quickstart -> $run
  report.html      open it in a browser: loss, timeline of the pipeline, memory, where the waiting went
  metrics.jsonl    one line a step            tensorboard/  for TensorBoard
  traces/          for ui.perfetto.dev        checkpoints/  goes on with: trainer train ... --resume
TEXT
awk -v model="$model_bits" -v gzip="$gzip_bits" 'BEGIN { exit !(model < gzip) }' || {
  echo "The model does not compress the held-out text better than gzip -9 yet; train it for more steps." >&2
  exit 1
}
