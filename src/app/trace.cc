#include "app/trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/file.h"
#include "comm/collectives.h"

namespace trainer {
namespace {

// The order of tracks within a rank; lanes not named here follow in order of appearance.
constexpr const char* kLaneOrder[] = {"compute",      "host_compute",     "receive_forward",
                                      "send_forward", "receive_backward", "send_backward",
                                      "collective",   "host_to_device",   "device_to_host"};

double microseconds(double seconds) { return seconds * 1e6; }

// Track numbers of the lanes of every rank.
class Tracks {
 public:
  explicit Tracks(const Timeline& timeline) {
    for (const auto& event : timeline.events) {
      const auto known = std::find(std::begin(kLaneOrder), std::end(kLaneOrder), event.lane);
      const auto fallback = std::size(kLaneOrder) + ids_.size();
      ids_.try_emplace({event.rank, event.lane},
                       known == std::end(kLaneOrder) ? fallback : size_t(known - kLaneOrder));
    }
  }
  size_t at(const TimelineEvent& event) const { return ids_.at({event.rank, event.lane}); }
  const auto& all() const { return ids_; }

 private:
  std::map<std::pair<int32_t, std::string>, size_t> ids_;
};

Json metadata(const char* what, int32_t rank, Json track, const char* key, Json value) {
  Json json = {{"ph", "M"}, {"name", what}, {"pid", rank}};
  if (!track.is_null()) json["tid"] = std::move(track);
  json["args"][key] = std::move(value);
  return json;
}

// An arrow for every Receive from the latest Send of the same step, direction and micro-batch that began
// before the Receive ended and has no arrow yet. Directions are the lanes' names: send_forward feeds
// receive_forward.
void add_arrows(const Timeline& timeline, const Tracks& tracks, Json& events) {
  using Key = std::tuple<int32_t, std::string, int32_t>;
  std::map<Key, std::vector<const TimelineEvent*>> sends;
  const auto key = [](const TimelineEvent& e) {
    return Key{e.step, e.lane.substr(e.lane.find('_') + 1), e.micro_batch};
  };
  for (const auto& event : timeline.events)
    if (event.kind == "Send") sends[key(event)].push_back(&event);
  int64_t id = 0;
  for (const auto& receive : timeline.events) {
    if (receive.kind != "Receive") continue;
    auto& open = sends[key(receive)];
    const bool forward = receive.lane.ends_with("forward");
    auto best = open.end();
    for (auto it = open.begin(); it != open.end(); ++it) {
      // Ranks are numbered along the pipeline, so data flows up in forward and down in backward.
      const bool towards = forward ? (*it)->rank < receive.rank : (*it)->rank > receive.rank;
      if (towards && (*it)->begin <= receive.end && (best == open.end() || (*it)->begin > (*best)->begin))
        best = it;
    }
    if (best == open.end()) continue;
    const TimelineEvent& send = **best;
    open.erase(best);
    events.push_back({{"ph", "s"},
                      {"id", id},
                      {"name", "boundary"},
                      {"cat", "boundary"},
                      {"pid", send.rank},
                      {"tid", tracks.at(send)},
                      {"ts", microseconds(send.begin)}});
    events.push_back({{"ph", "f"},
                      {"bp", "e"},
                      {"id", id++},
                      {"name", "boundary"},
                      {"cat", "boundary"},
                      {"pid", receive.rank},
                      {"tid", tracks.at(receive)},
                      {"ts", microseconds(receive.end)}});
  }
}

}  // namespace

Json trace_json(const Timeline& timeline) {
  const Tracks tracks(timeline);
  Json events = Json::array();
  int32_t named = -1;
  for (const auto& [lane, track] : tracks.all()) {
    if (lane.first != named) {
      named = lane.first;
      events.push_back(metadata("process_name", named, nullptr, "name", fmt::format("rank {}", named)));
      events.push_back(metadata("process_sort_index", named, nullptr, "sort_index", named));
    }
    events.push_back(metadata("thread_name", lane.first, track, "name", lane.second));
    events.push_back(metadata("thread_sort_index", lane.first, track, "sort_index", track));
  }
  for (const auto& e : timeline.events)
    events.push_back({{"ph", "X"},
                      {"name", e.name},
                      {"cat", e.kind},
                      {"pid", e.rank},
                      {"tid", tracks.at(e)},
                      {"ts", microseconds(e.begin)},
                      {"dur", microseconds(e.end - e.begin)},
                      {"args",
                       {{"lane", e.lane},
                        {"step", e.step},
                        {"layer", e.layer},
                        {"micro_batch", e.micro_batch},
                        {"begin", e.begin},
                        {"end", e.end}}}});
  for (const auto& m : timeline.memory)
    events.push_back({{"ph", "C"},
                      {"name", "memory"},
                      {"pid", m.rank},
                      {"ts", microseconds(m.time)},
                      {"args", {{"long", m.long_tier}, {"medium", m.medium_tier}, {"short", m.short_tier}}}});
  add_arrows(timeline, tracks, events);
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

void write_trace(const std::filesystem::path& path, const Timeline& timeline) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  write_file_atomically(path, trace_json(timeline).dump());
}

Timeline read_trace(const std::filesystem::path& path) {
  return parse_trace(parse_json_file(path.string()), path.string());
}

Timeline parse_trace(const Json& json, const std::string& where) {
  if (!json.contains("traceEvents") || !json["traceEvents"].is_array())
    input_error("{}: not a trace: 'traceEvents' is missing", where);
  Timeline timeline;
  for (const auto& entry : json["traceEvents"]) {
    const std::string phase = json_string(entry, "ph", where);
    if (phase != "X" && phase != "C") continue;
    const auto args = entry.find("args");
    if (args == entry.end())
      input_error("{}: an event has no 'args'; only traces of this program can be read", where);
    const auto rank = static_cast<int32_t>(json_integer(entry, "pid", where));
    if (phase == "C") {
      timeline.memory.push_back({json_number(entry, "ts", where) / 1e6, rank,
                                 json_integer(*args, "long", where), json_integer(*args, "medium", where),
                                 json_integer(*args, "short", where)});
      continue;
    }
    TimelineEvent e;
    e.name = json_string(entry, "name", where);
    e.kind = json_string(entry, "cat", where);
    e.lane = json_string(*args, "lane", where);
    e.rank = rank;
    e.step = static_cast<int32_t>(json_integer(*args, "step", where));
    e.layer = static_cast<int32_t>(json_integer(*args, "layer", where));
    e.micro_batch = static_cast<int32_t>(json_integer(*args, "micro_batch", where));
    e.begin = json_number(*args, "begin", where);
    e.end = json_number(*args, "end", where);
    timeline.events.push_back(std::move(e));
  }
  return timeline;
}

Timeline step_of(const Timeline& timeline, int64_t step) {
  Timeline one;
  double begin = INFINITY, end = 0;
  for (const TimelineEvent& e : timeline.events) {
    if (e.step != step) continue;
    begin = std::min(begin, e.begin);
    end = std::max(end, e.end);
    one.events.push_back(e);
  }
  for (const MemorySample& sample : timeline.memory)
    if (sample.time >= begin && sample.time <= end) one.memory.push_back(sample);
  return one;
}

Timeline gather_timeline(Communicator& world, const Timeline& mine) {
  Timeline whole;
  for (const auto& text : gather(world, trace_json(mine).dump(), 0)) {
    const Timeline part = parse_trace(parse_json(text, "trace"), "trace");
    whole.events.insert(whole.events.end(), part.events.begin(), part.events.end());
    whole.memory.insert(whole.memory.end(), part.memory.begin(), part.memory.end());
  }
  return whole;
}

std::filesystem::path trace_path(const std::filesystem::path& run_directory, int64_t step) {
  return run_directory / "traces" / fmt::format("step-{:06}.json", step);
}

std::filesystem::path simulated_trace_path(const std::filesystem::path& run_directory) {
  return run_directory / "traces" / "simulated.json";
}

std::vector<std::filesystem::path> list_traces(const std::filesystem::path& run_directory) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(run_directory / "traces", error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.ends_with(".json")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) {
    const auto key = [](const auto& path) { return std::pair(path.native().size(), path.native()); };
    return key(a) < key(b);
  });
  return files;
}

}  // namespace trainer
