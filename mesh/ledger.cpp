#include "mesh/ledger.h"

namespace tetra {

void Ledger::add(const Key& key, int64_t bytes) {
  Tally& tally = tallies_[key];
  ++tally.calls;
  tally.bytes += bytes;
}

Tally Ledger::total(const std::string& group, const std::string& operation) const {
  Tally sum;
  for (const auto& [key, tally] : tallies_) {
    if ((group.empty() || key.group == group) && (operation.empty() || key.operation == operation)) {
      sum.calls += tally.calls;
      sum.bytes += tally.bytes;
    }
  }
  return sum;
}

}  // namespace tetra
