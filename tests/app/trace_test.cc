#include "app/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"

namespace trainer {
namespace {

// Two stages, three micro-batches; every lane runs one task at a time.
Timeline sample() {
  Timeline t;
  const auto add = [&](int32_t rank, const char* kind, const char* lane, int32_t layer, int32_t micro_batch,
                       double begin, double end) {
    t.events.push_back({std::string(kind) + " micro-batch " + std::to_string(micro_batch), kind, lane, rank,
                        5, layer, micro_batch, begin, end});
  };
  for (int m = 0; m < 3; ++m) {
    const double at = 10 + 0.1 * m;
    add(0, "Forward", "compute", 1, m, at, at + 0.1);
    add(0, "Send", "send_forward", -1, m, at + 0.1, at + 0.11);
    add(1, "Receive", "receive_forward", -1, m, at + 0.09, at + 0.12);
    add(1, "Forward", "compute", 2, m, at + 0.12, at + 0.2);
    add(1, "Send", "send_backward", -1, m, at + 0.2, at + 0.21);
    add(0, "Receive", "receive_backward", -1, m, at + 0.2, at + 0.22);
  }
  t.memory = {{10, 0, 100, 20, 3}, {10.2, 0, 100, 50, 3}, {10, 1, 90, 0, 0}};
  return t;
}

TEST(Trace, IsReadBackTheSame) {
  const auto run = std::filesystem::path(::testing::TempDir()) / "trace-run";
  std::filesystem::remove_all(run);
  EXPECT_TRUE(list_traces(run).empty());
  const Timeline written = sample();
  write_trace(trace_path(run, 5), written);
  write_trace(trace_path(run, 1000000), written);
  write_trace(trace_path(run, 20), written);
  EXPECT_THAT(list_traces(run),
              ::testing::ElementsAre(trace_path(run, 5), trace_path(run, 20), trace_path(run, 1000000)));

  const Timeline read = read_trace(trace_path(run, 5));
  ASSERT_EQ(read.events.size(), written.events.size());
  for (size_t i = 0; i < read.events.size(); ++i) {
    const auto &a = read.events[i], &b = written.events[i];
    EXPECT_EQ(std::tie(a.name, a.kind, a.lane, a.rank, a.step, a.layer, a.micro_batch, a.begin, a.end),
              std::tie(b.name, b.kind, b.lane, b.rank, b.step, b.layer, b.micro_batch, b.begin, b.end));
  }
  ASSERT_EQ(read.memory.size(), 3);
  EXPECT_EQ(read.memory[1].medium_tier, 50);
  EXPECT_DOUBLE_EQ(read.memory[1].time, 10.2);
}

TEST(Trace, OneTrackPerLaneAndNothingOverlapsInIt) {
  const Json json = parse_json(trace_json(sample()).dump(), "trace");
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
  std::map<std::pair<int, int>, std::string> names;
  std::set<std::string> processes;
  for (const auto& e : json["traceEvents"]) {
    const auto phase = e["ph"].get<std::string>();
    if (phase == "M" && e["name"] == "process_name") processes.insert(e["args"]["name"]);
    if (phase == "M" && e["name"] == "thread_name") {
      const bool added = names.try_emplace({e["pid"], e["tid"]}, e["args"]["name"]).second;
      EXPECT_TRUE(added);
    }
    if (phase == "X") {
      EXPECT_GE(e["dur"].get<double>(), 0);
      EXPECT_EQ(names.at({e["pid"], e["tid"]}), e["args"]["lane"]);
      tracks[{e["pid"], e["tid"]}].emplace_back(e["ts"], e["ts"].get<double>() + e["dur"].get<double>());
    }
  }
  EXPECT_EQ(processes, (std::set<std::string>{"rank 0", "rank 1"}));
  EXPECT_EQ(tracks.size(), 6);
  for (auto& [track, spans] : tracks) {
    std::sort(spans.begin(), spans.end());
    for (size_t i = 1; i < spans.size(); ++i)
      EXPECT_LE(spans[i - 1].second, spans[i].first + 1e-3) << names[track];  // a nanosecond of rounding
  }
}

TEST(Trace, EveryReceiveHasItsSend) {
  const Json json = trace_json(sample());
  std::map<int64_t, Json> begins, ends;
  for (const auto& e : json["traceEvents"]) {
    if (e["ph"] == "s") begins[e["id"]] = e;
    if (e["ph"] == "f") ends[e["id"]] = e;
  }
  ASSERT_EQ(begins.size(), 6);
  ASSERT_EQ(ends.size(), 6);
  for (const auto& [id, begin] : begins) {
    EXPECT_NE(begin["pid"], ends[id]["pid"]);
    EXPECT_LE(begin["ts"].get<double>(), ends[id]["ts"].get<double>());
    EXPECT_LT(ends[id]["ts"].get<double>() - begin["ts"].get<double>(), 0.03e6);
  }
}

TEST(Trace, OtherFilesAreRefused) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "other.json";
  write_file_atomically(path, "{}");
  EXPECT_THROW(read_trace(path), InputError);
}

}  // namespace
}  // namespace trainer
