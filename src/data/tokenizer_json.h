// Reads Hugging Face tokenizer.json files of byte-level BPE tokenizers.
#pragma once

#include <filesystem>
#include <optional>

#include "data/bpe_tokenizer.h"

namespace trainer {

// The definition in `path`; `bos_token` and `eos_token` come from the tokenizer_config.json beside it, if
// there is one. `eod` replaces the end-of-document token. Throws InputError naming the file, the key and what
// is not supported: model types, normalizers, pre-tokenizers, post-processors and decoders that are not read
// here, and options of theirs that would change the tokens. Truncation and padding settings are about batches
// of text and are not applied.
BpeDefinition read_tokenizer_json(const std::filesystem::path& path, std::optional<int32_t> eod);

// The file says that it was converted from a SentencePiece model.
bool made_from_sentencepiece(const std::filesystem::path& path);

}  // namespace trainer
