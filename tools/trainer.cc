// The `trainer` program: picks the subcommand.
#include <cstdio>
#include <string>
#include <vector>

#include "app/ablate.h"
#include "app/config.h"
#include "app/convert.h"
#include "app/eval.h"
#include "app/generate.h"
#include "app/plan.h"
#include "app/profile.h"
#include "app/report.h"
#include "app/simulate.h"
#include "app/study.h"
#include "app/tokenize.h"
#include "app/train.h"
#include "app/version.h"
#include "base/json.h"

namespace {

using Command = int (*)(std::span<const std::string>);
struct Entry {
  const char* name;
  Command run;
  const char* summary;
};

constexpr Entry kCommands[] = {
    {"train", trainer::train_command, "train a model, alone or under mpirun or srun"},
    {"eval", trainer::eval_command, "loss, perplexity and bits per byte of a model on a dataset"},
    {"generate", trainer::generate_command, "let a model go on with a text"},
    {"tokenize", trainer::tokenize_command, "text to a dataset; train a vocabulary"},
    {"convert", trainer::convert_command, "run, checkpoint or model to a Hugging Face folder"},
    {"report", trainer::report_command, "write report.html of a run directory again"},
    {"ablate", trainer::ablate_command, "measure a plan against itself without each mechanism"},
    {"plan", trainer::plan_command, "how to train a model on a platform, and why not otherwise"},
    {"simulate", trainer::simulate_command,
     "the step of one plan on a platform: timeline, memory, what is exposed"},
    {"study", trainer::study_command, "published figures beside ours"},
    {"profile", trainer::profile_command, "measure this machine for simulator and planner"},
    {"schema", trainer::schema_command, "print the JSON Schema of the config"},
    {"version", trainer::version_command, "version, libraries and processor"},
};

void usage(std::FILE* out) {
  std::fputs("usage: trainer COMMAND [ARGUMENTS]\n\n", out);
  for (const Entry& entry : kCommands) std::fprintf(out, "  %-10s %s\n", entry.name, entry.summary);
  std::fputs("\n'trainer COMMAND --help' says more.\n", out);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    usage(words.empty() ? stderr : stdout);
    return words.empty() ? 2 : 0;
  }
  const std::span<const std::string> rest(words.data() + 1, words.size() - 1);
  std::vector<std::string> names;
  for (const Entry& entry : kCommands) {
    if (words[0] == entry.name) return entry.run(rest);
    names.emplace_back(entry.name);
  }
  const std::string near = trainer::nearest_name(words[0], names);
  std::fprintf(stderr, "trainer: error: there is no command '%s'%s\n", words[0].c_str(),
               near.empty() ? "; 'trainer --help' lists them" : ("; did you mean '" + near + "'?").c_str());
  return 2;
}
