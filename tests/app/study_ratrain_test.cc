#include <gtest/gtest.h>

#include <cmath>

#include "app/ratrain_case.h"

namespace trainer {
namespace {

std::string configs() { return std::string(TEST_DATA) + "/../../configs"; }

Platform platform() { return read_platform("mt3000", configs() + "/platforms"); }

double over_published(RatrainModel& model, const RatrainCase& c, double published) {
  return model.step(c, platform()).step_seconds / published - 1;
}

// The constants of the platform file are what three published step times give.
TEST(RatrainStudy, ConstantsAreFittedOnThreeRows) {
  RatrainModel model(configs());
  RatrainCase many{"llama-2-7b", 1, 1024, 1, 2, 2};
  many.micro_batch_size = 4;
  const double small = over_published(model, many, 148.75),
               large = over_published(model, {"qwen2.5-32b", 8, 32, 1, 2, 128}, 1592.51);
  EXPECT_NEAR(small, -large, 0.02);
  const double cut = over_published(model, {"baichuan2-13b", 2, 64, 2, 2, 64}, 826.53);
  EXPECT_NEAR(cut, 0, 0.01);
  RatrainCase few = many;
  few.replicas = 256;
  const double contention = model.step(few, platform()).step_seconds / model.step(many, platform()).step_seconds;
  EXPECT_NEAR(contention, 144.28 / 148.75, 0.005);
}

// The order of table 2 and the ablation of figure 11, whose figures the constants are not fitted on.
TEST(RatrainStudy, MethodsKeepTheirOrder) {
  RatrainModel model(configs());
  const auto seconds = [&](RatrainCase c, RatrainMethod method) {
    c.method = method;
    return model.step(c, platform()).step_seconds;
  };
  const RatrainCase plan{"baichuan2-13b", 2, 128, 1, 2, 32}, cut{"baichuan2-13b", 2, 64, 2, 2, 64};
  const double full = seconds(plan, RatrainMethod::kFull), gathered = seconds(plan, RatrainMethod::kGatheredOnce),
               tensor = seconds(cut, RatrainMethod::kFull),
               checkpoint = seconds(plan, RatrainMethod::kBackwardCheckpoint);
  EXPECT_LT(full, gathered);
  EXPECT_LT(gathered, tensor);
  EXPECT_LT(tensor, checkpoint);
  EXPECT_LT(checkpoint, seconds(plan, RatrainMethod::kTuned));
  EXPECT_NEAR(checkpoint / full, 1.33, 0.03);
}

TEST(RatrainStudy, MemoryOfPipelineAndDataParallelRows) {
  RatrainModel model(configs());
  struct Row {
    RatrainCase c;
    double gib;
  };
  double sum = 0, worst = 0;
  const std::vector<Row> rows = {
      {{"baichuan2-13b", 2, 128, 1, 2, 32}, 15.84}, {{"qwen2.5-32b", 8, 32, 1, 2, 128}, 14.71},
      {{"llama-2-7b", 2, 4, 1, 2, 128}, 19.57},     {{"baichuan2-13b", 8, 2, 1, 2, 128}, 19.06},
      {{"qwen2.5-32b", 16, 4, 1, 2, 128}, 18.14},   {{"llama-2-70b", 48, 2, 1, 2, 16}, 19.46}};
  for (const Row& row : rows) {
    const double error = std::abs(static_cast<double>(model.memory(row.c).in_use()) / 0x1p30 / row.gib - 1);
    sum += error;
    worst = std::max(worst, error);
  }
  EXPECT_LE(sum / static_cast<double>(rows.size()), 0.06);
  EXPECT_LE(worst, 0.12);
  RatrainCase full_save = rows[1].c;
  full_save.method = RatrainMethod::kFullSave;
  EXPECT_GT(model.memory(full_save).in_use(), int64_t{20} << 30);
}

}  // namespace
}  // namespace trainer
