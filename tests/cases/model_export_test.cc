// Models that go out to a Hugging Face folder and come back are the same models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "app/loaded_model.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/synthetic_model.h"
#include "checkpoint/test_folder.h"
#include "model/inference.h"
#include "ops/kernel_set.h"

namespace trainer {
namespace {

std::vector<float> logits(const ModelSource& source) {
  const auto kernels = make_reference_kernels();
  const LoadedModel loaded = load_model(source, *kernels, DType::kF32);
  Decoder decoder(loaded.model, *kernels, loaded.weights, 4);
  return decoder.step(std::vector<int32_t>{1, 4, 0});
}

class AllZero : public SyntheticWeights {
 public:
  using SyntheticWeights::SyntheticWeights;
  void read(const ParameterSpec&, int64_t, std::span<float> values) const override {
    std::fill(values.begin(), values.end(), 0.0f);
  }
};

TEST(Cases, ExportAndImportGiveTheSameLogits) {
  for (const Json& config : {tiny_llama(true), tiny_llama(false), tiny_gpt2(), tiny_qwen3()}) {
    const TestFolder folder;
    const SyntheticWeights source(config);
    save_hugging_face(source, parameters_of(source), folder / "model", {});
    const auto before = logits(source);
    EXPECT_EQ(before, logits(HuggingFaceFolder(folder / "model")));
    EXPECT_NE(before[0], before[1]);
  }
}

// A tied model uses its embedding, whatever an lm_head.weight in the folder says.
TEST(Cases, TiedHeadIsTheEmbedding) {
  const TestFolder folder;
  const SyntheticWeights source(tiny_llama(true));
  auto parameters = parameters_of(source);
  ParameterSpec head = parameters[0];
  head.name = "lm_head.weight";
  parameters.push_back(head);
  save_hugging_face(source, parameters, folder / "model", {});
  EXPECT_EQ(logits(source), logits(HuggingFaceFolder(folder / "model")));
}

// Vocabulary 5, every logit equal: ln 5, and not ln 8 as with three padding rows in the softmax.
TEST(Cases, OddVocabularyTakesNoPaddingIntoTheSoftmax) {
  const TestFolder folder;
  Json config = tiny_llama(false);
  config["vocab_size"] = 5;
  const AllZero source(config);
  save_hugging_face(source, parameters_of(source), folder / "model", {});
  const auto values = logits(HuggingFaceFolder(folder / "model"));
  ASSERT_EQ(values.size(), 5u);
  double sum = 0;
  for (float value : values) sum += std::exp(double{value});
  EXPECT_NEAR(std::log(sum) - double{values[2]}, 1.6094379, 1e-7);
}

}  // namespace
}  // namespace trainer
