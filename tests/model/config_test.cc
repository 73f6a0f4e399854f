#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/layer.h"

namespace trainer {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

Json llama_json() {
  return Json::parse(R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "some_other_key": [1, null]})");
}
Json qwen_json(const char* type) {
  Json json = llama_json();
  json["model_type"] = type;
  return json;
}
Json gpt2_json() {
  return Json::parse(R"({"model_type": "gpt2", "vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4,
    "n_positions": 32, "n_inner": null, "activation_function": "gelu_new"})");
}
ModelConfig read(const Json& json) { return model_config_from_hugging_face(json, "config.json"); }

// The message of the InputError that reading `json` throws, "" when it throws none.
std::string refusal(const Json& json) {
  try {
    read(json);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

const ParameterSpec* find(const Model& model, const std::string& name) {
  for (int i = 0; i < model.layer_count(); ++i)
    for (const auto& spec : model.layer(i).parameters())
      if (spec.name == name) return &spec;
  return nullptr;
}
size_t tensor_count(const Model& model) {
  size_t count = 0;
  for (int i = 0; i < model.layer_count(); ++i) count += model.layer(i).parameters().size();
  return count;
}
using Shape = std::vector<int64_t>;

TEST(ModelConfig, ReadsTheFourArchitectures) {
  const ModelConfig llama = read(llama_json());
  EXPECT_EQ(llama.architecture, Architecture::kLlama);
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_EQ(llama.num_query_groups, 2);
  EXPECT_EQ(llama.rope_theta, 10000);
  EXPECT_FALSE(llama.qkv_bias || llama.output_bias || llama.mlp_bias || llama.tie_word_embeddings);

  const ModelConfig qwen2 = read(qwen_json("qwen2"));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);

  const ModelConfig qwen3 = read(qwen_json("qwen3"));
  EXPECT_TRUE(qwen3.qk_norm());
  EXPECT_FALSE(qwen3.qkv_bias);

  const ModelConfig gpt2 = read(gpt2_json());
  EXPECT_EQ(gpt2.ffn_hidden_size, 256);
  EXPECT_TRUE(gpt2.tie_word_embeddings && gpt2.qkv_bias && gpt2.output_bias && gpt2.mlp_bias);
  EXPECT_FALSE(gpt2.gelu_exact);
}

TEST(ModelConfig, KeyValueHeadsDefaultToAttentionHeads) {
  Json json = llama_json();
  json.erase("num_key_value_heads");
  EXPECT_EQ(read(json).num_query_groups, 4);
}

TEST(Cases, HeadDimensionOtherThanHiddenOverHeads) {
  Json json = qwen_json("qwen3");
  json["head_dim"] = 32;
  const ModelConfig config = read(json);
  const Model model(config);
  const std::string p = "model.layers.1.self_attn.";
  EXPECT_EQ(find(model, p + "q_proj.weight")->shape, (Shape{128, 64}));
  EXPECT_EQ(find(model, p + "k_proj.weight")->shape, (Shape{64, 64}));
  EXPECT_EQ(find(model, p + "v_proj.weight")->shape, (Shape{64, 64}));
  EXPECT_EQ(find(model, p + "o_proj.weight")->shape, (Shape{64, 128}));
  EXPECT_EQ(find(model, p + "q_norm.weight")->shape, (Shape{32}));
  EXPECT_EQ(find(model, p + "k_norm.weight")->shape, (Shape{32}));
  EXPECT_EQ(model_config_to_hugging_face(config).at("head_dim"), 32);

  json["head_dim"] = nullptr;
  EXPECT_EQ(read(json).head_dim, 16);
  EXPECT_EQ(model_config_to_hugging_face(read(json)).at("head_dim"), 16);
  json.erase("head_dim");
  EXPECT_EQ(read(json).head_dim, 16);
  EXPECT_EQ(model_config_to_hugging_face(read(json)).at("head_dim"), 16);
  json["hidden_size"] = 66;
  EXPECT_THAT(refusal(json), HasSubstr("head_dim"));
}

TEST(Cases, AttentionBiasesOfEachArchitecture) {
  Json qwen2 = qwen_json("qwen2");
  qwen2["tie_word_embeddings"] = true;
  const Model biased(read(qwen2));
  EXPECT_EQ(tensor_count(biased), 26u);
  for (const char* projection : {"q", "k", "v"})
    EXPECT_NE(find(biased, std::string("model.layers.0.self_attn.") + projection + "_proj.bias"), nullptr);
  EXPECT_EQ(find(biased, "model.layers.0.self_attn.o_proj.bias"), nullptr);

  Json llama = llama_json();
  llama["attention_bias"] = true;
  EXPECT_NE(find(Model(read(llama)), "model.layers.0.self_attn.o_proj.bias"), nullptr);

  Json qwen3 = qwen_json("qwen3");
  qwen3["tie_word_embeddings"] = true;
  EXPECT_EQ(tensor_count(Model(read(qwen3))), 24u);
  EXPECT_EQ(find(Model(read(qwen3)), "model.layers.0.self_attn.q_proj.bias"), nullptr);
}

TEST(ModelConfig, RotaryScalingUnderAllItsKeys) {
  const Json block = {{"factor", 32.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 8192}};
  for (const auto& [outer, inner] :
       {std::pair{"rope_scaling", "rope_type"}, std::pair{"rope_scaling", "type"},
        std::pair{"rope_parameters", "rope_type"}}) {
    Json json = llama_json();
    json[outer] = block;
    json[outer][inner] = "llama3";
    if (std::string(outer) == "rope_parameters")
      json[outer]["rope_theta"] = 500000.0;
    else
      json["rope_theta"] = 500000.0;
    const ModelConfig config = read(json);
    EXPECT_EQ(config.rope_theta, 500000);
    ASSERT_TRUE(config.rope_scaling) << outer << " " << inner;
    EXPECT_EQ(config.rope_scaling->factor, 32);
    EXPECT_EQ(config.rope_scaling->original_max_positions, 8192);
    // Written back as it was, and nothing beside it that could contradict it.
    const Json exported = model_config_to_hugging_face(config);
    EXPECT_EQ(exported.at(outer), json.at(outer));
    EXPECT_EQ(exported.contains("rope_theta"), json.contains("rope_theta"));
  }
}

TEST(ModelConfig, MadeFromNothingReadsBackTheSame) {
  ModelConfig config = read(llama_json());
  config.source = nullptr;
  config.rope_theta = 500000;
  config.rope_scaling = RopeScaling{.factor = 4, .original_max_positions = 64};
  const Json exported = model_config_to_hugging_face(config);
  EXPECT_EQ(exported.at("architectures"), Json::array({"LlamaForCausalLM"}));
  const ModelConfig back = read(exported);
  EXPECT_EQ(back.rope_theta, 500000);
  EXPECT_EQ(back.rope_scaling->factor, 4);
  EXPECT_EQ(back.rope_scaling->original_max_positions, 64);
  EXPECT_EQ(back.head_dim, config.head_dim);
}

TEST(ModelConfig, ExportKeepsWhatTheSourceHad) {
  for (const Json& json : {llama_json(), qwen_json("qwen2"), qwen_json("qwen3"), gpt2_json()}) {
    const Json exported = model_config_to_hugging_face(read(json));
    for (const auto& [key, value] : json.items()) EXPECT_EQ(exported.at(key), value) << key;
  }
}

TEST(ModelConfig, RefusesWhatItCannotCompute) {
  struct Refused {
    const char* base;
    const char* key;
    Json value;
    const char* message;
  };
  const Json linear = {{"type", "linear"}, {"factor", 2.0}};
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 2.0}};
  const Json per_layer = {{"full_attention", {{"rope_type", "default"}}}};
  const Json incomplete = {{"rope_type", "llama3"}, {"factor", 8.0}};
  for (const Refused& c :
       {Refused{"llama", "rope_scaling", linear, "'linear'.*'llama3'"},
        Refused{"qwen3", "rope_parameters", yarn, "'yarn'"},
        Refused{"llama", "rope_parameters", per_layer, "per layer type"},
        Refused{"llama", "rope_scaling", incomplete, "'low_freq_factor' is missing"},
        Refused{"llama", "hidden_act", "gelu", "hidden_act"},
        Refused{"llama", "sliding_window", 64, "sliding_window"},
        Refused{"llama", "num_local_experts", 8, "num_local_experts"},
        Refused{"llama", "partial_rotary_factor", 0.5, "partial_rotary_factor"},
        Refused{"llama", "quantization_config", Json::object(), "quantization_config"},
        Refused{"llama", "num_key_value_heads", 3, "4 attention heads.*3 key/value heads"},
        Refused{"llama", "head_dim", 15, "15 is odd"},
        Refused{"llama", "vocab_size", 0, "vocabulary size is 0"},
        Refused{"llama", "hidden_size", -64, "hidden size is -64"},
        Refused{"llama", "hidden_size", "64", "expected an integer"},
        Refused{"llama", "num_attention_heads", 0, "num_attention_heads"},
        Refused{"llama", "rms_norm_eps", 0.0, "epsilon"},
        Refused{"llama", "model_type", "mixtral", "'mixtral'.*llama, qwen2"},
        Refused{"qwen2", "layer_types", {"full_attention", "sliding_attention"}, "sliding_attention"},
        Refused{"gpt2", "activation_function", "relu", "relu"},
        Refused{"gpt2", "scale_attn_weights", false, "scale_attn_weights"},
        Refused{"gpt2", "scale_attn_by_inverse_layer_idx", true, "inverse_layer"},
        Refused{"gpt2", "n_head", 5, "n_head 5"}}) {
    Json json = std::string(c.base) == "gpt2" ? gpt2_json() : qwen_json(c.base);
    json[c.key] = c.value;
    const std::string message = refusal(json);
    EXPECT_THAT(message, HasSubstr("config.json")) << c.key;
    EXPECT_THAT(message, ContainsRegex(c.message));
  }
}

TEST(ModelConfig, SlidingWindowSwitchedOffIsNoObstacle) {
  Json json = qwen_json("qwen2");
  json["sliding_window"] = 4096;
  json["use_sliding_window"] = false;
  EXPECT_EQ(refusal(json), "");
  json["use_sliding_window"] = true;
  EXPECT_THAT(refusal(json), HasSubstr("sliding_window"));
}

}  // namespace
}  // namespace trainer
