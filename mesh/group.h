#pragma once
// A set of ranks that communicate. Pass it to the functions of collectives.h.

#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
}

namespace tetra {

class Ledger;

/// One rank's view of one group. Groups of size 1 have no backend and cost nothing: every collective over them is a
/// no-op (or a copy into the output).
class Group {
 public:
  Group(std::string name, std::vector<int> ranks, int rank, c10::intrusive_ptr<c10d::Backend> backend, Ledger* ledger);
  ~Group();

  const std::string& name() const { return name_; }         // "tp", "dp_replicate", "grad", ...
  const std::vector<int>& ranks() const { return ranks_; }  // global ranks, ascending
  int rank() const { return rank_; }                        // position in ranks()
  int size() const { return static_cast<int>(ranks_.size()); }

  const c10::intrusive_ptr<c10d::Backend>& backend() const { return backend_; }
  Ledger& ledger() const { return *ledger_; }

 private:
  std::string name_;
  std::vector<int> ranks_;
  int rank_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  Ledger* ledger_;
};

}  // namespace tetra
