// What the tests of collectives share: ranks on threads, inputs whose order of addition shows, and the sums
// as they are defined.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/collectives.h"
#include "comm/comm_cases.h"
#include "comm/in_process.h"

namespace trainer::collective_cases {

using Ranks = std::vector<std::unique_ptr<Communicator>>;

template <class Work>
void on_threads(Ranks& ranks, Work work) {
  std::vector<std::thread> threads;
  for (auto& communicator : ranks) threads.emplace_back([&] { work(*communicator); });
  for (auto& thread : threads) thread.join();
}

// The definition of T, word for word.
inline float tree(std::span<const float> terms) {
  if (terms.size() == 1) return terms[0];
  const size_t half = std::bit_floor(terms.size() - 1);
  return tree(terms.first(half)) + tree(terms.subspan(half));
}

inline std::vector<std::vector<float>> inputs_of(int size, size_t count) {
  std::vector<std::vector<float>> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(comm_cases::contribution(rank, count));
  return inputs;
}

inline std::vector<float> oracle(const std::vector<std::vector<float>>& inputs) {
  std::vector<float> sums(inputs[0].size()), terms(inputs.size());
  for (size_t i = 0; i < sums.size(); ++i) {
    for (size_t r = 0; r < terms.size(); ++r) terms[r] = inputs[r][i];
    sums[i] = tree(terms);
  }
  return sums;
}

inline void expect_same_bits(const std::vector<float>& got, const std::vector<float>& want,
                             const std::string& where) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
        << where << ", element " << i;
}

inline constexpr SumAlgorithm kAlgorithms[] = {SumAlgorithm::kDirect, SumAlgorithm::kRing,
                                               SumAlgorithm::kTree, SumAlgorithm::kHierarchical};

}  // namespace trainer::collective_cases
