// How fast sums over ranks are, next to the rate of plain messages measured in the same run, and how long an
// urgent message waits beside one.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "app/options.h"
#include "base/error.h"
#include "base/json.h"
#include "base/statistics.h"
#include "base/units.h"
#include "comm/back_off.h"
#include "comm/collectives.h"
#include "comm/mpi/mpi_communicator.h"
#include "device/arena.h"
#include "device/cores.h"

namespace trainer {
namespace {

constexpr const char* kUsage = R"(usage: mpirun -n N collective [options]

Times all-reduce with every algorithm, with and without a gate that stays open.

  --least BYTES    smallest array (default 65536)
  --most BYTES     largest array (default 67108864)
  --chunk BYTES    longest message of a collective (default 1048576)
  --rounds N       of each measurement, in turn; the median counts (default 5)
  --urgent BYTES   of the message sent back and forth between ranks 0 and 1 beside the largest sum (default 262144)
  --json           one JSON object on standard output

The rate is the bytes that each rank sends, 2 (N - 1) / N of the array, by the time. The ceiling is that of as many
bytes in one message from every rank to the next, all at once. Every sum is checked.
)";

constexpr SumAlgorithm kAlgorithms[] = {SumAlgorithm::kDirect, SumAlgorithm::kRing, SumAlgorithm::kTree,
                                        SumAlgorithm::kHierarchical};
constexpr int kTag = 1, kUrgentTag = 10, kPointTag = 11;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Gate : public ChunkGate {
 public:
  bool open() const override { return open_; }
  void set(bool open) { open_ = open; }

 private:
  bool open_ = true;
};

struct Arguments {
  size_t least = 0, most = 0, chunk = 0, urgent = 0;  // bytes
  int rounds = 0;
  bool json = false;
  std::string command;
};

Arguments parse(std::span<const std::string> words) {
  const Options options(words, {"--least", "--most", "--chunk", "--rounds", "--urgent"}, {"--json"});
  const auto bytes = [&](const char* name, int64_t fallback, int64_t least) {
    return static_cast<size_t>(options.integer(name, fallback, least));
  };
  Arguments a;
  a.least = bytes("--least", 64 << 10, 4);
  a.most = bytes("--most", 64 << 20, static_cast<int64_t>(a.least));
  a.chunk = bytes("--chunk", 1 << 20, 4);
  a.urgent = bytes("--urgent", 256 << 10, 1);
  a.rounds = static_cast<int>(options.integer("--rounds", 5, 1));
  a.json = options.has("--json");
  a.command = "collective";
  for (const std::string& word : words) a.command += ' ' + word;
  return a;
}

// Whole numbers, whose sums are the same in every order.
float value(int rank, size_t i) {
  return static_cast<float>((i * 7 + static_cast<size_t>(rank) * 13) % 1000);
}

// A number of seconds that all ranks have from the slowest.
double slowest(Communicator& world, double seconds) {
  max_over_ranks(world, std::span(&seconds, 1));
  return seconds;
}

class Bench {
 public:
  Bench(const Arguments& a, Communicator& world)
      : a_(a),
        world_(world),
        urgent_world_(world.split(0, world.rank())),
        data_(a.most / sizeof(float)),
        other_(2 * a.most),
        own_(2 * a.most) {
    size_t staging = 0;
    for (const SumAlgorithm algorithm : kAlgorithms)
      staging =
          std::max(staging, staging_count(data_.size(), world.size(), chunk(), algorithm, world.nodes()));
    staging_.resize(staging);
  }

  Json rates() {
    Json list = Json::array();
    for (size_t bytes = a_.least; bytes <= a_.most; bytes *= 4) {
      const auto ranks = static_cast<double>(world_.size());
      const auto sent = static_cast<size_t>(2 * (ranks - 1) / ranks * static_cast<double>(bytes));
      std::vector<double> message;
      std::vector<double> seconds[std::size(kAlgorithms)][2];
      shift(sent);  // connects, and touches the memory
      for (int round = 0; round < a_.rounds; ++round) {
        message.push_back(shift(sent));
        for (size_t i = 0; i < std::size(kAlgorithms); ++i)
          for (const bool gated : {false, true})
            seconds[i][gated].push_back(sum(bytes, kAlgorithms[i], gated));
      }
      Json row = {{"bytes", bytes},
                  {"message_seconds", median(message)},
                  {"message_bytes_per_second", static_cast<double>(sent) / median(message)},
                  {"sums", Json::array()}};
      for (size_t i = 0; i < std::size(kAlgorithms); ++i)
        for (const bool gated : {false, true}) {
          const double time = median(seconds[i][gated]);
          row["sums"].push_back({{"algorithm", name_of(kAlgorithms[i])},
                                 {"gate", gated},
                                 {"seconds", time},
                                 {"bytes_per_second", static_cast<double>(sent) / time},
                                 {"ratio", median(message) / time}});
        }
      list.push_back(std::move(row));
    }
    return list;
  }

  // Seconds of the urgent message, one way: with nothing else, beside a sum, beside a sum with a gate that is
  // closed meanwhile.
  Json urgent() {
    Json list = Json::array();
    for (const auto& [name, beside, gated] : {std::tuple("alone", false, false),
                                              {"beside a sum", true, false},
                                              {"beside a sum with a gate", true, true}}) {
      std::vector<double> seconds;
      for (int round = 0; round < a_.rounds; ++round) exchange_urgent(beside, gated, seconds);
      if (world_.rank() == 0)
        list.push_back({{"case", name},
                        {"messages", seconds.size()},
                        {"median_seconds", median(seconds)},
                        {"longest_seconds", *std::max_element(seconds.begin(), seconds.end())}});
    }
    return list;
  }

 private:
  size_t chunk() const { return a_.chunk / sizeof(float); }

  // Every rank sends to the next.
  double shift(size_t bytes) {
    const int size = world_.size(), next = (world_.rank() + 1) % size,
              previous = (world_.rank() + size - 1) % size;
    world_.barrier();
    const double begin = now();
    const RequestPtr receive = world_.receive(other_.data(), bytes, previous, kPointTag);
    const RequestPtr send = world_.send(own_.data(), bytes, next, kPointTag);
    wait(*receive);
    wait(*send);
    return slowest(world_, now() - begin);
  }

  double sum(size_t bytes, SumAlgorithm algorithm, bool gated) {
    const size_t count = bytes / sizeof(float);
    for (size_t i = 0; i < count; ++i) data_[i] = value(world_.rank(), i);
    const Gate gate;
    world_.barrier();
    const double begin = now();
    wait(*all_reduce_sum(world_, data_.data(), count, chunk(), staging_, kTag,
                         {.algorithm = algorithm, .gate = gated ? &gate : nullptr}));
    const double seconds = slowest(world_, now() - begin);
    for (size_t i = 0; i < count; ++i) {
      float want = 0;
      for (int rank = 0; rank < world_.size(); ++rank) want += value(rank, i);
      if (data_[i] != want)
        run_error("{} over {} ranks: element {} is {}, not {}", name_of(algorithm), world_.size(), i,
                  data_[i], want);
    }
    return seconds;
  }

  // Rank 0 sends and rank 1 sends back, with a pause after each time, for as long as the sum takes (or 20
  // times); seconds of one way are added to `seconds` on rank 0. A last message of one byte ends it.
  void exchange_urgent(bool beside, bool gated, std::vector<double>& seconds) {
    const int rank = world_.rank();
    Gate gate;
    world_.barrier();
    RequestPtr sum;
    if (beside)
      sum = all_reduce_sum(world_, data_.data(), data_.size(), chunk(), staging_, kTag,
                           {.gate = gated ? &gate : nullptr});
    const auto step = [&] { return !sum || sum->test(); };
    const auto complete = [&](const RequestPtr& request) {
      for (BackOff back_off; !request->test(); back_off.pause()) step();
    };
    Communicator& urgent = *urgent_world_;
    char more = 1;
    for (int n = 0; rank < 2 && more; ++n) {
      if (rank == 0) {
        const double pause_until = now() + 2e-3;
        bool over = step();
        while (now() < pause_until) over = step();
        more = beside ? !over : n < 20;
        gate.set(false);
        const double begin = now();
        complete(urgent.send(&more, 1, 1, kUrgentTag));
        if (more) {
          complete(urgent.send(own_.data(), a_.urgent, 1, kUrgentTag));
          complete(urgent.receive(other_.data(), a_.urgent, 1, kUrgentTag));
          seconds.push_back((now() - begin) / 2);
        }
        gate.set(true);
      } else {
        complete(urgent.receive(&more, 1, 0, kUrgentTag));
        if (!more) break;
        gate.set(false);
        complete(urgent.receive(other_.data(), a_.urgent, 0, kUrgentTag));
        complete(urgent.send(own_.data(), a_.urgent, 0, kUrgentTag));
        gate.set(true);
      }
    }
    if (sum) wait(*sum);
  }

  const Arguments& a_;
  Communicator& world_;
  const std::unique_ptr<Communicator> urgent_world_;
  std::vector<float> data_, staging_;
  std::vector<char> other_, own_;
};

Json measure(const Arguments& a, Communicator& world) {
  const std::vector<int> nodes = world.nodes();
  Json r;
  r["command"] = a.command;
  r["machine"] = processor_name();
  r["ranks"] = world.size();
  r["nodes"] = *std::max_element(nodes.begin(), nodes.end()) + 1;
  r["cores_of_rank_0"] = allowed_cores().size();
  r["chunk_bytes"] = a.chunk;
  r["urgent_bytes"] = a.urgent;
  Bench bench(a, world);
  r["rates"] = bench.rates();
  r["urgent"] = bench.urgent();
  return r;
}

void print(const Json& r) {
  fmt::print("{}\n{}; {} ranks on {} nodes, {} cores for rank 0\n\n", r["command"].get<std::string>(),
             r["machine"].get<std::string>(), r["ranks"].get<int>(), r["nodes"].get<int>(),
             r["cores_of_rank_0"].get<int>());
  fmt::print(
      "all-reduce in chunks of {}: milliseconds, GB/s and share of the message's rate; g: with a gate\n",
      format_bytes(r["chunk_bytes"].get<double>()));
  fmt::print("{:>10}  {:>18}", "array", "message");
  for (const Json& s : r["rates"][0]["sums"])
    fmt::print("  {:>22}", s["algorithm"].get<std::string>() + (s["gate"].get<bool>() ? " g" : ""));
  fmt::print("\n");
  for (const Json& row : r["rates"]) {
    fmt::print("{:>10}  {:>9.3f} {:>8.3f}", format_bytes(row["bytes"].get<double>()),
               1e3 * row["message_seconds"].get<double>(),
               row["message_bytes_per_second"].get<double>() / 1e9);
    for (const Json& s : row["sums"])
      fmt::print("  {:>9.3f} {:>6.3f} {:>3.0f} %", 1e3 * s["seconds"].get<double>(),
                 s["bytes_per_second"].get<double>() / 1e9, 100 * s["ratio"].get<double>());
    fmt::print("\n");
  }
  fmt::print("\nan urgent message of {} from rank 0 to rank 1 and back, milliseconds of one way\n",
             format_bytes(r["urgent_bytes"].get<double>()));
  for (const Json& u : r["urgent"])
    fmt::print("{:<26} median {:8.3f}  longest {:8.3f}  ({} messages)\n", u["case"].get<std::string>(),
               1e3 * u["median_seconds"].get<double>(), 1e3 * u["longest_seconds"].get<double>(),
               u["messages"].get<size_t>());
}

int run(const MpiEnvironment& environment, std::span<const std::string> words) {
  if (!words.empty() && (words[0] == "--help" || words[0] == "-h")) {
    if (environment.rank() == 0) std::fputs(kUsage, stdout);
    return 0;
  }
  const Arguments arguments = parse(words);
  if (environment.size() < 2) input_error("collective needs at least two ranks: mpirun -n 2 collective");
  const auto world = environment.world();
  const Json result = measure(arguments, *world);
  if (environment.rank() != 0) return 0;
  if (arguments.json)
    fmt::print("{}\n", result.dump(2));
  else
    print(result);
  return 0;
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  const trainer::MpiEnvironment environment;
  try {
    return trainer::run(environment, std::vector<std::string>(argv + 1, argv + argc));
  } catch (const trainer::Error& error) {
    environment.abort(std::string("collective: ") + error.what(), error.exit_code());
  } catch (const std::exception& error) {
    environment.abort(std::string("collective: ") + error.what(), 1);
  }
}
