#include "mesh/fingerprint.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "kernels/error.h"
#include "mesh/group.h"

namespace tetra {
namespace {

constexpr size_t kTextBytes = 500;

// Of fixed size, so that ranks which make different calls still meet in one and the same exchange.
struct Fingerprint {
  uint64_t hash;  // of the whole text, which may be cut below
  uint32_t length;
  char text[kTextBytes];
};

Fingerprint fingerprint(const std::string& text) {
  Fingerprint f{};
  f.hash = 0xcbf29ce484222325u;
  for (char c : text) {
    f.hash = (f.hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  f.length = static_cast<uint32_t>(std::min(text.size(), kTextBytes));
  std::memcpy(f.text, text.data(), f.length);
  return f;
}

template <typename T>
std::vector<T> gather(const Group& group, const std::vector<T>& own) {
  const auto bytes = static_cast<int64_t>(own.size() * sizeof(T));
  at::Tensor in = at::empty({bytes}, at::kByte);
  at::Tensor out = at::empty({bytes * group.size()}, at::kByte);
  std::memcpy(in.data_ptr(), own.data(), static_cast<size_t>(bytes));
  group.backend()->_allgather_base(out, in, c10d::AllgatherOptions())->wait();
  std::vector<T> all(own.size() * static_cast<size_t>(group.size()));
  std::memcpy(all.data(), out.data_ptr(), all.size() * sizeof(T));
  return all;
}

}  // namespace

void compare_fingerprints(const Group& group, const std::string& text) {
  const std::vector<Fingerprint> all = gather(group, std::vector<Fingerprint>{fingerprint(text)});
  const auto same = [&](const Fingerprint& f) { return f.hash == all.front().hash; };
  if (std::all_of(all.begin(), all.end(), same)) {
    return;
  }
  std::vector<std::string> lines;
  for (size_t r = 0; r < all.size(); ++r) {
    lines.push_back(fmt::format("rank {}: {}", group.ranks()[r], std::string(all[r].text, all[r].length)));
  }
  fail("ranks {} make different calls: {}", fmt::join(group.ranks(), ", "), fmt::join(lines, "; "));
}

void compare_splits(const Group& group, const std::string& text, const std::vector<int64_t>& in_splits,
                    const std::vector<int64_t>& out_splits) {
  std::vector<int64_t> own = in_splits;
  own.insert(own.end(), out_splits.begin(), out_splits.end());
  const std::vector<int64_t> all = gather(group, own);
  const auto n = static_cast<size_t>(group.size());
  const auto sent = [&](size_t from, size_t to) { return all[2 * n * from + to]; };
  const auto expected = [&](size_t from, size_t to) { return all[2 * n * to + n + from]; };
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) {
      require(sent(from, to) == expected(from, to),
              "the splits of group {} do not fit in {}: rank {} sends {} elements to rank {}, which expects {}",
              group.name(), text, group.ranks()[from], sent(from, to), group.ranks()[to], expected(from, to));
    }
  }
}

}  // namespace tetra
