// Channels between guarded devices of one process.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/matched_communicator.h"
#include "support/guarded_device.h"

namespace trainer::testing {

// All channels between the ranks of a group. As strict as those of devices: the n-th message that the sender
// names is the n-th that the receiver names, and passes when both are first.
class ChannelHub {
 public:
  struct End {
    std::vector<std::pair<void*, size_t>> messages;
    GuardedDevice* device = nullptr;
  };
  struct Channel {
    End sender, receiver;
    size_t passed = 0;
  };

  size_t name(int from, int to, bool sends, void* data, size_t bytes, GuardedDevice& device) {
    const std::lock_guard lock(mutex_);
    Channel& c = channels_[{from, to}];
    End& end = sends ? c.sender : c.receiver;
    end.device = &device;
    end.messages.emplace_back(data, bytes);
    return end.messages.size();
  }
  bool passed(int from, int to, size_t number) {
    const std::lock_guard lock(mutex_);
    Channel& c = channels_[{from, to}];
    while (c.passed < std::min(c.sender.messages.size(), c.receiver.messages.size())) {
      const auto [source, sent] = c.sender.messages[c.passed];
      const auto [target, expected] = c.receiver.messages[c.passed];
      require(sent == expected, "the ends of a channel disagree: {} bytes, {} expected", sent, expected);
      const GuardedDevice::Open here(*c.sender.device), there(*c.receiver.device);
      std::memcpy(target, source, sent);
      ++c.passed;
    }
    return c.passed >= number;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, int>, Channel> channels_;
};

class GuardedChannels final : public DeviceChannels {
 public:
  using Hub = ChannelHub;
  GuardedChannels(ChannelHub& channels, GuardedDevice& device, int rank)
      : channels_(channels), device_(device), rank_(rank) {}
  Invitation invite(int peer) override { return invitation(rank_, peer); }
  RequestPtr send(const void* data, size_t bytes, int peer, const Invitation& given) override {
    require(given == invitation(peer, rank_), "another rank's invitation");
    const size_t number = channels_.name(rank_, peer, true, const_cast<void*>(data), bytes, device_);
    return std::make_unique<Passing>(channels_, rank_, peer, number);
  }
  RequestPtr receive(void* data, size_t bytes, int peer) override {
    const size_t number = channels_.name(peer, rank_, false, data, bytes, device_);
    return std::make_unique<Passing>(channels_, peer, rank_, number);
  }

 private:
  class Passing final : public Request {
   public:
    Passing(ChannelHub& channels, int from, int to, size_t number)
        : channels_(channels), from_(from), to_(to), number_(number) {}
    bool test() override { return channels_.passed(from_, to_, number_); }

   private:
    ChannelHub& channels_;
    int from_, to_;
    size_t number_;
  };
  static Invitation invitation(int of, int to) {
    return {static_cast<char>('a' + of), static_cast<char>('a' + to)};
  }
  ChannelHub& channels_;
  GuardedDevice& device_;
  int rank_;
};

}  // namespace trainer::testing
