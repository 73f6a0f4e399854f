#include "checkpoint/hugging_face.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <sstream>

#include "checkpoint/synthetic_model.h"
#include "checkpoint/test_folder.h"
#include "checkpoint/training_checkpoint.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// What is logged while it lives.
class CapturedLog {
 public:
  CapturedLog() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "captured", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)));
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_;
};

std::vector<std::string> tensor_names(const fs::path& file) {
  const SafetensorsFile opened(file);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : opened.tensors()) names.push_back(name);
  return names;
}

void expect_synthetic(const ModelSource& source) {
  for (const auto& parameter : parameters_of(source)) {
    std::vector<float> values(static_cast<size_t>(parameter.count()));
    read_parameter(source, parameter, values);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], SyntheticWeights::value(parameter.name, static_cast<int64_t>(i)))
          << parameter.name << " " << i;
  }
}

// A folder as somebody else made it: the given tensors, filled with 0, 1, 2, ...
void write_folder(const fs::path& folder, const Json& config, const std::vector<TensorDeclaration>& tensors) {
  fs::create_directories(folder);
  write_test_file(folder / "config.json", config.dump());
  SafetensorsWriter file(folder / "model.safetensors", tensors);
  for (const auto& tensor : tensors) {
    int64_t count = 1;
    for (int64_t size : tensor.shape) count *= size;
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    file.write(values);
  }
  file.commit();
}

std::vector<TensorDeclaration> declarations_of(const Json& config) {
  std::vector<TensorDeclaration> tensors;
  for (const auto& parameter : parameters_of(SyntheticWeights(config))) {
    auto shape = parameter.shape;
    if (parameter.transposed_on_disk) std::reverse(shape.begin(), shape.end());
    tensors.push_back({parameter.name, TensorType::kF32, shape});
  }
  return tensors;
}

std::string check_message(const fs::path& folder) {
  return message_of([&] {
    const HuggingFaceFolder source(folder);
    source.check(parameters_of(source));
  });
}

void remove_tensor(std::vector<TensorDeclaration>& tensors, const std::string& name) {
  ASSERT_EQ(std::erase_if(tensors, [&](const auto& tensor) { return tensor.name == name; }), 1u);
}

class HuggingFaceRoundTrip : public ::testing::TestWithParam<TensorType> {};

TEST_P(HuggingFaceRoundTrip, EveryTensorReadsBack) {
  for (const Json& config : {tiny_llama(true), tiny_llama(false), tiny_gpt2(), tiny_qwen3()}) {
    const TestFolder folder;
    const SyntheticWeights source(config, GetParam());
    save_hugging_face(source, parameters_of(source), folder / "a", {});
    const HuggingFaceFolder first(folder / "a");
    first.check(parameters_of(first));
    expect_synthetic(first);
    for (const auto& parameter : parameters_of(first)) EXPECT_EQ(first.type_of(parameter), GetParam());
    // Out again: the same bytes.
    save_hugging_face(first, parameters_of(first), folder / "b", {});
    EXPECT_EQ(read_file(folder / "a/model.safetensors"), read_file(folder / "b/model.safetensors"));
    EXPECT_EQ(read_file(folder / "a/config.json"), read_file(folder / "b/config.json"));
  }
}
INSTANTIATE_TEST_SUITE_P(Types, HuggingFaceRoundTrip,
                         ::testing::Values(TensorType::kF32, TensorType::kBF16, TensorType::kF16),
                         [](const auto& info) { return name_of(info.param); });

TEST(HuggingFace, ShardsHoldTheSameAsOneFile) {
  const TestFolder folder;
  const SyntheticWeights source(tiny_llama(false));
  save_hugging_face(source, parameters_of(source), folder / "one", {});
  save_hugging_face(source, parameters_of(source), folder / "many",
                    {.type = {}, .max_shard_bytes = 200, .tokenizer = ""});
  const HuggingFaceFolder many(folder / "many");
  many.check(parameters_of(many));
  expect_synthetic(many);

  const Json index = parse_json_file(folder / "many/model.safetensors.index.json");
  const SafetensorsFile one(folder / "one/model.safetensors");
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : one.tensors()) {
    bytes += tensor.end - tensor.begin;
    const SafetensorsFile shard(folder / "many" / index["weight_map"][name].get<std::string>());
    EXPECT_NE(shard.find(name), nullptr);
    EXPECT_EQ(shard.metadata().at("format"), "pt");
  }
  EXPECT_EQ(index["metadata"]["total_size"].get<uint64_t>(), bytes);
  EXPECT_FALSE(fs::exists(folder / "many/model.safetensors"));
  EXPECT_THAT(index["weight_map"]["lm_head.weight"].get<std::string>(),
              ::testing::MatchesRegex("model-000..-of-000...safetensors"));

  fs::remove(folder / "many" / index["weight_map"]["lm_head.weight"].get<std::string>());
  EXPECT_THAT(check_message(folder / "many"),
              HasSubstr(index["weight_map"]["lm_head.weight"].get<std::string>()));
}

TEST(HuggingFace, AnyRunOfElementsOfATransposedTensor) {
  const TestFolder folder;
  const SyntheticWeights synthetic(tiny_gpt2());
  save_hugging_face(synthetic, parameters_of(synthetic), folder / "a", {});
  const HuggingFaceFolder source(folder / "a");
  for (const auto& parameter : parameters_of(source)) {
    if (parameter.name != "transformer.h.0.attn.c_attn.weight") continue;
    ASSERT_THAT(parameter.shape, ElementsAre(12, 4));
    for (int64_t begin = 0; begin <= 48; ++begin)
      for (int64_t count = 0; begin + count <= 48; ++count) {
        std::vector<float> values(static_cast<size_t>(count));
        source.read(parameter, begin, values);
        for (int64_t i = 0; i < count; ++i)
          ASSERT_EQ(values[static_cast<size_t>(i)], SyntheticWeights::value(parameter.name, begin + i));
      }
    return;
  }
  FAIL() << "no transposed tensor";
}

// Written by hand: the file's [input, output] must come out as [output, input].
TEST(HuggingFace, Conv1DIsTransposed) {
  const TestFolder folder;
  write_folder(folder / "m", tiny_gpt2(), declarations_of(tiny_gpt2()));
  const HuggingFaceFolder source(folder / "m");
  for (const auto& parameter : parameters_of(source)) {
    if (!parameter.transposed_on_disk) continue;
    std::vector<float> values(static_cast<size_t>(parameter.count()));
    read_parameter(source, parameter, values);
    const auto outputs = parameter.shape[0], inputs = parameter.shape[1];
    for (int64_t o = 0; o < outputs; ++o)
      for (int64_t i = 0; i < inputs; ++i)
        ASSERT_EQ(values[static_cast<size_t>(o * inputs + i)], static_cast<float>(i * outputs + o))
            << parameter.name;
  }
}

TEST(HuggingFace, NamesWithAndWithoutTheBaseModelsPrefix) {
  const TestFolder folder;
  for (const Json& config : {tiny_gpt2(), tiny_llama(true)}) {
    auto tensors = declarations_of(config);
    for (auto& tensor : tensors)
      if (const size_t dot = tensor.name.find('.');
          tensor.name.starts_with("model.") || tensor.name.starts_with("transformer."))
        tensor.name = tensor.name.substr(dot + 1);
    write_folder(folder / "m", config, tensors);
    EXPECT_EQ(check_message(folder / "m"), "");
    const HuggingFaceFolder source(folder / "m");
    const auto parameters = parameters_of(source);
    std::vector<float> values(static_cast<size_t>(parameters[0].count()));
    read_parameter(source, parameters[0], values);
    EXPECT_EQ(values[5], 5);
  }
}

TEST(HuggingFace, LayersFillTheirBlocks) {
  const TestFolder folder;
  const SyntheticWeights synthetic(tiny_llama(true));
  save_hugging_face(synthetic, parameters_of(synthetic), folder / "a", {});
  const HuggingFaceFolder source(folder / "a");
  const Model model(source.config());
  const Layer& layer = model.layer(1);
  std::vector<float> block(static_cast<size_t>(layer.block_size()), 7);
  read_layer(source, layer, block);
  std::vector<float> expected(block.size(), 7);
  for (const auto& parameter : layer.parameters())
    for (int64_t i = 0; i < parameter.count(); ++i)
      expected[static_cast<size_t>(parameter.offset + i)] = SyntheticWeights::value(parameter.name, i);
  EXPECT_EQ(block, expected);
}

// By several threads, a large parameter in pieces, and one that lies turned on disk in more rows than are
// turned at a time.
TEST(HuggingFace, ThreadsFillBlocksTogether) {
  const TestFolder folder;
  Json shape = tiny_gpt2();
  shape["vocab_size"] = 33000;
  shape["n_embd"] = 70;
  const SyntheticWeights synthetic(shape);
  const auto parameters = parameters_of(synthetic);
  save_hugging_face(synthetic, parameters, folder / "a", {});
  const HuggingFaceFolder source(folder / "a");
  const Model model(source.config());
  for (int l = 0; l < 2; ++l) {
    const Layer& layer = model.layer(l);
    std::vector<float> block(static_cast<size_t>(layer.block_size()), 7), expected = block;
    for (const auto& p : layer.parameters())
      synthetic.read(
          p, 0, std::span(expected).subspan(static_cast<size_t>(p.offset), static_cast<size_t>(p.count())));
    read_layer(source, layer, block, 3);
    EXPECT_TRUE(block == expected) << l;
  }
  // Any elements of a turned parameter.
  for (const auto& p : parameters) {
    if (!p.transposed_on_disk) continue;
    for (const auto& [begin, count] :
         {std::pair<int64_t, size_t>{0, 1}, {69, 2}, {70, 70}, {101, 500}, {p.count() - 3, 3}}) {
      std::vector<float> values(count), expected(count);
      source.read(p, begin, values);
      synthetic.read(p, begin, expected);
      EXPECT_EQ(values, expected) << p.name << " " << begin;
    }
  }
}

TEST(HuggingFace, RefusesWhatIsMissingOrDoesNotFit) {
  const TestFolder folder;
  const fs::path m = folder / "m", file = m / "model.safetensors";
  auto tensors = declarations_of(tiny_llama(false));
  remove_tensor(tensors, "model.layers.1.mlp.up_proj.weight");
  write_folder(m, tiny_llama(false), tensors);
  EXPECT_THAT(check_message(m),
              HasSubstr(file.string() + ": tensor 'model.layers.1.mlp.up_proj.weight' is missing"));

  tensors = declarations_of(tiny_llama(false));
  tensors[0].shape = {8, 4};
  write_folder(m, tiny_llama(false), tensors);
  EXPECT_THAT(check_message(m),
              HasSubstr("'model.embed_tokens.weight' has shape [8, 4], config.json makes it [6, 4]"));

  fs::remove(file);
  EXPECT_THAT(check_message(m), HasSubstr("no weights"));
  write_test_file(m / "pytorch_model.bin", "x");
  EXPECT_THAT(check_message(m), HasSubstr("safetensors"));
  write_test_file(m / "model.safetensors.index.json", R"({"weight_map":{"a":"../x.safetensors"}})");
  EXPECT_THAT(check_message(m), HasSubstr("weight_map['a']"));
}

TEST(HuggingFace, WarnsOfTensorsItDoesNotUse) {
  const TestFolder folder;
  auto tensors = declarations_of(tiny_gpt2());
  tensors.push_back({"transformer.h.0.attn.bias", TensorType::kF32, {1, 1, 5, 5}});
  tensors.push_back({"transformer.h.0.attn.masked_bias", TensorType::kF32, {}});
  write_folder(folder / "m", tiny_gpt2(), tensors);
  {
    const CapturedLog log;
    EXPECT_EQ(check_message(folder / "m"), "");
    EXPECT_THAT(log.text(), IsEmpty());
  }
  tensors.push_back({"transformer.h.1.ln_1.weight", TensorType::kF32, {4}});
  write_folder(folder / "m", tiny_gpt2(), tensors);
  const CapturedLog log;
  EXPECT_EQ(check_message(folder / "m"), "");
  EXPECT_THAT(log.text(),
              HasSubstr("1 tensors are no part of this model and are not used: transformer.h.1.ln_1.weight"));
}

TEST(HuggingFace, ConfigKeepsWhatItHad) {
  const TestFolder folder;
  const SyntheticWeights source(tiny_llama(true));
  save_hugging_face(source, parameters_of(source), folder / "a",
                    {.type = TensorType::kBF16, .tokenizer = ""});
  const Json config = parse_json_file(folder / "a/config.json");
  EXPECT_EQ(config["made_up_key"], "kept");
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
}

TEST(HuggingFace, TokenizerFilesComeAlong) {
  const TestFolder folder;
  fs::create_directory(folder / "t");
  write_test_file(folder / "t/tokenizer.json", "{}");
  write_test_file(folder / "t/tokenizer_config.json", "{\"a\":1}");
  write_test_file(folder / "t/other.txt", "x");
  write_test_file(folder / "t/my.model", "sp");
  const SyntheticWeights source(tiny_llama(true));
  const auto save = [&](const std::string& to, const std::string& tokenizer) {
    ExportOptions options;
    options.tokenizer = tokenizer;
    save_hugging_face(source, parameters_of(source), folder / to, options);
  };
  save("a", folder / "t");
  EXPECT_EQ(read_file(folder / "a/tokenizer_config.json"), "{\"a\":1}");
  EXPECT_TRUE(fs::exists(folder / "a/tokenizer.json"));
  EXPECT_FALSE(fs::exists(folder / "a/other.txt"));
  EXPECT_EQ(HuggingFaceFolder(folder / "a").tokenizer(), (folder / "a").string());
  save("b", folder / "t/my.model");
  EXPECT_EQ(read_file(folder / "b/tokenizer.model"), "sp");
  EXPECT_FALSE(fs::exists(folder / "b/tokenizer.json")) << "another vocabulary than the one asked for";
  save("c", "byte");
  EXPECT_EQ(HuggingFaceFolder(folder / "c").tokenizer(), "");
  EXPECT_THAT(message_of([&] { save("d", folder / "nothing"); }), HasSubstr("no such tokenizer"));
  EXPECT_FALSE(fs::exists(folder / "d"));
}

TEST(HuggingFace, NothingIsOverwrittenAndNothingIsLeftOfAFailure) {
  const TestFolder folder;
  const SyntheticWeights source(tiny_llama(true));
  const auto save = [&](const ModelSource& from) {
    return message_of([&] { save_hugging_face(from, parameters_of(source), folder / "a", {}); });
  };
  fs::create_directory(folder / "a");
  EXPECT_EQ(save(source), "") << "an empty folder is no obstacle";
  const std::string before = read_file(folder / "a/model.safetensors");
  EXPECT_THAT(save(source), HasSubstr("is there already"));
  EXPECT_EQ(read_file(folder / "a/model.safetensors"), before);

  fs::remove_all(folder / "a");
  auto tensors = declarations_of(tiny_llama(true));
  tensors.pop_back();
  write_folder(folder / "broken", tiny_llama(true), tensors);
  EXPECT_THAT(save(HuggingFaceFolder(folder / "broken")), HasSubstr("is missing"));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path()))
    names.push_back(entry.path().filename().string());
  EXPECT_THAT(names, ElementsAre("broken"));
}

// Tied embeddings: one tensor in the file, and nothing invented where one is missing.
TEST(HuggingFaceTied, OneTensorIsExported) {
  const TestFolder folder;
  const SyntheticWeights source(tiny_llama(true));
  save_hugging_face(source, parameters_of(source), folder / "a", {});
  EXPECT_THAT(tensor_names(folder / "a/model.safetensors"), Contains("model.embed_tokens.weight"));
  EXPECT_THAT(tensor_names(folder / "a/model.safetensors"), Not(Contains("lm_head.weight")));
  EXPECT_EQ(parse_json_file(folder / "a/config.json")["tie_word_embeddings"], true);
  EXPECT_EQ(check_message(folder / "a"), "");
}

TEST(HuggingFaceTied, AnUntiedModelNeedsItsHead) {
  const TestFolder folder;
  write_folder(folder / "a", tiny_llama(false), declarations_of(tiny_llama(true)));
  EXPECT_THAT(check_message(folder / "a"), HasSubstr("tensor 'lm_head.weight' is missing"));
}

TEST(HuggingFaceTied, AHeadThatDiffersIsWarnedOf) {
  const TestFolder folder;
  auto tensors = declarations_of(tiny_llama(true));
  tensors.push_back({"lm_head.weight", TensorType::kF32, {6, 4}});
  write_folder(folder / "a", tiny_llama(true), tensors);  // the same 0, 1, 2, ... as the embedding
  {
    const CapturedLog log;
    EXPECT_EQ(check_message(folder / "a"), "");
    EXPECT_THAT(log.text(), IsEmpty());
  }
  std::string content = read_file(folder / "a/model.safetensors");
  content.back() ^= 1;  // the last value of lm_head.weight
  write_test_file(folder / "a/model.safetensors", content);
  const CapturedLog log;
  EXPECT_EQ(check_message(folder / "a"), "");
  EXPECT_THAT(log.text(), HasSubstr("'lm_head.weight' differs from the embedding"));
}

// The vocabulary is the model's: no padding rows are added on the way out or accepted on the way in.
TEST(HuggingFace, OddVocabularyKeepsItsSize) {
  const TestFolder folder;
  Json config = tiny_llama(false);
  config["vocab_size"] = 50257;
  const SyntheticWeights source(config);
  save_hugging_face(source, parameters_of(source), folder / "a", {});
  const SafetensorsFile file(folder / "a/model.safetensors");
  EXPECT_THAT(file.find("model.embed_tokens.weight")->shape, ElementsAre(50257, 4));
  EXPECT_THAT(file.find("lm_head.weight")->shape, ElementsAre(50257, 4));
  EXPECT_EQ(parse_json_file(folder / "a/config.json")["vocab_size"], 50257);
  expect_synthetic(HuggingFaceFolder(folder / "a"));
}

TEST(HuggingFace, HeadDimIsItsOwn) {
  const TestFolder folder;
  const SyntheticWeights source(tiny_qwen3());
  save_hugging_face(source, parameters_of(source), folder / "a", {});
  const SafetensorsFile file(folder / "a/model.safetensors");
  const std::string attention = "model.layers.0.self_attn.";
  EXPECT_THAT(file.find(attention + "q_proj.weight")->shape, ElementsAre(128, 64));
  EXPECT_THAT(file.find(attention + "k_proj.weight")->shape, ElementsAre(64, 64));
  EXPECT_THAT(file.find(attention + "v_proj.weight")->shape, ElementsAre(64, 64));
  EXPECT_THAT(file.find(attention + "o_proj.weight")->shape, ElementsAre(64, 128));
  EXPECT_THAT(file.find(attention + "q_norm.weight")->shape, ElementsAre(32));
  EXPECT_EQ(parse_json_file(folder / "a/config.json")["head_dim"], 32);
}

// A run directory as `train` leaves it.
class RunDirectory : public ::testing::Test {
 protected:
  void save_step(int64_t step, const Json& config) {
    const SyntheticWeights source(config);
    const fs::path directory = begin_checkpoint(run_ / "checkpoints", step);
    std::vector<std::vector<float>> values;
    std::vector<PartTensor> tensors;
    for (const auto& parameter : parameters_of(source)) {
      auto& buffer = values.emplace_back(static_cast<size_t>(parameter.count()));
      source.read(parameter, 0, buffer);
      for (const auto& name : {parameter.name, parameter.name + ".moment1"})
        tensors.push_back({{name, parameter.shape, {0, parameter.count()}}, buffer});
    }
    const std::vector<PartInfo> parts = {write_part(directory, 0, tensors)};
    finish_checkpoint(directory, parts,
                      {step, 0, {{"model", model_config_to_hugging_face(source.config())}}});
  }
  TestFolder folder_;
  fs::path run_ = folder_ / "run";
};

TEST_F(RunDirectory, ItsCheckpointsAreModels) {
  save_step(5, tiny_gpt2());
  save_step(10, tiny_gpt2());
  write_test_file(run_ / "resolved_config.json", R"({"data":{"tokenizer":"vocabulary"}})");
  fs::create_directory(run_ / "vocabulary");
  for (const fs::path& path :
       {run_, fs::path(run_.string() + "/"), run_ / "checkpoints", run_ / "checkpoints/step_00000005"}) {
    const auto source = open_model_source(path);
    source->check(parameters_of(*source));
    expect_synthetic(*source);
    EXPECT_EQ(source->tokenizer(), (run_ / "vocabulary").string());
  }
  const auto source = open_model_source(run_);
  save_hugging_face(*source, parameters_of(*source), folder_ / "out", {});
  expect_synthetic(*open_model_source(folder_ / "out"));
}

TEST_F(RunDirectory, OtherFoldersAreNoModels) {
  EXPECT_THAT(message_of([&] { open_model_source(folder_ / "none"); }), HasSubstr("no such folder"));
  EXPECT_THAT(message_of([&] { open_model_source(folder_.path()); }),
              HasSubstr("neither a Hugging Face model folder"));
  fs::create_directories(run_ / "checkpoints");
  EXPECT_THAT(message_of([&] { open_model_source(run_); }), HasSubstr("no checkpoint yet"));
}

TEST_F(RunDirectory, ACheckpointOfAnotherShapeIsRefused) {
  save_step(1, tiny_gpt2());
  const auto source = open_model_source(run_);
  Json wider = tiny_gpt2();
  wider["n_embd"] = 8;
  EXPECT_THAT(message_of([&] { source->check(parameters_of(SyntheticWeights(wider))); }),
              HasSubstr("has shape [7, 4]"));
}

}  // namespace
}  // namespace trainer
