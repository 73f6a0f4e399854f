#include "support/kernel_meter.h"

#include <algorithm>
#include <utility>

#include "ops/visible_keys.h"
#include "support/program.h"

namespace trainer {
namespace {

double elements(int64_t rows, int64_t columns = 1) {
  return static_cast<double>(rows) * static_cast<double>(columns);
}
// Of an operand, which may be absent.
double bytes_of(ConstRef operand, double count) {
  return operand ? count * static_cast<double>(size_of(operand.dtype)) : 0;
}
double bytes_of(const float* operand, double count) { return operand ? count * sizeof(float) : 0; }
double bytes_of(const int32_t* operand, double count) { return operand ? count * sizeof(int32_t) : 0; }

KernelWork product(int64_t m, int64_t n, int64_t k, double bytes) {
  return {2 * elements(m, n) * static_cast<double>(k), bytes};
}

// Of queries and keys that they see, of one head; see KernelWork.
double visible_pairs(const AttentionShape& s) {
  double pairs = 0;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t i = 0; i < s.query_length; ++i) {
      const VisibleKeys keys = visible_keys(s, b, i);
      pairs += static_cast<double>(keys.last - keys.first) - 0.5;
    }
  return pairs;
}

KernelWork attention_work(const AttentionShape& s, int products, double bytes) {
  return {2.0 * products * visible_pairs(s) * elements(s.heads, s.head_dim), bytes};
}

// Elements of all queries, of all keys, and of what is one number for a query and head.
struct AttentionElements {
  double queries, keys, statistics;
  explicit AttentionElements(const AttentionShape& s)
      : queries(elements(s.batch * s.query_length, s.heads * s.head_dim)),
        keys(elements(s.batch * s.key_length, s.kv_heads * s.head_dim)),
        statistics(elements(s.batch * s.query_length, s.heads)) {}
};

class MeteredKernels final : public KernelSet {
 public:
  MeteredKernels(std::unique_ptr<KernelSet> inner, KernelRecord& record)
      : inner_(std::move(inner)), record_(record) {}

  std::string name() const override { return inner_->name(); }
  size_t workspace_bytes(const WorkspaceShape& shape) const override {
    return inner_->workspace_bytes(shape);
  }
  void grant_workspace(std::span<std::byte> workspace) override { inner_->grant_workspace(workspace); }

  void linear_forward(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n,
                      int64_t k) override {
    const Call call(record_, Kernel::kLinearForward, [&] {
      return product(m, n, k,
                     bytes_of(x, elements(m, k)) + bytes_of(w, elements(n, k)) + bytes_of(bias, elements(n)) +
                         bytes_of(y, elements(m, n)));
    });
    inner_->linear_forward(y, x, w, bias, m, n, k);
  }
  void linear_backward_input(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k,
                             bool accumulate) override {
    const Call call(record_, Kernel::kLinearBackwardInput, [&] {
      return product(m, n, k,
                     bytes_of(dy, elements(m, n)) + bytes_of(w, elements(n, k)) +
                         (accumulate ? 2 : 1) * bytes_of(dx, elements(m, k)));
    });
    inner_->linear_backward_input(dx, dy, w, m, n, k, accumulate);
  }
  void linear_backward_weight(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k,
                              bool accumulate) override {
    const Call call(record_, Kernel::kLinearBackwardWeight, [&] {
      return product(m, n, k,
                     bytes_of(dy, elements(m, n)) + bytes_of(x, elements(m, k)) +
                         (accumulate ? 2 : 1) * bytes_of(dw, elements(n, k)));
    });
    inner_->linear_backward_weight(dw, dy, x, m, n, k, accumulate);
  }
  void bias_backward(float* db, ConstRef dy, int64_t m, int64_t n) override {
    const Call call(record_, Kernel::kBiasBackward,
                    [&] { return moved(bytes_of(dy, elements(m, n)) + 2 * bytes_of(db, elements(n))); });
    inner_->bias_backward(db, dy, m, n);
  }

  void embedding_forward(Ref y, const int32_t* tokens, ConstRef table, const int32_t* positions,
                         ConstRef position_table, int64_t count, int64_t hidden) override {
    const Call call(record_, Kernel::kEmbeddingForward, [&] {
      const double rows = elements(count, hidden), each = elements(count);
      return moved(bytes_of(tokens, each) + bytes_of(table, rows) + bytes_of(y, rows) +
                   (position_table ? bytes_of(positions, each) + bytes_of(position_table, rows) : 0));
    });
    inner_->embedding_forward(y, tokens, table, positions, position_table, count, hidden);
  }
  void embedding_backward(float* dtable, const int32_t* tokens, float* dposition, const int32_t* positions,
                          ConstRef dy, int64_t count, int64_t hidden) override {
    const Call call(record_, Kernel::kEmbeddingBackward, [&] {
      const double rows = elements(count, hidden), each = elements(count);
      return moved(bytes_of(tokens, each) + bytes_of(dy, rows) + 2 * bytes_of(dtable, rows) +
                   (dposition ? bytes_of(positions, each) + 2 * bytes_of(dposition, rows) : 0));
    });
    inner_->embedding_backward(dtable, tokens, dposition, positions, dy, count, hidden);
  }

  void norm_forward(const NormForward& a) override {
    const Call call(record_, Kernel::kNormForward, [&] {
      const double columns = elements(a.x_shape.columns), rows = elements(a.x_shape.outer, a.x_shape.inner);
      const double all = rows * columns;
      return moved(bytes_of(a.x, all) + (a.delta ? bytes_of(a.delta, all) + bytes_of(a.sum, all) : 0) +
                   bytes_of(a.weight, columns) + bytes_of(a.bias, columns) + bytes_of(a.y, all) +
                   bytes_of(a.mean, rows) + bytes_of(a.reciprocal, rows));
    });
    inner_->norm_forward(a);
  }
  void norm_backward(const NormBackward& a) override {
    const Call call(record_, Kernel::kNormBackward, [&] {
      const double columns = elements(a.x_shape.columns), rows = elements(a.x_shape.outer, a.x_shape.inner);
      const double all = rows * columns;
      return moved(bytes_of(a.x, all) + bytes_of(a.weight, columns) + bytes_of(a.dy, all) +
                   bytes_of(a.mean, rows) + bytes_of(a.reciprocal, rows) + bytes_of(a.dresidual, all) +
                   bytes_of(a.dx, all) + 2 * bytes_of(a.dweight, columns) + 2 * bytes_of(a.dbias, columns));
    });
    inner_->norm_backward(a);
  }

  void rope(Ref out, ConstRef in, const RopeArguments& a) override {
    const Call call(record_, a.inverse ? Kernel::kRopeBackward : Kernel::kRopeForward, [&] {
      const double all = elements(a.tokens, a.heads * a.head_dim),
                   angles = elements(a.tokens, a.head_dim / 2);
      return moved(bytes_of(in, all) + bytes_of(out, all) + bytes_of(a.positions, elements(a.tokens)) +
                   bytes_of(a.cosine, angles) + bytes_of(a.sine, angles));
    });
    inner_->rope(out, in, a);
  }

  void swiglu_forward(Ref y, ConstRef gate_up, int64_t tokens, int64_t ffn) override {
    const Call call(record_, Kernel::kActivationForward, [&] {
      return moved(bytes_of(y, elements(tokens, ffn)) + bytes_of(gate_up, elements(tokens, 2 * ffn)));
    });
    inner_->swiglu_forward(y, gate_up, tokens, ffn);
  }
  void swiglu_backward(Ref dgate_up, ConstRef dy, ConstRef gate_up, int64_t tokens, int64_t ffn) override {
    const Call call(record_, Kernel::kActivationBackward, [&] {
      return moved(bytes_of(dgate_up, elements(tokens, 2 * ffn)) + bytes_of(dy, elements(tokens, ffn)) +
                   bytes_of(gate_up, elements(tokens, 2 * ffn)));
    });
    inner_->swiglu_backward(dgate_up, dy, gate_up, tokens, ffn);
  }
  void gelu_forward(Ref y, ConstRef x, int64_t count, bool exact) override {
    const Call call(record_, Kernel::kActivationForward,
                    [&] { return moved(bytes_of(y, elements(count)) + bytes_of(x, elements(count))); });
    inner_->gelu_forward(y, x, count, exact);
  }
  void gelu_backward(Ref dx, ConstRef dy, ConstRef x, int64_t count, bool exact) override {
    const Call call(record_, Kernel::kActivationBackward, [&] {
      const double all = elements(count);
      return moved(bytes_of(dx, all) + bytes_of(dy, all) + bytes_of(x, all));
    });
    inner_->gelu_backward(dx, dy, x, count, exact);
  }

  void attention_forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                         const AttentionShape& s) override {
    const Call call(record_, Kernel::kAttentionForward, [&] {
      const AttentionElements e(s);
      return attention_work(s, 2,
                            bytes_of(q, e.queries) + bytes_of(k, e.keys) + bytes_of(v, e.keys) +
                                bytes_of(out, e.queries) + bytes_of(log_sum_exp, e.statistics));
    });
    inner_->attention_forward(out, log_sum_exp, q, k, v, s);
  }
  void attention_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out, const float* log_sum_exp,
                          ConstRef q, ConstRef k, ConstRef v, const AttentionShape& s) override {
    const Call call(record_, Kernel::kAttentionBackward, [&] {
      const AttentionElements e(s);
      return attention_work(s, 4,
                            bytes_of(q, e.queries) + bytes_of(k, e.keys) + bytes_of(v, e.keys) +
                                bytes_of(out, e.queries) + bytes_of(dout, e.queries) +
                                bytes_of(log_sum_exp, e.statistics) + bytes_of(dq, e.queries) +
                                2 * bytes_of(dk, e.keys) + 2 * bytes_of(dv, e.keys));
    });
    inner_->attention_backward(dq, dk, dv, dout, out, log_sum_exp, q, k, v, s);
  }

  ClassifierResult classifier(const Classifier& a) override {
    const Call call(record_, Kernel::kClassifier, [&] {
      const double rows = elements(a.tokens, a.hidden), words = elements(a.vocabulary, a.hidden);
      const int products = 1 + (a.dx ? 1 : 0) + (a.dweight ? 1 : 0);
      KernelWork work =
          product(a.tokens, a.vocabulary, a.hidden,
                  bytes_of(a.x, rows) + bytes_of(a.weight, words) + bytes_of(a.labels, elements(a.tokens)) +
                      bytes_of(a.dx, rows) + (a.accumulate ? 2 : 1) * bytes_of(a.dweight, words) +
                      bytes_of(a.token_losses, elements(a.tokens)));
      work.flops *= products;
      return work;
    });
    return inner_->classifier(a);
  }

  void adamw(const AdamW& a) override {
    const Call call(record_, Kernel::kAdamW, [&] {
      const double all = elements(a.count);
      const bool working = a.working.data != a.master;
      return moved(2 * (bytes_of(a.master, all) + bytes_of(a.moment1, all) + bytes_of(a.moment2, all)) +
                   bytes_of(a.gradient, all) + (working ? bytes_of(a.working, all) : 0));
    });
    inner_->adamw(a);
  }
  void block_squares(double* squares, const float* x, int64_t count) override {
    const Call call(record_, Kernel::kBlockSquares, [&] {
      const int64_t blocks = (count + kNormBlock - 1) / kNormBlock;
      return moved(bytes_of(x, elements(count)) + elements(blocks) * sizeof(double));
    });
    inner_->block_squares(squares, x, count);
  }

  void fill_zero(void* data, size_t bytes) override {
    const Call call(record_, Kernel::kFillZero, [&] { return moved(static_cast<double>(bytes)); });
    inner_->fill_zero(data, bytes);
  }
  void convert(Ref to, ConstRef from, int64_t count) override {
    const Call call(record_, Kernel::kConvert,
                    [&] { return moved(bytes_of(to, elements(count)) + bytes_of(from, elements(count))); });
    inner_->convert(to, from, count);
  }
  void convert_rows(Ref to, int64_t to_stride, ConstRef from, int64_t from_stride, int64_t rows,
                    int64_t columns) override {
    const Call call(record_, Kernel::kConvert, [&] {
      return moved(bytes_of(to, elements(rows, columns)) + bytes_of(from, elements(rows, columns)));
    });
    inner_->convert_rows(to, to_stride, from, from_stride, rows, columns);
  }
  void add(Ref y, ConstRef x, int64_t count) override {
    const Call call(record_, Kernel::kAdd,
                    [&] { return moved(2 * bytes_of(y, elements(count)) + bytes_of(x, elements(count))); });
    inner_->add(y, x, count);
  }

 private:
  static KernelWork moved(double bytes) { return {0, bytes}; }

  // From its making to its end, where the record is on.
  class Call {
   public:
    template <class Work>
    Call(KernelRecord& record, Kernel kernel, Work&& work)
        : record_(record), kernel_(kernel), on_(record.on) {
      if (!on_) return;
      sum_ = {.calls = 1, .seconds = 0, .work = work()};
      begin_ = steady_seconds();
    }
    ~Call() {
      if (!on_) return;
      sum_.seconds = steady_seconds() - begin_;
      record_.add(kernel_, sum_);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    KernelRecord& record_;
    const Kernel kernel_;
    const bool on_;
    KernelSum sum_;
    double begin_ = 0;
  };

  std::unique_ptr<KernelSet> inner_;
  KernelRecord& record_;
};

// The backward work that goes with forward work which may be done again.
constexpr std::pair<Kernel, Kernel> kForwardAndBackward[] = {
    {Kernel::kLinearForward, Kernel::kLinearBackwardWeight},
    {Kernel::kNormForward, Kernel::kNormBackward},
    {Kernel::kRopeForward, Kernel::kRopeBackward},
    {Kernel::kActivationForward, Kernel::kActivationBackward},
    {Kernel::kAttentionForward, Kernel::kAttentionBackward}};

}  // namespace

const char* name_of(Kernel kernel) {
  static constexpr const char* kNames[] = {"linear_forward",
                                           "linear_backward_input",
                                           "linear_backward_weight",
                                           "bias_backward",
                                           "embedding_forward",
                                           "embedding_backward",
                                           "norm_forward",
                                           "norm_backward",
                                           "rope_forward",
                                           "rope_backward",
                                           "activation_forward",
                                           "activation_backward",
                                           "attention_forward",
                                           "attention_backward",
                                           "classifier",
                                           "adamw",
                                           "block_squares",
                                           "fill_zero",
                                           "convert",
                                           "add"};
  static_assert(std::size(kNames) == kKernelKinds);
  return kNames[static_cast<size_t>(kernel)];
}

bool multiplies(Kernel kernel) {
  switch (kernel) {
    case Kernel::kLinearForward:
    case Kernel::kLinearBackwardInput:
    case Kernel::kLinearBackwardWeight:
    case Kernel::kAttentionForward:
    case Kernel::kAttentionBackward:
    case Kernel::kClassifier:
      return true;
    default:
      return false;
  }
}

void KernelRecord::add(Kernel kernel, const KernelSum& more) {
  KernelSum& sum = sums_[static_cast<size_t>(kernel)];
  sum.calls += more.calls;
  sum.seconds += more.seconds;
  sum.work.flops += more.work.flops;
  sum.work.bytes += more.work.bytes;
}

KernelRecord& KernelRecord::operator+=(const KernelRecord& other) {
  for (size_t k = 0; k < kKernelKinds; ++k) add(static_cast<Kernel>(k), other.sums_[k]);
  return *this;
}

KernelWork necessary_work(const KernelRecord& record) {
  KernelWork necessary;
  for (size_t k = 0; k < kKernelKinds; ++k) {
    const auto kernel = static_cast<Kernel>(k);
    const KernelSum& sum = record[kernel];
    if (sum.calls == 0 || kernel == Kernel::kFillZero) continue;
    double share = 1;
    for (const auto& [forward, backward] : kForwardAndBackward)
      if (kernel == forward)
        share = std::min(1.0, static_cast<double>(record[backward].calls) / static_cast<double>(sum.calls));
    if (multiplies(kernel))
      necessary.flops += share * sum.work.flops;
    else
      necessary.bytes += share * sum.work.bytes;
  }
  return necessary;
}

std::unique_ptr<KernelSet> make_metered_kernels(std::unique_ptr<KernelSet> inner, KernelRecord& record) {
  return std::make_unique<MeteredKernels>(std::move(inner), record);
}

}  // namespace trainer
