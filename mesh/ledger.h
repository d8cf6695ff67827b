#pragma once
// What one rank has sent: calls and bytes by group, operation and site. Also where debug mode and fault injection sit.

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

namespace tetra {

struct Tally {
  int64_t calls = 0;
  int64_t bytes = 0;  // bytes this rank sends, by the ring formulas in collectives.h
};

class Ledger {
 public:
  struct Key {
    std::string group;      // "tp", "grad", ...
    std::string operation;  // "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", ...
    std::string site;
    auto operator<=>(const Key&) const = default;
  };

  void add(const Key& key, int64_t bytes);
  const std::map<Key, Tally>& tallies() const { return tallies_; }
  /// Sum over all entries whose group and operation match; an empty string matches all.
  Tally total(const std::string& group = "", const std::string& operation = "") const;
  void clear() { tallies_.clear(); }

  /// Debug mode: the number of the next collective over `group`.
  int64_t next_call(const std::string& group) { return calls_[group]++; }

  /// Debug mode: every collective first exchanges (operation, shape, dtype, sequence number, site) and throws the same
  /// Error, listing every rank, on all ranks when they differ.
  bool debug = false;

  /// For tests: collectives from this site do nothing (outputs of gathers keep the local part, the rest is zero), on
  /// every rank alike.
  std::string dropped_site;

 private:
  std::map<Key, Tally> tallies_;
  std::map<std::string, int64_t> calls_;
};

}  // namespace tetra
