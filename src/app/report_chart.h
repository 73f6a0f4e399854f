// Pieces of the report as HTML with inline SVG. Colours are classes that the report's style sheet defines.
// Internal to the report files of this folder.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainer::report {

std::string escape(std::string_view text);

struct Series {
  std::string name;
  std::string color;                              // a class: "c-blue", ...
  std::vector<std::pair<double, double>> points;  // ascending x; a y that is not finite breaks the line
  bool faint = false;
  bool markers = false;
};

struct ChartOptions {
  std::string title;
  std::string x_name = "step", x_suffix = "";
  int width = 900, height = 280;  // of the drawing; it is scaled to the page
  bool from_zero = false;
  double y_unit = 1;                          // marks stand at round multiples of this
  std::function<std::string(double)> y_text;  // how values are written
};

// Lines over a shared x axis, with a legend when there are several; hovering over a column shows the values
// there.
std::string line_chart(const ChartOptions& options, const std::vector<Series>& series);

struct Band {
  std::string name, color;
  std::vector<double> values;  // one per time
};
// Bands on top of one another as step functions of `times` (ascending, the last ends the drawing).
std::string stacked_chart(const ChartOptions& options, const std::vector<double>& times,
                          const std::vector<Band>& layers, double y_max);

struct Bar {
  std::string name, color;
  double value = 0;
  std::string text;
};
// One row per bar, to a common scale.
std::string bar_rows(const std::vector<Bar>& bars);
// All bars end to end as shares of their sum, with a legend.
std::string share_bar(const std::vector<Bar>& bars);

// Values at which an axis from `low` to `high` gets its marks: 1, 2 or 5 times a power of ten apart.
std::vector<double> ticks(double low, double high, int about);

// The running mean of the finite values, over a window that grows with the length of the series.
std::vector<std::pair<double, double>> smooth(const std::vector<std::pair<double, double>>& points);

}  // namespace trainer::report
