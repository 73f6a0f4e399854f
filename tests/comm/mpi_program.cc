// Runs under mpirun. `equal`: whatever MPI returns must have the bits the in-process ranks return. `fail KIND
// RANK`: that rank goes down in the given way while the others wait for it. `report`: what the environment
// says. `link BYTES_PER_SECOND`: each rank is a node, and what passes between them is no faster than that.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/collectives.h"
#include "comm/comm_cases.h"
#include "comm/in_process.h"
#include "comm/mpi/mpi_communicator.h"
#include "comm/staged_communicator.h"
#include "support/queue_adder.h"

namespace trainer {
namespace {

// Not `assert`: it must hold in every build.
void expect(bool holds, const char* what) {
  if (!holds) run_error("wrong: {}", what);
}

class OpenGate : public ChunkGate {
 public:
  bool open() const override { return true; }
};

std::vector<float> reduced(Communicator& communicator, size_t count, size_t chunk,
                           const CollectiveOptions& options) {
  auto data = comm_cases::contribution(communicator.rank(), count);
  std::vector<float> staging(
      staging_count(count, communicator.size(), chunk, options.algorithm, communicator.nodes()));
  wait(*all_reduce_sum(communicator, data.data(), count, chunk, staging, 20, options));
  return data;
}

std::vector<float> reduced_in_process(const std::vector<int>& nodes, size_t count, size_t chunk,
                                      const CollectiveOptions& options) {
  auto ranks = make_in_process_group(static_cast<int>(nodes.size()), {Delivery::kEager, {}, nodes});
  std::vector<float> result;
  std::vector<std::thread> threads;
  for (auto& rank : ranks)
    threads.emplace_back([&] {
      auto data = reduced(*rank, count, chunk, options);
      if (rank->rank() == 0) result = std::move(data);
    });
  for (auto& thread : threads) thread.join();
  return result;
}

void check_sums(Communicator& world) {
  const OpenGate gate;
  for (const SumAlgorithm algorithm :
       {SumAlgorithm::kDirect, SumAlgorithm::kRing, SumAlgorithm::kTree, SumAlgorithm::kHierarchical})
    for (const size_t count : {1ul, 37ul, 10007ul, 100003ul}) {
      // Few elements in many small chunks, many in fewer.
      const bool many = count > 100'000;
      const auto want = reduced_in_process(world.nodes(), count, many ? 3333 : 333, {.algorithm = algorithm});
      for (const size_t chunk : {many ? 500ul : 64ul, 5000ul, 1ul << 20})
        for (const ChunkGate* const each :
             {static_cast<const ChunkGate*>(nullptr), static_cast<const ChunkGate*>(&gate)}) {
          const auto got = reduced(world, count, chunk, {.algorithm = algorithm, .gate = each});
          expect(std::memcmp(got.data(), want.data(), count * sizeof(float)) == 0, "bits of a sum");
        }
    }
}

// Memory that the host does not reach, staged.
void check_device_sums(Communicator& world) {
  testing::GuardedDevice device;
  DeviceQueue& queue = device.transfers();
  const testing::QueueAdder adder(device);
  const auto staged = stage_through_host(world.split(0, world.rank()), device, queue);
  const size_t count = 10007, chunk = 500, staging = staging_count(count, world.size(), chunk);
  const auto mine = comm_cases::contribution(world.rank(), count);
  const DeviceMemoryPtr memory = device.allocate((count + staging) * sizeof(float));
  auto* const data = reinterpret_cast<float*>(memory->bytes().data());
  queue.copy_in(data, mine.data(), count * sizeof(float));
  queue.synchronise();
  wait(*all_reduce_sum(*staged, data, count, chunk, {data + count, staging}, 20, {.adder = &adder}));
  std::vector<float> got(count);
  queue.copy_out(got.data(), data, count * sizeof(float));
  queue.synchronise();
  expect(got == reduced(world, count, chunk, {}), "bits of a sum on devices");
}

// A message of many pieces (main sets them to 1000 bytes), of one, of none; two at once with one tag.
void check_messages(Communicator& world) {
  const int next = (world.rank() + 1) % world.size(),
            previous = (world.rank() + world.size() - 1) % world.size();
  for (const size_t bytes : {0ul, 1ul, 999ul, 1000ul, 1001ul, 1234567ul}) {
    const std::string first(bytes, static_cast<char>('a' + world.rank())), second(bytes / 2, 'z');
    std::string got_first(bytes, ' '), got_second(bytes / 2, ' ');
    std::vector<RequestPtr> requests;
    requests.push_back(world.receive(got_first.data(), bytes, previous, 3));
    requests.push_back(world.receive(got_second.data(), bytes / 2, previous, 3));
    requests.push_back(world.send(first.data(), bytes, next, 3));
    requests.push_back(world.send(second.data(), bytes / 2, next, 3));
    for (auto& request : requests) wait(*request);
    expect(got_first == std::string(bytes, static_cast<char>('a' + previous)) && got_second == second,
           "a message");
  }
  if (world.size() == 1) return;  // in one process the sender is told too
  bool refused = false;
  int value = 0;
  const auto receive = world.receive(&value, sizeof value, previous, 4);
  const auto send = world.send(&value, 1, next, 4);
  try {
    wait(*receive);
  } catch (const RunError&) {
    refused = true;
  }
  wait(*send);
  expect(refused, "a message of another size was taken");
}

void check_groups(Communicator& world) {
  const auto half = world.split(world.rank() % 2, -world.rank());
  const int members = (world.size() + (world.rank() % 2 == 0)) / 2;
  expect(half->size() == members, "size of a split");
  expect(half->rank() == members - 1 - world.rank() / 2, "order of a split");
  expect(half->nodes() == std::vector(static_cast<size_t>(members), 0), "nodes of a split");
  half->barrier();
  // Two threads, each with a communicator of its own.
  const auto other = world.split(0, world.rank());
  std::thread thread([&] { check_sums(*other); });
  check_sums(world);
  thread.join();
  world.barrier();

  const auto parts = all_gather_bytes(world, std::to_string(world.rank()));
  for (int r = 0; r < world.size(); ++r)
    expect(parts[static_cast<size_t>(r)] == std::to_string(r), "gathered bytes");
  expect(all_equal(world, 5) && all_equal(world, world.rank() == 1) == (world.size() == 1), "all_equal");
}

void fail(Communicator& world, const std::string& kind, int culprit) {
  world.barrier();
  if (world.rank() == culprit) {
    if (kind == "kill") std::raise(SIGKILL);
    if (kind == "throw") run_error("a made-up failure");
    if (kind == "exit") std::exit(0);
    if (kind == "quick_exit") ::_exit(0);
    if (kind == "abort") world.abort("a made-up failure");
    if (kind == "input") input_error("a made-up data file is bad");
  }
  int value = 0;
  wait(*world.receive(&value, sizeof value, culprit, 0));  // never comes
}

// Both ways at once, many small messages or one large one; returns bytes per second and direction.
double rate(Communicator& world, size_t bytes, int messages) {
  const int peer = 1 - world.rank();
  const std::string data(bytes, 'x');
  std::vector<std::string> got(static_cast<size_t>(messages), std::string(bytes, ' '));
  world.barrier();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<RequestPtr> requests;
  for (std::string& message : got) requests.push_back(world.receive(message.data(), bytes, peer, 5));
  for (int i = 0; i < messages; ++i) requests.push_back(world.send(data.data(), bytes, peer, 5));
  for (auto& request : requests) wait(*request);
  world.barrier();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  for (const std::string& message : got) expect(message == data, "a message over the link");
  return static_cast<double>(bytes) * messages / seconds.count();
}

void check_link(Communicator& world, double limit) {
  rate(world, 1000, 1);  // connects
  for (const auto& [bytes, messages] : {std::pair<size_t, int>{4096, 200}, {size_t{2} << 20, 1}}) {
    const double measured = rate(world, bytes, messages);
    if (world.rank() == 0)
      std::printf("%d messages of %zu bytes: %.2f MB/s of %.2f\n", messages, bytes, measured / 1e6,
                  limit / 1e6);
    expect(measured < 1.05 * limit, "faster than the link");
    expect(measured > 0.2 * limit, "much slower than the link");
  }
}

int run(const MpiEnvironment& environment, const std::vector<std::string>& arguments) {
  if (arguments[0] == "report") {
    std::printf("rank %d of %d, local %d of %d\n", environment.rank(), environment.size(),
                environment.local_rank(), environment.local_size());
    return 0;
  }
  const auto world = environment.world();
  if (arguments[0] == "fail") {
    fail(*world, arguments[1], std::stoi(arguments[2]));
    return 0;
  }
  expect(world->rank() == environment.rank() && world->size() == environment.size(), "the world");
  if (arguments[0] == "link") {
    expect(environment.local_size() == 1 && world->size() == 2 && world->nodes() == std::vector{0, 1},
           "nodes");
    check_link(*world, std::stod(arguments[1]));
    check_sums(*world);
    return 0;
  }
  expect(environment.local_size() == world->size() && environment.local_rank() == world->rank(),
         "local ranks");
  expect(world->nodes() == std::vector(static_cast<size_t>(world->size()), 0), "nodes");
  check_messages(*world);
  check_sums(*world);
  check_device_sums(*world);
  check_groups(*world);
  return 0;
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  const trainer::MpiEnvironment environment(1000);
  try {
    return trainer::run(environment, {argv + 1, argv + argc});
  } catch (const trainer::Error& e) {
    environment.abort(e.what(), e.exit_code());
  }
}
