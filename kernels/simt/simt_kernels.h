// The device kernels as a backend on the host: slow, and with every access to shared memory checked. For
// tests.
#pragma once

#include <memory>

#include "ops/kernel_set.h"
#include "simt/machine.h"

namespace trainer {

// Blocks and threads run in the order of `options`, which no bit of a result depends on. Calls throw RunError
// when a kernel does what would be undefined on a device. One host thread at a time.
std::unique_ptr<KernelSet> make_simt_kernels(const simt::SimtOptions& options = {});

}  // namespace trainer
