#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "comm/collective_cases.h"
#include "comm/sum_plan.h"

namespace trainer {
namespace {

using namespace collective_cases;

// The sum of one element owned by `owner`, added serially in the order that the algorithm promises.
float serial_sum(SumAlgorithm algorithm, const std::vector<int>& nodes, size_t owner,
                 const std::vector<float>& terms) {
  switch (algorithm) {
    case SumAlgorithm::kDirect:
    case SumAlgorithm::kTree:
      return tree(terms);
    case SumAlgorithm::kRing: {
      const size_t size = terms.size();
      float sum = terms[(owner + 1) % size];
      for (size_t step = 2; step <= size; ++step) sum += terms[(owner + step) % size];
      return sum;
    }
    case SumAlgorithm::kHierarchical: {
      std::map<size_t, std::vector<float>> by_lowest_rank;
      for (size_t rank = 0; rank < terms.size(); ++rank) {
        const auto lowest =
            static_cast<size_t>(std::find(nodes.begin(), nodes.end(), nodes[rank]) - nodes.begin());
        by_lowest_rank[lowest].push_back(terms[rank]);
      }
      std::vector<float> sums;
      for (const auto& [lowest, members] : by_lowest_rank) sums.push_back(tree(members));
      return tree(sums);
    }
  }
  return 0;
}

std::vector<float> serial_sums(SumAlgorithm algorithm, const std::vector<int>& nodes,
                               const std::vector<Segment>& segments,
                               const std::vector<std::vector<float>>& inputs) {
  std::vector<float> sums(inputs[0].size()), terms(inputs.size());
  for (size_t owner = 0; owner < segments.size(); ++owner)
    for (size_t i = segments[owner].begin; i < segments[owner].begin + segments[owner].count; ++i) {
      for (size_t r = 0; r < terms.size(); ++r) terms[r] = inputs[r][i];
      sums[i] = serial_sum(algorithm, nodes, owner, terms);
    }
  return sums;
}

// One node, a node per rank, ranks in turn, pairs, and nodes of unequal size.
std::vector<std::vector<int>> node_tables(int size) {
  std::vector<std::vector<int>> tables(5);
  for (int rank = 0; rank < size; ++rank) {
    tables[0].push_back(0);
    tables[1].push_back(rank);
    tables[2].push_back(rank % 2);
    tables[3].push_back(rank / 2);
    tables[4].push_back(rank == 0 || rank == 4 ? 1 : rank % 3 == 0 ? 7 : 3);
  }
  return tables;
}

// What the ranks end with; one thread drives all of them, and none may block.
std::vector<std::vector<float>> all_reduced(SumAlgorithm algorithm, const std::vector<int>& nodes,
                                            size_t count, size_t chunk, Delivery delivery) {
  const auto size = static_cast<int>(nodes.size());
  const auto segments = owned_segments(count, size);
  Ranks ranks = make_in_process_group(size, {delivery, {}, nodes});
  auto data = inputs_of(size, count);
  std::vector<std::vector<float>> staging(data.size());
  std::vector<RequestPtr> requests;
  for (size_t r = 0; r < data.size(); ++r) {
    staging[r].resize(staging_count(segments, chunk, algorithm, nodes));
    requests.push_back(
        all_reduce_sum(*ranks[r], data[r].data(), segments, chunk, staging[r], 10, {.algorithm = algorithm}));
  }
  for (size_t complete = 0; complete < requests.size();) {
    complete = 0;
    for (auto& request : requests) complete += request->test();
  }
  return data;
}

class SumAlgorithms : public ::testing::TestWithParam<SumAlgorithm> {};

TEST_P(SumAlgorithms, EqualTheirSerialOrder) {
  for (int size = 1; size <= 9; ++size)
    for (const auto& nodes : node_tables(size)) {
      if (GetParam() != SumAlgorithm::kHierarchical && nodes != node_tables(size)[0]) continue;
      for (const size_t count : {size_t{1}, size_t{37}, size_t{1003}})
        for (const size_t chunk : {size_t{3}, size_t{50}, size_t{4096}}) {
          if (chunk == 3 && count > 100) continue;
          const auto segments = owned_segments(count, size);
          const auto want = serial_sums(GetParam(), nodes, segments, inputs_of(size, count));
          for (const Delivery delivery : {Delivery::kRendezvous, Delivery::kEager})
            for (const auto& result : all_reduced(GetParam(), nodes, count, chunk, delivery))
              expect_same_bits(result, want, fmt::format("size {} count {} chunk {}", size, count, chunk));
        }
    }
}

TEST_P(SumAlgorithms, HalvesEqualTheWholeForAnySegments) {
  const CollectiveOptions options{.algorithm = GetParam()};
  const std::vector<std::vector<size_t>> cases = {
      {0, 5}, {7, 0, 90}, {1, 300, 0, 20}, {3, 500, 1, 0, 13}, {0, 0, 0, 9, 1, 2}, {1, 2, 3, 4, 5, 6, 7}};
  for (const auto& lengths : cases) {
    const auto size = static_cast<int>(lengths.size());
    std::vector<Segment> segments;
    size_t count = 0;
    for (const size_t length : lengths) {
      segments.push_back({count, length});
      count += length;
    }
    const auto nodes = node_tables(size)[3];
    const auto inputs = inputs_of(size, count);
    const auto want = serial_sums(GetParam(), nodes, segments, inputs);
    const size_t chunk = 11;
    Ranks ranks =
        make_in_process_group(size, {Delivery::kRendezvous, {3, std::chrono::microseconds(20)}, nodes});
    on_threads(ranks, [&](Communicator& world) {
      const auto rank = static_cast<size_t>(world.rank());
      auto data = inputs[rank];
      std::vector<float> staging(staging_count(segments, chunk, GetParam(), world.nodes()));
      wait(*reduce_scatter_sum(world, data.data(), segments, chunk, staging, 0, options));
      const Segment own = segments[rank];
      for (size_t i = 0; i < count; ++i) {
        const bool mine = i >= own.begin && i < own.begin + own.count;
        ASSERT_EQ(data[i], mine ? want[i] : inputs[rank][i]);
      }
      wait(*all_gather(world, data.data(), segments, sizeof(float), chunk, 0, options));
      expect_same_bits(data, want, "gathered");
    });
  }
}

// Every rank sends once for each segment it does not own and for no other: (D - 1) / D of the array.
TEST_P(SumAlgorithms, SendEachSegmentOncePerRank) {
  for (int size = 1; size <= 9; ++size)
    for (const auto& nodes : node_tables(size)) {
      const auto trees = sum_trees(GetParam(), nodes, size);
      for (int rank = 0; rank < size; ++rank) {
        const RankPlan plan = rank_plan(trees, rank);
        std::vector<int> sent(static_cast<size_t>(size)), got(sent);
        for (const auto& message : plan.contributions_out) ++sent[static_cast<size_t>(message.segment)];
        for (const auto& message : plan.results_in) ++got[static_cast<size_t>(message.segment)];
        for (int segment = 0; segment < size; ++segment) {
          EXPECT_EQ(sent[static_cast<size_t>(segment)], segment != rank);
          EXPECT_EQ(got[static_cast<size_t>(segment)], segment != rank);
        }
      }
    }
}

INSTANTIATE_TEST_SUITE_P(All, SumAlgorithms, ::testing::ValuesIn(kAlgorithms),
                         [](const auto& info) { return name_of(info.param); });

TEST(SumOrders, AreOneForTwoRanksAndDifferForMore) {
  const auto sums_of = [](SumAlgorithm algorithm, const std::vector<int>& nodes) {
    return all_reduced(algorithm, nodes, 500, 64, Delivery::kEager).front();
  };
  const std::vector<int> two{0, 1}, five{0, 0, 0, 1, 1};
  const auto inputs = inputs_of(2, 500);
  std::vector<float> plain = inputs[0];
  for (size_t i = 0; i < plain.size(); ++i) plain[i] += inputs[1][i];
  for (const SumAlgorithm algorithm : kAlgorithms)
    expect_same_bits(sums_of(algorithm, two), plain, name_of(algorithm));

  const auto direct = sums_of(SumAlgorithm::kDirect, five);
  EXPECT_NE(sums_of(SumAlgorithm::kRing, five), direct);
  EXPECT_NE(sums_of(SumAlgorithm::kHierarchical, five), direct);
  EXPECT_EQ(sums_of(SumAlgorithm::kTree, five), direct);
}

TEST(SumTrees, ABinaryOneHasALogarithmOfMessagesAtEachRankAndSpreadsThem) {
  for (int size = 2; size <= 64; ++size) {
    const auto trees = sum_trees(SumAlgorithm::kTree, {}, size);
    const int depth = std::bit_width(static_cast<unsigned>(size - 1));
    for (int rank = 0; rank < size; ++rank) {
      for (const SumTree& tree : trees)
        EXPECT_LE(std::ssize(tree.additions[static_cast<size_t>(rank)]), depth);
      if (std::has_single_bit(static_cast<unsigned>(size))) {
        EXPECT_EQ(std::ssize(rank_plan(trees, rank).contributions_in), size - 1);
      }
    }
  }
}

// Between two nodes only the sum of a node travels.
TEST(SumTrees, AHierarchicalOneCrossesBetweenTwoNodesOncePerSegment) {
  const std::vector<int> nodes{0, 0, 0, 1, 1, 1, 1, 2};
  for (const SumTree& tree : sum_trees(SumAlgorithm::kHierarchical, nodes, 8)) {
    int crossings = 0;
    for (size_t rank = 0; rank < nodes.size(); ++rank)
      crossings += tree.parent[rank] >= 0 && nodes[rank] != nodes[static_cast<size_t>(tree.parent[rank])];
    EXPECT_EQ(crossings, 2);
  }
}

TEST(SumTrees, StagingGrowsWithChunkAndRanksAlone) {
  for (const SumAlgorithm algorithm : kAlgorithms) {
    EXPECT_EQ(staging_count(1 << 20, 4, 1000, algorithm, std::vector{0, 0, 1, 1}), 2u * 3 * 1000)
        << name_of(algorithm);
    EXPECT_EQ(staging_count(1 << 20, 1, 1000, algorithm), 0u);
  }
}

TEST(Nodes, AreNumberedByTheirLowestRankInEveryGroup) {
  Ranks ranks = make_in_process_group(5, {Delivery::kEager, {}, {9, 4, 9, 2, 4}});
  EXPECT_EQ(ranks[3]->nodes(), (std::vector{0, 1, 0, 2, 1}));
  on_threads(ranks, [](Communicator& world) {
    const auto others = world.split(world.rank() != 0, -world.rank());  // 4, 3, 2, 1
    EXPECT_EQ(others->nodes(), world.rank() == 0 ? std::vector{0} : (std::vector{0, 1, 2, 0}));
  });
  EXPECT_EQ(make_in_process_group(3)[0]->nodes(), (std::vector{0, 0, 0}));
}

}  // namespace
}  // namespace trainer
