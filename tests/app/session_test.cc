#include "trainer/session.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "checkpoint/test_folder.h"
#include "trainer/dataset.h"

namespace trainer {
namespace {

using ::testing::HasSubstr;

constexpr const char* kConfig = R"({
  "model": {"architecture": "llama", "num_layers": 2, "hidden_size": 32, "ffn_hidden_size": 48,
            "num_attention_heads": 2, "max_position_embeddings": 32},
  "data": {"tokenizer": "byte", "split": "80,20,0", "sequence_length": 24},
  "training": {"steps": 6, "micro_batch_size": 2, "global_batch_size": 4, "eval_interval": 3},
  "precision": {"compute": "fp32"},
  "optimizer": {"lr": 1e-2, "lr_decay_style": "cosine"},
  "device": {"threads": 1},
  "run": {"directory": "unused"}
})";

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    std::vector<std::string> documents;
    for (int i = 0; i < 60; ++i) documents.push_back("document " + std::to_string(i * i) + " of sixty");
    tokens_ = write_byte_dataset(data(), documents);
    for (const auto& d : documents) expected_tokens_ += static_cast<int64_t>(d.size()) + 1;
  }
  std::string data() const { return (folder_.path() / "text").string(); }
  std::string checkpoints() const { return (folder_.path() / "checkpoints").string(); }
  Session open(std::vector<std::string> overrides = {}) const {
    overrides.push_back("data.data_path=" + data());
    return Session::open_text(kConfig, overrides);
  }
  static std::string bits(const StepReport& r) {
    std::string all(2 * sizeof(double), ' ');
    std::memcpy(all.data(), &r.loss, sizeof(double));
    std::memcpy(all.data() + sizeof(double), &r.gradient_norm, sizeof(double));
    return all;
  }

  TestFolder folder_;
  int64_t tokens_ = 0, expected_tokens_ = 0;
};

TEST_F(SessionTest, DatasetCountsItsTokens) { EXPECT_EQ(tokens_, expected_tokens_); }

TEST_F(SessionTest, LearnsAndReports) {
  Session session = open();
  EXPECT_EQ(session.rank(), 0);
  EXPECT_EQ(session.ranks(), 1);
  EXPECT_EQ(session.total_steps(), 6);
  EXPECT_GT(session.planned_memory_bytes(), 1 << 20);
  const double before = session.evaluate().loss;
  std::vector<StepReport> reports;
  session.run(6, [&](const StepReport& r) { reports.push_back(r); });
  ASSERT_EQ(reports.size(), 6u);
  for (size_t i = 0; i < reports.size(); ++i) {
    EXPECT_EQ(reports[i].step, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(reports[i].valid_tokens, 4 * 24);
    EXPECT_FALSE(reports[i].skipped);
    EXPECT_GT(reports[i].gradient_norm, 0);
    EXPECT_GT(reports[i].seconds, 0);
  }
  EXPECT_GT(reports[1].learning_rate, reports[5].learning_rate);
  EXPECT_NEAR(reports.front().loss, std::log(257), 0.5);
  EXPECT_LT(reports.back().loss, reports.front().loss - 0.3);
  const EvaluationReport after = session.evaluate();
  EXPECT_LT(after.loss, before - 0.3);
  EXPECT_GT(after.tokens, 0);
}

TEST_F(SessionTest, StepByStepLearnsTheSameBits) {
  Session at_once = open(), one_by_one = open();
  std::vector<std::string> expected, found;
  at_once.run(6, [&](const StepReport& r) { expected.push_back(bits(r)); });
  for (int i = 0; i < 6; ++i) found.push_back(bits(one_by_one.step()));
  EXPECT_EQ(expected, found);
  for (const ParameterInfo& p : at_once.parameters())
    EXPECT_EQ(at_once.parameter(p.name), one_by_one.parameter(p.name)) << p.name;
}

TEST_F(SessionTest, ResumesWithTheSameBits) {
  Session whole = open();
  std::vector<std::string> expected, found;
  whole.run(6, [&](const StepReport& r) { expected.push_back(bits(r)); });
  {
    Session first = open();
    first.run(2);
    first.save(checkpoints());
    found.assign(expected.begin(), expected.begin() + 2);
  }
  Session second = open();
  second.run(1);  // what it learned is forgotten
  second.resume(checkpoints());
  EXPECT_EQ(second.steps_done(), 2);
  second.run(4, [&](const StepReport& r) { found.push_back(bits(r)); });
  EXPECT_EQ(expected, found);
  for (const ParameterInfo& p : whole.parameters())
    EXPECT_EQ(whole.parameter(p.name), second.parameter(p.name)) << p.name;
}

TEST_F(SessionTest, ParametersHaveTheirShapes) {
  const Session session = open();
  const auto parameters = session.parameters();
  ASSERT_FALSE(parameters.empty());
  EXPECT_EQ(parameters.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(parameters.front().shape, (std::vector<int64_t>{257, 32}));
  for (const ParameterInfo& p : parameters) {
    size_t count = 1;
    for (int64_t s : p.shape) count *= static_cast<size_t>(s);
    ASSERT_TRUE(session.parameter(p.name)) << p.name;
    EXPECT_EQ(session.parameter(p.name)->size(), count) << p.name;
  }
}

TEST_F(SessionTest, WhatTheCallbackThrowsComesBackAfterTheSteps) {
  Session session = open();
  int calls = 0;
  EXPECT_THROW(session.run(3,
                           [&](const StepReport& r) {
                             ++calls;
                             if (r.step == 2) throw std::runtime_error("enough");
                           }),
               std::runtime_error);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(session.steps_done(), 3);
  EXPECT_EQ(session.step().step, 4);
}

TEST_F(SessionTest, MovesWithWhatItLearned) {
  Session session = open();
  session.run(2);
  Session moved = std::move(session);
  EXPECT_EQ(moved.step().step, 3);
}

TEST_F(SessionTest, WrongUseSaysWhatIsWrongAndChangesNothing) {
  EXPECT_THAT(message_of([&] { open({"training.stepz=3"}); }), HasSubstr("stepz"));
  EXPECT_THAT(message_of([&] { open({"parallel.pipeline_parallel_size=2"}); }), HasSubstr("pipeline"));
  EXPECT_THAT(message_of([] { Session::open("/nowhere.json"); }), HasSubstr("/nowhere.json"));
  Session session = open({"training.eval_interval=0"});
  session.run(5);
  EXPECT_THAT(message_of([&] { session.run(2); }), HasSubstr("training.steps"));
  EXPECT_THAT(message_of([&] { session.run(-1); }), HasSubstr("training.steps"));
  EXPECT_THAT(message_of([&] { session.evaluate(); }), HasSubstr("training.eval_interval"));
  EXPECT_THAT(message_of([&] { session.parameter("nothing"); }), HasSubstr("nothing"));
  EXPECT_THAT(message_of([&] { session.resume(checkpoints()); }), HasSubstr("no complete checkpoint"));
  EXPECT_EQ(session.step().step, 6);
}

TEST_F(SessionTest, RefusesACheckpointOfOtherData) {
  Session session = open();
  session.run(1);
  session.save(checkpoints());
  Session other = open({"training.seed=7"});
  EXPECT_THAT(message_of([&] { other.resume(checkpoints()); }), HasSubstr("another order"));
}

}  // namespace
}  // namespace trainer
