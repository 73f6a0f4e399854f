#include "cpu/native_product.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <dnnl.hpp>
#include <exception>
#include <map>
#include <optional>
#include <vector>

#include "base/error.h"

namespace trainer {
namespace {

// B is reordered once per block, so blocks are tall; narrow enough to be shared evenly between threads.
constexpr int64_t kBlockRows = 1024, kBlockColumns = 192;
// oneDNN's temporaries of one block.
constexpr size_t kScratchBytes = size_t{16} << 20;

int64_t block_count(int64_t size, int64_t most) { return (size + most - 1) / most; }

dnnl::memory::data_type type_of(DType type) {
  return type == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

// Makes the calling thread one that oneDNN starts no others from.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
};

}  // namespace

struct NativeProduct::Primitives {
  // Everything about a block but its addresses.
  using Key = std::array<int64_t, 12>;
  struct Block {
    dnnl::matmul::primitive_desc description;
    dnnl::matmul primitive;
  };

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::vector<dnnl::stream> streams;
  std::map<Key, std::optional<Block>> blocks;  // empty: no fitting implementation

  // The primitive for a block of p, made at the first call. Null: there is none.
  const Block* block_of(const MatrixProduct& p, int64_t m, int64_t n) {
    const Key key = {m,
                     n,
                     p.k,
                     p.a_row,
                     p.a_k,
                     p.b_column,
                     p.b_k,
                     p.c_stride,
                     static_cast<int64_t>(p.c.dtype),
                     p.bias ? 1 : 0,
                     static_cast<int64_t>(p.bias.dtype),
                     p.add ? 1 : 0};
    const auto [at, fresh] = blocks.try_emplace(key);
    if (fresh) at->second = make(p, m, n);
    return at->second ? &*at->second : nullptr;
  }

  std::optional<Block> make(const MatrixProduct& p, int64_t m, int64_t n) const {
    const OneThread alone;
    using Dims = dnnl::memory::dims;
    const dnnl::memory::desc a({m, p.k}, type_of(p.a.dtype), Dims{p.a_row, p.a_k});
    const dnnl::memory::desc b({p.k, n}, type_of(p.b.dtype), Dims{p.b_k, p.b_column});
    const dnnl::memory::desc c({m, n}, type_of(p.c.dtype), Dims{p.c_stride, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (p.add) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    try {
      const auto description = [&] {
        if (!p.bias) return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attributes, engine);
        const dnnl::memory::desc bias({1, n}, type_of(p.bias.dtype), Dims{n, 1});
        return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, bias, c), attributes, engine);
      }();
      if (description.scratchpad_desc().get_size() > kScratchBytes) return std::nullopt;
      return Block{description, dnnl::matmul(description)};
    } catch (const dnnl::error& refusal) {
      if (refusal.status == dnnl_unimplemented || refusal.status == dnnl_invalid_arguments)
        return std::nullopt;
      run_error("oneDNN: {} for a product of {} x {} x {}", refusal.what(), m, n, p.k);
    }
  }

  void run(const Block& block, const MatrixProduct& p, int64_t row, int64_t column, std::byte* scratch) {
    const dnnl::matmul::primitive_desc& d = block.description;
    const auto memory = [&](const dnnl::memory::desc& shape, ConstRef data) {
      return dnnl::memory(shape, engine, const_cast<void*>(data.data));
    };
    std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, memory(d.src_desc(), p.a.at(row * p.a_row))},
        {DNNL_ARG_WEIGHTS, memory(d.weights_desc(), p.b.at(column * p.b_column))},
        {DNNL_ARG_DST, memory(d.dst_desc(), p.c.at(row * p.c_stride + column))},
        {DNNL_ARG_SCRATCHPAD, dnnl::memory(d.scratchpad_desc(), engine, scratch)}};
    if (p.bias) arguments.emplace(DNNL_ARG_BIAS, memory(d.bias_desc(), p.bias.at(column)));
    dnnl::stream& stream = streams[static_cast<size_t>(omp_get_thread_num())];
    block.primitive.execute(stream, arguments);
    stream.wait();
  }
};

bool NativeProduct::available() {
  constexpr int kBf16 = static_cast<int>(dnnl::cpu_isa::avx512_core_bf16);
  return (static_cast<int>(dnnl::get_effective_cpu_isa()) & kBf16) == kBf16;
}

NativeProduct::NativeProduct(int threads) : threads_(threads), primitives_(std::make_unique<Primitives>()) {
  for (int t = 0; t < threads; ++t) primitives_->streams.emplace_back(primitives_->engine);
}

NativeProduct::~NativeProduct() = default;

size_t NativeProduct::workspace_bytes() const { return static_cast<size_t>(threads_) * kScratchBytes; }

bool NativeProduct::run(const MatrixProduct& p, std::span<std::byte> workspace) {
  require(workspace.size() >= workspace_bytes(),
          "a native product needs {} bytes of workspace, {} are granted", workspace_bytes(),
          workspace.size());
  if (p.m == 0 || p.n == 0 || p.k == 0) return p.k != 0;
  const int64_t rows = block_count(p.m, kBlockRows), columns = block_count(p.n, kBlockColumns);
  const auto begin_of = [](int64_t size, int64_t parts, int64_t index) { return size * index / parts; };
  // Primitives are made before any block is computed, on this thread.
  std::vector<const Primitives::Block*> blocks;
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t row = i / columns, column = i % columns;
    blocks.push_back(
        primitives_->block_of(p, begin_of(p.m, rows, row + 1) - begin_of(p.m, rows, row),
                              begin_of(p.n, columns, column + 1) - begin_of(p.n, columns, column)));
    if (!blocks.back()) return false;
  }
  std::exception_ptr failure;
#pragma omp parallel num_threads(threads_)
  {
    const OneThread alone;
    std::byte* scratch = workspace.data() + static_cast<size_t>(omp_get_thread_num()) * kScratchBytes;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < rows * columns; ++i) {
      try {
        primitives_->run(*blocks[static_cast<size_t>(i)], p, begin_of(p.m, rows, i / columns),
                         begin_of(p.n, columns, i % columns), scratch);
      } catch (...) {
#pragma omp critical(native_product_failure)
        failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
  return true;
}

}  // namespace trainer
