#include "mesh/group.h"

#include <algorithm>
#include <utility>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "kernels/error.h"

namespace tetra {

Group::Group(std::string name, std::vector<int> ranks, int rank, c10::intrusive_ptr<c10d::Backend> backend,
             Ledger* ledger)
    : name_(std::move(name)), ranks_(std::move(ranks)), rank_(rank), backend_(std::move(backend)), ledger_(ledger) {
  require(!ranks_.empty() && std::is_sorted(ranks_.begin(), ranks_.end()), "group {}: ranks [{}] are not ascending",
          name_, fmt::join(ranks_, ", "));
  require(rank_ >= 0 && rank_ < size(), "group {}: position {} is not in [0, {})", name_, rank_, size());
  require(size() == 1 || backend_, "group {} of {} ranks has no backend", name_, size());
}

Group::~Group() = default;

}  // namespace tetra
