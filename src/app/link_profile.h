// What messages and sums between ranks cost on this machine.
#pragma once

#include <cstdint>

#include "comm/collectives.h"
#include "ops/kernel_set.h"

namespace trainer {

// What transfers take of a rank's compute.
struct CoreShare {
  double share = 0;   // while under way at full speed
  double weight = 1;  // against work, where both want the core
};

struct LinkProfile {
  // A message to a rank that has been waiting for it, while nobody computes: of no length, and what more
  // bytes add. And how much longer a long one takes from a rank that computes meanwhile.
  double latency_seconds = 0, bytes_per_second = 0, core_wait_seconds = 0;
  // Of each rank, when every rank sends a long message to the next, while nobody computes.
  double together_bytes_per_second = 0;
  // Sums over all ranks: latency of one round of messages, and bytes sent by a rank.
  double sum_latency_seconds = 0, sum_bytes_per_second = 0;
  CoreShare sum_cores = {};
};

// Between the ranks of `group`, at least two; other groups may measure at the same time. Computes beside the
// transfers with `kernels`, whose workspace it takes over; they take `busy_cores`, all that the rank has (0:
// it has more, so transfers take nothing from them). Collective.
LinkProfile measure_links(Communicator& group, KernelSet& kernels, int busy_cores, DType dtype,
                          int64_t message_bytes, int64_t sum_bytes, SumAlgorithm algorithm);

// From the seconds of a transfer alone and beside work on all of a rank's `busy_cores`, and those for which
// it then had one of them.
CoreShare core_share_of(double transfer_alone, double transfer_beside, double had_core, int busy_cores);

}  // namespace trainer
