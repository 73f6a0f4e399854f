// A tensor-parallel group over a communicator of its own.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ops/tensor_group.h"
#include "runtime/kernel_adder.h"

namespace trainer {

class TensorCommunicator final : public TensorGroup {
 public:
  // Of the memory that exchanges of a group of `size` ranks need.
  static int64_t staging_bytes(int size);

  // All outlive this. `staging`: staging_bytes(communicator.size()), 64-byte aligned, in the memory of the
  // device whose kernels and queue these are, as all data is.
  TensorCommunicator(Communicator& communicator, std::span<std::byte> staging, KernelSet& kernels,
                     DeviceQueue& queue = host_device().compute());

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  void all_gather(void* data, size_t bytes) override;
  void reduce_scatter(Ref data, int64_t count) override;
  void all_reduce(Ref data, int64_t count) override;

 private:
  // `segments` is by rank, in elements.
  void sum_own_segment(Ref data, std::span<const Segment> segments);
  void share_segments(std::byte* data, std::span<const Segment> segments, size_t element_bytes);
  void finish();

  Communicator& communicator_;
  std::span<std::byte> staging_;
  KernelSet& kernels_;
  DeviceQueue& queue_;
  std::optional<KernelAdder> adder_;  // where the host does not reach the staging
  std::vector<RequestPtr> requests_;
};

}  // namespace trainer
