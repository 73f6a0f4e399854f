#include "app/report_chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace trainer::report {
namespace {

constexpr int kLeft = 64, kRight = 12, kTop = 10, kBottom = 26;
constexpr size_t kMostPoints = 1500, kMostColumns = 300;

// The drawing area of one chart and the axes around it.
class Frame {
 public:
  Frame(const ChartOptions& options, double x_low, double x_high, double y_low, double y_high)
      : options_(options),
        x_low_(x_low),
        x_high_(x_high > x_low ? x_high : x_low + 1),
        y_low_(y_low),
        y_high_(y_high > y_low ? y_high : y_low + 1) {}

  double x(double value) const {
    return kLeft + (value - x_low_) / (x_high_ - x_low_) * (options_.width - kLeft - kRight);
  }
  double y(double value) const {
    return bottom() - (value - y_low_) / (y_high_ - y_low_) * (bottom() - kTop);
  }
  double bottom() const { return options_.height - kBottom; }

  std::string open() const {
    std::string svg =
        fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">",
                    options_.width, options_.height, escape(options_.title));
    for (double mark : ticks(y_low_ / options_.y_unit, y_high_ / options_.y_unit, 5)) {
      mark *= options_.y_unit;
      svg += fmt::format(
          "<path class=\"grid\" d=\"M{} {:.1f}H{}\"/><text class=\"axis\" x=\"{}\" y=\"{:.1f}\" "
          "text-anchor=\"end\">{}</text>",
          kLeft, y(mark), options_.width - kRight, kLeft - 8, y(mark) + 4, escape(options_.y_text(mark)));
    }
    const double last = options_.width - kRight;
    for (const double mark : ticks(x_low_, x_high_, options_.width / 90))
      svg += fmt::format("<text class=\"axis\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:g}{}</text>",
                         std::min(x(mark), last - 12), options_.height - 8, mark, options_.x_suffix);
    return svg +
           fmt::format("<path class=\"base\" d=\"M{} {}H{}\"/>", kLeft, bottom(), options_.width - kRight);
  }

  // A strip over [from, to] that lights up under the pointer and shows `tip`.
  std::string column(double from, double to, const std::string& tip) const {
    return fmt::format(
        "<rect class=\"column\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" data-tip=\"{}\"/>",
        x(from), kTop, std::max(0.5, x(to) - x(from)), bottom() - kTop, escape(tip));
  }

 private:
  const ChartOptions& options_;
  double x_low_, x_high_, y_low_, y_high_;
};

// At most kMostPoints points: of each stretch the smallest and the largest, so that no spike is lost.
std::vector<std::pair<double, double>> thin(const std::vector<std::pair<double, double>>& points) {
  if (points.size() <= kMostPoints) return points;
  const size_t stretches = kMostPoints / 2;
  std::vector<std::pair<double, double>> kept;
  for (size_t i = 0; i < stretches; ++i) {
    const auto begin = points.begin() + static_cast<ptrdiff_t>(i * points.size() / stretches);
    const auto end = points.begin() + static_cast<ptrdiff_t>((i + 1) * points.size() / stretches);
    auto [low, high] =
        std::minmax_element(begin, end, [](const auto& a, const auto& b) { return a.second < b.second; });
    if (high < low) std::swap(low, high);
    kept.push_back(*low);
    if (low != high) kept.push_back(*high);
  }
  return kept;
}

std::string line_path(const Frame& frame, const std::vector<std::pair<double, double>>& points) {
  std::string path;
  bool pen_down = false;
  for (const auto& [x, y] : points) {
    if (std::isfinite(y))
      path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", frame.x(x), frame.y(y));
    pen_down = std::isfinite(y);
  }
  return path;
}

std::string legend_entry(const std::string& color, const std::string& text) {
  return fmt::format("<span class=\"key\"><i class=\"{}\"></i>{}</span>", color, escape(text));
}

// Columns with the values of every series at the point nearest to the middle of each.
std::string hover_columns(const Frame& frame, const ChartOptions& options,
                          const std::vector<Series>& series) {
  const auto longest = std::max_element(series.begin(), series.end(), [](const auto& a, const auto& b) {
    return a.points.size() < b.points.size();
  });
  const auto& grid = longest->points;
  const size_t columns = std::min(grid.size(), kMostColumns);
  std::string svg;
  for (size_t i = 0; i < columns; ++i) {
    const size_t at = (2 * i + 1) * grid.size() / (2 * columns);
    const double from = grid[i * grid.size() / columns].first;
    const double to = i + 1 == columns ? grid.back().first + 1 : grid[(i + 1) * grid.size() / columns].first;
    std::string tip = fmt::format("{} {:g}", options.x_name, grid[at].first);
    for (const auto& one : series) {
      // Sparse series speak only where they have a point.
      const auto point = std::lower_bound(one.points.begin(), one.points.end(),
                                          std::pair(one.markers ? from : grid[at].first, -HUGE_VAL));
      if (point == one.points.end() || (one.markers && point->first >= to) || !std::isfinite(point->second))
        continue;
      tip += fmt::format("\n{}: {}", one.name, options.y_text(point->second));
    }
    svg += frame.column(from, std::min(to, grid.back().first), tip);
  }
  return svg;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c == '&')
      safe += "&amp;";
    else if (c == '<')
      safe += "&lt;";
    else if (c == '>')
      safe += "&gt;";
    else if (c == '"')
      safe += "&quot;";
    else
      safe += c;
  }
  return safe;
}

std::vector<double> ticks(double low, double high, int about) {
  if (!(high > low) || about < 1) return {};
  const double rough = (high - low) / about, power = std::pow(10, std::floor(std::log10(rough)));
  const double digit = rough / power;
  const double step = power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
  std::vector<double> marks;
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k)
    marks.push_back(k * step + 0.0);  // not -0
  return marks;
}

std::vector<std::pair<double, double>> smooth(const std::vector<std::pair<double, double>>& points) {
  const size_t half = points.size() / 60;
  std::vector<double> sum = {0}, count = {0};
  for (const auto& [x, y] : points) {
    sum.push_back(sum.back() + (std::isfinite(y) ? y : 0));
    count.push_back(count.back() + (std::isfinite(y) ? 1 : 0));
  }
  std::vector<std::pair<double, double>> means;
  for (size_t i = 0; i < points.size(); ++i) {
    const size_t reach =
        std::min({half, i, points.size() - 1 - i});  // symmetric, so that slopes are kept at the ends
    const size_t begin = i - reach, end = i + reach + 1;
    means.emplace_back(points[i].first, (sum[end] - sum[begin]) / (count[end] - count[begin]));
  }
  return means;
}

std::string line_chart(const ChartOptions& options, const std::vector<Series>& series) {
  double x_low = INFINITY, x_high = -INFINITY, y_low = options.from_zero ? 0 : INFINITY, y_high = -INFINITY;
  for (const auto& one : series)
    for (const auto& [x, y] : one.points) {
      x_low = std::min(x_low, x);
      x_high = std::max(x_high, x);
      if (!std::isfinite(y)) continue;
      y_low = std::min(y_low, y);
      y_high = std::max(y_high, y);
    }
  if (!(x_high >= x_low) || !(y_high >= y_low)) return "<p class=\"quiet\">No values.</p>";
  const double margin = y_high > y_low ? 0.05 * (y_high - y_low) : std::max(1e-12, 0.1 * std::abs(y_high));
  const Frame frame(options, x_low, x_high, options.from_zero ? 0 : y_low - margin, y_high + margin);

  std::string svg = frame.open(), legend;
  for (const auto& one : series) {
    svg += fmt::format("<path class=\"line {}{}\" d=\"{}\"/>", one.color, one.faint ? " faint" : "",
                       line_path(frame, thin(one.points)));
    if (one.markers)
      for (const auto& [x, y] : one.points)
        if (std::isfinite(y))
          svg += fmt::format("<circle class=\"dot {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>", one.color,
                             frame.x(x), frame.y(y));
    legend += legend_entry(one.faint ? fmt::format("{} faint", one.color) : one.color, one.name);
  }
  svg += hover_columns(frame, options, series);
  return fmt::format("<figure><figcaption>{}{}</figcaption>{}</svg></figure>", escape(options.title),
                     series.size() > 1 ? fmt::format("<span class=\"legend\">{}</span>", legend) : "", svg);
}

std::string stacked_chart(const ChartOptions& options, const std::vector<double>& times,
                          const std::vector<Band>& layers, double y_max) {
  const Frame frame(options, times.front(), times.back(), 0, y_max);
  std::vector<double> floor(times.size(), 0);
  std::string svg = frame.open(), legend;
  for (const auto& layer : layers) {
    std::string top, back;
    for (size_t i = 0; i + 1 < times.size(); ++i) {
      const double high = floor[i] + layer.values[i];
      top += fmt::format("{}{:.1f} {:.1f}H{:.1f}", i ? "L" : "M", frame.x(times[i]), frame.y(high),
                         frame.x(times[i + 1]));
      back =
          fmt::format("L{:.1f} {:.1f}H{:.1f}", frame.x(times[i + 1]), frame.y(floor[i]), frame.x(times[i])) +
          back;
      floor[i] = high;
    }
    svg += fmt::format("<path class=\"area {}\" d=\"{}{}Z\"/>", layer.color, top, back);
    legend += legend_entry(layer.color, layer.name);
  }
  const size_t columns = std::min(times.size() - 1, kMostColumns);
  for (size_t i = 0; i < columns; ++i) {
    const size_t at = i * (times.size() - 1) / columns, next = (i + 1) * (times.size() - 1) / columns;
    std::string tip = fmt::format("{} {:.4g}{}", options.x_name, times[at], options.x_suffix);
    for (const auto& layer : layers)
      tip += fmt::format("\n{}: {}", layer.name, options.y_text(layer.values[at]));
    svg += frame.column(times[at], times[next], fmt::format("{}\nall: {}", tip, options.y_text(floor[at])));
  }
  return fmt::format("<figure><figcaption>{}<span class=\"legend\">{}</span></figcaption>{}</svg></figure>",
                     escape(options.title), legend, svg);
}

std::string bar_rows(const std::vector<Bar>& bars) {
  double largest = 0;
  for (const auto& bar : bars) largest = std::max(largest, bar.value);
  std::string html = "<div class=\"bars\">";
  for (const auto& bar : bars)
    html += fmt::format(
        "<span>{}</span><div><i class=\"{}\" style=\"width:{:.2f}%\"></i></div><span "
        "class=\"number\">{}</span>",
        escape(bar.name), bar.color, largest > 0 ? 100 * bar.value / largest : 0, escape(bar.text));
  return html + "</div>";
}

std::string share_bar(const std::vector<Bar>& bars) {
  double sum = 0;
  for (const auto& bar : bars) sum += bar.value;
  if (!(sum > 0)) return "<p class=\"quiet\">Nothing to show.</p>";
  std::string strip, legend;
  for (const auto& bar : bars) {
    if (bar.value <= 0) continue;
    strip += fmt::format("<i class=\"{}\" style=\"width:{:.3f}%\" data-tip=\"{}: {}\"></i>", bar.color,
                         100 * bar.value / sum, escape(bar.name), escape(bar.text));
    legend += legend_entry(bar.color, fmt::format("{} {}", bar.name, bar.text));
  }
  return fmt::format("<div class=\"share\">{}</div><div class=\"legend\">{}</div>", strip, legend);
}

}  // namespace trainer::report
