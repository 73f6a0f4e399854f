#include "app/ablation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "app/ablation_report.h"
#include "base/error.h"
#include "base/json.h"

namespace trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kConfig = R"({
  "model": {"architecture": "llama", "num_layers": 4, "hidden_size": 32, "ffn_hidden_size": 48,
            "num_attention_heads": 4, "vocabulary_size": 60},
  "data": {"data_path": "synthetic", "sequence_length": 16},
  "training": {"steps": 6, "micro_batch_size": 1, "global_batch_size": 8},
  "parallel": {"pipeline_parallel_size": 2, "zero_stage": 2},
  "schedule": {"activation": "checkpoint", "recovery_buffers": 2},
  "optimizer": {"lr": 1e-2},
  "run": {"directory": "unused"}
})";

std::vector<AblationVariant> variants(int ranks, const std::vector<std::string>& overrides = {}) {
  Config config = parse_config(kConfig, "the config", overrides);
  const ModelConfig model = make_model_config(config);
  resolve_parallel(config, model, ranks);
  return ablation_variants(config, model, ranks);
}

const AblationVariant& find(const std::vector<AblationVariant>& list, const std::string& name) {
  for (const AblationVariant& v : list)
    if (v.name == name) return v;
  throw std::out_of_range(name);
}

// Keys whose values differ.
std::vector<std::string> differences(const Config& a, const Config& b) {
  std::vector<std::string> keys;
  const Json one = config_to_json(a), other = config_to_json(b);
  for (const auto& [section, fields] : one.items())
    for (const auto& [key, value] : fields.items())
      if (value != other.at(section).value(key, Json())) keys.push_back(key);
  return keys;
}

TEST(AblationVariants, HaveTheNamesThatScriptsRelyOn) {
  std::vector<std::string> names;
  for (const AblationVariant& v : variants(4)) names.push_back(v.name);
  EXPECT_THAT(names,
              ElementsAre("full", "no_layer_state_pipeline", "no_update_prefetch", "no_forward_side_recovery",
                          "baseline_1f1b", "backward_checkpoint", "full_save", "tp_heavy", "zero3_heavy"));
}

TEST(AblationVariants, ChangeWhatTheirNamesSayAndNothingElse) {
  const auto list = variants(4);
  const Config& full = list.front().config;
  EXPECT_EQ(full.parallel.data_parallel_size, 2);
  for (const AblationVariant& v : list) {
    EXPECT_THAT(v.why_not, IsEmpty()) << v.name;
    const auto& p = v.config.parallel;
    EXPECT_EQ(p.pipeline_parallel_size * p.data_parallel_size * p.tensor_parallel_size, 4) << v.name;
  }
  for (const std::string pass : {"layer_state_pipeline", "update_prefetch", "forward_side_recovery"}) {
    const Config& without = find(list, "no_" + pass).config;
    EXPECT_THAT(differences(full, without), ElementsAre("passes"));
    std::vector<std::string> expected = full.schedule.passes;
    EXPECT_EQ(std::erase(expected, pass), 1u);
    EXPECT_EQ(without.schedule.passes, expected);
  }
  EXPECT_THAT(differences(full, find(list, "baseline_1f1b").config),
              ElementsAre("zero_stage", "activation", "passes"));
  EXPECT_THAT(find(list, "baseline_1f1b").config.schedule.passes, IsEmpty());
  EXPECT_THAT(differences(full, find(list, "full_save").config), ElementsAre("activation"));
  EXPECT_THAT(differences(full, find(list, "zero3_heavy").config), ElementsAre("zero_stage"));
  const Config& backward = find(list, "backward_checkpoint").config;
  EXPECT_THAT(differences(full, backward), ElementsAre("passes"));  // it kept checkpoints already
  EXPECT_EQ(backward.schedule.last_stage_keeps, full.schedule.last_stage_keeps);
  const auto selective = variants(4, {"schedule.activation=selective"});
  EXPECT_THAT(differences(selective.front().config, find(selective, "backward_checkpoint").config),
              ElementsAre("activation", "passes"));
}

TEST(AblationVariants, BaselineShardsNoGradients) {
  const auto list = variants(4, {"parallel.shard_gradients=true"});
  EXPECT_FALSE(find(list, "baseline_1f1b").config.parallel.shard_gradients);
  EXPECT_TRUE(find(list, "zero3_heavy").config.parallel.shard_gradients);
}

TEST(AblationVariants, TensorRanksTakeThePlaceOfReplicasOrOfStages) {
  const Config replicas = find(variants(4), "tp_heavy").config;
  EXPECT_EQ(replicas.parallel.tensor_parallel_size, 2);
  EXPECT_EQ(replicas.parallel.data_parallel_size, 1);
  EXPECT_EQ(replicas.parallel.pipeline_parallel_size, 2);
  EXPECT_TRUE(replicas.parallel.sequence_parallel.value());
  const Config stages = find(variants(2, {"parallel.stage_layers=[3,1]"}), "tp_heavy").config;
  EXPECT_EQ(stages.parallel.tensor_parallel_size, 2);
  EXPECT_EQ(stages.parallel.data_parallel_size, 1);
  EXPECT_EQ(stages.parallel.pipeline_parallel_size, 1);
  EXPECT_THAT(stages.parallel.stage_layers, ElementsAre(4));
}

TEST(AblationVariants, WhatIsNotPossibleSaysWhy) {
  const AblationVariant alone = find(variants(1, {"parallel.pipeline_parallel_size=1"}), "tp_heavy");
  EXPECT_THAT(alone.why_not, HasSubstr("neither can be halved"));
  EXPECT_EQ(alone.config.parallel.tensor_parallel_size, 1);
  const auto odd_heads = variants(4, {"model.num_attention_heads=1", "model.kv_channels=32"});
  EXPECT_THAT(find(odd_heads, "tp_heavy").why_not, Not(IsEmpty()));
  EXPECT_THAT(find(odd_heads, "zero3_heavy").why_not, IsEmpty());
}

TEST(ArithmeticClass, SeparatesWhatAddsInAnotherOrder) {
  const auto list = variants(4);
  const std::string full = arithmetic_class(list.front().config);
  for (const AblationVariant& v : list)
    EXPECT_EQ(arithmetic_class(v.config) == full, v.name != "tp_heavy") << v.name;
  const auto sharded = variants(4, {"parallel.shard_gradients=true"});
  EXPECT_NE(arithmetic_class(sharded.front().config), full);
  EXPECT_EQ(arithmetic_class(find(sharded, "baseline_1f1b").config), full);
  EXPECT_NE(arithmetic_class(variants(2).front().config), full);
  const std::string grouped = "parallel.reproducible_group=2";
  EXPECT_EQ(arithmetic_class(variants(2, {grouped}).front().config),
            arithmetic_class(variants(4, {grouped}).front().config));
}

TimelineEvent event(const char* kind, int step, double begin, double end) {
  TimelineEvent e;
  e.kind = kind;
  e.step = step;
  e.begin = begin;
  e.end = end;
  return e;
}

TEST(RankSteps, BeginWithTheFirstForwardAndEndWithTheLastBackward) {
  Timeline t;
  t.events = {event("Forward", 3, 1, 2),   event("Forward", 3, 2, 3),    event("Backward", 3, 5, 7),
              event("Backward", 3, 3, 5),  event("GradSync", 3, 7, 9),   event("Receive", 4, 6, 8),
              event("Forward", 4, 10, 11), event("Backward", 4, 11, 13), event("Forward", 5, 13, 14)};
  const auto steps = rank_steps(t, 3, 2);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].first_forward, 1);
  EXPECT_EQ(steps[0].last_backward, 7);
  EXPECT_EQ(steps[1].first_forward, 10);
  EXPECT_EQ(steps[1].last_backward, 13);
  EXPECT_ANY_THROW(rank_steps(t, 3, 3));  // step 5 has no backward
}

RankStep rank_step(double begin, double end, double update = 0, double recovery = 0) {
  RankStep s{begin, end, {}};
  s.account.exposed.update = update;
  s.account.exposed.recovery = recovery;
  return s;
}

TEST(RoundFigures, AreMediansOverStepsAndOfTheSlowestRank) {
  // Stage 0 has ranks 0 and 1, stage 1 the others, whose gaps hold the bubble.
  const std::vector<std::vector<RankStep>> ranks = {
      {rank_step(0, 8, 0.1), rank_step(10, 18), rank_step(21, 29, 0.5), rank_step(40, 48)},
      {rank_step(0.5, 9, 0.3), rank_step(10, 17), rank_step(20, 29, 0.1), rank_step(41, 49)},
      {rank_step(3, 6, 0, 2), rank_step(13, 16, 0, 1), rank_step(24, 27), rank_step(43, 46)},
      {rank_step(3, 6), rank_step(13, 16), rank_step(24, 27), rank_step(43, 46)}};
  const RoundFigures f = round_figures(ranks, 2);
  EXPECT_TRUE(std::isnan(f.simulated_seconds));
  EXPECT_TRUE(std::isnan(f.replay.main_path));
  EXPECT_DOUBLE_EQ(f.replayed_seconds, (49 - 9) / 3.0);  // last backwards of any rank
  EXPECT_DOUBLE_EQ(f.step_seconds, 10);                  // of 10, 10, 20
  EXPECT_DOUBLE_EQ(f.tail_seconds, 3);                   // of max(2, 1), max(3, 3), max(11, 12)
  EXPECT_DOUBLE_EQ(f.exposed.update, 0.3);               // of 0.3, 0, 0.5
  EXPECT_DOUBLE_EQ(f.exposed.recovery, 1);               // of 2, 1, 0
}

AblationResult result(const AblationVariant& variant, double step_seconds) {
  AblationResult r;
  r.variant = variant;
  r.program = "front end + <passes>";
  r.program_hash = std::hash<std::string>()(variant.name);
  r.predicted_memory = r.peak_memory = 3 << 20;
  r.predicted_resident = 5 << 20;
  r.resident_peak = 6 << 20;
  r.losses = {4.5, 4.25};
  r.gradient_norms = {1, 2};
  RoundFigures f;
  f.step_seconds = step_seconds;
  f.tail_seconds = step_seconds / 8;
  f.replay = {4, 1.5, 1, 0.75, 0.5, 0.25};
  f.replayed_seconds = 4.0625;
  f.simulated_seconds = std::nan("");
  f.exposed = {
      .bubble = 0.5, .boundary = 0.25, .grad_sync = 0.01, .update = 0.02, .prefetch = 0.03, .recovery = 0.04};
  for (const double factor : {3.0, 1.0, 2.0}) {
    r.rounds.push_back(f);
    r.rounds.back().step_seconds *= factor;
  }
  return r;
}

// A variant that fits none of the ranks' memory, one that cannot be, and others that were measured.
std::vector<AblationResult> results() {
  std::vector<AblationResult> list;
  for (const AblationVariant& v : variants(2))
    list.push_back(result(v, 0.125 * static_cast<double>(list.size() + 1)));
  AblationResult& large = list[6];
  large.out_of_memory = true;
  large.variant.config.device.memory_budget.bytes = 2 << 20;
  large.rounds.clear();
  large.losses.clear();
  AblationResult none;
  none.variant = list[7].variant;
  none.variant.why_not = "the heads are odd";
  list[7] = none;
  return list;
}

TEST(CompareLosses, BitsWithinAClassAndATolerantEyeOutsideOfIt) {
  const auto list = variants(4);
  const AblationResult full = result(list.front(), 1);
  AblationResult same = result(find(list, "zero3_heavy"), 1), tensor = result(find(list, "tp_heavy"), 1);
  EXPECT_TRUE(compare_losses(full, same).holds());
  EXPECT_TRUE(compare_losses(full, same).equal_bits);
  same.losses[1] = std::nextafter(same.losses[1], 5);
  EXPECT_FALSE(compare_losses(full, same).holds());
  same = result(find(list, "zero3_heavy"), 1);
  same.gradient_norms[1] = std::nextafter(2, 3);
  EXPECT_FALSE(compare_losses(full, same).holds());
  same = result(find(list, "zero3_heavy"), 1);
  same.repeats = false;
  EXPECT_FALSE(compare_losses(full, same).holds());

  tensor.losses[1] *= 1 + 5e-4;
  EXPECT_TRUE(compare_losses(full, tensor).holds());
  EXPECT_FALSE(compare_losses(full, tensor).equal_bits);
  EXPECT_NEAR(compare_losses(full, tensor).largest_difference, 5e-4, 1e-9);
  tensor.losses[0] *= 1 - 2e-3;
  EXPECT_FALSE(compare_losses(full, tensor).holds());
  tensor.losses[0] = std::nan("");
  EXPECT_FALSE(compare_losses(full, tensor).holds());
  tensor = result(find(list, "tp_heavy"), 1);
  tensor.losses.pop_back();
  EXPECT_FALSE(compare_losses(full, tensor).holds());
}

TEST(AblationReport, JsonHasWhatScriptsRead) {
  const Json list = parse_json(ablation_json(results()), "ablation");
  ASSERT_EQ(list.size(), 9u);
  for (const Json& one : list) {
    for (const char* key : {"name", "step_seconds", "exposed", "tail_seconds", "peak_memory_bytes",
                            "predicted_memory_bytes", "losses"})
      EXPECT_TRUE(one.contains(key)) << key;
  }
  const Json& full = list[0];
  EXPECT_EQ(full["step_seconds"], 0.25);  // the median of three rounds
  EXPECT_EQ(full["exposed"].dump(), R"({"comm":0.01,"update":0.02,"prefetch":0.03,"recover":0.04})");
  EXPECT_EQ(full["losses"].dump(), "[4.5,4.25]");
  EXPECT_EQ(full["peak_memory_bytes"], 3 << 20);
  EXPECT_TRUE(full["simulated_step_seconds"].is_null());
  EXPECT_EQ(full["replay"].dump(),
            R"({"main_path_seconds":1.5,"exposed":{"comm":1.0,"update":0.75,"prefetch":0.5,"recover":0.25},)"
            R"("step_seconds":4.0,"measured_seconds":4.0625})");
  EXPECT_EQ(full["bits_equal_to_full"], true);
  EXPECT_EQ(list[6]["out_of_memory"], true);
  EXPECT_EQ(list[6]["predicted_memory_bytes"], 3 << 20);
  EXPECT_TRUE(list[6]["step_seconds"].is_null());
  EXPECT_EQ(list[7]["why_not"], "the heads are odd");
  EXPECT_TRUE(list[7]["predicted_memory_bytes"].is_null());
}

TEST(AblationReport, MarkdownSaysWhatWasRunWhereAndHow) {
  AblationHeading heading;
  heading.config = "configs/c.json";
  heading.command = "mpirun -n 2 trainer ablate configs/c.json";
  heading.machine = "two cores";
  heading.plan = "a plan";
  heading.rounds = 3;
  heading.picture = "c.svg";
  auto list = results();
  list[2].program_hash = list[0].program_hash;
  const std::string text = ablation_markdown(heading, list);
  for (const char* part : {"# Ablation of configs/c.json", "`mpirun -n 2 trainer ablate configs/c.json`",
                           "two cores", "a plan", "](c.svg)", "3 rounds", "not possible: the heads are odd",
                           "needs 3.0 MiB of a budget of 2.0 MiB", "the same program as full"})
    EXPECT_THAT(text, HasSubstr(part));
  const std::string table = ablation_table(list);
  EXPECT_THAT(text, HasSubstr(table));
  EXPECT_TRUE(std::regex_search(
      table, std::regex(R"(\| full +\| +250\.00 \| +1\.000 \| +15\.62 \|.*\| +3\.0 \| equal bits +\|)")))
      << table;
  EXPECT_TRUE(std::regex_search(table, std::regex(R"(\| full_save +\| out of memory \|.*\| +3\.0 \| +\|)")))
      << table;
  EXPECT_TRUE(std::regex_search(table, std::regex(R"(\| tp_heavy +\| +not possible \|)"))) << table;
  list[8].losses[0] += 1;
  EXPECT_THAT(ablation_table(list), HasSubstr("DIFFER by 22 %"));
}

TEST(AblationReport, ChartIsOnePictureByItself) {
  const std::string svg = ablation_chart(results());
  EXPECT_THAT(svg, ::testing::StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, ::testing::EndsWith("</svg>\n"));
  for (const AblationVariant& v : variants(2)) EXPECT_THAT(svg, HasSubstr(">" + v.name + "</text>"));
  EXPECT_THAT(svg, HasSubstr("250.0 ms"));
  EXPECT_THAT(svg, HasSubstr("out of memory"));
  EXPECT_THAT(svg, HasSubstr("not possible"));
  EXPECT_THAT(svg, Not(HasSubstr("href")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  // The longest of a column fills its 210 units; the others are in proportion.
  EXPECT_TRUE(std::regex_search(svg, std::regex(R"(class="memory"[^>]* width="210\.00")")));
  EXPECT_TRUE(std::regex_search(svg, std::regex(R"(class="tail"[^>]* width="210\.00")")));
  EXPECT_TRUE(std::regex_search(svg, std::regex(R"(class="tail"[^>]* width="23\.33")")));  // a ninth
}

}  // namespace
}  // namespace trainer
