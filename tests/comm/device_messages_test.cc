// Messages and sums of memory that the host does not reach.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "comm/back_off.h"
#include "comm/collective_cases.h"
#include "comm/staged_communicator.h"
#include "support/guarded_channels.h"
#include "support/queue_adder.h"

namespace trainer {
namespace {

using collective_cases::expect_same_bits;
using testing::GuardedChannels;
using testing::GuardedDevice;

enum class Carrier { kStaged, kMatched };

struct DeviceGroup {
  DeviceGroup(Carrier carrier, int size, const InProcessOptions& options = {})
      : devices(static_cast<size_t>(size)) {
    collective_cases::Ranks inner = make_in_process_group(size, options);
    for (size_t r = 0; r < inner.size(); ++r) {
      GuardedDevice& device = devices[r];
      if (carrier == Carrier::kStaged)
        ranks.push_back(stage_through_host(std::move(inner[r]), device, device.transfers()));
      else
        ranks.push_back(match_over_channels(std::move(inner[r]), [this, &device](const Communicator& of) {
          return std::make_unique<GuardedChannels>(channels, device, of.rank());
        }));
    }
  }
  GuardedChannels::Hub channels;
  std::vector<GuardedDevice> devices;
  collective_cases::Ranks ranks;
};

void fill(GuardedDevice& device, void* data, const void* from, size_t bytes) {
  device.transfers().copy_in(data, from, bytes);
  device.transfers().synchronise();
}

class DeviceMessages : public ::testing::TestWithParam<std::tuple<Carrier, Delivery>> {
 protected:
  Carrier carrier() const { return std::get<0>(GetParam()); }
  InProcessOptions options(uint64_t seed = 0) const {
    return {std::get<1>(GetParam()), {seed, std::chrono::microseconds(seed ? 200 : 0)}};
  }
};

int32_t content(int from, int to, int tag, int number) {
  return ((from * 10 + to) * 10 + tag) * 100 + number;
}

// Every rank to every other one, three tags, receives in another order than sends, requests asked in any.
TEST_P(DeviceMessages, FindTheirReceivesByTagInTheOrderSent) {
  constexpr int kRanks = 3, kTags = 3, kMessages = 6;
  // The last message of a tag is empty.
  const auto length = [](int tag, int number) {
    return number + 1 == kMessages ? size_t{0} : static_cast<size_t>(1 + (tag * 7 + number * 5) % 9);
  };
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    DeviceGroup group(carrier(), kRanks, options(seed));
    collective_cases::on_threads(group.ranks, [&](Communicator& c) {
      GuardedDevice& device = group.devices[static_cast<size_t>(c.rank())];
      const Philox random(seed * 10 + static_cast<uint64_t>(c.rank()));
      uint64_t draws = 0;
      struct Message {
        DeviceMemoryPtr memory;
        int peer, tag, number;
        bool sent;
      };
      std::vector<Message> messages;
      std::vector<std::array<int, 3>> order;  // peer, tag, direction; numbers ascend within
      for (int peer = 0; peer < kRanks; ++peer)
        for (int tag = 0; tag < kTags; ++tag)
          for (int i = 0; i < 2 * kMessages && peer != c.rank(); ++i) order.push_back({peer, tag, i % 2});
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.block(draws++)[0] % i]);
      std::map<std::array<int, 3>, int> next;
      std::vector<RequestPtr> requests;
      for (const auto& which : order) {
        const auto [peer, tag, direction] = which;
        Message m{nullptr, peer, tag, next[which]++, direction == 1};
        const size_t count = length(tag, m.number);
        m.memory = device.allocate(count * sizeof(int32_t));
        std::byte* const data = m.memory->bytes().data();
        if (m.sent) {
          const std::vector<int32_t> values(count, content(c.rank(), peer, tag, m.number));
          fill(device, data, values.data(), count * sizeof(int32_t));
          requests.push_back(c.send(data, count * sizeof(int32_t), peer, tag));
        } else {
          requests.push_back(c.receive(data, count * sizeof(int32_t), peer, tag));
        }
        messages.push_back(std::move(m));
      }
      for (BackOff back_off; !requests.empty(); back_off.pause()) {
        const size_t which = random.block(draws++)[0] % requests.size();
        if (!requests[which]->test()) continue;
        std::swap(requests[which], requests.back());
        requests.pop_back();
        back_off.reset();
      }
      for (const Message& m : messages) {
        if (m.sent) continue;
        const size_t count = length(m.tag, m.number);
        std::vector<int32_t> values(count);
        device.transfers().copy_out(values.data(), m.memory->bytes().data(), count * sizeof(int32_t));
        device.transfers().synchronise();
        for (const int32_t value : values) EXPECT_EQ(value, content(m.peer, c.rank(), m.tag, m.number));
      }
    });
  }
}

TEST_P(DeviceMessages, SumsHaveTheBitsOfTheHosts) {
  for (const SumAlgorithm algorithm : collective_cases::kAlgorithms)
    for (const int size : {1, 2, 3, 5}) {
      const size_t count = 1003, chunk = 64;
      const auto inputs = collective_cases::inputs_of(size, count);
      std::vector<std::vector<float>> host = inputs, results(inputs.size());
      const CollectiveOptions on_host{.algorithm = algorithm};
      auto host_ranks = make_in_process_group(size);
      collective_cases::on_threads(host_ranks, [&](Communicator& c) {
        std::vector<float> staging(staging_count(count, size, chunk, algorithm, c.nodes()));
        wait(*all_reduce_sum(c, host[static_cast<size_t>(c.rank())].data(), count, chunk, staging, 10,
                             on_host));
      });
      DeviceGroup group(carrier(), size, options());
      collective_cases::on_threads(group.ranks, [&](Communicator& c) {
        const auto rank = static_cast<size_t>(c.rank());
        GuardedDevice& device = group.devices[rank];
        const testing::QueueAdder adder(device);
        const CollectiveOptions on_device{.algorithm = algorithm, .adder = &adder};
        const size_t staging = staging_count(count, size, chunk, algorithm, c.nodes());
        const DeviceMemoryPtr memory = device.allocate((count + staging) * sizeof(float));
        auto* const data = reinterpret_cast<float*>(memory->bytes().data());
        fill(device, data, inputs[rank].data(), count * sizeof(float));
        const auto part = c.split(0, c.rank());
        wait(*all_reduce_sum(*part, data, count, chunk, {data + count, staging}, 10, on_device));
        results[rank].resize(count);
        device.transfers().copy_out(results[rank].data(), data, count * sizeof(float));
        device.transfers().synchronise();
      });
      for (int r = 0; r < size; ++r)
        expect_same_bits(results[static_cast<size_t>(r)], host[static_cast<size_t>(r)],
                         fmt::format("{} over {}", name_of(algorithm), size));
    }
}

TEST_P(DeviceMessages, RefuseAnotherSize) {
  DeviceGroup group(carrier(), 2, options());
  const DeviceMemoryPtr from = group.devices[0].allocate(64), to = group.devices[1].allocate(64);
  const RequestPtr send = group.ranks[0]->send(from->bytes().data(), 8, 1, 3);
  const RequestPtr receive = group.ranks[1]->receive(to->bytes().data(), 16, 0, 3);
  EXPECT_THROW(
      {
        for (int i = 0; i < 100; ++i) static_cast<void>((send->test(), receive->test()));
      },
      RunError);
}

TEST_P(DeviceMessages, MayBeGivenUp) {
  DeviceGroup group(carrier(), 2, options());
  const DeviceMemoryPtr from = group.devices[0].allocate(64), to = group.devices[1].allocate(64);
  for (int polls = 0; polls < 4; ++polls) {
    RequestPtr given_up = group.ranks[0]->send(from->bytes().data(), 8, 1, 10 + polls);
    RequestPtr expected = group.ranks[1]->receive(to->bytes().data(), 8, 0, 20 + polls);
    for (int i = 0; i < polls; ++i) EXPECT_FALSE(given_up->test() && expected->test());
  }
  // Others are not held up.
  const RequestPtr send = group.ranks[0]->send(from->bytes().data(), 8, 1, 3);
  const RequestPtr receive = group.ranks[1]->receive(to->bytes().data(), 8, 0, 3);
  bool sent = false, received = false;
  for (int i = 0; i < 1000 && !(sent && received); ++i) {
    sent = sent || send->test();
    received = received || receive->test();
  }
  EXPECT_TRUE(sent && received);
}

INSTANTIATE_TEST_SUITE_P(Carriers, DeviceMessages,
                         ::testing::Combine(::testing::Values(Carrier::kStaged, Carrier::kMatched),
                                            ::testing::Values(Delivery::kEager, Delivery::kRendezvous)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == Carrier::kStaged ? "Staged"
                                                                                          : "Matched") +
                                  (std::get<1>(info.param) == Delivery::kEager ? "Eager" : "Rendezvous");
                         });

}  // namespace
}  // namespace trainer
