#pragma once
// The backend whose ranks are threads of one process: collectives read and write each other's tensors, waits block.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mesh/fabric.h"

namespace tetra {

class LocalHub;

class LocalFabric : public Fabric {
 public:
  LocalFabric(std::shared_ptr<LocalHub> hub, int rank);
  ~LocalFabric() override;

  std::string name() const override { return "local"; }
  int rank() const override { return rank_; }
  int size() const override;
  int local_rank() const override { return rank_; }
  int local_size() const override { return size(); }

  c10::intrusive_ptr<c10d::Backend> make_group(const std::vector<int>& ranks, const std::string& name,
                                               std::chrono::milliseconds timeout) override;
  /// The first message stays: what ranks throw because of it is not a failure of theirs.
  void abort(const std::string& message) noexcept override;
  /// That message, if there is one.
  std::optional<std::string> failure() const;

 private:
  std::shared_ptr<LocalHub> hub_;
  int rank_;
  std::vector<std::pair<std::vector<int>, int>> rounds_;  // groups made so far for each set of ranks
};

/// One fabric for each of `size` rank threads.
std::vector<std::shared_ptr<LocalFabric>> make_local_fabrics(int size);

}  // namespace tetra
