#include "app/plan.h"

#include <gtest/gtest.h>

#include <ctime>

#include "app/plan_request.h"
#include "app/training_rank.h"
#include "base/file.h"
#include "support/thinning.h"

namespace trainer {
namespace {

std::string source_file(const std::string& name) { return std::string(TEST_DATA) + "/../../" + name; }

// A config of `model`, one of configs/models.
Config config_of(const std::string& model, int64_t sequence, int64_t batch) {
  const Json json = {{"model", {{"hugging_face", source_file("configs/models/" + model + ".json")}}},
                     {"data", {{"data_path", "none"}, {"sequence_length", sequence}}},
                     {"training", {{"steps", 1}, {"micro_batch_size", 1}, {"global_batch_size", batch}}},
                     {"optimizer", {{"lr", 1e-4}}},
                     {"run", {{"directory", "none"}}}};
  return parse_config(json.dump(), model);
}

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

TEST(PlanCommand, A70BModelOn1024DevicesTakesTwoSeconds) {
  if (testing::kThinned) GTEST_SKIP() << "AddressSanitizer goes without it: it takes long";
  const Config config = config_of("llama-2-70b", 4096, 1024);
  const Platform platform = read_platform("mt3000", source_file("configs/platforms"));
  [[maybe_unused]] const double begin = processor_seconds();
  const PlanRequest request =
      make_plan_request(config, make_planned_model(config), 1024, platform.memory_bytes);
  const PlanSearch search = search_plans(request, platform);
#if defined(NDEBUG) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(processor_seconds() - begin, 2);
#endif
  ASSERT_FALSE(search.plans.empty());
  const Json json = plan_json(search, request, platform);
  EXPECT_EQ(json["plans"].size(), search.plans.size());
  EXPECT_LE(json["plans"][0]["memory_bytes"]["total"].get<int64_t>(), platform.memory_bytes);
  double parts = 0;
  for (const auto& [name, seconds] : json["plans"][0]["parts"].items()) parts += seconds.get<double>();
  EXPECT_NEAR(parts, json["plans"][0]["step_seconds"].get<double>(), 1e-6 * parts);
  for (const Json& one : json["rejected"]) EXPECT_FALSE(one["reason"].get<std::string>().empty());
  EXPECT_NE(plan_text(search, request).find("rejected:"), std::string::npos);
}

// What the planner costs is what `trainer train` would run with the config that it writes.
TEST(PlanCommand, AWrittenConfigIsThePlan) {
  Config config = config_of("qwen2.5-0.5b", 128, 16);
  config.device.threads = 1;
  const Platform platform = read_platform("mt3000", source_file("configs/platforms"));
  const ModelConfig model = make_planned_model(config);
  for (const int devices : {1, 4})
    for (const int64_t budget : {int64_t{12} << 30, int64_t{9} << 30}) {
      PlanRequest request = make_plan_request(config, model, devices, budget);
      request.tensor_sizes = {1, 2};
      const PlanSearch search = search_plans(request, platform);
      ASSERT_FALSE(search.plans.empty()) << devices;
      for (const Plan& plan : search.plans) {
        const Json written = config_to_json(with_plan(config, plan.choice, budget));
        EXPECT_TRUE(plan.choice.has("transfer_priority")) << describe(plan.choice);
        Config read = parse_config(written.dump(), "written");
        EXPECT_EQ(choice_of(read, model, devices), plan.choice) << describe(plan.choice);
        resolve_parallel(read, model, devices);
        const int parts = plan.choice.tensor_ranks;
        const Model cut(model, config.data.sequence_length, {parts, 0, parts > 1});
        const auto kernels = make_host_kernels(1);
        const Problem theirs = make_problem(read, cut, *kernels, {});
        const Problem ours = problem_of(
            request, request.model(plan.choice.tensor_ranks, plan.choice.micro_batch_size), plan.choice);
        EXPECT_EQ(theirs.hash(), ours.hash()) << describe(plan.choice);
        EXPECT_EQ(theirs.kept, ours.kept) << describe(plan.choice);
      }
    }
}

// Passes that the planner does not choose among are as the config has them.
TEST(PlanCommand, OtherPassesAreTheConfigs) {
  Config config = config_of("qwen2.5-0.5b", 128, 16);
  config.device.threads = 1;
  const Platform platform = read_platform("mt3000", source_file("configs/platforms"));
  const ModelConfig model = make_planned_model(config);
  for (const std::vector<std::string>& passes : {std::vector<std::string>{},
                                                 {"update_prefetch"},
                                                 {"transfer_priority"},
                                                 {"transfer_priority", "layer_state_pipeline"}}) {
    config.schedule.passes = passes;
    PlanRequest request = make_plan_request(config, model, 4, int64_t{12} << 30);
    request.tensor_sizes = {1};
    const bool kept = !passes.empty() && passes.front() == "transfer_priority";
    const PlanSearch search = search_plans(request, platform);
    ASSERT_FALSE(search.plans.empty());
    for (const Plan& plan : search.plans) EXPECT_EQ(plan.choice.has("transfer_priority"), kept);
    EXPECT_EQ(plan_text(search, request).find("U-P+"), std::string::npos);
  }
}

TEST(PlanCommand, AModelForPlanningOnly) {
  const Config config = config_of("baichuan2-13b", 2048, 256);
  const ModelConfig model = make_planned_model(config);
  EXPECT_EQ(model.num_layers, 40);
  EXPECT_EQ(model.num_query_groups, 40);
  const PlanModel parts = catalogue_source(model, 2048, DType::kBF16, nullptr)(1, 1);
  int64_t parameters = 0;
  for (const LayerCatalogue& layer : parts.layers) parameters += layer.parameters;
  EXPECT_NEAR(static_cast<double>(parameters), 13.9e9, 0.05e9);
}

}  // namespace
}  // namespace trainer
