#pragma once
// One rank's world: who it is, the groups it belongs to, and what every rank of a program can ask. Handed in, never
// looked up: ranks may be threads of one process.

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mesh/group.h"
#include "mesh/ledger.h"
#include "mesh/mesh.h"

namespace tetra {

class Fabric;

struct WorldOptions {
  Degrees degrees;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  // reaches every group made
  bool debug = false;                                            // compare fingerprints before every collective
};

class World {
 public:
  /// Collective over all ranks of `fabric`; degrees are checked before any group is made. `fabric` may be null: a
  /// world of one.
  World(const WorldOptions& options, std::shared_ptr<Fabric> fabric);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const Mesh& mesh() const { return mesh_; }
  const WorldOptions& options() const { return options_; }
  int rank() const { return rank_; }
  int world_size() const { return mesh_.world_size(); }
  int local_rank() const { return local_rank_; }  // place among the ranks of this machine
  int local_size() const { return local_size_; }
  int coordinate(Axis axis) const { return mesh_.coordinate(rank_, axis); }

  const Group& group(Axis axis) const { return *axis_groups_[static_cast<size_t>(axis)]; }
  const Group& group(Flat flat) const { return *flat_groups_[static_cast<size_t>(flat)]; }
  const Group& self() const { return *self_; }  // this rank alone

  bool is_main_process() const { return rank_ == 0; }
  bool is_local_main_process() const { return local_rank_ == 0; }
  bool is_last_process() const { return rank_ == world_size() - 1; }

  /// Returns when every rank has arrived.
  void barrier(const std::string& site = "world.barrier") const;
  /// Writes one line to standard output, on the main process alone.
  void print(const std::string& line) const;
  /// Ends the other ranks' waits with an Error "rank R: message", R being this rank. Called by launchers when this rank
  /// throws. The first message of any rank stays.
  void abort(const std::string& message) noexcept;

  Ledger& ledger() const { return *ledger_; }

 private:
  WorldOptions options_;
  Mesh mesh_;
  std::shared_ptr<Fabric> fabric_;
  std::unique_ptr<Ledger> ledger_;
  int rank_ = 0;
  int local_rank_ = 0;
  int local_size_ = 1;
  std::array<std::shared_ptr<Group>, kAxisCount> axis_groups_;
  std::array<std::shared_ptr<Group>, kFlatCount> flat_groups_;
  std::shared_ptr<Group> self_;
};

}  // namespace tetra
