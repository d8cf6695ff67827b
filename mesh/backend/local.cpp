#include "mesh/backend/local.h"

#include <algorithm>
#include <utility>

#include "kernels/error.h"
#include "mesh/backend/local_backend.h"

namespace tetra {

LocalFabric::LocalFabric(std::shared_ptr<LocalHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

LocalFabric::~LocalFabric() = default;

int LocalFabric::size() const {
  return hub_->size();
}

c10::intrusive_ptr<c10d::Backend> LocalFabric::make_group(const std::vector<int>& ranks, const std::string& name,
                                                          std::chrono::milliseconds timeout) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  require(own != ranks.end(), "group {} of ranks [{}] is made by rank {}, which is not in it", name,
          fmt::join(ranks, ", "), rank_);
  auto made = std::find_if(rounds_.begin(), rounds_.end(), [&](const auto& entry) { return entry.first == ranks; });
  if (made == rounds_.end()) {
    made = rounds_.insert(rounds_.end(), {ranks, 0});
  }
  auto channel = hub_->channel(ranks, made->second++, timeout);
  const auto position = static_cast<int>(own - ranks.begin());
  return c10::make_intrusive<LocalBackend>(hub_, std::move(channel), position, static_cast<int>(ranks.size()), name);
}

void LocalFabric::abort(const std::string& message) noexcept {
  try {
    hub_->abort(message);
  } catch (...) {
    // out of memory: the others run into their time-outs
  }
}

std::optional<std::string> LocalFabric::failure() const {
  return hub_->aborted() ? std::optional(hub_->message()) : std::nullopt;
}

std::vector<std::shared_ptr<LocalFabric>> make_local_fabrics(int size) {
  require(size >= 1, "{} ranks asked for; at least 1 is needed", size);
  const auto hub = std::make_shared<LocalHub>(size);
  std::vector<std::shared_ptr<LocalFabric>> fabrics;
  for (int rank = 0; rank < size; ++rank) {
    fabrics.push_back(std::make_shared<LocalFabric>(hub, rank));
  }
  return fabrics;
}

}  // namespace tetra
