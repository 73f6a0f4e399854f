#include "app/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"

namespace trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::filesystem::path kRoot = std::filesystem::path(TEST_DATA).parent_path().parent_path();

// The smallest config that is complete.
Json smallest() {
  return parse_json(R"({
    "model": {"num_layers": 4, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4, "vocabulary_size": 100},
    "data": {"data_path": "d/text", "sequence_length": 32},
    "training": {"steps": 10, "micro_batch_size": 2, "global_batch_size": 8},
    "optimizer": {"lr": 0.001},
    "run": {"directory": "runs/x"}
  })",
                    "smallest");
}

std::string text_with(const std::string& section, const std::string& key, const std::string& value) {
  Json json = smallest();
  json[section][key] = "@@";
  std::string text = json.dump();
  const size_t at = text.find("\"@@\"");
  return text.replace(at, 4, value);
}

std::string error_of(const std::string& text, std::vector<std::string> overrides = {}) {
  try {
    parse_config(text, "c.json", overrides);
  } catch (const InputError& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "no error";
}

Config config_with(std::vector<std::string> overrides) {
  return parse_config(smallest().dump(), "c.json", overrides);
}
std::string error_with(std::vector<std::string> overrides) {
  return error_of(smallest().dump(), std::move(overrides));
}

TEST(Cases, NumbersAndUnknownKeysInTheConfig) {
  const auto expect = [](const std::string& text, const std::string& key, const std::string& reason) {
    EXPECT_THAT(error_of(text), AllOf(HasSubstr("c.json"), HasSubstr(key), HasSubstr(reason))) << text;
  };
  expect(text_with("optimizer", "lr", "\"1e-4\""), "optimizer.lr", "expected a number");
  expect(text_with("training", "micro_batch_size", "1.5"), "training.micro_batch_size", "found 1.5");
  expect(text_with("data", "sequence_length", "-1"), "data.sequence_length", "at least 1");
  expect(text_with("training", "steps", "9223372036854775808"), "training.steps", "expected an integer");
  expect(text_with("training", "steps", "true"), "training.steps", "found true");
  expect(text_with("optimizer", "clip_grad", "null"), "optimizer.clip_grad", "found null");
  expect(text_with("training", "gradient_acumulation", "4"), "training.gradient_acumulation", "unknown key");
  expect(text_with("training", "micro_batchsize", "4"), "training.micro_batchsize",
         "'training.micro_batch_size'");
  expect(text_with("optimizer", "clip_grad", "NaN"), "c.json", "not valid JSON");
  expect(text_with("optimizer", "lr", "1, \"lr\": 2"), "'optimizer.lr'", "twice");
  expect(text_with("optimizer", "lr", "1,"), "c.json", "not valid JSON");
  expect(text_with("optimizer", "lr", "1e999"), "c.json", "not valid JSON");
  expect("\xEF\xBB\xBF" + smallest().dump(), "c.json", "byte-order mark");
  expect("[]", "c.json", "expected an object");

  EXPECT_EQ(parse_config(text_with("training", "steps", "1e3"), "c.json").training.steps, 1000);
  EXPECT_EQ(parse_config(text_with("training", "steps", "20.0"), "c.json").training.steps, 20);
}

TEST(Config, NamesOfOtherProgramsLeadToOurs) {
  EXPECT_THAT(error_of(text_with("training", "max_steps", "5")), HasSubstr("'training.steps'"));
  EXPECT_THAT(error_of(text_with("data", "seq_len", "5")), HasSubstr("'data.sequence_length'"));
  EXPECT_THAT(error_of(text_with("training", "grad_clip", "5")), HasSubstr("'optimizer.clip_grad'"));
  EXPECT_THAT(error_of(text_with("training", "weight_decay", "5")), HasSubstr("'optimizer.weight_decay'"));
  EXPECT_THAT(error_of(text_with("optimiser", "lr", "5")), HasSubstr("'optimizer'"));
  EXPECT_THAT(error_of(text_with("run", "qqqqqq", "5")), HasSubstr("keys there are: directory"));
}

TEST(Config, MissingKeysAreNamed) {
  for (const auto& [section, key] : {std::pair{"training", "steps"},
                                     {"data", "data_path"},
                                     {"model", "hidden_size"},
                                     {"optimizer", "lr"},
                                     {"run", "directory"}}) {
    Json json = smallest();
    json[section].erase(key);
    EXPECT_THAT(error_of(json.dump()),
                AllOf(HasSubstr(std::string(section) + "." + key), HasSubstr("is missing")));
  }
  EXPECT_THAT(error_of("{}"), HasSubstr("is missing"));
}

TEST(Config, OverridesAreJsonOrText) {
  const Config c = config_with(
      {"training.steps=7", "optimizer.lr=1e-4", "run.directory=2024", "data.data_path=[0.3,\"a\",0.7,\"b\"]",
       "parallel.stage_layers=[3,1]", "parallel.pipeline_parallel_size=2", "run.tensorboard=false",
       "model.rope_scaling.factor=8", "device.memory_budget=20GiB", "schedule.activation=checkpoint"});
  EXPECT_EQ(c.training.steps, 7);
  EXPECT_EQ(c.optimizer.lr, 1e-4);
  EXPECT_EQ(c.run.directory, "2024");
  EXPECT_THAT(c.data.data_path.prefixes, ElementsAre("a", "b"));
  EXPECT_THAT(c.data.data_path.weights, ElementsAre(0.3, 0.7));
  EXPECT_THAT(c.parallel.stage_layers, ElementsAre(3, 1));
  EXPECT_FALSE(c.run.tensorboard);
  ASSERT_TRUE(c.model.rope_scaling);
  EXPECT_EQ(c.model.rope_scaling->factor, 8);
  EXPECT_EQ(c.device.memory_budget.bytes, int64_t{20} << 30);
  EXPECT_EQ(c.schedule.activation, ActivationPolicy::kCheckpoint);

  EXPECT_THAT(error_with({"training.stepz=7"}),
              AllOf(HasSubstr("--set training.stepz"), HasSubstr("'training.steps'")));
  EXPECT_THAT(error_with({"training.steps"}), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(error_with({"training..steps=1"}), HasSubstr("empty part"));
  EXPECT_THAT(error_with({"training.steps.x=1"}), HasSubstr("not an object"));
  EXPECT_THAT(error_with({"training.steps=many"}),
              AllOf(HasSubstr("--set training.steps"), HasSubstr("\"many\"")));
  EXPECT_THAT(error_with({"training.steps={\"a\":1,\"a\":2}"}), HasSubstr("twice"));
}

TEST(Config, DataPathForms) {
  EXPECT_THAT(config_with({"data.data_path=[\"a\",\"b\",\"c\"]"}).data.data_path.prefixes,
              ElementsAre("a", "b", "c"));
  for (const char* bad : {"[]", "3", "[1]", "[1,\"a\",2]", "[1,\"a\",\"b\"]", "[0,\"a\"]", "[-1,\"a\"]",
                          "[\"a\",1]", "\"\"", "[\"a\",\"\"]"})
    EXPECT_THAT(error_with({std::string("data.data_path=") + bad}), HasSubstr("data.data_path")) << bad;
}

TEST(Config, DerivedDefaults) {
  const Config c = config_with({});
  EXPECT_EQ(c.model.num_query_groups, 4);
  EXPECT_EQ(c.model.kv_channels, 16);
  EXPECT_EQ(c.model.max_position_embeddings, 32);
  EXPECT_EQ(c.data.seed, c.training.seed);
  EXPECT_EQ(c.optimizer.lr_decay_steps, 10);
  const Config gpt2 = config_with({"model.architecture=gpt2", "model.ffn_hidden_size=0"});
  EXPECT_EQ(gpt2.model.ffn_hidden_size, 256);
  EXPECT_TRUE(*gpt2.model.tie_word_embeddings);
  EXPECT_TRUE(*gpt2.model.add_qkv_bias);
}

TEST(Config, KeysThatDoNotFitOneAnother) {
  const auto expect = [](std::vector<std::string> overrides, const char* a, const char* b) {
    EXPECT_THAT(error_with(overrides), AllOf(HasSubstr(a), HasSubstr(b))) << overrides[0];
  };
  expect({"training.global_batch_size=7"}, "global_batch_size' (7)", "micro_batch_size' (2)");
  expect({"parallel.pipeline_parallel_size=5"}, "pipeline_parallel_size' (5)", "num_layers' (4)");
  expect({"parallel.stage_layers=[2,2]"}, "names 2 stages", "is 1");
  expect({"parallel.stage_layers=[4,0]", "parallel.pipeline_parallel_size=2"}, "stage_layers", "at least 1");
  expect({"model.num_query_groups=3"}, "num_attention_heads", "num_query_groups' (3)");
  expect({"model.num_attention_heads=3"}, "hidden_size' (64)", "num_attention_heads' (3)");
  expect({"model.architecture=gpt2", "model.max_position_embeddings=16"}, "sequence_length' (32)", "(16)");
  expect({"model.architecture=qwen2", "model.add_qkv_bias=false"}, "add_qkv_bias", "always has");
  expect({"model.ffn_hidden_size=0"}, "ffn_hidden_size", "missing");
  expect({"optimizer.min_lr=1"}, "min_lr", "above 'optimizer.lr'");
  expect({"optimizer.wsd_decay_steps=11"}, "wsd_decay_steps", "lr_decay_steps");
  expect({"parallel.reproducible_group=3"}, "reproducible_group", "power of two");
  expect({"parallel.reproducible_group=8"}, "global_batch_size", "reproducible_group");
  expect({"data.document_masking=true"}, "document_masking", "data.tokenizer");
  expect({"model.vocabulary_size=0"}, "model.vocabulary_size", "data.tokenizer");
  expect({"run.trace_steps=[11]"}, "trace_steps", "training.steps");
  expect({"model.hugging_face=x"}, "model.hugging_face", "exclude each other");
}

TEST(Cases, LayersThatStagesDoNotDivide) {
  EXPECT_THAT(even_stage_layers(30, 4), ElementsAre(8, 8, 7, 7));
  EXPECT_THAT(even_stage_layers(7, 2), ElementsAre(4, 3));
  EXPECT_THAT(even_stage_layers(10, 3), ElementsAre(4, 3, 3));
  EXPECT_THAT(even_stage_layers(4, 4), ElementsAre(1, 1, 1, 1));
  EXPECT_THROW(even_stage_layers(2, 4), InputError);
}

ModelConfig layers(int64_t count) {
  ModelConfig model;
  model.num_layers = count;
  model.max_position_embeddings = 32;
  return model;
}

TEST(Config, RanksBatchAndLayersFit) {
  const auto resolve = [](std::vector<std::string> overrides, int ranks, int64_t count = 4) -> Config {
    Config c = config_with(std::move(overrides));
    resolve_parallel(c, layers(count), ranks);
    return c;
  };
  const auto error = [&](std::vector<std::string> overrides, int ranks, int64_t count = 4) -> std::string {
    try {
      resolve(std::move(overrides), ranks, count);
    } catch (const InputError& e) {
      return e.what();
    }
    return "no error";
  };
  const Config c = resolve({"parallel.pipeline_parallel_size=2"}, 4);
  EXPECT_EQ(c.parallel.data_parallel_size, 2);
  EXPECT_THAT(c.parallel.stage_layers, ElementsAre(2, 2));
  EXPECT_THAT(
      resolve({"parallel.pipeline_parallel_size=2", "parallel.stage_layers=[3,1]"}, 2).parallel.stage_layers,
      ElementsAre(3, 1));

  EXPECT_THAT(error({"parallel.pipeline_parallel_size=2"}, 3), HasSubstr("multiple of 2"));
  EXPECT_THAT(error({"parallel.pipeline_parallel_size=2"}, 1), HasSubstr("mpirun -n 2"));
  EXPECT_THAT(error({"parallel.data_parallel_size=2"}, 4), HasSubstr("1 x 2 = 2"));
  EXPECT_THAT(error({}, 3), HasSubstr("2 x 3 = 6"));
  EXPECT_THAT(error({"parallel.pipeline_parallel_size=4"}, 4, 2), HasSubstr("at most 2 stages"));
  EXPECT_THAT(error({"parallel.pipeline_parallel_size=2", "parallel.stage_layers=[3,2]"}, 2),
              HasSubstr("5 layers"));
  EXPECT_THAT(error({"parallel.reproducible_group=2"}, 4), HasSubstr("reproducible_group"));
}

TEST(Config, TensorParallelSizesFitModelRanksAndTokens) {
  ModelConfig model = layers(4);
  model.num_attention_heads = 8;
  model.num_query_groups = 4;
  model.ffn_hidden_size = 24;
  model.vocabulary_size = 61;
  const auto resolve = [&](std::vector<std::string> overrides, int ranks) -> Config {
    Config c = config_with(std::move(overrides));
    resolve_parallel(c, model, ranks);
    return c;
  };
  const auto error = [&](std::vector<std::string> overrides, int ranks) -> std::string {
    try {
      resolve(std::move(overrides), ranks);
    } catch (const InputError& e) {
      return e.what();
    }
    return "no error";
  };
  const Config c = resolve({"parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=2"}, 8);
  EXPECT_EQ(c.parallel.data_parallel_size, 2);
  EXPECT_TRUE(c.parallel.sequence_parallel.value());
  EXPECT_FALSE(resolve({}, 1).parallel.sequence_parallel.value());
  EXPECT_FALSE(resolve({"parallel.sequence_parallel=true"}, 1).parallel.sequence_parallel.value());
  EXPECT_FALSE(resolve({"parallel.tensor_parallel_size=2", "parallel.sequence_parallel=false"}, 2)
                   .parallel.sequence_parallel.value());

  EXPECT_THAT(error({"parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=2"}, 6),
              AllOf(HasSubstr("2 x 2"), HasSubstr("mpirun -n 4")));
  EXPECT_THAT(error({"parallel.tensor_parallel_size=2", "parallel.data_parallel_size=1"}, 4),
              HasSubstr("1 x 1 x 2 = 2"));
  EXPECT_THAT(error({"parallel.tensor_parallel_size=3"}, 3),
              AllOf(HasSubstr("parallel.tensor_parallel_size"), HasSubstr("model.num_attention_heads")));
  EXPECT_THAT(error({"parallel.tensor_parallel_size=8"}, 8), HasSubstr("model.num_query_groups"));
  model.ffn_hidden_size = 25;
  EXPECT_THAT(error({"parallel.tensor_parallel_size=2"}, 2), HasSubstr("model.ffn_hidden_size"));
  model.ffn_hidden_size = 24;
  model.vocabulary_size = 3;
  EXPECT_THAT(error({"parallel.tensor_parallel_size=4"}, 4), HasSubstr("model.vocabulary_size"));
  model.vocabulary_size = 61;
  const std::vector<std::string> odd = {"parallel.tensor_parallel_size=2", "data.sequence_length=33",
                                        "training.micro_batch_size=1", "training.global_batch_size=1"};
  EXPECT_THAT(error(odd, 2), AllOf(HasSubstr("parallel.sequence_parallel"), HasSubstr("33 tokens")));
}

TEST(Config, ResolvedConfigReadsBackTheSame) {
  for (const std::vector<std::string>& overrides :
       {std::vector<std::string>{},
        {"model.rope_scaling.factor=4", "data.data_path=[1,\"a\",2,\"b\"]", "device.memory_budget=123456789",
         "optimizer.lr=0.1", "run.trace_steps=[1,2]", "optimizer.lr_decay_style=wsd",
         "precision.compute=fp32"}}) {
    const Json once = config_to_json(config_with(overrides));
    EXPECT_EQ(config_to_json(parse_config(once.dump(), "resolved")), once);
  }
  Json by_file = smallest();
  by_file["model"] = {{"hugging_face", "some/folder"}};
  const Json once = config_to_json(parse_config(by_file.dump(), "c.json"));
  EXPECT_FALSE(once["model"].contains("num_layers"));
  EXPECT_EQ(config_to_json(parse_config(once.dump(), "resolved")), once);
}

TEST(Config, MissingFilesAreNamed) {
  EXPECT_THAT(
      [] { check_paths(config_with({"data.data_path=no/such"})); },
      ::testing::ThrowsMessage<InputError>(AllOf(HasSubstr("data.data_path"), HasSubstr("no/such.idx"))));
  EXPECT_NO_THROW(check_paths(config_with({"data.data_path=synthetic"})));
  EXPECT_THROW(check_paths(config_with({R"(data.data_path=["synthetic","no/such"])"})), InputError);
  EXPECT_THROW(read_config("no/such.json"), InputError);
}

TEST(Config, SchemaAndReferenceAreUpToDate) {
  EXPECT_EQ(read_file(kRoot / "configs/schema.json"), config_schema().dump(2) + "\n")
      << "run: build/trainer schema > configs/schema.json";
  EXPECT_EQ(read_file(kRoot / "docs/configuration.md"), config_reference())
      << "run: build/trainer schema --reference > docs/configuration.md";
}

TEST(Config, ExamplesAreRead) {
  int examples = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "configs")) {
    if (entry.path().extension() != ".json" || entry.path().filename() == "schema.json") continue;
    EXPECT_NO_THROW(read_config(entry.path().string())) << entry.path();
    ++examples;
  }
  EXPECT_GE(examples, 3);
}

}  // namespace
}  // namespace trainer
