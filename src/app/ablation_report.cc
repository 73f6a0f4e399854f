#include "app/ablation_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "base/units.h"

namespace trainer {
namespace {

Json exposed_json(const ExposedTime& e) {
  return {{"comm", e.grad_sync}, {"update", e.update}, {"prefetch", e.prefetch}, {"recover", e.recovery}};
}

// JSON has no NaN.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// `step_seconds` is T_1F1B and the exposed parts together, `measured_seconds` what the same steps took.
Json replay_json(const RoundFigures& f) {
  const StepParts& r = f.replay;
  return {{"main_path_seconds", number(r.main_path)},
          {"exposed",
           {{"comm", number(r.communication)},
            {"update", number(r.update)},
            {"prefetch", number(r.prefetch)},
            {"recover", number(r.recovery)}}},
          {"step_seconds", number(r.step_seconds)},
          {"measured_seconds", number(f.replayed_seconds)}};
}

Json json_of(const AblationResult& r, const AblationResult& full) {
  Json one = {{"name", r.variant.name},  {"step_seconds", nullptr},      {"exposed", nullptr},
              {"tail_seconds", nullptr}, {"peak_memory_bytes", nullptr}, {"predicted_memory_bytes", nullptr},
              {"losses", r.losses}};
  one["change"] = r.variant.change;
  if (!r.variant.why_not.empty()) one["why_not"] = r.variant.why_not;
  if (r.program_hash == 0) return one;
  one["predicted_memory_bytes"] = r.predicted_memory;
  one["out_of_memory"] = r.out_of_memory;
  one["program"] = r.program;
  one["program_hash"] = fmt::format("{:016x}", r.program_hash);
  one["arithmetic"] = arithmetic_class(r.variant.config);
  if (!r.measured()) return one;
  const RoundFigures median = r.median();
  const LossComparison losses = compare_losses(full, r);
  one["step_seconds"] = median.step_seconds;
  one["exposed"] = exposed_json(median.exposed);
  one["tail_seconds"] = median.tail_seconds;
  one["replay"] = replay_json(median);
  one["simulated_step_seconds"] = number(median.simulated_seconds);
  one["bubble_seconds"] = median.exposed.bubble;
  one["boundary_seconds"] = median.exposed.boundary;
  one["peak_memory_bytes"] = r.peak_memory;
  one["predicted_resident_bytes"] = r.predicted_resident;
  one["resident_peak_bytes"] = r.resident_peak ? Json(*r.resident_peak) : Json();
  one["gradient_norms"] = r.gradient_norms;
  one["repeats"] = r.repeats;
  one["bits_equal_to_full"] = losses.equal_bits;
  one["largest_relative_loss_difference"] = number(losses.largest_difference);
  one["losses_hold"] = losses.holds();
  one["rounds"] = Json::array();
  for (const RoundFigures& f : r.rounds)
    one["rounds"].push_back({{"step_seconds", f.step_seconds},
                             {"simulated_step_seconds", number(f.simulated_seconds)},
                             {"replay", replay_json(f)},
                             {"exposed", exposed_json(f.exposed)},
                             {"tail_seconds", f.tail_seconds}});
  return one;
}

std::string milliseconds(double seconds) { return fmt::format("{:.2f}", 1e3 * seconds); }
std::string mebibytes(int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / 0x1p20); }

std::string loss_words(const AblationResult& full, const AblationResult& r) {
  const LossComparison c = compare_losses(full, r);
  if (!r.repeats) return "DIFFER from round to round";
  if (c.equal_bits) return "equal bits";
  return fmt::format("{}by {:.2g} %{}", c.holds() ? "" : "DIFFER ", 100 * c.largest_difference,
                     c.same_class ? "" : ", other order of sums");
}

using Row = std::vector<std::string>;

Row cells(const AblationResult& full, const AblationResult& r) {
  Row row = {r.variant.name};
  if (!r.measured()) {
    row.push_back(r.out_of_memory ? "out of memory" : "not possible");
    row.resize(8, "");
    row.push_back(r.program_hash ? mebibytes(r.predicted_memory) : "");
    row.push_back("");
    return row;
  }
  const RoundFigures m = r.median();
  row.push_back(milliseconds(m.step_seconds));
  row.push_back(fmt::format("{:.3f}", m.step_seconds / full.median().step_seconds));
  for (const double seconds :
       {m.tail_seconds, m.exposed.grad_sync, m.exposed.update, m.exposed.prefetch, m.exposed.recovery})
    row.push_back(milliseconds(seconds));
  row.push_back(mebibytes(r.peak_memory) + (r.out_of_memory ? " (over budget)" : ""));
  row.push_back(loss_words(full, r));
  return row;
}

std::string aligned(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const Row& row : rows)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max({widths[c], row[c].size(), size_t{4}});
  std::string text;
  const auto is_text = [&](size_t column) { return column == 0 || column + 1 == widths.size(); };
  for (size_t r = 0; r < rows.size(); ++r) {
    text += "|";
    for (size_t c = 0; c < widths.size(); ++c)
      text += is_text(c) ? fmt::format(" {:<{}} |", rows[r][c], widths[c])
                         : fmt::format(" {:>{}} |", rows[r][c], widths[c]);
    text += "\n";
    if (r > 0) continue;
    text += "|";
    for (size_t c = 0; c < widths.size(); ++c)
      text +=
          is_text(c) ? fmt::format("-{:-<{}}-|", "", widths[c]) : fmt::format("-{:-<{}}:|", "", widths[c]);
    text += "\n";
  }
  return text;
}

// Variants that are the same program as one before them say so.
std::string program_words(std::span<const AblationResult> results, size_t index) {
  const AblationResult& r = results[index];
  if (!r.variant.why_not.empty()) return "not possible: " + r.variant.why_not;
  for (size_t i = 0; i < index; ++i)
    if (results[i].program_hash == r.program_hash)
      return fmt::format("the same program as {}", results[i].variant.name);
  std::string words = "`" + r.program + "`";
  if (r.out_of_memory)
    words += fmt::format("; needs {} MiB of a budget of {} MiB", mebibytes(r.predicted_memory),
                         mebibytes(r.variant.config.device.memory_budget.bytes));
  return words;
}

constexpr const char* kExplanation = R"(
Milliseconds; MiB of the rank that needs most. Step: from the first forward of a step on any rank to that of the
next. Tail: on the first stage, from its last backward of a step to its first forward of the next, on the slowest
rank. Communication, update, prefetch and recovery: what the main path waited for each (E_comm, E_upd, E_pref, E_rec), of the
rank that waited longest. Losses: against those of `full`, every step from the first, gradient norms included; equal
bits are asked of variants that add the same numbers in the same order, the others may differ by )";

}  // namespace

std::string ablation_json(std::span<const AblationResult> results) {
  Json list = Json::array();
  for (const AblationResult& r : results) list.push_back(json_of(r, results.front()));
  return list.dump(2) + "\n";
}

std::string ablation_table(std::span<const AblationResult> results) {
  std::vector<Row> rows = {
      {"variant", "step", "of full", "tail", "comm", "update", "prefetch", "recover", "memory", "losses"}};
  for (const AblationResult& r : results) rows.push_back(cells(results.front(), r));
  return aligned(rows);
}

std::string ablation_markdown(const AblationHeading& heading, std::span<const AblationResult> results) {
  std::string text = fmt::format("# Ablation of {}\n\nMade by `{}`.\n\nMachine: {}.\n\nPlan: {}.\n\n",
                                 heading.config, heading.command, heading.machine, heading.plan);
  text += fmt::format("![Step time, tail and memory of each variant]({})\n\n", heading.picture);
  text += ablation_table(results);
  text += kExplanation;
  text += fmt::format("{:g} %.\n\n", 100 * LossComparison::kTolerance);
  text += fmt::format(
      "Every round sets up each variant in turn from the same seed, runs {} steps that are not counted and "
      "measures {}; "
      "figures are medians over these, then over {} round{}.\n\n",
      heading.warm_up_steps, heading.measured_steps, heading.rounds, heading.rounds == 1 ? "" : "s");
  text += "| variant | what it changes | program |\n|---|---|---|\n";
  for (size_t i = 0; i < results.size(); ++i)
    text += fmt::format("| {} | {} | {} |\n", results[i].variant.name, results[i].variant.change,
                        program_words(results, i));
  return text;
}

}  // namespace trainer
