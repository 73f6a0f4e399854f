// The oracle: runs a step graph of any number of ranks on the calling thread, in a random legal order.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/kernel_binder.h"

namespace trainer {

// `binder_of(rank)` does the work of that rank's tasks. Throws RunError naming the blocked tasks if nothing
// can go on. Not for tensor parallelism: its ranks wait for one another inside their tasks, so each needs a
// thread of its own.
void interpret_serially(const StepGraph& graph, int steps, uint64_t seed,
                        const std::function<KernelBinder&(int rank)>& binder_of);

}  // namespace trainer
