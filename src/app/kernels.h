// The kernels that a config asks for: the one place that knows which backends there are.
#pragma once

#include <memory>
#include <vector>

#include "app/config.h"
#include "model/config.h"
#include "ops/gemm_rate.h"
#include "ops/kernel_set.h"

namespace trainer {

// Those that compute in the host's memory; backend.h has the others. Throws InputError for a kind that does
// not.
std::unique_ptr<KernelSet> make_kernels(const DeviceSection& device);

// A model's largest products but the classifier's, by whose rate it is measured: of `tokens` rows.
std::vector<GemmShape> feed_forward_products(const ModelConfig& model, int64_t tokens);

// Time on this device is counted, not measured: how long a step takes here says nothing about it.
bool is_simulated(const DeviceSection& device);

// What simulated kernels have counted, by operation; null for others.
Json counted_cycles(const KernelSet& kernels);

}  // namespace trainer
