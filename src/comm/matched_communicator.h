// Messages with tags over channels that know none.
#pragma once

#include <array>
#include <cstddef>
#include <functional>

#include "comm/communicator.h"

namespace trainer {

// What carries bytes between memory of devices: from each rank to each other one a channel, in which messages
// pass in the order in which both ends name them. No channel waits for another.
class DeviceChannels {
 public:
  virtual ~DeviceChannels() = default;
  // What a rank needs to know to send to this one.
  using Invitation = std::array<char, 128>;
  // For `peer`; always the same.
  virtual Invitation invite(int peer) = 0;
  // `invitation`: the one that `peer` made for this rank. Data is complete when this is called.
  virtual RequestPtr send(const void* data, size_t bytes, int peer, const Invitation& invitation) = 0;
  virtual RequestPtr receive(void* data, size_t bytes, int peer) = 0;
};

// The receiver decides in which order messages go through a channel: the sender offers each over `inner`, by
// its tag; when an offer has found its receive, the receiver tells the sender to go on, and both name the
// message to the channel. So a message takes up a channel only when both ends are ready for it. Empty
// messages are no more than their offers. `make_channels` makes those of a communicator of which this is a
// rank.
std::unique_ptr<Communicator> match_over_channels(
    std::unique_ptr<Communicator> inner,
    const std::function<std::unique_ptr<DeviceChannels>(const Communicator& of)>& make_channels);

}  // namespace trainer
