// The commands, as somebody calls them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/convert.h"
#include "app/generate.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/synthetic_model.h"
#include "checkpoint/test_folder.h"
#include "support/captured.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using testing::capture;
using testing::Captured;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Captured run(int (*command)(std::span<const std::string>), const std::vector<std::string>& words) {
  return capture([&] { return command(words); });
}

class Commands : public ::testing::Test {
 protected:
  Commands() {
    Json config = tiny_llama(true);
    config["vocab_size"] = 257;
    config["max_position_embeddings"] = 40;
    const SyntheticWeights source(config);
    save_hugging_face(source, parameters_of(source), model_, {});
  }
  Captured generate(std::vector<std::string> more) {
    std::vector<std::string> words = {"--model", model_, "--tokenizer", "byte", "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return run(generate_command, words);
  }
  TestFolder folder_;
  std::string model_ = folder_ / "model";
};

TEST_F(Commands, ConvertWritesAModel) {
  const std::string to = folder_ / "out";
  const Captured done =
      run(convert_command, {"--from", model_, "--to", to, "--dtype=bf16", "--max-shard-size", "1KB"});
  EXPECT_EQ(done.code, 0) << done.errors;
  EXPECT_THAT(done.output, HasSubstr(to));
  const HuggingFaceFolder written(to);
  for (const auto& parameter : parameters_of(written))
    EXPECT_EQ(written.type_of(parameter), TensorType::kBF16);
  EXPECT_FALSE(fs::exists(fs::path(to) / "model.safetensors"));
}

TEST_F(Commands, ConvertRefuses) {
  const std::string to = folder_ / "out";
  const auto errors = [&](const std::vector<std::string>& words) {
    const Captured done = run(convert_command, words);
    EXPECT_EQ(done.code, 2);
    return done.errors;
  };
  EXPECT_THAT(errors({"--from", model_}), HasSubstr("--to is missing"));
  EXPECT_THAT(errors({"--from", model_, "--to", model_}), HasSubstr("is there already"));
  EXPECT_THAT(errors({"--from", folder_ / "none", "--to", to}), HasSubstr("no such folder"));
  EXPECT_THAT(errors({"--from", model_, "--to", to, "--dtype", "int8"}), HasSubstr("--dtype"));
  EXPECT_THAT(errors({"--from", model_, "--to", to, "--max-shard-size", "many"}),
              HasSubstr("--max-shard-size"));
  EXPECT_FALSE(fs::exists(to));
}

TEST_F(Commands, GenerateContinuesThePrompt) {
  const Captured first = generate({"--prompt", "Hi", "--max-new-tokens", "20", "--seed", "3"});
  EXPECT_EQ(first.code, 0) << first.errors;
  EXPECT_THAT(first.output, StartsWith("Hi"));
  EXPECT_GT(first.output.size(), 4u);
  EXPECT_EQ(generate({"--prompt", "Hi", "--max-new-tokens", "20", "--seed", "3"}).output, first.output);
  EXPECT_NE(generate({"--prompt", "Hi", "--max-new-tokens", "20", "--seed", "4"}).output, first.output);
  EXPECT_EQ(generate({"--prompt", "Hi", "--max-new-tokens", "0"}).output, "Hi\n");
  EXPECT_EQ(generate({"--prompt", ""}).code, 0) << "the end-of-document token begins a text";
}

TEST_F(Commands, GenerateStaysWithinTheModelsPositions) {
  const Captured cut = generate({"--prompt", "Hi", "--max-new-tokens", "100"});
  EXPECT_EQ(cut.code, 0);
  EXPECT_THAT(cut.errors, HasSubstr("38 new tokens instead of 100"));
  const Captured refused = generate({"--prompt", std::string(40, 'x')});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.errors, HasSubstr("the prompt has 40 tokens"));
}

TEST_F(Commands, GenerateRefuses) {
  EXPECT_EQ(generate({"--prompt", "a", "--top-p", "1.5"}).code, 2);
  EXPECT_EQ(generate({"--prompt", "a", "--precision", "fp8"}).code, 2);
  EXPECT_THAT(generate({}).errors, HasSubstr("--prompt is missing"));
  EXPECT_THAT(run(generate_command, {"--model", model_, "--prompt", "a"}).errors,
              HasSubstr("give --tokenizer"));
}

}  // namespace
}  // namespace trainer
