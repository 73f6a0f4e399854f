#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "app/config.h"
#include "base/error.h"
#include "base/file.h"

namespace trainer {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kConfigs =
    std::filesystem::path(TEST_DATA).parent_path().parent_path() / "configs";

Config with_model(const std::string& model, int64_t sequence_length = 64) {
  return parse_config(fmt::format(R"({{
    "model": {},
    "data": {{"data_path": "d/text", "sequence_length": {}}},
    "training": {{"steps": 1, "micro_batch_size": 1, "global_batch_size": 1}},
    "optimizer": {{"lr": 0.001}},
    "run": {{"directory": "runs/x"}}
  }})",
                                  model, sequence_length),
                      "c.json");
}

// Parameters of every block spelled out, each logical tensor once.
int64_t parameters(const ModelConfig& m) {
  const int64_t h = m.hidden_size, q = m.q_width(), kv = m.kv_width(), f = m.ffn_hidden_size;
  const int64_t norm = m.rms_norm() ? h : 2 * h;
  int64_t block = h * (q + 2 * kv) + q * h + 2 * norm + (m.gated_mlp() ? 3 : 2) * h * f;
  if (m.qkv_bias) block += q + 2 * kv;
  if (m.output_bias) block += h;
  if (m.mlp_bias) block += m.gated_mlp() ? 2 * f + h : f + h;
  if (m.qk_norm()) block += 2 * m.head_dim;
  const int64_t positions = m.rope() ? 0 : m.max_position_embeddings * h;
  return m.vocabulary_size * h * (m.tie_word_embeddings ? 1 : 2) + positions + m.num_layers * block + norm;
}

// Totals as transformers counts them for the published configs.
const std::map<std::string, int64_t> kTotals = {
    {"llama-2-7b", 6738415616},   {"llama-2-13b", 13015864320}, {"llama-2-70b", 68976648192},
    {"llama-3.1-8b", 8030261248}, {"qwen2.5-0.5b", 494032768},  {"qwen2.5-1.5b", 1543714304},
    {"qwen2.5-3b", 3085938688},   {"qwen2.5-7b", 7615616512},   {"qwen2.5-14b", 14770033664},
    {"qwen2.5-32b", 32763876352}, {"qwen3-0.6b", 596049920},    {"qwen3-1.7b", 1720574976},
    {"qwen3-4b", 4022468096},     {"qwen3-8b", 8190735360},     {"qwen3-14b", 14768307200},
    {"qwen3-32b", 32762123264}};

TEST(ModelShapes, PublishedShapesHaveTheirPublishedSize) {
  for (const auto& [name, total] : kTotals) {
    const auto file = kConfigs / "models" / (name + ".json");
    const ModelConfig model =
        make_model_config(with_model(fmt::format(R"({{"hugging_face": "{}"}})", file.string())));
    EXPECT_EQ(parameters(model), total) << name;
  }
}

TEST(ModelShapes, EveryShapeIsListed) {
  for (const auto& entry : std::filesystem::directory_iterator(kConfigs / "models")) {
    const std::string name = entry.path().stem().string();
    EXPECT_TRUE(kTotals.contains(name) || name == "baichuan2-13b") << name;
  }
}

TEST(ModelShapes, ExampleConfigsHaveTheSizeInTheirName) {
  const auto size = [](const char* name) {
    return parameters(make_model_config(read_config((kConfigs / name).string())));
  };
  EXPECT_EQ(size("gpt2-124m.json"), 124439808);
  EXPECT_EQ(size("llama-110m.json"), 109529856);
}

TEST(ModelShapes, BaichuanIsForPlanningOnly) {
  const auto file = kConfigs / "models/baichuan2-13b.json";
  EXPECT_THAT(
      [&] { make_model_config(with_model(fmt::format(R"({{"hugging_face": "{}"}})", file.string()))); },
      ::testing::ThrowsMessage<InputError>(
          ::testing::AllOf(HasSubstr("baichuan2-13b.json"), HasSubstr("not trained"))));
}

TEST(ModelShapes, InlineShape) {
  const Config config =
      with_model(R"({"architecture": "qwen3", "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 96,
    "num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 32, "rotary_base": 1e6, "vocabulary_size": 50})");
  const ModelConfig model = make_model_config(config);
  EXPECT_EQ(model.architecture, Architecture::kQwen3);
  EXPECT_EQ(model.q_width(), 128);
  EXPECT_EQ(model.kv_width(), 64);
  EXPECT_EQ(model.rope_theta, 1e6);
  EXPECT_FALSE(model.qkv_bias || model.output_bias || model.mlp_bias);
}

TEST(ModelShapes, VocabularyFollowsTheTokenizer) {
  Config config = with_model(
      R"({"num_layers": 1, "hidden_size": 8, "ffn_hidden_size": 8, "num_attention_heads": 1, "vocabulary_size": 50})");
  EXPECT_EQ(make_model_config(config, 40).vocabulary_size, 50);
  EXPECT_THAT([&] { make_model_config(config, 51); },
              ::testing::ThrowsMessage<InputError>(HasSubstr("51 tokens")));
  config.model.vocabulary_size = 0;
  EXPECT_EQ(make_model_config(config, 40).vocabulary_size, 40);
  EXPECT_THROW(make_model_config(config), InputError);
}

TEST(ModelShapes, LearnedPositionsBoundTheSequence) {
  const std::string folder = ::testing::TempDir() + "/gpt2-shape";
  std::filesystem::create_directories(folder);
  write_file_atomically(
      folder + "/config.json",
      R"({"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 10, "n_positions": 32})");
  Config config = with_model(fmt::format(R"({{"hugging_face": "{}"}})", folder), 64);
  const ModelConfig model = make_model_config(config);
  EXPECT_EQ(parameters(model), 10 * 8 + 32 * 8 + (12 * 64 + 13 * 8) + 16);
  EXPECT_THAT([&] { resolve_parallel(config, model, 1); },
              ::testing::ThrowsMessage<InputError>(HasSubstr("32 positions")));
}

}  // namespace
}  // namespace trainer
