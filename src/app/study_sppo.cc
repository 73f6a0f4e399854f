#include <fmt/core.h>

#include "app/study.h"
#include "schedule/boundary_sets.h"

namespace trainer {
namespace {

void boundary_rows(Study& study) {
  struct Column {
    const char* name;
    const char* published[4];
  };
  constexpr Column kColumns[] = {{"left segments", {"0,1,2", "0,1", "0", "-"}},
                                 {"steady segments", {"3,4,5,6,7", "2,3,4,5,6", "1,2,3,4,5", "0,1,2,3,4"}},
                                 {"right segments", {"-", "7", "6,7", "5,6,7"}},
                                 {"left stages", {"0,1,2,3", "1,2,3", "2,3", "-"}},
                                 {"right stages", {"-", "0,1", "0,1,2", "0,1,2,3"}}};
  for (size_t c = 0; c < std::size(kColumns); ++c)
    for (int i = 0; i < 4; ++i) {
      const BoundarySets sets = boundary_sets(4, 8, i);
      const IndexRange ours[] = {sets.left, sets.steady, sets.right, sets.left_stages, sets.right_stages};
      StudyRow row;
      row.table = "Table 3: boundary sets, PP = 4, N = 8";
      row.row = fmt::format("stage {}, {}", i, kColumns[c].name);
      row.published = std::string(kColumns[c].published[i]);
      row.ours = list_of(ours[c]);
      row.measure = StudyError::kEqual;
      study.rows.push_back(std::move(row));
    }
}

}  // namespace

Study sppo_study() {
  Study study;
  study.title = "SPPO";
  boundary_rows(study);
  return study;
}

}  // namespace trainer
