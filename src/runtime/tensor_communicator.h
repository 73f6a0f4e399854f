// A tensor-parallel group over a communicator of its own.
#pragma once

#include <span>
#include <vector>

#include "comm/collectives.h"
#include "ops/tensor_group.h"

namespace trainer {

class TensorCommunicator final : public TensorGroup {
 public:
  // Of the memory that exchanges of a group of `size` ranks need.
  static int64_t staging_bytes(int size);

  // Both outlive this. `staging`: staging_bytes(communicator.size()), 64-byte aligned.
  TensorCommunicator(Communicator& communicator, std::span<std::byte> staging);

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
  std::vector<RequestPtr> requests_;
};

}  // namespace trainer
