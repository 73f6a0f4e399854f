#include "comm/in_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "comm/back_off.h"

namespace trainer {
namespace {

using Group = std::vector<std::unique_ptr<Communicator>>;
using std::chrono::microseconds;

// Runs `work(communicator)` for every rank on a thread of its own.
template <class Work>
void on_threads(Group& group, Work work) {
  std::vector<std::thread> threads;
  for (auto& communicator : group) threads.emplace_back([&] { work(*communicator); });
  for (auto& thread : threads) thread.join();
}

void finish(Request& request) {
  for (BackOff back_off; !request.test();) back_off.pause();
}

TEST(InProcess, OneThreadDrivesAllRanks) {
  for (const Delivery delivery : {Delivery::kEager, Delivery::kRendezvous}) {
    Group group = make_in_process_group(3, {delivery, {}});
    std::array<int, 3> in{-1, -1, -1}, out{10, 11, 12};
    std::vector<RequestPtr> requests;
    for (int r = 0; r < 3; ++r) {
      requests.push_back(group[r]->receive(&in[r], sizeof(int), (r + 2) % 3, 5));
      requests.push_back(group[r]->send(&out[r], sizeof(int), (r + 1) % 3, 5));
    }
    for (auto& request : requests) finish(*request);
    EXPECT_EQ(in, (std::array<int, 3>{12, 10, 11}));
  }
}

TEST(InProcess, AnEagerSendNeedsNoReceiveAndKeepsItsBytes) {
  Group group = make_in_process_group(2);
  int value = 7, got = 0;
  RequestPtr send = group[0]->send(&value, sizeof value, 1, 0);
  EXPECT_TRUE(send->test());
  send.reset();
  value = 8;
  RequestPtr receive = group[1]->receive(&got, sizeof got, 0, 0);
  EXPECT_TRUE(receive->test());
  EXPECT_EQ(got, 7);
}

TEST(InProcess, ARendezvousSendWaitsForItsReceive) {
  Group group = make_in_process_group(2, {Delivery::kRendezvous, {}});
  int value = 7, got = 0;
  const RequestPtr send = group[0]->send(&value, sizeof value, 1, 0);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(send->test());
  const RequestPtr receive = group[1]->receive(&got, sizeof got, 0, 0);
  EXPECT_TRUE(send->test());  // a posted receive suffices; its owner need not poll it
  EXPECT_EQ(got, 7);
  EXPECT_TRUE(receive->test());
}

TEST(InProcess, TwoBlockingRendezvousSendsAreADeadlock) {
  Group group = make_in_process_group(2, {Delivery::kRendezvous, {}});
  int a = 1, b = 2;
  const RequestPtr first = group[0]->send(&a, sizeof a, 1, 0), second = group[1]->send(&b, sizeof b, 0, 0);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(first->test() || second->test());
}

TEST(InProcess, MessagesOfOneTagKeepTheirOrderAndTagsAreApart) {
  Group group = make_in_process_group(2);
  const std::array<int, 3> out{1, 2, 3};
  std::array<int, 3> in{};
  std::vector<RequestPtr> requests;
  requests.push_back(group[0]->send(&out[0], sizeof(int), 1, 9));
  requests.push_back(group[0]->send(&out[1], sizeof(int), 1, 4));
  requests.push_back(group[0]->send(&out[2], sizeof(int), 1, 9));
  requests.push_back(group[1]->receive(&in[1], sizeof(int), 0, 4));
  requests.push_back(group[1]->receive(&in[0], sizeof(int), 0, 9));
  requests.push_back(group[1]->receive(&in[2], sizeof(int), 0, 9));
  for (auto& request : requests) finish(*request);
  EXPECT_EQ(in, out);
}

TEST(InProcess, ZeroBytesAndSelfMessages) {
  Group group = make_in_process_group(1);
  int value = 3, got = 0;
  std::vector<RequestPtr> requests;
  requests.push_back(group[0]->send(nullptr, 0, 0, 1));
  requests.push_back(group[0]->receive(nullptr, 0, 0, 1));
  requests.push_back(group[0]->receive(&got, sizeof got, 0, 2));
  requests.push_back(group[0]->send(&value, sizeof value, 0, 2));
  for (auto& request : requests) EXPECT_TRUE(request->test());
  EXPECT_EQ(got, 3);
}

TEST(InProcess, SizesThatDifferAreAnErrorNamingBoth) {
  Group group = make_in_process_group(2);
  const std::array<char, 8> out{};
  std::array<char, 8> in{};
  const RequestPtr send = group[0]->send(out.data(), 8, 1, 3);
  const RequestPtr receive = group[1]->receive(in.data(), 4, 0, 3);
  try {
    receive->test();
    FAIL();
  } catch (const RunError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("rank 0 to rank 1 with tag 3: 8 bytes were sent, 4 expected"));
  }
}

TEST(InProcess, SplitFromOneThreadNeverBlocks) {
  Group group = make_in_process_group(6);
  Group rows, columns;
  for (int r = 0; r < 6; ++r) {
    rows.push_back(group[r]->split(r / 3, r));
    columns.push_back(group[r]->split(r % 3, -r));  // keys in reverse order
  }
  std::array<int, 6> in{}, out{0, 1, 2, 3, 4, 5};
  std::vector<RequestPtr> requests;
  for (int r = 0; r < 6; ++r) {
    EXPECT_EQ(rows[r]->size(), 3);
    EXPECT_EQ(rows[r]->rank(), r % 3);
    EXPECT_EQ(columns[r]->size(), 2);
    EXPECT_EQ(columns[r]->rank(), r < 3 ? 1 : 0);
    requests.push_back(rows[r]->receive(&in[r], sizeof(int), (r % 3 + 1) % 3, 0));
    requests.push_back(rows[r]->send(&out[r], sizeof(int), (r % 3 + 2) % 3, 0));
  }
  for (auto& request : requests) finish(*request);
  EXPECT_EQ(in, (std::array<int, 6>{1, 2, 0, 4, 5, 3}));
}

TEST(InProcess, ManySplitsAndBarriersOnThreads) {
  Group group = make_in_process_group(4);
  std::atomic<int> arrived{0};
  on_threads(group, [&](Communicator& world) {
    for (int i = 0; i < 50; ++i) {
      const auto pair = world.split(world.rank() % 2, world.rank());
      ASSERT_EQ(pair->size(), 2);
      ASSERT_EQ(pair->rank(), world.rank() / 2);
      int got = -1;
      const int value = 100 * i + world.rank();
      const RequestPtr receive = pair->receive(&got, sizeof got, 1 - pair->rank(), 0);
      const RequestPtr send = pair->send(&value, sizeof value, 1 - pair->rank(), 0);
      finish(*receive);
      finish(*send);
      ASSERT_EQ(got, 100 * i + (world.rank() + 2) % 4);
      ++arrived;
      world.barrier();
      ASSERT_GE(arrived.load(), 4 * (i + 1));
      world.barrier();
    }
  });
}

// Bytes are the same whatever the delays, and a receive's buffer is not complete before its time.
TEST(InProcess, RandomDelaysChangeNoBytes) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Delivery delivery = seed % 2 ? Delivery::kEager : Delivery::kRendezvous;
    Group group = make_in_process_group(3, {delivery, {seed, microseconds(300)}});
    on_threads(group, [&](Communicator& world) {
      const int next = (world.rank() + 1) % 3, previous = (world.rank() + 2) % 3;
      std::vector<std::vector<int>> out, in;
      std::vector<RequestPtr> requests;
      for (int i = 0; i < 8; ++i) {
        out.emplace_back(static_cast<size_t>(100 * i + 1), 1000 * world.rank() + i);
        in.emplace_back(out.back().size(), -1);
      }
      for (int i = 0; i < 8; ++i) {
        requests.push_back(world.receive(in[i].data(), in[i].size() * sizeof(int), previous, i % 2));
        requests.push_back(world.send(out[i].data(), out[i].size() * sizeof(int), next, i % 2));
      }
      for (auto& request : requests) finish(*request);
      for (int i = 0; i < 8; ++i) ASSERT_EQ(in[i], std::vector<int>(in[i].size(), 1000 * previous + i));
    });
  }
}

TEST(InProcess, DelaysHoldARequestBackAndFollowTheSeed) {
  const auto polls = [](uint64_t seed) {
    Group group = make_in_process_group(1, {Delivery::kEager, {seed, std::chrono::milliseconds(40)}});
    const auto begin = std::chrono::steady_clock::now();
    finish(*group[0]->send(nullptr, 0, 0, 0));
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  };
  double shortest = 1e9, longest = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const double delay = polls(seed);
    shortest = std::min(shortest, delay);
    longest = std::max(longest, delay);
  }
  EXPECT_LT(shortest, 20);
  EXPECT_GT(longest, 20);
}

TEST(InProcess, AbortPoisonsEveryRankAndNamesTheCulprit) {
  Group group = make_in_process_group(4);
  std::atomic<int> told{0};
  on_threads(group, [&](Communicator& world) {
    const auto pair = world.split(world.rank() / 2, world.rank());
    world.barrier();
    if (world.rank() == 2) {
      pair->abort("the disk is full");  // from a subgroup: the whole job ends
      return;
    }
    try {
      if (world.rank() == 3) world.barrier();
      int value = 0;
      const RequestPtr receive = world.receive(&value, sizeof value, 2, 0);
      finish(*receive);
    } catch (const RunError& e) {
      EXPECT_STREQ(e.what(), "rank 2 aborted the job: the disk is full");
      ++told;
    }
  });
  EXPECT_EQ(told.load(), 3);
  EXPECT_THROW(group[0]->send(nullptr, 0, 1, 0), RunError);
  EXPECT_THROW(group[0]->split(0, 0), RunError);
}

TEST(InProcess, ARequestGivenUpReleasesItsBufferAndTellsThePeer) {
  Group group = make_in_process_group(2, {Delivery::kRendezvous, {}});
  int got = 5;
  {
    const int value = 6;
    const RequestPtr send = group[0]->send(&value, sizeof value, 1, 0);
  }
  const RequestPtr receive = group[1]->receive(&got, sizeof got, 0, 0);
  EXPECT_THROW(receive->test(), RunError);
  EXPECT_EQ(got, 5);
}

TEST(InProcess, APeerOutsideTheGroupIsRefused) {
  Group group = make_in_process_group(2);
  EXPECT_THROW(group[0]->send(nullptr, 0, 2, 0), std::logic_error);
  EXPECT_THROW(group[0]->receive(nullptr, 0, -1, 0), std::logic_error);
}

}  // namespace
}  // namespace trainer
