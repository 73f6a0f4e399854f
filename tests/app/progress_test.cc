#include "app/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace trainer {
namespace {

using ::testing::HasSubstr;

StepMetrics step(int64_t number, double loss) {
  StepMetrics m;
  m.step = number;
  m.loss = loss;
  m.grad_norm = 1.25;
  m.learning_rate = 3e-4;
  m.tokens_per_second = 2000;
  m.step_seconds = 0.5;
  m.exposed.bubble = 0.05;
  m.exposed.boundary = 0.01;
  return m;
}

// What is written while `use` runs with a Progress.
template <class Use>
std::string written(ProgressOptions options, Use use) {
  char* text = nullptr;
  size_t size = 0;
  options.out = ::open_memstream(&text, &size);
  {
    Progress progress(options);
    use(progress);
  }
  std::fclose(options.out);
  const std::string result(text, size);
  ::free(text);
  return result;
}

TEST(Progress, OneLinePerIntervalWithMeansOverIt) {
  const std::string text =
      written({.total_steps = 5, .log_interval = 2, .flops_per_token = 1e6, .gemm_flops_per_second = 4e9},
              [](Progress& p) {
                for (int i = 1; i <= 5; ++i) p.step(step(i, i));
              });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_THAT(
      text,
      HasSubstr("step 2/5 | loss 1.5000 | grad norm 1.250 | lr 0.0003 | 2.00k tokens/s | 50 % of GEMM rate | "
                "waiting 12 % (bubble 10 %, boundary 2 %) | 1.5 s left\n"));
  EXPECT_THAT(text, HasSubstr("step 4/5 | loss 3.5000"));
  EXPECT_THAT(text, HasSubstr("step 5/5 | loss 5.0000"));
}

TEST(Progress, EvaluationsAndSkippedStepsAreAlwaysTold) {
  const std::string text = written({.total_steps = 9, .log_interval = 100}, [](Progress& p) {
    StepMetrics m = step(1, 3);
    m.valid_loss = 0;
    p.step(m);
    m = step(2, std::nan(""));
    m.skipped = true;
    m.grad_norm = std::nan("");
    p.step(m);
  });
  EXPECT_THAT(text, HasSubstr("step 1: validation loss 0.0000 (perplexity 1.00)\n"));
  EXPECT_THAT(text, HasSubstr("step 2: skipped"));
}

TEST(Progress, ABarIsOneLineAndNotesStandAboveIt) {
  const std::string text = written({.style = ProgressStyle::kBar, .total_steps = 3}, [](Progress& p) {
    p.step(step(1, 4));
    p.note("saved checkpoint");
    p.step(step(2, 3));  // within the redraw interval
    p.step(step(3, 2));  // the last step is always drawn
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_THAT(text, HasSubstr("\r\x1b[Ksaved checkpoint\nstep 1/3"));
  EXPECT_THAT(text, HasSubstr("\r\x1b[Kstep 3/3 | loss 2.5000"));
  EXPECT_TRUE(text.ends_with("\n"));
}

TEST(Progress, ASkippedStepDoesNotSpoilTheMean) {
  const std::string text = written({.total_steps = 2, .log_interval = 2}, [](Progress& p) {
    p.step(step(1, 4));
    p.step(step(2, std::nan("")));
  });
  EXPECT_THAT(text, HasSubstr("loss 4.0000"));
}

}  // namespace
}  // namespace trainer
