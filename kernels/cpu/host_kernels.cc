#include "cpu/host_kernels.h"

#include <algorithm>

#include "base/error.h"
#include "device/cores.h"

namespace trainer {
HostKernels::HostKernels(int threads, Isa isa)
    : threads_(threads > 0 ? threads : allowed_core_count()),
      isa_(isa),
      vector_(vector_table(isa)),
      products_(threads_, isa) {}

std::string HostKernels::name() const { return fmt::format("host ({})", name_of(isa_)); }

size_t HostKernels::workspace_bytes(const WorkspaceShape& shape) const {
  return std::max({gemm_workspace_bytes(shape), attention_workspace_bytes(shape),
                   classifier_workspace_bytes(shape), norm_workspace_bytes(shape)});
}

void HostKernels::grant_workspace(std::span<std::byte> workspace) {
  require(reinterpret_cast<uintptr_t>(workspace.data()) % 64 == 0,
          "the kernels' workspace is not 64-byte aligned");
  workspace_ = workspace;
}

std::byte* HostKernels::workspace(size_t bytes, const char* operation) const {
  require(bytes <= workspace_.size(), "{} needs {} bytes of workspace, {} are granted", operation, bytes,
          workspace_.size());
  return workspace_.data();
}

std::unique_ptr<KernelSet> make_host_kernels(int threads) {
  return std::make_unique<HostKernels>(threads, best_isa());
}

}  // namespace trainer
