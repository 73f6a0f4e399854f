#include "gemm/onednn.h"

#if TRAINER_HAS_ONEDNN
#include <omp.h>

#include <dnnl.hpp>
#include <memory>
#include <unordered_map>
#endif

namespace trainer {

#if TRAINER_HAS_ONEDNN

namespace {

class DnnlProduct {
 public:
  DnnlProduct(const OneDnnMatrix& a, const OneDnnMatrix& b, const OneDnnMatrix& c, int64_t rows,
              int64_t depth, int64_t columns, int threads)
      : threads_(threads) {
    const Threads set(threads_);
    const auto describe = [](const OneDnnMatrix& m, int64_t m_rows, int64_t m_columns) {
      const auto type = m.dtype == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
      return dnnl::memory::desc({m_rows, m_columns}, type, dnnl::memory::dims{m.row_stride, m.column_stride});
    };
    const auto a_shape = describe(a, rows, depth), b_shape = describe(b, depth, columns),
               c_shape = describe(c, rows, columns);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc description(engine_, a_shape, b_shape, c_shape);
#else
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a_shape, b_shape, c_shape), engine_);
#endif
    primitive_ = dnnl::matmul(description);
    arguments_ = {{DNNL_ARG_SRC, dnnl::memory(a_shape, engine_, a.data)},
                  {DNNL_ARG_WEIGHTS, dnnl::memory(b_shape, engine_, b.data)},
                  {DNNL_ARG_DST, dnnl::memory(c_shape, engine_, c.data)}};
  }
  void run() {
    const Threads set(threads_);
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  class Threads {
   public:
    explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
    ~Threads() { omp_set_num_threads(before_); }

   private:
    int before_;
  };

  int threads_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

}  // namespace

std::function<void()> onednn_product(const OneDnnMatrix& a, const OneDnnMatrix& b, const OneDnnMatrix& c,
                                     int64_t rows, int64_t depth, int64_t columns, int threads) {
  const auto product = std::make_shared<DnnlProduct>(a, b, c, rows, depth, columns, threads);
  return [product] { product->run(); };
}

#else

std::function<void()> onednn_product(const OneDnnMatrix&, const OneDnnMatrix&, const OneDnnMatrix&, int64_t,
                                     int64_t, int64_t, int) {
  return {};
}

#endif

}  // namespace trainer
