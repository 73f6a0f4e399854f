"""Makes the tokenizer files of this folder and golden.json, which bpe_test.cc compares with.

Needs the Python packages tokenizers and regex; run it in this folder. The three files are small vocabularies in the
structure of the published GPT-2, Llama 3 and Qwen 2 files. For random texts golden.json holds, by file, the byte
lengths of the pieces before merging and the token ids. Pieces are taken from tokenizers and must agree with regex.
"""

import json
import random
import unicodedata

import regex
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# Blocks whose characters have kept their classes since Unicode 10.
ALPHABET = [
    "abcdefghij XYZ  ", "0123456789", " \t\n\r\u00a0\u2003\u3000\u0085\u2028\u000b", "'''.,;:!?-_()[]{}<>/\\\"@#$%&*+=~^`|",
    "sStTdDmMlLvVrReE'\u2019", "\u00e9\u00c0\u00df\u00f1\u0130\u017f\u212a", "e\u0301\u0327a\u030a\u0308o\u0302",
    "\u03b1\u03b2\u03a3\u0416\u0451\u05d0\u0628\u0663\u0967\u096b\u00bd\u00b2\u2167\u2460", "\u4e2d\u6587\u3042\u30a2\ud55c\u1112\u1161\u11ab",
    "\u0928\u093f\u0e01\u0e33\u200d\u200b\ufeff\u00ad\u180e", "\U0001f600\U0001f469\u200d\U0001f4bb\U0001d400\u2212\u20ac",
    "\x00\x01\x7f\u0080",
]
WORDS = ["the", "trainer", "layer", "gradient", "step", "of", "and", "café", "naïve", "Don't", "we'll", "12", "2024", "->", "::",
         "\n", "\n\n", "    ", "return", "for", "i", "in", "range", "(", ")", "中文", "слой", "αβ", "."]


def random_texts(generator, count):
    for _ in range(count):
        parts = []
        for _ in range(generator.randint(1, 7)):
            block = generator.choice(ALPHABET)
            parts.append("".join(generator.choice(block) for _ in range(generator.randint(1, 4))))
            if generator.random() < 0.4:
                parts.append(generator.choice([" ", "  ", ""]) + generator.choice(WORDS))
        yield "".join(parts)


def make_tokenizer(pre_tokenizer, corpus, size, special, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return tokenizer


def split_by(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def main():
    generator = random.Random(20240229)
    corpus = [" ".join(generator.choice(WORDS) for _ in range(12)) for _ in range(400)]
    gpt2 = make_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False), corpus, 330, ["<|endoftext|>"])
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
    llama3 = make_tokenizer(split_by(LLAMA3), corpus, 330, ["<|begin_of_text|>", "<|end_of_text|>"], ignore_merges=True)
    begin = llama3.token_to_id("<|begin_of_text|>")
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B:1",
                                      special_tokens=[("<|begin_of_text|>", begin)])])
    qwen2 = make_tokenizer(split_by(QWEN2), corpus, 330, ["<|endoftext|>", "<|im_start|>"])
    qwen2.normalizer = normalizers.NFC()
    qwen2.add_tokens([AddedToken("<tool>", special=False, normalized=False),
                      AddedToken("<pad left>", lstrip=True, special=False, normalized=False),
                      AddedToken("<pad right>", rstrip=True, special=False, normalized=False),
                      AddedToken("word", single_word=True, special=False, normalized=True)])
    tokenizers = {"gpt2": (gpt2, GPT2), "llama3": (llama3, LLAMA3), "qwen2": (qwen2, QWEN2)}

    texts = list(random_texts(generator, 250)) + [
        "a<tool>b", "x <pad left> y  <pad right>  z", "word", "a word, words; sword word", "wordé word", "<|endoftext|> as text",
        "Äword word\u0301 word"]
    cases = [{"text": text} for text in texts]
    letters = {letter: byte for byte, letter in byte_letters().items()}
    for name, (tokenizer, pattern) in tokenizers.items():
        tokenizer.save(name + ".json")
        tokenizer = Tokenizer.from_file(name + ".json")
        tokenizer.encode_special_tokens = True  # special tokens in a text are text
        for case in cases:
            text = case["text"]
            normal = unicodedata.normalize("NFC", text) if name == "qwen2" else text
            pieces = [bytes(letters[c] for c in piece).decode() for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)]
            assert pieces == [match.group() for match in regex.finditer(pattern, normal)], (name, normal)
            case[name] = {"pieces": [len(piece.encode()) for piece in pieces],
                          "ids": tokenizer.encode(text, add_special_tokens=False).ids}
    with open("golden.json", "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")


def byte_letters():
    printable = [b for b in range(256) if 0x21 <= b <= 0x7e or 0xa1 <= b <= 0xac or 0xae <= b]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


if __name__ == "__main__":
    main()
