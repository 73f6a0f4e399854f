"""Model folders of transformers go through `trainer convert` and come back the same; transformers loads what was
exported, to the same logits; and `trainer generate` writes greedily what transformers writes.

Usage: hugging_face_roundtrip.py TRAINER
"""

import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import torch
import transformers
from safetensors import safe_open

VOCABULARY = 260  # the byte tokenizer's ids, and a few rows that no token has
END_OF_DOCUMENT = 256

LLAMA_SHAPE = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3,
)


def configurations():
    yield "llama", transformers.LlamaConfig(**LLAMA_SHAPE, tie_word_embeddings=False)
    yield "llama-tied-scaled", transformers.LlamaConfig(
        **LLAMA_SHAPE, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=64))
    yield "llama-biased", transformers.LlamaConfig(**LLAMA_SHAPE, attention_bias=True, mlp_bias=True)
    yield "qwen2", transformers.Qwen2Config(**LLAMA_SHAPE)
    yield "qwen3", transformers.Qwen3Config(**LLAMA_SHAPE, head_dim=16, tie_word_embeddings=True)
    yield "gpt2", transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=128, initializer_range=0.2)


def run(trainer, *arguments, expect=0):
    done = subprocess.run([trainer, *map(str, arguments)], capture_output=True, timeout=120)
    assert done.returncode == expect, f"{arguments}: exit {done.returncode}: {done.stderr.decode()}"
    return done


def tensors_of(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            assert opened.metadata()["format"] == "pt", file
            for name in opened.keys():
                assert name not in tensors, f"{name} is in two shards"
                tensors[name] = opened.get_tensor(name)
    return tensors


def assert_same_bytes(a, b):
    a, b = tensors_of(a), tensors_of(b)
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].shape == b[name].shape, name
        assert torch.equal(a[name].view(torch.uint8), b[name].view(torch.uint8)), name


def load(folder):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[key], f"{folder}: {key}: {report[key]}"
    return model.eval()


def logits(model, tokens):
    with torch.no_grad():
        return model(tokens).logits


def greedy_bytes(model, prompt, count):
    tokens = torch.tensor([list(prompt)])
    made = []
    for _ in range(count):
        following = int(logits(model, tokens)[0, -1, :END_OF_DOCUMENT + 1].argmax())
        if following == END_OF_DOCUMENT:
            break
        made.append(following)
        tokens = torch.cat([tokens, torch.tensor([[following]])], dim=1)
    return bytes(made)


def check(trainer, scratch, name, config):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # biases and gains start at 0 and 1, where mistakes do not show
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    tokens = torch.randint(0, VOCABULARY, (2, 50))
    original = scratch / name
    model.save_pretrained(original)

    copy = scratch / f"{name}-copy"
    run(trainer, "convert", "--from", original, "--to", copy)
    assert_same_bytes(original, copy)
    assert torch.equal(logits(model, tokens), logits(load(copy), tokens)), name
    run(trainer, "convert", "--from", original, "--to", copy, expect=2)

    shards = scratch / f"{name}-shards"
    run(trainer, "convert", "--from", copy, "--to", shards, "--max-shard-size", "20KB")
    assert len(list(shards.glob("*.safetensors"))) > 1
    assert_same_bytes(original, shards)
    assert torch.equal(logits(model, tokens), logits(load(shards), tokens)), name

    for dtype in (torch.bfloat16, torch.float16):
        small = scratch / f"{name}-{dtype}"
        torch.manual_seed(1)
        model.to(dtype).save_pretrained(small)
        back = scratch / f"{name}-{dtype}-back"
        run(trainer, "convert", "--from", small, "--to", back)
        assert_same_bytes(small, back)
        assert load(back).dtype == dtype
    rounded = scratch / f"{name}-rounded"
    run(trainer, "convert", "--from", original, "--to", rounded, "--dtype", "bf16")
    expected = {key: value.to(torch.bfloat16) for key, value in tensors_of(original).items()}
    for key, value in tensors_of(rounded).items():
        assert torch.equal(value, expected[key]), key
    assert load(rounded).dtype == torch.bfloat16

    prompt = "In the beginning"
    wanted = greedy_bytes(load(original), prompt.encode(), 40)
    written = run(trainer, "generate", "--model", shards, "--tokenizer", "byte", "--prompt", prompt,
                  "--max-new-tokens", 40, "--temperature", 0).stdout.decode()
    assert written == prompt + wanted.decode(errors="replace") + "\n", (name, written, wanted)


def main():
    trainer = sys.argv[1]
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        for name, config in configurations():
            check(trainer, pathlib.Path(scratch), name, config)
            print(f"{name}: same bytes, same logits, same text")


main()
