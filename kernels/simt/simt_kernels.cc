#include "simt/simt_kernels.h"

#include "cuda/kernel_set.h"

namespace trainer {
namespace {

struct OwnMachine {
  explicit OwnMachine(const simt::SimtOptions& options) : machine(options) {}
  simt::Machine machine;
};

// Few, so that tests see several chunks.
constexpr int64_t kChunkTokens = 100;

// The machine is a base that is made first and goes last.
class SimtKernels final : private OwnMachine, public simt::DeviceKernels {
 public:
  explicit SimtKernels(const simt::SimtOptions& options)
      : OwnMachine(options),
        simt::DeviceKernels(simt::make_tile_products(), simt::make_block_attention(), &machine,
                            kChunkTokens) {}
};

}  // namespace

std::unique_ptr<KernelSet> make_simt_kernels(const simt::SimtOptions& options) {
  return std::make_unique<SimtKernels>(options);
}

}  // namespace trainer
