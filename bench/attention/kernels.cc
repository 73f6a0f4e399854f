#include <cmath>

#include "attention/backends.h"
#include "support/kernel_bench.h"

namespace trainer {
namespace {

struct AttentionOperands {
  Values q, qkv, out, dout, dq, log_sum_exp, dk, dv;

  AttentionOperands(Device& device, DType dtype, int64_t tokens, const ModelConfig& m)
      : q(device, dtype, tokens * m.q_width(), 3),
        qkv(device, dtype, tokens * (m.q_width() + 2 * m.kv_width()), 1),
        out(device, dtype, tokens * m.q_width()),
        dout(device, dtype, tokens * m.q_width(), 2),
        dq(device, dtype, tokens * m.q_width()),
        log_sum_exp(device, DType::kF32, tokens * m.num_attention_heads),
        dk(device, DType::kF32, tokens * m.kv_width()),
        dv(device, DType::kF32, tokens * m.kv_width()) {}
};

// Rows of the projection hold queries, keys and values beside each other, as they come from it.
AttentionShape shape_of(const ModelConfig& m, int64_t tokens) {
  const int64_t width = m.q_width() + 2 * m.kv_width();
  return {.batch = 1,
          .query_length = tokens,
          .key_length = tokens,
          .query_offset = 0,
          .heads = m.num_attention_heads,
          .kv_heads = m.num_query_groups,
          .head_dim = m.head_dim,
          .q_stride = m.q_width(),
          .k_stride = width,
          .v_stride = width,
          .key_rows = tokens,
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(m.head_dim))),
          .document_starts = {}};
}

class AttentionBench {
 public:
  AttentionBench(KernelBench& bench, const NamedModel& model, DType dtype)
      : bench_(bench),
        model_(model),
        m_(model.shape),
        dtype_(dtype),
        tokens_(bench.tokens()),
        shape_(shape_of(model.shape, tokens_)),
        o_(bench.device(), dtype, tokens_, m_) {}

  void measure() {
    KernelSet& training = bench_.kernels(dtype_, m_);
    KernelSet& kernels = bench_.backend().own ? *bench_.backend().own : training;
    const double pairs = static_cast<double>(tokens_) * static_cast<double>(tokens_ + 1) / 2;
    const double product = 2 * pairs * static_cast<double>(m_.q_width());  // FLOPs
    KernelCase c{.operation = "forward",
                 .dtype = dtype_,
                 .shape = {{"tokens", tokens_},
                           {"heads", m_.num_attention_heads},
                           {"groups", m_.num_query_groups},
                           {"head_dim", m_.head_dim}},
                 .ceiling = Ceiling::kMatrixProducts,
                 .work = 2 * product};
    // The library takes bf16 only.
    const bool beside = bench_.backend().own && dtype_ == DType::kBF16;
    if (beside) c.peer_name = "cuDNN";
    c.run = [&] { forward(kernels); };
    if (beside) c.peer = [&] { forward(training); };
    c.check = [&] { check_forward(); };
    bench_.add(model_, c);
    c.operation = "backward";
    c.work = 5 * product;
    c.run = [&] { backward(kernels); };
    if (beside) c.peer = [&] { backward(training); };
    c.check = [&] { check_backward(); };
    bench_.add(model_, c);
  }

 private:
  void forward(KernelSet& kernels) {
    kernels.attention_forward(o_.out.ref(), o_.log_sum_exp.f32(), o_.q.ref(), key(o_.qkv), value(o_.qkv),
                              shape_);
  }
  void backward(KernelSet& kernels) {
    kernels.attention_backward(o_.dq.ref(), o_.dk.f32(), o_.dv.f32(), o_.dout.ref(), o_.out.ref(),
                               o_.log_sum_exp.f32(), o_.q.ref(), key(o_.qkv), value(o_.qkv), shape_);
  }
  ConstRef key(const Values& qkv) const { return qkv.ref().at(m_.q_width()); }
  ConstRef value(const Values& qkv) const { return key(qkv).at(m_.kv_width()); }

  // The heads of the first group of queries stand for all.
  int64_t group_heads() const { return m_.num_attention_heads / m_.num_query_groups; }
  int64_t group_width() const { return group_heads() * m_.head_dim; }
  AttentionShape group_shape() const {
    AttentionShape s = shape_;
    s.heads = group_heads();
    s.kv_heads = 1;
    return s;
  }
  Values group_rows(const Values& of) const {
    Values rows(host_device(), of.dtype(), tokens_ * group_width());
    bench_.reference().convert_rows(rows.ref(), group_width(), of.on_host().ref(), m_.q_width(), tokens_,
                                    group_width());
    return rows;
  }

  void check_forward() {
    const Values q = o_.q.on_host(), qkv = o_.qkv.on_host();
    const Values out(host_device(), dtype_, tokens_ * group_width()),
        log_sum_exp(host_device(), DType::kF32, tokens_ * group_heads());
    bench_.reference().attention_forward(out.ref(), log_sum_exp.f32(), q.ref(), key(qkv), value(qkv),
                                         group_shape());
    const Rows want{out.ref(), tokens_, group_width(), group_width()};
    bench_.compare("the output", want, {o_.out.ref(), tokens_, group_width(), m_.q_width()},
                   {1e-5, bench_.backend().host_bf16 ? 3 * kOneUnit : kOneUnit});
  }
  void check_backward() {
    const Values q = o_.q.on_host(), qkv = o_.qkv.on_host(), log_sum_exp = o_.log_sum_exp.on_host();
    const Values dq(host_device(), dtype_, q.size()), dk(host_device(), DType::kF32, tokens_ * m_.head_dim),
        dv(host_device(), DType::kF32, tokens_ * m_.head_dim);
    const Values dout = group_rows(o_.dout), out = group_rows(o_.out);
    bench_.reference().attention_backward(dq.ref(), dk.f32(), dv.f32(), dout.ref(), out.ref(),
                                          log_sum_exp.f32(), q.ref(), key(qkv), value(qkv), group_shape());
    const auto rows = [&](const Values& of, int64_t columns, int64_t stride) {
      return Rows{of.ref(), tokens_, columns, stride};
    };
    // The host's rounded slopes leave errors that are large beside gradients whose sums cancel.
    const BenchBackend& backend = bench_.backend();
    constexpr double kCancelled = 5e-2;
    const double queries = backend.host_bf16 ? kCancelled : backend.tensor_cores ? 2 * kOneUnit : kOneUnit;
    bench_.compare("dq", rows(dq, group_width(), m_.q_width()), rows(o_.dq, group_width(), m_.q_width()),
                   {5e-5, queries});
    // Gradients of keys and values are fp32 whatever the operands.
    const double rounded = backend.host_bf16 ? kCancelled : backend.tensor_cores ? 1e-2 : kOneUnit;
    const AllowedError keys{dtype_ == DType::kF32 ? 5e-5 : rounded};
    bench_.compare("dk", rows(dk, m_.head_dim, m_.head_dim), rows(o_.dk, m_.head_dim, m_.kv_width()), keys);
    bench_.compare("dv", rows(dv, m_.head_dim, m_.head_dim), rows(o_.dv, m_.head_dim, m_.kv_width()), keys);
  }

  KernelBench& bench_;
  const NamedModel& model_;
  const ModelConfig& m_;
  DType dtype_;
  int64_t tokens_;
  AttentionShape shape_;
  AttentionOperands o_;
};

}  // namespace

Report attention_on_kernels(const std::string& backend, const Words& words) {
  KernelBench bench("attention", backend, words, {});
  for (const NamedModel& model : bench.models())
    for (const DType dtype : bench.dtypes()) AttentionBench(bench, model, dtype).measure();
  return bench.report();
}

}  // namespace trainer
