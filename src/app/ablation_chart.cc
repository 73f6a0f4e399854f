#include <fmt/core.h>

#include <algorithm>

#include "app/ablation_report.h"
#include "app/report_chart.h"
#include "base/units.h"

namespace trainer {
namespace {

constexpr int kNames = 190, kPanel = 210, kText = 76, kGap = 18, kRow = 26, kTop = 62, kBar = 14;
constexpr int kWidth = kNames + 3 * (kPanel + kText + kGap);

constexpr const char* kChartStyle =
    "text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#1b2330}"
    ".quiet{fill:#667085}.head{font-weight:600}.page{fill:#fff}.line{stroke:#e3e7ed}"
    ".work{fill:#2f6fde}.comm{fill:#e07b1f}.update{fill:#149c8e}.prefetch{fill:#8a5bd6}.recover{fill:#cf4640}"
    ".tail{fill:#c99a06}.memory{fill:#98a1ae}"
    "@media(prefers-color-scheme:dark){text{fill:#e6eaf0}.quiet{fill:#98a3b3}.page{fill:#1a2028}.line{stroke:"
    "#2c3541}}";

struct Part {
  const char* color;
  double value;
};

std::string text_at(double x, double y, const std::string& words, const char* attributes = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, attributes,
                     report::escape(words));
}

// Bars of one column, to a scale that the longest fills.
class Panel {
 public:
  Panel(int index, double largest)
      : left_(kNames + index * (kPanel + kText + kGap)), scale_(largest > 0 ? kPanel / largest : 0) {}

  std::string title(const std::string& words) const {
    return text_at(left_, kTop - 14, words, " class=\"head\"");
  }
  std::string bar(int row, const std::vector<Part>& parts, const std::string& words) const {
    double x = left_;
    const double y = kTop + row * kRow + (kRow - kBar) / 2.0;
    std::string svg;
    for (const Part& part : parts) {
      const double width = part.value * scale_;
      if (width > 0)
        svg += fmt::format("<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\"/>\n",
                           part.color, x, y, width, kBar);
      x += width;
    }
    return svg + text_at(x + 6, y + 12, words);
  }
  std::string note(int row, const std::string& words) const {
    return text_at(left_, kTop + row * kRow + 18, words, " class=\"quiet\"");
  }

 private:
  double left_, scale_;
};

std::string legend() {
  std::string svg;
  double x = kNames;
  for (const auto& [color, words] : {std::pair{"work", "main path"},
                                     {"comm", "communication"},
                                     {"update", "update"},
                                     {"prefetch", "prefetch"},
                                     {"recover", "recovery"}}) {
    svg += fmt::format("<rect class=\"{}\" x=\"{:.0f}\" y=\"12\" width=\"10\" height=\"10\"/>\n", color, x);
    svg += text_at(x + 15, 21, words, " class=\"quiet\"");
    x += 34 + 7.0 * static_cast<double>(std::string(words).size());
  }
  return svg;
}

// What each cause adds to the step, as far as it is known.
std::vector<Part> step_parts(const RoundFigures& m) {
  std::vector<Part> parts = {{"work", m.step_seconds}};
  for (const auto& [color, seconds] : {std::pair{"comm", m.replay.communication},
                                       {"update", m.replay.update},
                                       {"prefetch", m.replay.prefetch},
                                       {"recover", m.replay.recovery}})
    if (seconds > 0) {
      parts.push_back({color, seconds});
      parts.front().value -= seconds;
    }
  parts.front().value = std::max(0.0, parts.front().value);
  return parts;
}

}  // namespace

std::string ablation_chart(std::span<const AblationResult> results) {
  double step = 0, tail = 0, memory = 0;
  for (const AblationResult& r : results) {
    if (r.program_hash) memory = std::max(memory, static_cast<double>(r.predicted_memory));
    if (!r.measured()) continue;
    step = std::max(step, r.median().step_seconds);
    tail = std::max(tail, r.median().tail_seconds);
  }
  const Panel steps(0, step), tails(1, tail), memories(2, memory);
  const int height = kTop + kRow * static_cast<int>(results.size()) + 14;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "role=\"img\" aria-label=\"Step time, tail and memory of each variant\">\n<style>{2}</style>\n"
      "<rect class=\"page\" width=\"{0}\" height=\"{1}\"/>\n",
      kWidth, height, kChartStyle);
  svg += legend() + steps.title("step") + tails.title("tail") + memories.title("memory of a rank");
  for (int row = 0; row < static_cast<int>(results.size()); ++row) {
    const AblationResult& r = results[static_cast<size_t>(row)];
    svg += fmt::format("<path class=\"line\" d=\"M12 {0}H{1}\"/>\n", kTop + row * kRow, kWidth - 12);
    svg += text_at(12, kTop + row * kRow + 18, r.variant.name);
    if (r.measured()) {
      const RoundFigures m = r.median();
      svg += steps.bar(row, step_parts(m), fmt::format("{:.1f} ms", 1e3 * m.step_seconds));
      svg += tails.bar(row, {{"tail", m.tail_seconds}}, fmt::format("{:.2f} ms", 1e3 * m.tail_seconds));
    } else {
      svg += steps.note(row, r.out_of_memory ? "out of memory" : "not possible");
    }
    if (r.program_hash) {
      const auto bytes = static_cast<double>(r.measured() ? r.peak_memory : r.predicted_memory);
      svg += memories.bar(row, {{"memory", bytes}}, format_bytes(bytes));
    }
  }
  return svg + "</svg>\n";
}

}  // namespace trainer
