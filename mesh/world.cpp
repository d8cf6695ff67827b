#include "mesh/world.h"

#include <cstdio>
#include <map>
#include <utility>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "kernels/error.h"
#include "mesh/collectives.h"
#include "mesh/fabric.h"

namespace tetra {
namespace {

const Degrees& checked(const Degrees& degrees, const Fabric* fabric) {
  check_degrees(degrees, fabric ? fabric->size() : 1);
  return degrees;
}

// Groups with the same ranks share one backend; every rank makes them in the same order.
class GroupMaker {
 public:
  GroupMaker(Fabric* fabric, int rank, const WorldOptions& options, Ledger* ledger)
      : fabric_(fabric), rank_(rank), options_(options), ledger_(ledger) {}

  std::shared_ptr<Group> make(const char* name, const std::vector<int>& ranks) {
    c10::intrusive_ptr<c10d::Backend> backend;
    if (ranks.size() > 1) {
      auto& known = backends_[ranks];
      if (!known) {
        known = fabric_->make_group(ranks, name, options_.timeout);
      }
      backend = known;
    }
    int position = 0;
    while (ranks[static_cast<size_t>(position)] != rank_) {
      ++position;
    }
    return std::make_shared<Group>(name, ranks, position, std::move(backend), ledger_);
  }

 private:
  Fabric* fabric_;
  int rank_;
  const WorldOptions& options_;
  Ledger* ledger_;
  std::map<std::vector<int>, c10::intrusive_ptr<c10d::Backend>> backends_;
};

}  // namespace

World::World(const WorldOptions& options, std::shared_ptr<Fabric> fabric)
    : options_(options),
      mesh_(checked(options.degrees, fabric.get())),
      fabric_(std::move(fabric)),
      ledger_(std::make_unique<Ledger>()) {
  require(options_.timeout.count() > 0, "time-out of {} ms; it must be positive", options_.timeout.count());
  ledger_->debug = options_.debug;
  if (fabric_) {
    rank_ = fabric_->rank();
    local_rank_ = fabric_->local_rank();
    local_size_ = fabric_->local_size();
  }
  GroupMaker maker(fabric_.get(), rank_, options_, ledger_.get());
  self_ = maker.make("self", {rank_});
  for (int f = 0; f < kFlatCount; ++f) {
    const auto flat = static_cast<Flat>(f);
    flat_groups_[static_cast<size_t>(f)] = maker.make(flat_name(flat), mesh_.members(rank_, flat));
  }
  for (Axis axis : kAxes) {
    axis_groups_[static_cast<size_t>(axis)] = maker.make(axis_name(axis), mesh_.members(rank_, axis));
  }
}

World::~World() = default;

void World::barrier(const std::string& site) const {
  tetra::barrier(group(Flat::world), site);
}

void World::print(const std::string& line) const {
  if (is_main_process()) {
    std::fwrite((line + "\n").data(), 1, line.size() + 1, stdout);
    std::fflush(stdout);
  }
}

void World::abort(const std::string& message) noexcept {
  if (!fabric_) {
    return;
  }
  try {
    const std::string prefix = fmt::format("rank {}: ", rank_);
    fabric_->abort(message.starts_with(prefix) ? message : prefix + message);
  } catch (...) {
    fabric_->abort(message);
  }
}

}  // namespace tetra
