#include "plan/roundpipe_published.h"

namespace trainer {
namespace {

// {layers, how many stages of it}, ...
std::vector<int> stages(std::initializer_list<std::pair<int, int>> runs) {
  std::vector<int> all;
  for (const auto& [layers, count] : runs) all.insert(all.end(), static_cast<size_t>(count), layers);
  return all;
}

}  // namespace

std::vector<int> RoundPipePublished::backward_with_head() const {
  std::vector<int> stages = backward;
  ++stages.front();
  return stages;
}

const std::vector<RoundPipePublished>& roundpipe_published() {
  static const std::vector<RoundPipePublished> all = {{"Qwen3-1.7B",
                                                       {28, 7.429, 15.831, 22.0655, 43.707, 1.6},
                                                       stages({{3, 2}, {4, 5}, {2, 1}}),
                                                       stages({{1, 18}, {2, 5}, {0, 1}}),
                                                       stages({{7, 4}}),
                                                       stages({{0, 1}, {3, 8}, {2, 2}}),
                                                       35.19,
                                                       36.13,
                                                       27.75,
                                                       25.01,
                                                       19.07,
                                                       4.05,
                                                       2286.017},
                                                      {"Llama-3-8B",
                                                       {32, 18.50370313, 41.20659375, 37.2255, 74.501, 3.2},
                                                       stages({{4, 8}}),
                                                       stages({{1, 32}}),
                                                       stages({{5, 4}, {6, 2}}),
                                                       stages({{0, 1}, {2, 16}}),
                                                       42.08,
                                                       42.08,
                                                       30.64,
                                                       29.20,
                                                       14.28,
                                                       1.29,
                                                       6100.545},
                                                      {"GPT-OSS-20B",
                                                       {24, 21.6445625, 81.780875, 44.2925, 86.264, 2.25},
                                                       stages({{3, 8}}),
                                                       stages({{1, 24}}),
                                                       stages({{4, 1}, {5, 4}}),
                                                       stages({{0, 1}, {1, 24}}),
                                                       41.73,
                                                       41.73,
                                                       30.94,
                                                       30.39,
                                                       13.98,
                                                       3.30,
                                                       7282.806},
                                                      {"Qwen3-32B",
                                                       {64, 40.5610625, 91.17429688, 54.928, 108.294, 4},
                                                       stages({{8, 8}}),
                                                       stages({{1, 64}}),
                                                       stages({{2, 2}, {3, 20}}),
                                                       stages({{0, 1}, {1, 64}}),
                                                       34.88,
                                                       34.88,
                                                       15.15,
                                                       13.68,
                                                       6.67,
                                                       2.65,
                                                       23978.834},
                                                      {"Qwen3-235B",
                                                       {94, 43.016, 58.376, 42.444, 43.294, 3.2},
                                                       stages({{11, 1}, {12, 6}, {11, 1}}),
                                                       stages({{0, 1}, {1, 94}, {0, 1}}),
                                                       stages({{2, 47}}),
                                                       stages({{0, 1}, {1, 94}}),
                                                       31.21,
                                                       31.18,
                                                       5.96,
                                                       4.39,
                                                       3.29,
                                                       0.98,
                                                       28250.032}};
  return all;
}

}  // namespace trainer
