"""Compares training steps of build/bench/train_step with PyTorch's on this machine. See cpu.sh."""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

import picture

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Memory that is kept instead of given back after each tensor, in huge pages, and one pool of threads: most of what an
# untuned step spends is page faults.
TUNED = {
    "MALLOC_MMAP_THRESHOLD_": "34359738368",
    "MALLOC_TRIM_THRESHOLD_": "68719476736",
    "MALLOC_TOP_PAD_": "268435456",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
MODELS = ["gpt2-124m", "llama-110m", "qwen2.5-0.5b"]
PEERS = {  # name: environment, options
    "pytorch as installed": ({}, []),
    "pytorch tuned": (TUNED, []),
    "pytorch tuned, compiled": (TUNED, ["--compile"]),
}
STATE_BYTES = 16  # of a parameter: weight, gradient and two moments in fp32
# What llm.c's CPU trainer reached on two cores like these, fp32, four sequences a step; not run here.
RECORDED = [("gpt2-124m", "fp32", 256, "llm.c f1e2ace (recorded)", 46.0)]


def run(command, environment):
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")} | environment
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def measure(a, model, precision, sequence):
    """Rounds of ours and each peer in turn; the median of each."""
    micro_batch = max(1, a.micro_batch_tokens // sequence)
    shared = ["--model", model, "--precision", precision, "--sequence", str(sequence), "--sequences-per-step",
              str(max(micro_batch, a.step_tokens // sequence)), "--micro-batch", str(micro_batch), "--threads",
              str(a.threads), "--steps", str(a.steps)]
    runs = {name: [] for name in ["ours", *a.peers]}
    for round_number in range(a.rounds):
        for name in runs:
            if name == "ours":
                result = run([str(ROOT / "build/bench/train_step"), *shared, "--json"], {})
            else:
                environment, options = PEERS[name]
                torch_step = str(pathlib.Path(__file__).with_name("torch_step.py"))
                result = run([sys.executable, torch_step, *shared, *options], environment)
            if runs["ours"] and result["parameters"] != runs["ours"][0]["parameters"]:
                sys.exit(f"{name} has {result['parameters']} parameters, ours {runs['ours'][0]['parameters']}")
            runs[name].append(result)
            print(f"{model} {precision} {sequence} round {round_number + 1}: {name} "
                  f"{result['tokens_per_second']:.1f} tokens/s", file=sys.stderr)
    middle = {name: statistics.median(r["tokens_per_second"] for r in of) for name, of in runs.items()}
    peak = {name: max(r["peak_memory_bytes"] for r in of) for name, of in runs.items()}
    beyond = {name: peak[name] - STATE_BYTES * runs[name][0]["parameters"] for name in runs}
    ours = {"ours_tokens_per_second": middle["ours"], "ours_peak_memory_bytes": peak["ours"],
            "ours_memory_beyond_state_bytes": beyond["ours"]}
    for key, of in [("ours_of_gemm_rate", "ratio"), ("ours_roofline_ratio", "roofline_ratio")]:
        ours[key] = statistics.median(r[of] for r in runs["ours"])
    rows = []
    for name in a.peers:
        rows.append({
            "model": model, "precision": precision, "sequence": sequence, "peer": name,
            "tokens_per_second": middle[name], "ratio": middle["ours"] / middle[name],
            "peak_memory_bytes": peak[name], "memory_beyond_state_bytes": beyond[name],
            "memory_beyond_state_ratio": beyond["ours"] / beyond[name], **ours,
            "rounds": [[r["tokens_per_second"] for r in runs[n]] for n in (name, "ours")],
        })
    for of_model, of_precision, of_sequence, name, rate in RECORDED:
        if (of_model, of_precision, of_sequence) == (model, precision, sequence):
            rows.append({"model": model, "precision": precision, "sequence": sequence, "peer": name,
                         "tokens_per_second": rate, "ratio": middle["ours"] / rate, "peak_memory_bytes": None, **ours})
    return rows, runs


def write(a, rows, heading):
    for path, content in [(a.json, lambda: json.dumps(rows, indent=1) + "\n"), (a.markdown, lambda: picture.table(rows)),
                          (a.svg, lambda: picture.picture(rows, "Tokens a second, training on this processor"))]:
        if path:
            pathlib.Path(path).write_text(content())


def main():
    parser = argparse.ArgumentParser(prog="tools/compare/cpu.sh", description="Training steps against PyTorch's.")
    parser.add_argument("--json", help="write the rows here")
    parser.add_argument("--markdown", help="write the table here, too")
    parser.add_argument("--svg", help="write a picture of the rates here")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp32"], choices=["bf16", "fp32"])
    parser.add_argument("--sequences", nargs="+", type=int, default=[256, 1024])
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--rounds", type=int, default=3, help="of ours and each peer in turn")
    parser.add_argument("--steps", type=int, default=3, help="timed in each run, at least 3")
    parser.add_argument("--step-tokens", type=int, default=2048, help="of one step")
    parser.add_argument("--micro-batch-tokens", type=int, default=1024, help="of one forward and backward")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a = parser.parse_args()
    for name in ("json", "markdown", "svg"):
        path = getattr(a, name)
        if path and not pathlib.Path(path).absolute().parent.is_dir():
            parser.error(f"--{name} {path}: no such folder")
    if not (ROOT / "build/bench/train_step").exists():
        parser.error("build/bench/train_step is not built: cmake --preset default && cmake --build --preset default")

    rows = []
    for model in a.models:
        for sequence in a.sequences:
            for precision in a.precisions:
                of_case, runs = measure(a, model, precision, sequence)
                rows += of_case
                version = runs[a.peers[0]][0]["version"]
                heading = (f"{datetime.date.today()}, {runs['ours'][0]['machine']}, {a.threads} threads, PyTorch "
                           f"{version}; medians of {a.rounds} rounds")
                write(a, rows, heading)  # what there is so far
    print(f"{heading}\n\n{picture.table(rows)}", end="")


if __name__ == "__main__":
    main()
