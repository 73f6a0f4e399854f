// Training on the simulated cluster, and what its counted cycles predict.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "app/cycle_profile.h"
#include "app/kernels.h"
#include "app/plan_request.h"
#include "app/profile.h"
#include "app/training_rank.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/test_folder.h"
#include "comm/in_process.h"
#include "data/synthetic_source.h"
#include "dsp/machine.h"
#include "sim/predict.h"
#include "support/captured.h"

namespace trainer {
namespace {

using ::testing::HasSubstr;

// For tests that read configs/platforms: the source folder is the working folder meanwhile.
class SourceFolder {
 public:
  SourceFolder() : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(std::filesystem::path(TEST_DATA).parent_path().parent_path());
  }
  ~SourceFolder() { std::filesystem::current_path(before_); }
  SourceFolder(const SourceFolder&) = delete;
  SourceFolder& operator=(const SourceFolder&) = delete;

 private:
  std::filesystem::path before_;
};

Json config_json() {
  return {{"model",
           {{"architecture", "llama"},
            {"num_layers", 2},
            {"hidden_size", 64},
            {"num_attention_heads", 4},
            {"num_query_groups", 2},
            {"ffn_hidden_size", 128},
            {"vocabulary_size", 99}}},
          {"data", {{"data_path", "synthetic"}, {"sequence_length", 32}}},
          {"training", {{"steps", 6}, {"micro_batch_size", 1}, {"global_batch_size", 2}, {"seed", 5}}},
          {"optimizer", {{"lr", 3e-3}, {"lr_decay_style", "constant"}}},
          {"precision", {{"compute", "fp32"}}},
          {"device", {{"kind", "mt3000-sim"}}},
          {"run", {{"directory", "none"}}}};
}

Config config_of(Json json) { return parse_config(json.dump(), "config"); }

struct Trained {
  std::vector<double> losses;
  std::vector<int64_t> cycles;  // of each step
  Json counted;
};

// The same few samples in every step, so that the loss falls.
class RepeatedSource : public SyntheticSource {
 public:
  RepeatedSource(const Config& config, int64_t vocabulary)
      : SyntheticSource(config.data.sequence_length, vocabulary, config.training.seed, 0, 1000),
        count_(config.training.global_batch_size) {}
  void fetch(int64_t index, Sample& sample) const override { SyntheticSource::fetch(index % count_, sample); }

 private:
  int64_t count_;
};

Trained train(Config config, std::unique_ptr<KernelSet> kernels, int steps) {
  const ModelConfig model = make_model_config(config);
  resolve_parallel(config, model, 1);
  const auto world = make_in_process_group(1);
  const auto samples = std::make_shared<RepeatedSource>(config, model.vocabulary_size);
  TrainingRank rank(config, model, std::move(kernels), *world.front(), samples, nullptr);
  rank.allocate();
  rank.initialize_random();
  Trained result;
  int64_t before = 0;
  const auto counted = [&] {
    const Json now = counted_cycles(rank.kernels());
    return now.is_null() ? 0 : now["cycles"].get<int64_t>();
  };
  before = counted();
  for (int step = 1; step <= steps; ++step) {
    rank.run(step, 1, nullptr);
    result.losses.push_back(rank.take_result(step).loss);
    result.cycles.push_back(counted() - before);
    before = counted();
  }
  result.counted = counted_cycles(rank.kernels());
  return result;
}

TEST(SimulatedDevice, TrainsNearTheReferenceAndCountsCycles) {
  const Config config = config_of(config_json());
  constexpr int kSteps = 5, kRepeated = 2;
  const Trained first = train(config, make_kernels(config.device), kSteps);
  const Trained again = train(config, make_kernels(config.device), kRepeated);
  const Trained reference = train(config, make_reference_kernels(), kSteps);
  for (size_t step = 0; step < kRepeated; ++step) {
    EXPECT_EQ(first.losses[step], again.losses[step]) << "equal bits";
    EXPECT_EQ(first.cycles[step], again.cycles[step]);
  }
  EXPECT_LT(first.losses.back(), 0.9 * first.losses.front());
  EXPECT_NE(first.losses, reference.losses) << "computed in fp16";
  for (size_t step = 0; step < first.losses.size(); ++step)
    EXPECT_NEAR(first.losses[step], reference.losses[step], 5e-3 * reference.losses[step]) << step;
  EXPECT_TRUE(reference.counted.is_null());

  EXPECT_EQ(first.counted["device"], "simulated MT-3000 cluster");
  EXPECT_GT(first.cycles.front(), 0);
  int64_t sum = 0;
  for (const auto& [name, operation] : first.counted["operations"].items())
    sum += operation["cycles"].get<int64_t>();
  EXPECT_EQ(sum, first.counted["cycles"]);
  for (const char* operation : {"linear forward", "linear backward, input", "linear backward, weight",
                                "attention backward", "classifier forward", "optimizer"})
    EXPECT_GT(first.counted["operations"][operation]["cycles"].get<int64_t>(), 0) << operation;
}

TEST(SimulatedDevice, RefusesWhatItCannotDoWhenTheConfigIsRead) {
  Json bf16 = config_json(), cut = config_json();
  bf16["precision"]["compute"] = "bf16";
  cut["parallel"]["tensor_parallel_size"] = 2;
  for (const auto& [json, message] : {std::pair(bf16, "set 'precision.compute' to fp32 (it is bf16)"),
                                      {cut, "set 'parallel.tensor_parallel_size' to 1 (it is 2)"}})
    EXPECT_THAT(message_of([&, text = json.dump()] { parse_config(text, "config"); }), HasSubstr(message));
}

// Cycles are counted layer by layer without computing; a step of the program then takes as many as training
// counts.
TEST(SimulatedDevice, ACountedPlatformPredictsTheCyclesOfAStep) {
  const SourceFolder source;
  for (const bool checkpointed : {false, true}) {
    Json json = config_json();
    json["schedule"] = {{"activation", checkpointed ? "checkpoint" : "full_save"},
                        {"last_stage_keeps", false},
                        {"passes", Json::array()}};
    const Config config = config_of(json);
    const ModelConfig model = make_model_config(config);
    Platform platform = simulated_platform(count_layers(config, model).layers);
    EXPECT_THAT(platform.source, HasSubstr("Simulated"));
    EXPECT_EQ(parse_platform(platform_to_json(platform).dump(), "again"), platform);
    platform.recovery_has_its_own_lane = false;
    const Prediction predicted = predict_step(planned_problem(config, model, 1), platform);
    const Trained trained = train(config, make_kernels(config.device), 2);
    const double counted = dsp::Machine{}.seconds(trained.cycles.back());
    // The norms and losses that ranks tell each other are no kernel's work.
    double exchange = 0;
    for (size_t task = 0; task < predicted.graph.tasks.size(); ++task)
      if (predicted.graph.tasks[task].kind == TaskKind::kNormSync) exchange += predicted.costs.seconds[task];
    EXPECT_LT(exchange, 1e-4 * counted);
    EXPECT_NEAR(predicted.step.step_seconds - exchange, counted, 1e-9 * counted) << checkpointed;
  }
}

// Layers larger than any that a test could compute: no memory is taken for them.
TEST(SimulatedDevice, LayersOfAnySizeAreCounted) {
  const SourceFolder source;
  Json json = config_json();
  json["model"]["num_layers"] = 10000;
  json["model"]["hidden_size"] = 512;
  json["model"]["ffn_hidden_size"] = 1024;
  json["training"]["micro_batch_size"] = 100;
  json["training"]["global_batch_size"] = 100;
  json["data"]["sequence_length"] = 512;
  const Config config = config_of(json);
  const Platform platform = simulated_platform(count_layers(config, make_model_config(config)).layers);
  ASSERT_EQ(platform.measured.size(), 3);
  const MeasuredLayer& block = platform.measured[1];
  EXPECT_EQ(block.shape.layer, "block");
  EXPECT_GT(platform.forward_efficiency, 0.02);
  EXPECT_LT(platform.forward_efficiency, 0.68) << "the best of the published products";
  EXPECT_GT(block.backward_seconds, 1.5 * block.forward_seconds);
  EXPECT_LE(block.recover_seconds, block.forward_seconds);
}

TEST(SimulatedDevice, ProfileWritesASimulatedPlatform) {
  const SourceFolder source;
  const TestFolder folder;
  const std::string config = (folder.path() / "config.json").string(),
                    out = (folder.path() / "platform.json").string();
  write_file_atomically(config, config_json().dump());
  const std::vector<std::string> words = {config, "--out", out};
  const testing::Captured run = testing::capture([&] { return profile_command(words); });
  EXPECT_EQ(run.code, 0) << run.errors;
  const Platform platform = read_platform(out);
  EXPECT_EQ(platform.name, "mt3000-simulated");
  EXPECT_EQ(platform.measured,
            count_layers(config_of(config_json()), make_model_config(config_of(config_json()))).layers);
}

}  // namespace
}  // namespace trainer
