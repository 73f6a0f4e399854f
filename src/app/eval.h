// `trainer eval`: how well a model predicts a dataset.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "app/loaded_model.h"
#include "data/sample_source.h"
#include "data/tokenizer.h"

namespace trainer {

struct Evaluation {
  double loss_sum = 0;  // nats, over every target token
  int64_t tokens = 0;
  uint64_t text_bytes = 0;       // of original text that the targets stand for; 0 without a tokenizer
  double bits_per_byte() const;  // 0 without text bytes
  double loss() const { return tokens > 0 ? loss_sum / static_cast<double>(tokens) : 0; }
};

// Every target of `source` once, in order, `micro_batch` samples at a time. Takes over the kernels'
// workspace.
Evaluation evaluate(const LoadedModel& loaded, KernelSet& kernels, std::shared_ptr<const SampleSource> source,
                    int64_t micro_batch, const Tokenizer* tokenizer);

// `arguments` are those after the word "eval". Returns the exit code.
int eval_command(std::span<const std::string> arguments);

}  // namespace trainer
