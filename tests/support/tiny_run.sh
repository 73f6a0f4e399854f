# Sourced by the scripts that test the trainer program: $trainer, a folder $work that is gone afterwards, a small
# dataset in it, and a config for a tiny model.
set -u
trainer=$1
mpirun=${2:-}
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

make_data() {
  i=0
  while [ $i -lt 400 ]; do
    echo "line $i: the $((i * 7919 % 1000)) th of $((i * 104729 % 977)) lines, and so on"
    i=$((i + 1))
  done > text.txt
  "$trainer" tokenize --input text.txt --output data --tokenizer byte > tokenize.log 2>&1 ||
    { cat tokenize.log; fail "tokenize"; }
}

make_config() { # STEPS
  cat > config.json << END
{
  "model": {"architecture": "llama", "num_layers": 3, "hidden_size": 32, "ffn_hidden_size": 64,
            "num_attention_heads": 4, "num_query_groups": 2, "max_position_embeddings": 64,
            "tie_word_embeddings": true},
  "data": {"data_path": "$work/data", "split": "100,0,0", "tokenizer": "byte", "sequence_length": 32},
  "training": {"steps": $1, "micro_batch_size": 1, "global_batch_size": 4, "seed": 3},
  "parallel": {"pipeline_parallel_size": 1},
  "precision": {"compute": "fp32"},
  "optimizer": {"lr": 1e-2, "lr_decay_style": "constant"},
  "device": {"threads": 1},
  "run": {"directory": "$work/run", "tensorboard": false, "progress": "line"}
}
END
}

# The values of losses and gradient norms, as written.
curve() { # RUN
  sed -n 's/.*"step": *\([0-9]*\).*/\1/p' "$1/metrics.jsonl" > steps.tmp
  grep -o '"loss": *[^,}]*' "$1/metrics.jsonl" > loss.tmp
  grep -o '"grad_norm": *[^,}]*' "$1/metrics.jsonl" > norm.tmp
  paste -d ' ' steps.tmp loss.tmp norm.tmp
}
