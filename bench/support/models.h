// Models whose shapes the benchmark programs use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "ops/gemm_rate.h"

namespace trainer {

struct NamedModel {
  std::string name;
  ModelConfig shape;
};

// gpt2-124m, llama-110m, qwen2.5-0.5b.
const std::vector<NamedModel>& published_models();
// A Llama and a GPT-2 of a few thousand parameters, for runs of a moment.
const std::vector<NamedModel>& tiny_models();

// The products of one block over so many tokens: [tokens, output, input].
std::vector<GemmShape> block_products(const ModelConfig& model, int64_t tokens);
// That of the classifier for one chunk of them.
GemmShape classifier_product(const ModelConfig& model, int64_t tokens);

// Elements of a block's matrices.
int64_t block_elements(const ModelConfig& model);

}  // namespace trainer
