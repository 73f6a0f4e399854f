#include "comm/collectives.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "base/error.h"
#include "comm/collective_cases.h"

namespace trainer {
namespace {

using namespace collective_cases;

TEST(Collectives, SegmentsCoverTheArrayInOrder) {
  for (int size = 1; size <= 9; ++size)
    for (const size_t count : {0, 1, 15, 16, 17, 100, 143, 144, 145, 4096, 100003}) {
      size_t end = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Segment segment = owned_segment(count, size, rank);
        EXPECT_EQ(segment.begin, end);
        EXPECT_TRUE(segment.begin % 16 == 0 || segment.count == 0);
        EXPECT_LE(segment.count, count / static_cast<size_t>(size) + 32);
        end += segment.count;
      }
      EXPECT_EQ(end, count);
    }
}

TEST(Collectives, TreeSumIsTheDefinition) {
  for (int size = 1; size <= 17; ++size) {
    auto terms = inputs_of(size, 4999);  // more than one block
    const auto want = oracle(terms);
    std::vector<float*> pointers;
    for (auto& term : terms) pointers.push_back(term.data());
    tree_sum(pointers, want.size());
    expect_same_bits(terms[0], want, "terms " + std::to_string(size));
  }
}

// The order matters for these inputs, else the tests of bits could not fail.
TEST(Collectives, AnotherOrderGivesOtherBits) {
  const auto inputs = inputs_of(5, 1000);
  const auto want = oracle(inputs);
  size_t differ = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    float sum = 0;
    for (const auto& input : inputs) sum += input[i];
    differ += sum != want[i];
  }
  EXPECT_GT(differ, 100u);
}

TEST(Collectives, AllReduceEqualsTheTreeForEveryChunkAndDelivery) {
  for (int size = 1; size <= 8; ++size)
    for (const size_t count : {size_t{0}, size_t{1}, size_t{37}, size_t{1003}}) {
      const auto inputs = inputs_of(size, count);
      const auto want = oracle(inputs);
      for (const size_t chunk : {size_t{1}, size_t{7}, size_t{64}, size_t{1} << 20})
        for (const Delivery delivery : {Delivery::kEager, Delivery::kRendezvous}) {
          if (chunk == 1 && count > 100) continue;
          Ranks ranks = make_in_process_group(size, {delivery, {}});
          auto data = inputs;
          std::vector<std::vector<float>> staging(static_cast<size_t>(size));
          std::vector<RequestPtr> requests;
          for (int r = 0; r < size; ++r) {
            const auto rank = static_cast<size_t>(r);
            staging[rank].resize(staging_count(count, size, chunk));
            requests.push_back(
                all_reduce_sum(*ranks[rank], data[rank].data(), count, chunk, staging[rank], 10));
          }
          // One thread drives all ranks; none of them may block.
          for (size_t complete = 0; complete < requests.size();) {
            complete = 0;
            for (auto& request : requests) complete += request->test();
          }
          for (const auto& result : data)
            expect_same_bits(result, want,
                             fmt::format("size {} count {} chunk {} delivery {}", size, count, chunk,
                                         static_cast<int>(delivery)));
        }
    }
}

TEST(Collectives, HalvesEqualTheWhole) {
  const size_t count = 1003, chunk = 50;
  for (int size = 1; size <= 5; ++size) {
    const auto inputs = inputs_of(size, count);
    const auto want = oracle(inputs);
    Ranks ranks = make_in_process_group(size, {Delivery::kRendezvous, {}});
    on_threads(ranks, [&](Communicator& world) {
      auto data = inputs[static_cast<size_t>(world.rank())];
      std::vector<float> staging(staging_count(count, size, chunk));
      wait(*reduce_scatter_sum(world, data.data(), count, chunk, staging, 0));
      const Segment own = owned_segment(count, size, world.rank());
      for (size_t i = 0; i < count; ++i) {
        const bool mine = i >= own.begin && i < own.begin + own.count;
        ASSERT_EQ(data[i], mine ? want[i] : inputs[static_cast<size_t>(world.rank())][i]);
      }
      wait(*all_gather(world, data.data(), count, sizeof(float), chunk, 0));
      expect_same_bits(data, want, "gathered");
    });
  }
}

// Segments of any length, none included, at any alignment: the same bits, at the ranks that own them.
TEST(Collectives, SegmentsGivenByTheCaller) {
  const std::vector<std::vector<size_t>> cases = {
      {0}, {37}, {0, 5}, {5, 0}, {1, 1003}, {7, 0, 90}, {0, 0, 0}, {3, 500, 1, 0, 13}, {0, 0, 0, 0, 1, 2}};
  for (const auto& lengths : cases)
    for (const size_t chunk : {size_t{1}, size_t{9}, size_t{4096}}) {
      std::vector<Segment> segments;
      size_t count = 0;
      for (const size_t length : lengths) {
        segments.push_back({count, length});
        count += length;
      }
      if (chunk == 1 && count > 100) continue;
      const auto size = static_cast<int>(lengths.size());
      const auto inputs = inputs_of(size, count);
      const auto want = oracle(inputs);
      Ranks ranks = make_in_process_group(size, {Delivery::kRendezvous, {}});
      on_threads(ranks, [&](Communicator& world) {
        const auto rank = static_cast<size_t>(world.rank());
        auto whole = inputs[rank], halves = inputs[rank];
        std::vector<float> staging(staging_count(segments, chunk));
        wait(*all_reduce_sum(world, whole.data(), segments, chunk, staging, 0));
        expect_same_bits(whole, want, "whole");
        auto request = reduce_scatter_sum(world, halves.data(), std::vector(segments), chunk, staging, 0);
        wait(*request);
        const Segment own = segments[rank];
        for (size_t i = 0; i < count; ++i) {
          const bool mine = i >= own.begin && i < own.begin + own.count;
          ASSERT_EQ(halves[i], mine ? want[i] : inputs[rank][i]);
        }
        wait(*all_gather(world, halves.data(), segments, sizeof(float), chunk, 0));
        expect_same_bits(halves, want, "gathered");
      });
    }
}

TEST(Collectives, SegmentsThatDoNotFollowEachOtherAreRefused) {
  Ranks ranks = make_in_process_group(2);
  std::vector<float> data(100), staging(1000);
  for (const auto& segments : std::vector<std::vector<Segment>>{
           {{0, 50}, {60, 40}}, {{0, 50}, {40, 60}}, {{10, 40}, {50, 50}}, {{0, 100}}})
    EXPECT_THROW(all_reduce_sum(*ranks[0], data.data(), segments, 10, staging, 0), std::logic_error);
}

TEST(Collectives, GathersElementsOfTwoBytes) {
  const size_t count = 777;
  Ranks ranks = make_in_process_group(3);
  on_threads(ranks, [&](Communicator& world) {
    std::vector<uint16_t> data(count, 0xFFFF);
    const Segment own = owned_segment(count, 3, world.rank());
    for (size_t i = own.begin; i < own.begin + own.count; ++i) data[i] = static_cast<uint16_t>(3 * i);
    wait(*all_gather(world, data.data(), count, 2, 100, 4));
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], static_cast<uint16_t>(3 * i));
  });
}

TEST(Collectives, RandomDelaysAndOverlappingCallsChangeNoBits) {
  const size_t count = 611, chunk = 40;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const int size = 2 + static_cast<int>(seed % 3);
    const auto inputs = inputs_of(size, count);
    const auto want = oracle(inputs);
    const Delivery delivery = seed % 2 ? Delivery::kEager : Delivery::kRendezvous;
    Ranks ranks = make_in_process_group(size, {delivery, {seed, std::chrono::microseconds(50)}});
    on_threads(ranks, [&](Communicator& world) {
      auto first = inputs[static_cast<size_t>(world.rank())], second = first;
      std::vector<float> staging_a(staging_count(count, size, chunk)), staging_b(staging_a);
      const auto a = all_reduce_sum(world, first.data(), count, chunk, staging_a, 0);
      const auto b = all_reduce_sum(world, second.data(), count, chunk, staging_b, kCollectiveTags);
      wait(*b);
      wait(*a);
      expect_same_bits(first, want, "first");
      expect_same_bits(second, want, "second");
      wait(*all_reduce_sum(world, second.data(), count, chunk, staging_b, 0));  // the first call's tags again
      ASSERT_EQ(second[0], tree(std::vector(static_cast<size_t>(size), want[0])));
    });
  }
}

TEST(Collectives, TooLittleStagingIsRefused) {
  Ranks ranks = make_in_process_group(2);
  std::vector<float> data(100), staging(staging_count(100, 2, 10) - 1);
  EXPECT_THROW(all_reduce_sum(*ranks[0], data.data(), 100, 10, staging, 0), std::logic_error);
}

TEST(Collectives, APoisonedSumThrows) {
  Ranks ranks = make_in_process_group(2);
  std::vector<float> data(100), staging(staging_count(100, 2, 10));
  const auto request = all_reduce_sum(*ranks[0], data.data(), 100, 10, staging, 0);
  EXPECT_FALSE(request->test());
  ranks[1]->abort("no more");
  EXPECT_THROW(request->test(), RunError);
}

TEST(Collectives, BlockingHelpers) {
  for (int size = 1; size <= 7; ++size) {
    Ranks ranks = make_in_process_group(size, {Delivery::kRendezvous, {}});
    on_threads(ranks, [&](Communicator& world) {
      const int rank = world.rank();
      for (int root = 0; root < size; ++root) {
        std::string text = rank == root ? "from " + std::to_string(root) : "......";
        broadcast(world, text.data(), text.size(), root);
        ASSERT_EQ(text, "from " + std::to_string(root));

        const auto parts = gather(world, std::string(static_cast<size_t>(rank), 'x'), root);
        ASSERT_EQ(parts.size(), rank == root ? static_cast<size_t>(size) : 0u);
        for (size_t r = 0; r < parts.size(); ++r) ASSERT_EQ(parts[r], std::string(r, 'x'));
      }
      const auto all = all_gather_bytes(world, std::string(static_cast<size_t>(size - rank), 'y'));
      for (int r = 0; r < size; ++r)
        ASSERT_EQ(all[static_cast<size_t>(r)], std::string(static_cast<size_t>(size - r), 'y'));

      std::vector<double> sums{0.1 * (rank + 1), 1e16 / (rank + 1)},
          maxima{double(-rank), double(rank), double(rank)};
      if (rank == size / 2) maxima[2] = std::numeric_limits<double>::quiet_NaN();
      sum_over_ranks(world, sums);
      max_over_ranks(world, maxima);
      double want_first = 0.1, want_second = 1e16;
      for (int r = 1; r < size; ++r) {
        want_first += 0.1 * (r + 1);
        want_second += 1e16 / (r + 1);
      }
      ASSERT_EQ(sums, (std::vector<double>{want_first, want_second}));
      ASSERT_EQ(maxima[0], 0);
      ASSERT_EQ(maxima[1], size - 1);
      ASSERT_TRUE(std::isnan(maxima[2]));

      ASSERT_TRUE(all_equal(world, 42));
      ASSERT_EQ(all_equal(world, rank == size - 1 ? 7 : 42), size == 1);
    });
  }
}

}  // namespace
}  // namespace trainer
