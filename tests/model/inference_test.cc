#include "model/inference.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/formula_weights.h"
#include "support/model_runner.h"
#include "support/tiny_models.h"

namespace trainer {
namespace {

// Prompts longer than a chunk included.
void compare_with_full_forward(Architecture architecture, std::unique_ptr<KernelSet> kernels) {
  ModelConfig config = tiny_model(architecture);
  config.max_position_embeddings = 320;
  ModelRunner runner(config, std::move(kernels), DType::kF32);
  runner.set_weights(formula_weights);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 310; ++i) tokens.push_back(i * i % 37);
  const auto full = runner.logits(make_batch(1, 310, tokens, std::vector<int32_t>(310, -100)));

  Decoder decoder(runner.model(), runner.kernels(), runner.blocks(), 320);
  size_t position = 0;
  for (const size_t count : {300, 1, 1, 7, 1}) {
    const auto logits = decoder.step(std::span(tokens).subspan(position, count));
    position += count;
    ASSERT_EQ(logits.size(), 37u);
    for (size_t v = 0; v < 37; ++v) EXPECT_NEAR(logits[v], full[(position - 1) * 37 + v], 2e-4) << position;
  }
  EXPECT_EQ(decoder.position(), 310);
  EXPECT_THROW(decoder.step(std::vector<int32_t>(11, 0)), InputError);
}

TEST(Decoder, EqualsTheFullForward) {
  for (const auto architecture :
       {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3, Architecture::kGpt2}) {
    SCOPED_TRACE(name_of(architecture));
    compare_with_full_forward(architecture, make_host_kernels(1));
  }
  compare_with_full_forward(Architecture::kLlama, make_reference_kernels());
}

TEST(Decoder, BrainFloat) {
  ModelRunner runner(tiny_model(Architecture::kLlama), make_host_kernels(1), DType::kBF16);
  runner.set_weights(formula_weights);
  const std::vector<int32_t> tokens{3, 1, 4, 1, 5};
  const auto full = runner.logits(make_batch(1, 5, tokens, std::vector<int32_t>(5, -100)));
  Decoder decoder(runner.model(), runner.kernels(), runner.blocks(), 8);
  decoder.step(std::span(tokens).first(4));
  const auto logits = decoder.step(std::span(tokens).last(1));
  for (size_t v = 0; v < 37; ++v) EXPECT_NEAR(logits[v], full[4 * 37 + v], 0.06) << v;
}

// One bias of Qwen2 set high must reach the logits.
TEST(Cases, AttentionBiasesChangeTheLogits) {
  ModelRunner runner(tiny_model(Architecture::kQwen2), make_reference_kernels(), DType::kF32);
  runner.set_weights(formula_weights);
  const TestBatch batch = make_batch(1, 5, {3, 1, 4, 1, 5}, std::vector<int32_t>(5, -100));
  const auto before = runner.logits(batch);
  for (const char* projection : {"q", "k", "v"}) {
    const auto bias = runner.weight(std::string("model.layers.0.self_attn.") + projection + "_proj.bias");
    const float old = std::exchange(bias[0], 100.0f);
    EXPECT_NE(runner.logits(batch), before) << projection;
    bias[0] = old;
  }
  EXPECT_EQ(runner.logits(batch), before);
}

}  // namespace
}  // namespace trainer
