// Ranks inside one process: each on a thread of its own, or all of them driven by one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace trainer {

enum class Delivery : uint8_t {
  kEager,       // a send completes whether or not its receive was posted
  kRendezvous,  // a send completes only after its receive was posted and the bytes were copied: finds
                // deadlocks
};

// Every request completes no earlier than a random time after it was posted. The delay depends only on the
// seed, the group, the two ranks, the tag and the message's number, so a seed gives the same delays in every
// run.
struct FaultOptions {
  uint64_t seed = 0;
  std::chrono::microseconds max_delay{0};  // 0: no delays
};

struct InProcessOptions {
  Delivery delivery = Delivery::kEager;
  FaultOptions faults;
  // By rank, any number that tells nodes apart; empty: all ranks are on one node.
  std::vector<int> nodes = {};
};

// A world of `size` ranks; element r is rank r's communicator. They may be destroyed in any order.
//
// send, receive and test never block. split returns at once, so one thread may call it for every rank in
// turn; the new communicator's first use waits until all ranks have called split. barrier blocks and needs a
// thread per rank. abort poisons the world: every later or waiting call on any rank throws RunError naming
// the rank that aborted. A request destroyed before it completed takes its message back; the peer's test then
// throws RunError.
std::vector<std::unique_ptr<Communicator>> make_in_process_group(int size,
                                                                 const InProcessOptions& options = {});

}  // namespace trainer
