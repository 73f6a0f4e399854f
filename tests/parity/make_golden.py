#!/usr/bin/env python3
"""Writes the golden files of the parity tests: loss, logits and every gradient of tiny models, by transformers.

    pip install -r requirements-dev.txt
    python tests/parity/make_golden.py             # writes tests/data/parity/
    python tests/parity/make_golden.py --check     # compares with what is there, to 1e-5 relative

Weights follow from (tensor name, element index) by an integer formula, so only results are stored. NAME.json holds
config, tokens, labels and the table of tensors; NAME.bin the float32 values. The loss is the sum over labels that are
not -100, and gradients are those of that sum; labels are already shifted. Sums run in double precision where
transformers lets them.
"""
import argparse
import json
import pathlib
import sys

import numpy as np
import torch
import transformers

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "data" / "parity"
MASK = (1 << 64) - 1

LLAMA_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILY = {
    "vocab_size": 67,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.02,
    "hidden_act": "silu",
}
CONFIGS = {
    "llama": {
        "model_type": "llama", **FAMILY, "head_dim": 6, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "rope_scaling": LLAMA_ROPE, "tie_word_embeddings": False,
    },
    "llama_biases": {
        "model_type": "llama", **FAMILY, "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "rope_theta": 500.0,
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
    },
    "qwen2": {
        "model_type": "qwen2", **FAMILY, "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "use_sliding_window": False, "sliding_window": 8, "max_window_layers": 1, "tie_word_embeddings": True,
    },
    "qwen3": {
        "model_type": "qwen3", **FAMILY, "head_dim": 10, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}, "attention_bias": False,
        "tie_word_embeddings": False,
    },
    "gpt2": {
        "model_type": "gpt2", "vocab_size": 67, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 32,
        "n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
        "tie_word_embeddings": True, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    },
}
MICRO_BATCH, SEQUENCE = 2, 23


def name_hash(name):
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def uniform(name, count):
    """float32 values in [-1, 1), exact: splitmix64 of name and index."""
    with np.errstate(over="ignore"):
        index = np.arange(1, count + 1, dtype=np.uint64)
        z = np.uint64(name_hash(name)) + index * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)


def weight(name, shape):
    values = uniform(name, int(np.prod(shape)))
    if len(shape) == 2:
        values = values * np.float32(0.3125)
    elif name.endswith("bias"):
        values = values * np.float32(0.25)
    else:
        values = np.float32(1) + values * np.float32(0.25)
    return values.reshape(shape)


def make(name, config):
    kind = config["model_type"]
    arguments = {key: value for key, value in config.items() if key != "model_type"}
    model_config = transformers.AutoConfig.for_model(kind, **arguments)
    model_config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(model_config).double()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for key, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(weight(key, tuple(parameter.shape))))

    count = MICRO_BATCH * SEQUENCE
    vocabulary = config["vocab_size"]
    tokens = ((uniform(name + " tokens", count).astype(np.float64) + 1) / 2 * vocabulary).astype(np.int64)
    labels = ((uniform(name + " labels", count).astype(np.float64) + 1) / 2 * vocabulary).astype(np.int64)
    labels[uniform(name + " ignored", count) < -0.6] = -100

    model.train()
    logits = model(input_ids=torch.from_numpy(tokens).view(MICRO_BATCH, SEQUENCE), use_cache=False).logits
    logits = logits.reshape(count, vocabulary)
    loss = torch.nn.functional.cross_entropy(
        logits.double(), torch.from_numpy(labels), ignore_index=-100, reduction="sum"
    )
    loss.backward()

    tensors, values, offset = [], [], 0
    results = {"logits": logits} | {f"gradient {key}": parameters[key].grad for key in sorted(parameters)}
    for key, tensor in results.items():
        array = tensor.detach().numpy().astype(np.float32)
        tensors.append({"name": key, "shape": list(array.shape), "offset": offset})
        values.append(array.reshape(-1))
        offset += array.size
    description = {
        "config": config,
        "micro_batch": MICRO_BATCH,
        "sequence": SEQUENCE,
        "tokens": tokens.tolist(),
        "labels": labels.tolist(),
        "loss_sum": loss.item(),
        "valid_tokens": int((labels != -100).sum()),
        "tensors": tensors,
    }
    return description, np.concatenate(values)


def check(name, description, values):
    stored = json.loads((FOLDER / f"{name}.json").read_text())
    loss, expected = stored.pop("loss_sum"), description.pop("loss_sum")
    if stored != description or abs(loss - expected) > 1e-6 * abs(expected):
        sys.exit(f"{name}.json differs from what transformers gives now")
    stored_values = np.fromfile(FOLDER / f"{name}.bin", dtype="<f4")
    for tensor in description["tensors"]:
        part = slice(tensor["offset"], tensor["offset"] + int(np.prod(tensor["shape"])))
        scale = np.abs(values[part]).max()
        if np.abs(values[part] - stored_values[part]).max() > 1e-5 * scale:
            sys.exit(f"{name}.bin: {tensor['name']} differs from what transformers gives now")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="compare with the stored files, write nothing")
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, config in CONFIGS.items():
        description, values = make(name, config)
        if arguments.check:
            check(name, description, values)
            continue
        lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in description.items())
        (FOLDER / f"{name}.json").write_text("{\n" + lines + "\n}\n")
        values.astype("<f4").tofile(FOLDER / f"{name}.bin")
        print(f"{name}: loss {description['loss_sum']:.6f} over {description['valid_tokens']} labels, {4 * values.size} bytes")


if __name__ == "__main__":
    main()
