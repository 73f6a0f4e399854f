#include "app/report_timeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "app/report_chart.h"
#include "base/units.h"

namespace trainer::report {
namespace {

constexpr int kRowHeight = 20, kBarHeight = 15;
// Shares of the drawing's width in units of the view box.
constexpr double kSpan = 100000;

struct KindStyle {
  const char* kind;
  const char* color;
};
constexpr KindStyle kKinds[] = {
    {"Forward", "c-blue"}, {"Backward", "c-orange"},   {"Recover", "c-purple"},   {"Send", "c-teal"},
    {"Receive", "c-teal"}, {"GradFold", "c-pink"},     {"GradSync", "c-red"},     {"GradNorm", "c-pink"},
    {"NormSync", "c-red"}, {"UpdateShard", "c-green"}, {"PrefetchW", "c-yellow"}, {"Offload", "c-grey"},
    {"Reload", "c-grey"}};

const char* color_of(const std::string& kind) {
  for (const auto& style : kKinds)
    if (kind == style.kind) return style.color;
  return "c-grey";
}

std::string spaced(std::string words) {
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

// The work lanes first, transfers after them in the direction of the data.
int lane_rank(const std::string& lane) {
  constexpr const char* order[] = {"compute",      "host_compute",     "receive_forward",
                                   "send_forward", "receive_backward", "send_backward"};
  const auto* at = std::find(std::begin(order), std::end(order), lane);
  return static_cast<int>(at - std::begin(order));
}

std::string tip(const TimelineEvent& e, double start) {
  return fmt::format("{}\n{} on rank {}, {}\n{} to {} ({})", e.name, e.kind, e.rank, spaced(e.lane),
                     format_seconds(e.begin - start), format_seconds(e.end - start),
                     format_seconds(e.end - e.begin));
}

// One entry per colour, naming the kinds that are there.
std::string legend(const std::vector<const TimelineEvent*>& events) {
  std::set<std::string> present;
  for (const auto* e : events) present.insert(e->kind);
  std::vector<std::pair<std::string, std::string>> entries;
  for (const auto& [kind, color] : kKinds) {
    if (!present.contains(kind)) continue;
    const auto same =
        std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.first == color; });
    if (same == entries.end())
      entries.emplace_back(color, kind);
    else
      same->second += fmt::format(", {}", kind);
  }
  std::string html;
  for (const auto& [color, kinds] : entries)
    html += fmt::format("<span class=\"key\"><i class=\"{}\"></i>{}</span>", color, kinds);
  return fmt::format("<span class=\"legend\">{}</span>", html);
}

// The axis is HTML over the drawing: text inside it would be stretched with it.
std::string axis(double seconds) {
  std::string html = "<div class=\"ticks\">";
  for (const double mark : ticks(0, seconds, 8))
    html += fmt::format("<span style=\"left:{:.3f}%\">{}</span>", 100 * mark / seconds,
                        mark == 0 ? "0" : format_seconds(mark));
  return html + "</div>";
}

using Events = std::vector<const TimelineEvent*>;

std::map<int32_t, Events> by_step(const Timeline& timeline) {
  std::map<int32_t, Events> steps;
  for (const auto& event : timeline.events) steps[event.step].push_back(&event);
  return steps;
}

// From the first begin to the last end.
std::pair<double, double> window(const Events& events) {
  double begin = INFINITY, end = -INFINITY;
  for (const auto* e : events) {
    begin = std::min(begin, e->begin);
    end = std::max(end, e->end);
  }
  return {begin, end};
}

std::string one_step(int32_t step, const Events& events, bool open) {
  const auto [begin, end] = window(events);
  std::map<std::tuple<int32_t, int, std::string>, std::vector<const TimelineEvent*>> rows;
  std::set<int32_t> ranks;
  for (const auto* e : events) {
    rows[{e->rank, lane_rank(e->lane), e->lane}].push_back(e);
    ranks.insert(e->rank);
  }
  const double seconds = std::max(end - begin, 1e-9);
  const int height = kRowHeight * static_cast<int>(rows.size() + ranks.size());

  std::string names, svg;
  int y = 0;
  int32_t rank = -1;
  for (const auto& [key, tasks] : rows) {
    if (std::get<0>(key) != rank) {
      rank = std::get<0>(key);
      names += fmt::format("<b>rank {}</b>", rank);
      svg += fmt::format("<path class=\"grid\" d=\"M0 {}H{}\"/>", y + kRowHeight - 1, kSpan);
      y += kRowHeight;
    }
    names += fmt::format("<span>{}</span>", escape(spaced(std::get<2>(key))));
    for (const auto* e : tasks) {
      const double x = (e->begin - begin) / seconds * kSpan,
                   width = std::max((e->end - e->begin) / seconds * kSpan, 20.0);
      svg += fmt::format(
          "<rect class=\"task {}{}\" x=\"{:.0f}\" y=\"{}\" width=\"{:.0f}\" height=\"{}\" data-tip=\"{}\"/>",
          color_of(e->kind), e->micro_batch % 2 == 1 ? " odd" : "", x, y + 2, width, kBarHeight,
          escape(tip(*e, begin)));
    }
    y += kRowHeight;
  }
  return fmt::format(
      "<details class=\"step\"{}><summary>Step {} <span class=\"quiet\">{}, {} tasks on {} "
      "rank{}</span></summary>"
      "<div class=\"tools\">{}<label>Zoom <input type=\"range\" min=\"1\" max=\"40\" step=\"0.5\" "
      "value=\"1\"></label></div>"
      "<div class=\"lanes\"><div class=\"names\"><em></em>{}</div><div class=\"scroll\"><div "
      "class=\"canvas\">{}"
      "<svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" "
      "style=\"height:{}px\">{}</svg></div></div></div></details>",
      open ? " open" : "", step, format_seconds(seconds), events.size(), ranks.size(),
      ranks.size() == 1 ? "" : "s", legend(events), names, axis(seconds), kSpan, height, height, svg);
}

// Samples of one rank within [begin, end]; "" when there are none.
std::string memory_chart(int32_t rank, const std::vector<const MemorySample*>& samples, double begin,
                         double end, double highest) {
  std::vector<double> times;
  std::vector<Band> layers = {{"long", "c-blue", {}}, {"medium", "c-orange", {}}, {"short", "c-green", {}}};
  for (const auto* sample : samples) {
    if (sample->time < begin || sample->time > end) continue;
    times.push_back((sample->time - begin) * 1e3);
    layers[0].values.push_back(static_cast<double>(sample->long_tier));
    layers[1].values.push_back(static_cast<double>(sample->medium_tier));
    layers[2].values.push_back(static_cast<double>(sample->short_tier));
  }
  if (times.empty()) return "";
  times.push_back((end - begin) * 1e3);  // the last value holds until the step ends
  for (auto& layer : layers) layer.values.push_back(layer.values.back());
  const double unit = std::pow(1024, std::floor(std::log2(highest) / 10));
  return stacked_chart({.title = fmt::format("Rank {}", rank),
                        .x_name = "at",
                        .x_suffix = " ms",
                        .width = 520,
                        .height = 200,
                        .y_unit = unit,
                        .y_text = format_bytes},
                       times, layers, 1.05 * highest);
}

}  // namespace

std::string timeline_section(const Timeline& timeline) {
  std::string html;
  for (const auto& [step, events] : by_step(timeline)) html += one_step(step, events, html.empty());
  return html;
}

std::string memory_section(const Timeline& timeline) {
  std::map<int32_t, std::vector<const MemorySample*>> ranks;
  double highest = 1;
  for (const auto& sample : timeline.memory) {
    ranks[sample.rank].push_back(&sample);
    highest =
        std::max(highest, static_cast<double>(sample.long_tier + sample.medium_tier + sample.short_tier));
  }
  for (auto& [rank, samples] : ranks)
    std::stable_sort(samples.begin(), samples.end(),
                     [](const auto* a, const auto* b) { return a->time < b->time; });

  std::string html;
  for (const auto& [step, events] : by_step(timeline)) {
    const auto [begin, end] = window(events);
    std::string charts;
    for (const auto& [rank, samples] : ranks) charts += memory_chart(rank, samples, begin, end, highest);
    if (!charts.empty())
      html += fmt::format("<details{}><summary>Step {}</summary><div class=\"pair\">{}</div></details>",
                          html.empty() ? " open" : "", step, charts);
  }
  return html;
}

}  // namespace trainer::report
