// Makes a vocabulary from text with the SentencePiece library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/text_reader.h"

namespace trainer {

struct SentencePieceTraining {
  std::vector<std::string> files;
  TextFormat format = TextFormat::kText;
  std::string json_key = "text";
  int vocabulary_size = 0;
  std::string model_type = "bpe";  // or "unigram"
  bool byte_fallback = true;
  bool space_prefix = false;  // put a space before each document, as Llama 2 does
  int threads = 2;
  // Of more lines than this a sample is taken; the library holds them all in memory.
  int64_t largest_sample = 4'000'000;
};

// The content of a model file. It keeps every byte of text: no normalisation, white space as it is,
// characters outside the vocabulary as bytes. Ids 0, 1, 2 are <unk>, <s>, </s>; documents end with </s>.
// Equal input gives equal bytes. Throws InputError: wrong options, no text, or a vocabulary that the text is
// too small for.
std::string train_sentencepiece(const SentencePieceTraining& training);

// Trains and writes FOLDER/tokenizer.model and the tokenizer_config.json that other libraries want beside it.
void train_sentencepiece_folder(const SentencePieceTraining& training, const std::string& folder);

}  // namespace trainer
