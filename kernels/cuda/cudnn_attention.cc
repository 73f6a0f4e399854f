#if defined(TRAINER_CUDA)

#include "cuda/cudnn_attention.h"

#include <array>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "cuda/attention.h"
#include "cuda/cudnn_attention_graphs.h"
#include "cuda/cudnn_pieces.h"
#include "cuda/kernels.h"
#include "cuda/shape_checks.h"

namespace trainer::cuda {
namespace {

constexpr size_t kLeastCudnnVersion = 91600;  // before, backward was wrong for some lengths
constexpr size_t kPlanAlignment = 256;
// Of a plan beside slopes and gradients of all heads.
constexpr size_t kPlanSlack = size_t{1} << 20;

// Spans of a workspace, one after the other; null where it is too small.
class PlanWorkspace {
 public:
  explicit PlanWorkspace(std::span<std::byte> bytes) : rest_(bytes) { align(); }
  std::byte* take(size_t bytes) {
    if (bytes > rest_.size()) return nullptr;
    std::byte* const taken = rest_.data();
    rest_ = rest_.subspan(bytes);
    align();
    return taken;
  }
  std::span<std::byte> rest() const { return rest_; }

 private:
  void align() {
    const size_t over = reinterpret_cast<uintptr_t>(rest_.data()) % kPlanAlignment;
    rest_ = rest_.subspan(over == 0 ? 0 : std::min(kPlanAlignment - over, rest_.size()));
  }
  std::span<std::byte> rest_;
};

// cuDNN's handle, and the device it was made on.
class Library {
 public:
  // Throws RunError where cuDNN cannot be used here.
  Library() {
    if (cudnnGetVersion() < kLeastCudnnVersion) run_error("cuDNN {} is older than 9.16", version());
    cudnnHandle_t handle = nullptr;
    if (const cudnnStatus_t status = cudnnCreate(&handle); status != CUDNN_STATUS_SUCCESS)
      run_error("cuDNN does not start: {}", cudnnGetErrorString(status));
    handle_.reset(handle);
    device_.emplace(cudnn_device_of(handle));
    int index = 0;
    check(cudaGetDevice(&index), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&capability_, cudaDevAttrComputeCapabilityMajor, index),
          "cudaDeviceGetAttribute");
  }

  static std::string version() {
    const size_t version = cudnnGetVersion();
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }
  cudnnHandle_t in(Stream stream) {
    if (const cudnnStatus_t status = cudnnSetStream(handle_.get(), stream); status != CUDNN_STATUS_SUCCESS)
      run_error("cudnnSetStream failed: cuDNN: {}", cudnnGetErrorString(status));
    return handle_.get();
  }
  const CudnnDescriptor& device() const { return *device_; }
  int capability() const { return capability_; }  // its major number

 private:
  struct Destroy {
    void operator()(cudnnContext* handle) const {
      if (const cudnnStatus_t status = cudnnDestroy(handle); status != CUDNN_STATUS_SUCCESS)
        log_warning("cudnnDestroy failed: {}", cudnnGetErrorString(status));
    }
  };

  std::unique_ptr<cudnnContext, Destroy> handle_;
  std::optional<CudnnDescriptor> device_;
  int capability_ = 0;
};

bool aligned_to_16(ConstRef data, int64_t token) {
  return reinterpret_cast<uintptr_t>(data.data) % 16 == 0 && token % 8 == 0;
}

CudnnAttentionShape whole_shape(const AttentionShape& s) {
  CudnnAttentionShape c;
  c.batch = s.batch;
  c.length = s.query_length;
  c.heads = s.heads;
  c.kv_heads = s.kv_heads;
  c.head_dim = s.head_dim;
  c.q_token = s.q_stride;
  c.q_row = s.query_length * s.q_stride;
  c.k_token = s.k_stride;
  c.k_row = s.key_rows * s.k_stride;
  c.v_token = s.v_stride;
  c.v_row = s.key_rows * s.v_stride;
  c.out_token = s.heads * s.head_dim;
  c.out_row = s.query_length * c.out_token;
  c.gradient_token = s.kv_heads * s.head_dim;
  c.gradient_row = s.query_length * c.gradient_token;
  c.statistic_row = s.heads * s.query_length;
  return c;
}

class CudnnAttention final : public Attention {
 public:
  explicit CudnnAttention(std::unique_ptr<Attention> otherwise) : otherwise_(std::move(otherwise)) {}

  std::string name() const override { return "cuDNN or " + otherwise_->name(); }

  size_t workspace_bytes(const WorkspaceShape& shape) const override {
    const size_t others = otherwise_->workspace_bytes(shape);
    if (shape.dtype != DType::kBF16 || shape.sequence == 0) return others;
    const int64_t heads = std::max<int64_t>(1, shape.heads);
    const auto statistics = static_cast<size_t>(shape.tokens * heads);
    const size_t gradient = statistics * static_cast<size_t>(shape.head_dim) * size_of(DType::kBF16);
    const int64_t rows = (shape.tokens + shape.sequence - 1) / shape.sequence;
    const size_t slopes =
        std::min(kMostSlopeBytes, static_cast<size_t>(rows * heads) * slope_bytes(shape.sequence));
    // dk and dv of a key's heads, and, in the plan, of all heads.
    return std::max(others, statistics * sizeof(float) + 4 * gradient + slopes + kPlanSlack);
  }

  void forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v, const AttentionShape& s,
               const int32_t* document_first, std::span<std::byte> workspace, Stream stream) override {
    check_attention(s, q.dtype, {out, k, v});
    if (serves(s, q, k, v, document_first) && aligned_to_16(out, s.head_dim) &&
        run_forward(out, log_sum_exp, q, k, v, s, workspace, stream))
      return;
    otherwise_->forward(out, log_sum_exp, q, k, v, s, document_first, workspace, stream);
  }

  void backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out, const float* log_sum_exp,
                ConstRef q, ConstRef k, ConstRef v, const AttentionShape& s, const int32_t* document_first,
                std::span<std::byte> workspace, Stream stream) override {
    check_attention(s, q.dtype, {dq, dout, out, k, v});
    if (serves(s, q, k, v, document_first) && aligned_to_16(dout, s.head_dim) &&
        aligned_to_16(out, s.head_dim) && aligned_to_16(dq, s.q_stride) &&
        run_backward(dq, dk, dv, dout, out, log_sum_exp, q, k, v, s, workspace, stream))
      return;
    otherwise_->backward(dq, dk, dv, dout, out, log_sum_exp, q, k, v, s, document_first, workspace, stream);
  }

 private:
  // A shape's plan; none where cuDNN does not serve it.
  using Plans = std::map<CudnnAttentionShape, std::optional<CudnnPlan>>;

  bool refuse(const std::string& why) {
    if (refusals_.insert(why).second) log_info("attention by {}: {}", otherwise_->name(), why);
    return false;
  }

  bool serves(const AttentionShape& s, ConstRef q, ConstRef k, ConstRef v, const int32_t* document_first) {
    if (s.batch == 0 || s.query_length == 0) return false;
    if (q.dtype != DType::kBF16) return refuse("cuDNN's is for bf16");
    if (document_first) return refuse("cuDNN's is for sequences of one document");
    if (s.query_offset != 0 || s.query_length != s.key_length)
      return refuse("cuDNN's is for whole sequences");
    if (s.head_dim % 8 != 0) return refuse(fmt::format("cuDNN's has no heads of {}", s.head_dim));
    if (!aligned_to_16(q, s.q_stride) || !aligned_to_16(k, s.k_stride) || !aligned_to_16(v, s.v_stride))
      return refuse("cuDNN's is for tokens that begin at multiples of 16 bytes");
    return true;
  }

  Library* library() {
    if (!library_ && !tried_) {
      tried_ = true;
      try {
        library_ = std::make_unique<Library>();
      } catch (const RunError& error) {
        refuse(error.what());
      }
    }
    return library_.get();
  }

  const CudnnPlan* plan_of(Plans& plans, const char* what, const CudnnAttentionShape& s,
                           CudnnGraph (*graph_of)(const CudnnAttentionShape&), size_t workspace) {
    const auto [found, fresh] = plans.try_emplace(s);
    std::optional<CudnnPlan>& plan = found->second;
    if (fresh) {
      std::string why;
      try {
        plan = CudnnPlan::make(graph_of(s), library_->device(), workspace, why);
      } catch (const RunError& error) {
        why = error.what();
      }
      log_info("attention's {} over {} x {} tokens, {} heads of {} over {} of keys: by {}{}", what, s.batch,
               s.length, s.heads, s.head_dim, s.kv_heads,
               plan ? "cuDNN " + Library::version() : otherwise_->name(), plan ? "" : "; cuDNN: " + why);
    }
    return plan && plan->workspace_bytes() <= workspace ? &*plan : nullptr;
  }

  bool run_forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v, const AttentionShape& s,
                   std::span<std::byte> workspace, Stream stream) {
    if (!library()) return false;
    const std::span<std::byte> rest = PlanWorkspace(workspace).rest();
    const CudnnPlan* plan =
        plan_of(forward_, "forward", whole_shape(s), attention_forward_graph, rest.size());
    if (!plan) return false;
    const std::array<CudnnPlan::Argument, 7> arguments = {{{kQueries, q.data},
                                                           {kKeys, k.data},
                                                           {kValues, v.data},
                                                           {kOut, out.data},
                                                           {kLogSumExp, log_sum_exp},
                                                           {kScale, &s.scale},
                                                           {kMasked, &masked_}}};
    plan->run(library_->in(stream), arguments, rest.data());
    return true;
  }

  bool run_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out, const float* log_sum_exp,
                    ConstRef q, ConstRef k, ConstRef v, const AttentionShape& s,
                    std::span<std::byte> workspace, Stream stream) {
    if (!library()) return false;
    if (library_->capability() != 8 && library_->capability() != 9)
      return refuse("backward by cuDNN has a fixed order of sums on compute capability 8 and 9 only");
    const BackwardPiece piece = backward_piece(s.batch, s.query_length, s.heads, s.kv_heads, kMostSlopeBytes);
    if (piece.batch == 0)
      return refuse(
          fmt::format("cuDNN's backward over sequences of {} needs too much workspace", s.query_length));
    const CudnnAttentionShape whole = whole_shape(s);
    const int64_t group = s.heads / s.kv_heads, key_elements = s.batch * whole.gradient_row;
    CudnnAttentionShape part = whole;
    part.batch = piece.batch;
    part.kv_heads = piece.kv_heads;
    part.heads = piece.kv_heads * group;

    PlanWorkspace space(workspace);
    const auto gradient_bytes = static_cast<size_t>(key_elements) * size_of(DType::kBF16);
    const Ref narrow_dk{space.take(gradient_bytes), DType::kBF16};
    const Ref narrow_dv{space.take(gradient_bytes), DType::kBF16};
    std::byte* const out_sums =
        space.take(static_cast<size_t>(part.batch * part.heads * part.length) * sizeof(float));
    const std::span<std::byte> rest = space.rest();
    if (!narrow_dk || !narrow_dv || !out_sums) return refuse("too little workspace for cuDNN's backward");
    const CudnnPlan* plan = plan_of(backward_, "backward", part, attention_backward_graph, rest.size());
    if (!plan) return false;

    cudnnHandle_t const handle = library_->in(stream);
    for (int64_t row = 0; row < s.batch; row += part.batch) {
      for (int64_t kv_head = 0; kv_head < s.kv_heads; kv_head += part.kv_heads) {
        const int64_t key_at = kv_head * s.head_dim, query_at = key_at * group;
        const int64_t out_at = row * whole.out_row + query_at, q_at = row * whole.q_row + query_at;
        const int64_t gradient_at = row * whole.gradient_row + key_at;
        const float* const statistics =
            log_sum_exp + row * whole.statistic_row + kv_head * group * s.query_length;
        const std::array<CudnnPlan::Argument, 13> arguments = {
            {{kQueries, q.at(q_at).data},
             {kKeys, k.at(row * whole.k_row + key_at).data},
             {kValues, v.at(row * whole.v_row + key_at).data},
             {kOut, out.at(out_at).data},
             {kLogSumExp, statistics},
             {kScale, &s.scale},
             {kMasked, &masked_},
             {kOne, &one_},
             {kOutGradient, dout.at(out_at).data},
             {kQueryGradient, dq.at(q_at).data},
             {kKeyGradient, narrow_dk.at(gradient_at).data},
             {kValueGradient, narrow_dv.at(gradient_at).data},
             {kOutSums, out_sums}}};
        plan->run(handle, arguments, rest.data());
      }
    }
    for (int64_t row = 0; row < s.batch; ++row) {
      const int64_t to = row * s.key_rows * whole.gradient_token, from = row * whole.gradient_row;
      add(ref(dk + to), narrow_dk.at(from), whole.gradient_row, stream);
      add(ref(dv + to), narrow_dv.at(from), whole.gradient_row, stream);
    }
    return true;
  }

  const std::unique_ptr<Attention> otherwise_;
  const float masked_ = -std::numeric_limits<float>::infinity(), one_ = 1.0f;
  std::unique_ptr<Library> library_;
  bool tried_ = false;
  Plans forward_, backward_;  // their plans go before the library
  std::set<std::string> refusals_;
};

}  // namespace

std::unique_ptr<Attention> make_cudnn_attention(std::unique_ptr<Attention> otherwise) {
  return std::make_unique<CudnnAttention>(std::move(otherwise));
}

}  // namespace trainer::cuda

#endif
