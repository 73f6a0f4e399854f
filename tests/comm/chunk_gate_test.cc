#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>

#include "base/error.h"
#include "base/philox.h"
#include "comm/collective_cases.h"

namespace trainer {
namespace {

using namespace collective_cases;

class Gate : public ChunkGate {
 public:
  bool open() const override { return open_; }
  void set(bool open) { open_ = open; }

 private:
  bool open_ = false;
};

// Opens now and then, at random.
class FlickeringGate : public ChunkGate {
 public:
  explicit FlickeringGate(uint64_t seed) : random_(seed) {}
  bool open() const override { return random_.block(asked_++)[0] % 4 == 0; }

 private:
  const Philox random_;
  mutable uint64_t asked_ = 0;
};

// By sender: messages with content, and bytes not yet received.
struct Ledger {
  explicit Ledger(int size)
      : started(static_cast<size_t>(size)), under_way(started.size()), most(started.size()) {}
  std::vector<std::atomic<int>> started, under_way, most;
};

class CountedReceive : public Request {
 public:
  CountedReceive(RequestPtr request, int bytes, std::atomic<int>& under_way)
      : request_(std::move(request)), bytes_(bytes), under_way_(under_way) {}
  bool test() override {
    if (!request_->test()) return false;
    under_way_ -= bytes_;
    return true;
  }

 private:
  RequestPtr request_;
  const int bytes_;
  std::atomic<int>& under_way_;
};

// Tells the ledger of every message.
class CountingCommunicator : public Communicator {
 public:
  CountingCommunicator(Communicator& inner, Ledger& ledger) : inner_(inner), ledger_(ledger) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::vector<int> nodes() const override { return inner_.nodes(); }
  RequestPtr send(const void* data, size_t bytes, int peer, int tag) override {
    const auto self = static_cast<size_t>(rank());
    if (bytes > 0) {
      ++ledger_.started[self];
      const int now = ledger_.under_way[self] += static_cast<int>(bytes);
      if (now > ledger_.most[self]) ledger_.most[self] = now;
    }
    return inner_.send(data, bytes, peer, tag);
  }
  RequestPtr receive(void* data, size_t bytes, int peer, int tag) override {
    RequestPtr request = inner_.receive(data, bytes, peer, tag);
    if (bytes == 0) return request;
    return std::make_unique<CountedReceive>(std::move(request), static_cast<int>(bytes),
                                            ledger_.under_way[static_cast<size_t>(peer)]);
  }
  std::unique_ptr<Communicator> split(int color, int key) override { return inner_.split(color, key); }
  void barrier() override { inner_.barrier(); }
  void abort(const std::string& reason) override { inner_.abort(reason); }

 private:
  Communicator& inner_;
  Ledger& ledger_;
};

// A sum over ranks that one thread drives, counted.
struct Driven {
  Driven(int size, size_t count, size_t chunk, Delivery delivery, SumAlgorithm algorithm,
         const std::vector<const ChunkGate*>& gates)
      : ledger(size), ranks(make_in_process_group(size, {delivery, {}})), data(inputs_of(size, count)) {
    staging.resize(data.size());
    for (size_t r = 0; r < data.size(); ++r) {
      counted.emplace_back(*ranks[r], ledger);
      staging[r].resize(staging_count(count, size, chunk, algorithm));
    }
    for (size_t r = 0; r < data.size(); ++r)
      requests.push_back(all_reduce_sum(counted[r], data[r].data(), count, chunk, staging[r], 0,
                                        {.algorithm = algorithm, .gate = gates[r]}));
  }
  bool test(size_t rank) { return requests[rank]->test(); }
  bool test() {
    size_t complete = 0;
    for (auto& request : requests) complete += request->test();
    return complete == requests.size();
  }
  int started() const {
    int sum = 0;
    for (const auto& n : ledger.started) sum += n;
    return sum;
  }

  Ledger ledger;
  Ranks ranks;
  std::deque<CountingCommunicator> counted;
  std::vector<std::vector<float>> data, staging;
  std::vector<RequestPtr> requests;
};

TEST(ChunkGate, ClosedItStartsNothingAndOpenTheSumGoesOn) {
  for (const Delivery delivery : {Delivery::kEager, Delivery::kRendezvous})
    for (const SumAlgorithm algorithm : kAlgorithms) {
      Gate gate;
      Driven sum(3, 900, 10, delivery, algorithm, {&gate, &gate, &gate});
      for (int i = 0; i < 100; ++i) EXPECT_FALSE(sum.test());
      EXPECT_EQ(sum.started(), 0);

      gate.set(true);
      for (int i = 0; i < 10; ++i) EXPECT_FALSE(sum.test());
      gate.set(false);
      const int before = sum.started();
      EXPECT_GT(before, 0);
      for (int i = 0; i < 100; ++i) EXPECT_FALSE(sum.test());
      EXPECT_EQ(sum.started(), before);
      for (const auto& n : sum.ledger.under_way) EXPECT_EQ(n, 0);  // what was under way has gone on

      gate.set(true);
      while (!sum.test()) {
      }
      Driven free(3, 900, 10, delivery, algorithm, {nullptr, nullptr, nullptr});
      while (!free.test()) {
      }
      for (size_t r = 0; r < 3; ++r) expect_same_bits(sum.data[r], free.data[r], name_of(algorithm));
    }
}

TEST(ChunkGate, OneRanksGateStopsThatRankAlone) {
  Gate open, closed;
  open.set(true);
  Driven sum(2, 400, 10, Delivery::kEager, SumAlgorithm::kDirect, {&open, &closed});
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(sum.test());
  EXPECT_GT(sum.ledger.started[0], 0);
  EXPECT_EQ(sum.ledger.started[1], 0);
}

TEST(ChunkGate, WithAGateOneChunkIsUnderWayUntilItIsReceived) {
  for (const SumAlgorithm algorithm : kAlgorithms)
    for (const int size : {2, 5}) {
      Gate gate;
      gate.set(true);
      Driven gated(size, 3000, 10, Delivery::kEager, algorithm,
                   std::vector<const ChunkGate*>(static_cast<size_t>(size), &gate));
      while (!gated.test()) {
      }
      for (const auto& most : gated.ledger.most) EXPECT_EQ(most, 40) << name_of(algorithm);
    }
  Driven free(5, 3000, 10, Delivery::kEager, SumAlgorithm::kDirect, std::vector<const ChunkGate*>(5));
  while (!free.test()) {
  }
  EXPECT_GT(free.ledger.most[0], 40) << "else the test above could not fail";
}

// Ranks that are polled at very unequal rates, so that each is now far ahead and now far behind.
TEST(ChunkGate, NoOrderOfProgressLocksUp) {
  Gate gate;
  gate.set(true);
  for (uint64_t seed = 1; seed <= 84; ++seed) {
    const Philox random(seed);
    const int size = 2 + static_cast<int>(seed % 7);
    const SumAlgorithm algorithm = kAlgorithms[seed / 7 % 4];
    Driven sum(size, 400, 3, seed % 2 ? Delivery::kRendezvous : Delivery::kEager, algorithm,
               std::vector<const ChunkGate*>(static_cast<size_t>(size), &gate));
    size_t polls = 0, complete = 0;
    std::vector<bool> done(static_cast<size_t>(size));
    while (complete < done.size() && polls < 2'000'000) {
      const auto draw = random.block(polls);
      const size_t rank = draw[0] % done.size();
      for (uint32_t i = 0; i < 1 + draw[1] % 64; ++i, ++polls)
        if (!done[rank] && sum.test(rank)) {
          done[rank] = true;
          ++complete;
        }
    }
    ASSERT_EQ(complete, done.size()) << "seed " << seed << " size " << size << ' ' << name_of(algorithm);
  }
}

TEST(ChunkGate, FlickerAndDelaysChangeNoBits) {
  const size_t count = 331, chunk = 20;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const int size = 2 + static_cast<int>(seed % 5);
    const SumAlgorithm algorithm = kAlgorithms[seed % 4];
    std::vector<int> nodes;
    for (int rank = 0; rank < size; ++rank) nodes.push_back(rank / 2);
    const auto inputs = inputs_of(size, count);
    std::vector<std::vector<float>> results[2];
    for (const bool gated : {false, true}) {
      const auto delay = std::chrono::microseconds(gated ? 30 : 0);
      Ranks ranks = make_in_process_group(
          size, {seed % 3 ? Delivery::kRendezvous : Delivery::kEager, {seed, delay}, nodes});
      results[gated] = inputs;
      on_threads(ranks, [&](Communicator& world) {
        const auto rank = static_cast<size_t>(world.rank());
        auto& data = results[gated][rank];
        const FlickeringGate gate(seed * 100 + rank);
        const CollectiveOptions options{.algorithm = algorithm, .gate = gated ? &gate : nullptr};
        std::vector<float> staging_a(staging_count(count, size, chunk, algorithm, nodes)),
            staging_b(staging_a);
        auto other = data;
        const auto a = all_reduce_sum(world, data.data(), count, chunk, staging_a, 0, options);
        const auto b =
            reduce_scatter_sum(world, other.data(), count, chunk, staging_b, kCollectiveTags, options);
        wait(*b);
        wait(*a);
        wait(*all_gather(world, other.data(), count, sizeof(float), chunk, 0, options));
        expect_same_bits(other, data, "halves");
      });
    }
    for (size_t r = 0; r < inputs.size(); ++r)
      expect_same_bits(results[1][r], results[0][r], fmt::format("seed {} {}", seed, name_of(algorithm)));
  }
}

}  // namespace
}  // namespace trainer
