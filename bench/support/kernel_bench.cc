#include "support/kernel_bench.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/statistics.h"
#include "device/call_times.h"
#include "device/cores.h"

namespace trainer {
namespace {

constexpr const char* kKernelOptions =
    R"(  --backend NAME   host (default): cores of this machine; cuda: its first GPU, CUDA_VISIBLE_DEVICES says which one that
                   is; simt: the kernels of cuda simulated on the host, which shows whether they work, not how fast
  --model NAME     gpt2-124m, llama-110m or qwen2.5-0.5b instead of all
  --dtype NAME     fp32 or bf16 instead of both
  --tokens N       rows of activations (default 1024)
  --threads N      of the backend host (default: all cores)
  --seconds S      of each measurement, at least 3 repeats (default 0.3)
  --quick          tiny shapes, measured for a moment: whether it works, not how fast it is
  --json           one JSON object on standard output

Results are held against the reference in double precision before the clock starts; exit code 1 when they differ by
more than is tolerated. Times are medians; on cuda of several calls one after the other, by the call.
)";

constexpr int kRounds = 3;  // in which what is compared is measured in turn
constexpr size_t kLeastRepeats = 3;

// What moves as many bytes as an operation and does no more than it must.
class MemoryTraffic {
 public:
  MemoryTraffic(Device& device, int64_t bytes, int threads)
      : queue_(device.compute()),
        threads_(threads),
        copied_(device, DType::kF32, bytes / 8 + 1),
        to_(device, DType::kF32, bytes / 8 + 1) {}

  void copy() const {
    if (!queue_.host_reaches())
      return queue_.copy(to_.f32(), copied_.f32(), static_cast<size_t>(copied_.size()) * sizeof(float));
#pragma omp parallel for num_threads(threads_) schedule(static)
    for (int t = 0; t < threads_; ++t) {
      const int64_t begin = copied_.size() * t / threads_, end = copied_.size() * (t + 1) / threads_;
      std::memcpy(to_.f32() + begin, copied_.f32() + begin, static_cast<size_t>(end - begin) * sizeof(float));
    }
  }
  // Two arrays are read and one written: twelve bytes an element.
  void add(KernelSet& kernels) const { kernels.add(to_.ref(), copied_.ref(), (copied_.size() * 2 + 2) / 3); }

 private:
  DeviceQueue& queue_;
  int threads_;
  Values copied_, to_;
};

const char* unit_of(const Json& row) { return row.contains("flops_per_second") ? "GFLOP/s" : "GB/s"; }

std::string shape_text(const Json& shape) {
  std::string text;
  for (const auto& [name, value] : shape.items())
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value.get<int64_t>());
  return text;
}

void print_kernels(const Json& report) {
  fmt::print("{}\n{}\n", report["command"].get<std::string>(), report["machine"].get<std::string>());
  fmt::print("every result agrees with the reference; medians; ratio: of the ceiling measured beside\n\n");
  fmt::print("{:<26} {:<13} {:<5} {:<44} {:>10} {:>9} {:>9} {:>7}", "operation", "model", "dtype", "shape",
             "ms", unit_of(report["rows"][0]), "ceiling", "ratio");
  const Json& first = report["rows"][0];
  if (first.contains("peer")) fmt::print(" {:>9} {:>7}", first["peer"]["name"].get<std::string>(), "ours by");
  fmt::print("\n");
  for (const Json& row : report["rows"]) {
    const bool flops = row.contains("flops_per_second");
    const std::string rate = flops ? "flops_per_second" : "bytes_per_second";
    fmt::print("{:<26} {:<13} {:<5} {:<44} {:>10.4f} {:>9.2f} {:>9.2f} {:>5.1f} %",
               row["operation"].get<std::string>(), row["model"].get<std::string>(),
               row["dtype"].get<std::string>(), shape_text(row["shape"]), 1e3 * row["seconds"].get<double>(),
               row[rate].get<double>() / 1e9, row["ceiling_" + rate].get<double>() / 1e9,
               100 * row["ratio"].get<double>());
    if (row.contains("peer"))
      fmt::print(" {:>9.2f} {:>7.2f}", row["peer"][rate].get<double>() / 1e9,
                 row["peer"]["seconds"].get<double>() / row["seconds"].get<double>());
    fmt::print("\n");
  }
}

std::vector<NamedModel> chosen_models(const Options& options, bool quick) {
  const std::vector<NamedModel>& all = quick ? tiny_models() : published_models();
  const auto name = options.find("--model");
  if (!name) return all;
  for (const NamedModel& model : all)
    if (model.name == *name) return {model};
  std::string names;
  for (const NamedModel& model : all) names += (names.empty() ? "" : ", ") + model.name;
  input_error("--model: expected one of {}, found '{}'", names, *name);
}

std::vector<DType> chosen_dtypes(const Options& options) {
  const auto name = options.find("--dtype");
  if (!name) return {DType::kF32, DType::kBF16};
  for (const DType dtype : {DType::kF32, DType::kBF16})
    if (*name == name_of(dtype)) return {dtype};
  input_error("--dtype: expected fp32 or bf16, found '{}'", *name);
}

std::vector<std::string> with_value(const std::string& backend, const std::vector<std::string>& own) {
  std::vector<std::string> all = {"--model", "--dtype", "--tokens", "--seconds"};
  if (backend == "host") all.push_back("--threads");
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

}  // namespace

KernelBench::KernelBench(const char* name, const std::string& backend, const Words& words,
                         const std::vector<std::string>& own)
    : name_(name),
      command_(command_line(name, backend, words)),
      options_(words, with_value(backend, own), {"--quick"}),
      quick_(options_.has("--quick")),
      threads_(static_cast<int>(
          options_.integer("--threads", static_cast<int64_t>(allowed_cores().size()), 1, 1024))),
      tokens_(options_.integer("--tokens", quick_ ? 32 : 1024, 1, 1 << 20)),
      seconds_(options_.number("--seconds", quick_ ? 1e-3 : 0.3, 0)),
      models_(chosen_models(options_, quick_)),
      dtypes_(chosen_dtypes(options_)),
      backend_(make_bench_backend(backend, threads_)),
      reference_(make_reference_kernels()) {}

KernelSet& KernelBench::kernels(const WorkspaceShape& shape) {
  KernelSet* const own = backend_.own.get();
  size_t bytes = backend_.kernels->workspace_bytes(shape);
  if (own) bytes = std::max(bytes, own->workspace_bytes(shape));
  if (!workspace_ || bytes > workspace_->bytes().size()) workspace_ = device().allocate(bytes);
  backend_.kernels->grant_workspace(workspace_->bytes());
  if (own) own->grant_workspace(workspace_->bytes());
  return *backend_.kernels;
}

KernelSet& KernelBench::kernels(DType dtype, const ModelConfig& m, bool vocabulary) {
  WorkspaceShape shape{.dtype = dtype, .tokens = tokens_, .hidden = m.hidden_size};
  for (const GemmShape& product : block_products(m, tokens_))
    shape.widest_row = std::max({shape.widest_row, product.n, product.k});
  shape.vocabulary = vocabulary ? m.vocabulary_size : 0;
  shape.sequence = tokens_;
  shape.heads = m.num_attention_heads;
  shape.head_dim = m.head_dim;
  return kernels(shape);
}

void KernelBench::compare(const std::string& what, const Rows& want, const Rows& got,
                          const AllowedError& allowed) {
  const auto elements = static_cast<size_t>((got.rows - 1) * got.stride + got.columns);
  read_on_host(device().compute(), static_cast<const std::byte*>(got.data.data),
               elements * size_of(got.data.dtype), [&](std::span<const std::byte> bytes) {
                 compare_on_host(what, want,
                                 {{bytes.data(), got.data.dtype}, got.rows, got.columns, got.stride},
                                 allowed);
               });
}

void KernelBench::compare_on_host(const std::string& what, const Rows& want, const Rows& got,
                                  const AllowedError& allowed) {
  const double most = got.data.dtype == DType::kF32 ? allowed.f32 : allowed.bf16;
  const double error = largest_difference(want, got);
  if (error > most) run_error("{}: {:.3g} away from the reference, more than {:.3g}", what, error, most);
  if (error / most < worst_share_) return;
  worst_share_ = error / most;
  worst_error_ = error;
  worst_tolerance_ = most;
}

void KernelBench::add(const NamedModel& model, const KernelCase& c) {
  worst_share_ = 0;
  c.run();
  try {
    c.check();
  } catch (const RunError& error) {
    run_error("{}, {}, {}: {}", c.operation, model.name, name_of(c.dtype), error.what());
  }
  const bool products = c.ceiling == Ceiling::kMatrixProducts;
  const Seconds seconds = measure(c);
  const double ceiling = products ? product_rate(model, c.dtype) : seconds.memory_rate;
  const std::string rate = products ? "flops_per_second" : "bytes_per_second";
  Json row = {{"operation", c.operation},    {"model", model.name},
              {"dtype", name_of(c.dtype)},   {"shape", c.shape},
              {"seconds", seconds.run},      {rate, c.work / seconds.run},
              {"ceiling_" + rate, ceiling},  {"ratio", c.work / seconds.run / ceiling},
              {"check_error", worst_error_}, {"check_tolerance", worst_tolerance_}};
  if (c.peer) row["peer"] = {{"name", c.peer_name}, {"seconds", seconds.peer}, {rate, c.work / seconds.peer}};
  rows_.push_back(std::move(row));
}

KernelBench::Seconds KernelBench::measure(const KernelCase& c) {
  const int rounds = quick_ ? 1 : kRounds;
  const double share = seconds_ / rounds;
  const size_t least = quick_ ? 2 : (kLeastRepeats + kRounds - 1) / kRounds;
  std::vector<double> own, peer, copy, addition;
  const auto bytes = static_cast<int64_t>(c.ceiling == Ceiling::kMemory ? c.work : 0);
  const MemoryTraffic traffic(device(), bytes, threads_);
  DeviceQueue& queue = device().compute();
  for (int round = 0; round < rounds; ++round) {
    time_calls(queue, c.run, share, least, own);
    if (c.peer) time_calls(queue, c.peer, share, least, peer);
    if (bytes == 0) continue;
    time_calls(
        queue, [&] { traffic.copy(); }, share / 2, least, copy);
    time_calls(
        queue, [&] { traffic.add(*backend_.ceiling_kernels); }, share / 2, least, addition);
  }
  Seconds seconds{.run = median(own), .peer = peer.empty() ? 0 : median(peer)};
  if (bytes > 0) seconds.memory_rate = c.work / std::min(median(copy), median(addition));
  return seconds;
}

double KernelBench::product_rate(const NamedModel& model, DType dtype) {
  double& rate = product_rates_[{model.name, dtype}];
  if (rate == 0) {
    const std::vector<GemmShape> shapes = block_products(model.shape, tokens_);
    rate =
        measure_gemm_rate(*backend_.ceiling_kernels, dtype, std::span(shapes).subspan(2), seconds_, device());
  }
  return rate;
}

Report KernelBench::report() const {
  Json report = {{"benchmark", name_},          {"command", command_},
                 {"backend", backend_.name},    {"device", backend_.device->name()},
                 {"machine", backend_.machine}, {"rows", rows_}};
  if (backend_.simulated) report["simulated"] = true;
  return {std::move(report), print_kernels};
}

std::string kernel_usage(const char* name, const std::string& about, const std::string& own_options) {
  return fmt::format("usage: {} [options]\n\n{}\n\n{}{}", name, about, own_options, kKernelOptions);
}

int run_kernel_program(const char* name, const char* about, int argc, char** argv,
                       void (*measure)(KernelBench&)) {
  return run_program({name, kernel_usage(name, about, "")}, argc, argv, [&](Words words) {
    const std::string backend = take_backend(words, bench_backends());
    KernelBench bench(name, backend, words, {});
    measure(bench);
    return bench.report();
  });
}

}  // namespace trainer
