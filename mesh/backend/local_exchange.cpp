#include "mesh/backend/local_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/error.h"
#include "mesh/backend/ordered_reduce.h"
#include "mesh/backend/stream_copy.h"
#include "mesh/slice.h"

namespace tetra {
namespace {

// Large enough that claiming a piece costs nothing, small enough that ranks which come late find some left.
constexpr int64_t kPieceBytes = 256 << 10;
// What is copied to, or added up for, all ranks in one go: it stays in the second-level cache.
constexpr int64_t kBlockBytes = 8 << 10;
// Operations on more bytes than this would drive all else out of the caches.
constexpr int64_t kStreamBytes = 24 << 20;

const char* operation_name(LocalOperation operation) {
  switch (operation) {
    case LocalOperation::all_reduce:
      return "all_reduce";
    case LocalOperation::all_gather:
      return "all_gather";
    case LocalOperation::reduce_scatter:
      return "reduce_scatter";
    case LocalOperation::all_to_all:
      return "all_to_all";
    case LocalOperation::broadcast:
      return "broadcast";
    case LocalOperation::barrier:
      return "barrier";
    case LocalOperation::message:
      return "message";
  }
  return "?";
}

const char* reduce_name(ReduceOp op) {
  return op == ReduceOp::sum ? "sum" : op == ReduceOp::max ? "max" : "min";
}

const char* bytes_at(const void* base, int64_t offset) {
  return static_cast<const char*>(base) + offset;
}
char* bytes_at(void* base, int64_t offset) {
  return static_cast<char*>(base) + offset;
}

std::string rank_list(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace

Exchange::Exchange(std::vector<int> ranks)
    : ranks_(std::move(ranks)),
      contributions_(ranks_.size()),
      present_(ranks_.size(), false),
      missing_(static_cast<int>(ranks_.size())),
      todo_(new Todo[ranks_.size()]) {}

bool Exchange::add(int party, Contribution contribution) {
  if (missing_ == size()) {
    first_ = party;
  }
  contributions_[static_cast<size_t>(party)] = std::move(contribution);
  present_[static_cast<size_t>(party)] = true;
  return --missing_ == 0;
}

std::string Exchange::title() const {
  const Contribution& c = contributions_[static_cast<size_t>(first_)];
  return fmt::format("{}{}", c.name.empty() ? operation_name(c.operation) : c.name,
                     c.site.empty() ? "" : " '" + c.site + "'");
}

std::string Exchange::group() const {
  return contributions_[static_cast<size_t>(first_)].group;
}

std::string Exchange::attendance() const {
  std::vector<int> came;
  std::vector<int> absent;
  for (int party = 0; party < size(); ++party) {
    (has(party) ? came : absent).push_back(ranks_[static_cast<size_t>(party)]);
  }
  std::string text = rank_list(came) + " came";
  if (!absent.empty()) {
    text += "; " + rank_list(absent) + " did not";
  }
  if (withdrawn >= 0) {
    text += fmt::format("; rank {} gave up because of an exception", ranks_[static_cast<size_t>(withdrawn)]);
  }
  return text;
}

std::vector<c10::Storage> Exchange::release() {
  std::vector<c10::Storage> kept;
  for (Contribution& c : contributions_) {
    std::move(c.keep.begin(), c.keep.end(), std::back_inserter(kept));
    c.keep.clear();
  }
  return kept;
}

std::string Exchange::describe(int party) const {
  const Contribution& c = contributions_[static_cast<size_t>(party)];
  std::string text = fmt::format("rank {}: {}", ranks_[static_cast<size_t>(party)],
                                 c.name.empty() ? operation_name(c.operation) : c.name);
  if (c.operation == LocalOperation::all_reduce || c.operation == LocalOperation::reduce_scatter) {
    text += fmt::format("({})", reduce_name(c.reduce));
  }
  if (c.operation == LocalOperation::broadcast) {
    text += fmt::format("(root {})", c.root);
  }
  if (!c.site.empty()) {
    text += fmt::format(" '{}'", c.site);
  }
  text += fmt::format(" of group {}", c.group);
  if (c.operation == LocalOperation::barrier) {
    return text;
  }
  text += fmt::format(" {} in {} out {}", c10::toString(c.type), c.in_count, c.out_count);
  if (c.operation == LocalOperation::all_to_all) {
    text += fmt::format(" in_splits [{}] out_splits [{}]", fmt::join(c.in_splits, ", "), fmt::join(c.out_splits, ", "));
  }
  return text;
}

std::string Exchange::mismatch() const {
  bool same = true;
  const Contribution& first = contributions_.front();
  for (size_t p = 0; p < contributions_.size(); ++p) {
    const Contribution& c = contributions_[p];
    same = same && c.operation == first.operation && c.type == first.type && c.reduce == first.reduce &&
           c.root == first.root;
    if (!same) {
      break;
    }
    if (c.operation != LocalOperation::all_to_all) {
      same = c.in_count == first.in_count && c.out_count == first.out_count;
      continue;
    }
    for (size_t q = 0; q < contributions_.size(); ++q) {
      same = same && c.in_splits[q] == contributions_[q].out_splits[p];
    }
  }
  if (same) {
    return {};
  }
  std::vector<std::string> all;
  for (int party = 0; party < size(); ++party) {
    all.push_back(describe(party));
  }
  return fmt::format("ranks {} make different calls: {}", fmt::join(ranks_, ", "), fmt::join(all, "; "));
}

std::string Exchange::prepare() {
  std::string error_text = mismatch();
  if (error_text.empty()) {
    cut();
  }
  return error_text;
}

void Exchange::cut() {
  const Contribution& c = contributions_.front();
  element_size_ = static_cast<int64_t>(c10::elementSize(c.type));
  const int64_t n = size();
  int64_t bytes_per_element = element_size_ * (n + 1);  // of an owner's range: read and written
  for (int64_t party = 0; party < n; ++party) {
    Todo& todo = todo_[static_cast<size_t>(party)];
    switch (c.operation) {
      case LocalOperation::all_reduce:
      case LocalOperation::broadcast: {
        const Range range = even_range(c.in_count, n, party);
        todo.begin = range.begin;
        todo.end = range.end;
        break;
      }
      case LocalOperation::all_gather:
        todo.end = c.in_count;
        break;
      case LocalOperation::reduce_scatter:
        todo.end = c.out_count;
        break;
      case LocalOperation::all_to_all:
        todo.end = contributions_[static_cast<size_t>(party)].out_count;
        bytes_per_element = 2 * element_size_;
        break;
      case LocalOperation::message:  // the second party receives
        todo.end = party == 1 ? c.in_count : 0;
        bytes_per_element = 2 * element_size_;
        break;
      case LocalOperation::barrier:
        break;
    }
    const int64_t bytes = (todo.end - todo.begin) * bytes_per_element;
    todo.pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
    total_ += todo.pieces;
    work_bytes_ += bytes;
  }
  streaming_ = work_bytes_ > kStreamBytes;
}

void Exchange::copy(void* to, const void* from, int64_t bytes) const {
  if (to == from) {
    return;  // a gather in place has its own part there already
  }
  if (streaming_) {
    stream_copy(to, from, bytes);
  } else {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

bool Exchange::has_piece(int owner) const {
  const Todo& todo = todo_[static_cast<size_t>(owner)];
  return todo.next.load(std::memory_order_relaxed) < todo.pieces;
}

bool Exchange::has_piece() const {
  for (int owner = 0; owner < size(); ++owner) {
    if (has_piece(owner)) {
      return true;
    }
  }
  return false;
}

void Exchange::work_on(int owner) {
  Todo& todo = todo_[static_cast<size_t>(owner)];
  while (has_piece(owner) && !stopped.load(std::memory_order_relaxed)) {
    const int64_t piece = todo.next.fetch_add(1, std::memory_order_relaxed);
    if (piece >= todo.pieces) {
      return;
    }
    const Range range = even_range(todo.end - todo.begin, todo.pieces, piece);
    run_piece(owner, todo.begin + range.begin, todo.begin + range.end);
    if (streaming_) {
      finish_streaming();
    }
    done_.fetch_add(1, std::memory_order_acq_rel);
  }
}

void Exchange::work_on_all(int first) {
  for (int i = 0; i < size(); ++i) {
    work_on((first + i) % size());
  }
}

void Exchange::run_piece(int owner, int64_t begin, int64_t end) {
  switch (contributions_.front().operation) {
    case LocalOperation::all_reduce:
      return reduce_everywhere(begin, end);
    case LocalOperation::all_gather:
      return gather_from(owner, begin, end);
    case LocalOperation::reduce_scatter:
      return scatter_sum_to(owner, begin, end);
    case LocalOperation::all_to_all:
      return collect_for(owner, begin, end);
    case LocalOperation::broadcast:
      return spread_from_root(begin, end);
    case LocalOperation::message: {
      const int64_t offset = begin * element_size_;
      copy(bytes_at(contributions_[1].out, offset), bytes_at(contributions_[0].in, offset),
           (end - begin) * element_size_);
      return;
    }
    case LocalOperation::barrier:
      return;
  }
}

// Block by block, so that the sum is in the cache when it is written to all ranks.
void Exchange::reduce_everywhere(int64_t begin, int64_t end) {
  const Contribution& c = contributions_.front();
  const int64_t block = kBlockBytes / element_size_;
  alignas(64) char sum[kBlockBytes];
  std::vector<const void*> inputs(contributions_.size());
  for (int64_t at = begin; at < end; at += block) {
    const int64_t count = std::min(block, end - at);
    const int64_t offset = at * element_size_;
    for (size_t r = 0; r < inputs.size(); ++r) {
      inputs[r] = bytes_at(contributions_[r].in, offset);
    }
    ordered_reduce(sum, inputs, count, c.type, c.reduce);
    for (const Contribution& to : contributions_) {  // whose blocks are in the cache: they were just read
      std::memcpy(bytes_at(to.out, offset), sum, static_cast<size_t>(count * element_size_));
    }
  }
}

// Reads a block of the source once and writes it to every rank.
void Exchange::gather_from(int source, int64_t begin, int64_t end) {
  const Contribution& from = contributions_[static_cast<size_t>(source)];
  const int64_t base = source * from.in_count * element_size_;
  for (int64_t at = begin * element_size_; at < end * element_size_; at += kBlockBytes) {
    const int64_t bytes = std::min(kBlockBytes, end * element_size_ - at);
    for (const Contribution& to : contributions_) {
      copy(bytes_at(to.out, base + at), bytes_at(from.in, at), bytes);
    }
  }
}

void Exchange::scatter_sum_to(int target, int64_t begin, int64_t end) {
  const Contribution& to = contributions_[static_cast<size_t>(target)];
  const int64_t base = target * to.out_count;
  const int64_t block = kBlockBytes / element_size_;
  alignas(64) char sum[kBlockBytes];
  std::vector<const void*> inputs(contributions_.size());
  for (int64_t at = begin; at < end; at += block) {
    const int64_t count = std::min(block, end - at);
    for (size_t r = 0; r < inputs.size(); ++r) {
      inputs[r] = bytes_at(contributions_[r].in, (base + at) * element_size_);
    }
    ordered_reduce(sum, inputs, count, to.type, to.reduce);
    copy(bytes_at(to.out, at * element_size_), sum, count * element_size_);
  }
}

// Elements [begin, end) of `target`'s output, which may come from several ranks.
void Exchange::collect_for(int target, int64_t begin, int64_t end) {
  const Contribution& to = contributions_[static_cast<size_t>(target)];
  int64_t out_offset = 0;
  for (size_t source = 0; source < contributions_.size(); ++source) {
    const Contribution& from = contributions_[source];
    const int64_t length = to.out_splits[source];
    const int64_t low = std::max(begin, out_offset);
    const int64_t high = std::min(end, out_offset + length);
    if (low < high) {
      int64_t in_offset = low - out_offset;
      for (int earlier = 0; earlier < target; ++earlier) {
        in_offset += from.in_splits[static_cast<size_t>(earlier)];
      }
      copy(bytes_at(to.out, low * element_size_), bytes_at(from.in, in_offset * element_size_),
           (high - low) * element_size_);
    }
    out_offset += length;
  }
}

void Exchange::spread_from_root(int64_t begin, int64_t end) {
  const auto root = static_cast<size_t>(contributions_.front().root);
  for (int64_t at = begin * element_size_; at < end * element_size_; at += kBlockBytes) {
    const int64_t bytes = std::min(kBlockBytes, end * element_size_ - at);
    for (size_t r = 0; r < contributions_.size(); ++r) {
      if (r != root) {
        copy(bytes_at(contributions_[r].out, at), bytes_at(contributions_[root].in, at), bytes);
      }
    }
  }
}

}  // namespace tetra
