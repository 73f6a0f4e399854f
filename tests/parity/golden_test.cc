// Loss, logits and every gradient of tiny models against transformers (make_golden.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <ostream>

#include "base/file.h"
#include "support/formula_weights.h"
#include "support/model_runner.h"

namespace trainer {
namespace {

struct Golden {
  ModelConfig config;
  TestBatch batch;
  double loss_sum;
  int64_t valid_tokens;
  std::map<std::string, std::vector<float>> tensors;  // "logits", "gradient NAME", as on disk
};

Golden load(const std::string& name) {
  const std::string path = std::string(TEST_DATA) + "/parity/" + name;
  const Json json = parse_json_file(path + ".json");
  const std::string values = read_file(path + ".bin");
  Golden golden;
  golden.config = model_config_from_hugging_face(json.at("config"), name);
  golden.batch =
      make_batch(json.at("micro_batch"), json.at("sequence"), json.at("tokens"), json.at("labels"));
  golden.loss_sum = json.at("loss_sum");
  golden.valid_tokens = json.at("valid_tokens");
  for (const auto& tensor : json.at("tensors")) {
    const auto shape = tensor.at("shape").get<std::vector<size_t>>();
    const size_t count = std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>());
    const size_t offset = tensor.at("offset");
    auto& to = golden.tensors[tensor.at("name")];
    to.resize(count);
    if ((offset + count) * sizeof(float) > values.size())
      throw std::runtime_error(path + ".bin is too short");
    std::memcpy(to.data(), values.data() + offset * sizeof(float), count * sizeof(float));
  }
  return golden;
}

// Largest difference relative to the largest value.
double difference(std::span<const float> actual, std::span<const float> expected) {
  double worst = 0, scale = 1e-30;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double delta = std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i]));
    if (!(delta <= worst)) worst = delta;  // a NaN sticks
    scale = std::max(scale, std::abs(static_cast<double>(expected[i])));
  }
  return worst / scale;
}

// Root-mean-square difference relative to the root mean square.
double rms_difference(std::span<const float> actual, std::span<const float> expected) {
  double error = 0, scale = 1e-30;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double delta = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
    error += delta * delta;
    scale += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return std::sqrt(error / scale);
}

struct Case {
  std::string model;
  bool host;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.model << (c.host ? ", host" : ", reference"); }

class GoldenParity : public ::testing::TestWithParam<Case> {};

std::unique_ptr<KernelSet> kernels_of(const Case& c) {
  return c.host ? make_host_kernels(1) : make_reference_kernels();
}

std::map<std::string, std::vector<float>> gradients_as_on_disk(const ModelRunner& runner,
                                                               const RunResult& result) {
  std::map<std::string, std::vector<float>> all;
  for (int i = 0; i < runner.model().layer_count(); ++i)
    for (const auto& spec : runner.model().layer(i).parameters()) {
      const auto& from = result.gradients.at(spec.name);
      auto& to = all["gradient " + spec.name];
      to.resize(from.size());
      for (size_t k = 0; k < from.size(); ++k)
        to[static_cast<size_t>(index_on_disk(spec, static_cast<int64_t>(k)))] = from[k];
    }
  return all;
}

TEST_P(GoldenParity, LossLogitsAndEveryGradientInSinglePrecision) {
  const Golden golden = load(GetParam().model);
  ModelRunner runner(golden.config, kernels_of(GetParam()), DType::kF32);
  runner.set_weights(formula_weights);
  EXPECT_LT(difference(runner.logits(golden.batch), golden.tensors.at("logits")), 1e-5);

  const RunResult result = runner.run(golden.batch);
  EXPECT_EQ(result.valid_tokens, golden.valid_tokens);
  EXPECT_NEAR(result.loss_sum, golden.loss_sum, 2e-6 * golden.loss_sum);
  const auto gradients = gradients_as_on_disk(runner, result);
  EXPECT_EQ(gradients.size() + 1, golden.tensors.size());
  for (const auto& [name, expected] : golden.tensors) {
    if (name == "logits") continue;
    ASSERT_TRUE(gradients.contains(name)) << name;
    ASSERT_EQ(gradients.at(name).size(), expected.size()) << name;
    EXPECT_LT(difference(gradients.at(name), expected), 5e-5) << name;
  }
}

TEST_P(GoldenParity, BrainFloatIsClose) {
  const Golden golden = load(GetParam().model);
  ModelRunner runner(golden.config, kernels_of(GetParam()), DType::kBF16);
  runner.set_weights(formula_weights);
  const RunResult result = runner.run(golden.batch);
  EXPECT_EQ(result.valid_tokens, golden.valid_tokens);
  EXPECT_NEAR(result.loss_sum, golden.loss_sum, 0.01 * golden.loss_sum);
  for (const auto& [name, gradient] : gradients_as_on_disk(runner, result))
    EXPECT_LT(rms_difference(gradient, golden.tensors.at(name)), 0.06) << name;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* model : {"llama", "llama_biases", "qwen2", "qwen3", "gpt2"})
    for (const bool host : {false, true}) cases.push_back({model, host});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenParity, ::testing::ValuesIn(all_cases()), [](const auto& info) {
  return info.param.model + (info.param.host ? "_host" : "_reference");
});

}  // namespace
}  // namespace trainer
