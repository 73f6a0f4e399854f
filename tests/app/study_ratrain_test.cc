#include <gtest/gtest.h>

#include <cmath>

#include "app/ratrain_case.h"

namespace trainer {
namespace {

std::string configs() { return std::string(TEST_DATA) + "/../../configs"; }

double over_published(RatrainModel& model, const RatrainCase& c, double published) {
  return model.step(c, read_platform("mt3000", configs() + "/platforms")).step_seconds / published - 1;
}

// The constants of the platform file are what three published step times give.
TEST(RatrainStudy, ConstantsAreFittedOnThreeRows) {
  RatrainModel model(configs());
  const double small = over_published(model, {"llama-2-7b", 2, 128, 1, 2, 16}, 144.28);
  const double large =
      over_published(model, {"baichuan2-13b", 2, 128, 1, 2, 32, RatrainMethod::kBackwardCheckpoint}, 937.04);
  EXPECT_NEAR(small, -large, 0.02);
  const double many = over_published(model, {"llama-2-7b", 2, 512, 1, 2, 16}, 148.75);
  EXPECT_NEAR((1 + small) / (1 + many), 1, 0.01);
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
