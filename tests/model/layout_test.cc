#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "model/layer.h"
#include "support/tiny_models.h"

namespace trainer {
namespace {

class Layout : public ::testing::TestWithParam<Architecture> {};

TEST_P(Layout, ParametersAreDisjointAscendingAndAligned) {
  const Model model(tiny_model(GetParam()));
  std::set<std::string> names;
  for (int i = 0; i < model.layer_count(); ++i) {
    const Layer& layer = model.layer(i);
    int64_t end = 0;
    for (const auto& spec : layer.parameters()) {
      EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
      EXPECT_GE(spec.offset, end) << spec.name;
      const bool follows = spec.offset == end && end % 32 != 0;  // the k, v or up of a group
      EXPECT_TRUE(follows || spec.offset % 32 == 0) << spec.name;
      end = spec.offset + spec.count();
    }
    EXPECT_GE(layer.block_size(), end);
    EXPECT_EQ(layer.block_size() % 32, 0);
  }
}

TEST(Layout, ProjectionsOfOneInputAreOneMatrix) {
  ModelConfig config = tiny_model(Architecture::kQwen2);
  config.mlp_bias = true;
  const Model model(config);
  std::map<std::string, ParameterSpec> specs;
  for (const auto& spec : model.layer(1).parameters()) specs[spec.name.substr(15)] = spec;
  for (const char* kind : {".weight", ".bias"}) {
    const auto q = specs.at(std::string("self_attn.q_proj") + kind),
               k = specs.at(std::string("self_attn.k_proj") + kind);
    EXPECT_EQ(k.offset, q.offset + q.count());
    EXPECT_EQ(specs.at(std::string("self_attn.v_proj") + kind).offset, k.offset + k.count());
    const auto gate = specs.at(std::string("mlp.gate_proj") + kind);
    EXPECT_EQ(specs.at(std::string("mlp.up_proj") + kind).offset, gate.offset + gate.count());
  }
}

TEST_P(Layout, CountsEveryParameterOnce) {
  const ModelConfig c = tiny_model(GetParam());
  const int64_t h = c.hidden_size, f = c.ffn_hidden_size, q = c.q_width(), kv = c.kv_width(),
                v = c.vocabulary_size;
  int64_t block = h * (q + 2 * kv) + q * h + (c.gated_mlp() ? 3 : 2) * h * f + 2 * h;
  int64_t rest = v * h * (c.tie_word_embeddings ? 1 : 2) + h;
  if (c.qkv_bias) block += q + 2 * kv;
  if (c.qk_norm()) block += 2 * c.head_dim;
  if (c.architecture == Architecture::kGpt2) {
    block += h + f + h + 2 * h;  // output, up and down biases, norm biases
    rest += c.max_position_embeddings * h + h;
  }
  EXPECT_EQ(Model(c).parameter_count(), c.num_layers * block + rest);
}

TEST_P(Layout, FlopsOfTheCatalogueAreTheModelsFlops) {
  const Model model(tiny_model(GetParam()));
  const int64_t micro_batch = 3, sequence = 11;
  double flops = 0;
  for (int i = 0; i < model.layer_count(); ++i) {
    const LayerCatalogue catalogue = model.layer(i).catalogue(micro_batch, sequence, DType::kBF16);
    flops += catalogue.forward_flops + catalogue.backward_flops;
    EXPECT_EQ(catalogue.parameters, model.layer(i).block_size());
  }
  EXPECT_DOUBLE_EQ(flops, model.flops_per_token(sequence) * micro_batch * sequence);
}

TEST(ModelFlops, FollowTheStatedFormula) {
  ModelConfig c;  // 110 M parameters
  c.vocabulary_size = 32000;
  c.hidden_size = 768;
  c.num_layers = 12;
  c.num_attention_heads = c.num_query_groups = 12;
  c.head_dim = 64;
  c.ffn_hidden_size = 2048;
  c.tie_word_embeddings = true;
  const double matrices = 12.0 * (768.0 * 2048 * 3 + 4 * 768.0 * 768) + 768.0 * 32000;
  EXPECT_DOUBLE_EQ(Model(c, 1024).flops_per_token(1024), 6 * matrices + 6.0 * 12 * 768 * 1024);
}

INSTANTIATE_TEST_SUITE_P(Architectures, Layout,
                         ::testing::Values(Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3,
                                           Architecture::kGpt2),
                         [](const auto& info) { return name_of(info.param); });

TEST(Initialize, DependsOnSeedNameAndIndexOnly) {
  const ParameterSpec spec{.name = "w", .shape = {40, 50}, .init_std = 0.5};
  std::vector<float> whole(2000), part(37);
  initialize_parameter(spec, 7, 0, whole);
  initialize_parameter(spec, 7, 101, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 101));

  std::vector<float> other(2000);
  initialize_parameter(spec, 8, 0, other);
  EXPECT_NE(other, whole);
  ParameterSpec renamed = spec;
  renamed.name = "v";
  initialize_parameter(renamed, 7, 0, other);
  EXPECT_NE(other, whole);

  double sum = 0, squares = 0;
  for (const float x : whole) {
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / 2000, 0, 4 * 0.5 / std::sqrt(2000.0));
  EXPECT_NEAR(std::sqrt(squares / 2000), 0.5, 4 * 0.5 / std::sqrt(4000.0));
}

TEST(Initialize, NormsAreOneBiasesZeroResidualProjectionsSmaller) {
  const ModelConfig config = tiny_model(Architecture::kGpt2);
  const Model model(config);
  for (int i = 0; i < model.layer_count(); ++i)
    for (const auto& spec : model.layer(i).parameters()) {
      if (spec.decays()) {
        const bool residual = spec.name.ends_with("c_proj.weight");
        EXPECT_DOUBLE_EQ(spec.init_std, residual ? 0.02 / std::sqrt(2.0 * 2) : 0.02) << spec.name;
        continue;
      }
      std::vector<float> values(static_cast<size_t>(spec.count()), -1.0f);
      initialize_parameter(spec, 1, 0, values);
      const float expected = spec.name.ends_with(".bias") ? 0.0f : 1.0f;
      for (const float value : values) EXPECT_EQ(value, expected) << spec.name;
    }
}

}  // namespace
}  // namespace trainer
